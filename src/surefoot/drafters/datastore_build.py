"""Writing a datastore: token texts are sorted by context, and the file appears whole or not at all.

Sorting doubles what is told apart: first the last two tokens of each context, then 4, 8, ... :data:`DEPTH` of them, each
time only within groups that are still equal. Beyond that, and behind the start of a document, the order is that of
position. Memory: about 65 bytes a token at the peak.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BackendError, BadRequest
from .datastore_format import BREAK, DEPTH, ITEM, Header, is_datastore

Ints = NDArray[np.int32]

MOST = 2**31 - 2
"""Positions are 32-bit numbers."""


@dataclass(frozen=True, slots=True)
class Built:
    """A store that was written."""

    path: Path
    header: Header


def join(documents: list[Ints]) -> Ints:
    """The documents' tokens with a :data:`BREAK` before, between and behind them."""
    gap = np.full(1, BREAK, np.int32)
    return np.concatenate([gap, *(part for document in documents for part in (document, gap))], dtype=np.int32)


def sort_places(text: Ints, depth: int = DEPTH) -> Ints:
    """The places of ``text``, which begins and ends with :data:`BREAK`, by their contexts read backwards."""
    ends = np.flatnonzero(text >= 0).astype(np.int32)  # last tokens of contexts
    key = _pair(text[ends] + 1, text[ends - 1] + 1)
    by = np.argsort(key)
    ends, key = ends[by], key[by]
    del by
    first = _begins(key)
    del key
    rank = np.zeros(len(text), np.int32)  # 1 + first entry of the group; a break: 0
    rank[ends] = _group(first, np.arange(len(ends)))
    told = 2
    while told < depth and len(open_ := _open(first)):
        told = _refine(ends, rank, first, open_, told)
    open_ = _open(first)
    if len(open_):
        some = ends[open_]
        ends[open_] = some[np.argsort(_pair(rank[some], some))]
    return (ends[text[ends + 1] >= 0] + 1).astype(np.int32)


def _refine(ends: Ints, rank: Ints, first: NDArray[np.bool_], open_: NDArray[np.int64], told: int) -> int:
    """Sort the open groups by the next ``told`` tokens, given that they are equal in the last ``told``; in place."""
    some = ends[open_]
    before = some - told
    key = _pair(rank[some], np.where(before >= 0, rank[np.maximum(before, 0)], 0))
    by = np.argsort(key)
    some, key = some[by], key[by]
    ends[open_] = some
    first[open_] = _begins(key)  # a group's first entry stays first of its group
    rank[some] = _group(first[open_], open_)
    return 2 * told


def _pair(high: Ints, low: Ints) -> NDArray[np.int64]:
    return (high.astype(np.int64) << 32) | low


def _begins(key: NDArray[np.int64]) -> NDArray[np.bool_]:
    first = np.ones(len(key), np.bool_)
    np.not_equal(key[1:], key[:-1], out=first[1:])
    return first


def _group(first: NDArray[np.bool_], entry: NDArray[np.int64]) -> Ints:
    return (np.maximum.accumulate(np.where(first, entry, 0)) + 1).astype(np.int32)


def _open(first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Entries of groups of two or more."""
    alone = first.copy()
    alone[:-1] &= first[1:]
    return np.flatnonzero(~alone)


def write(
    path: str | os.PathLike[str],
    documents: list[Ints],
    *,
    fingerprint: str,
    vocab_size: int,
    model: str = "MODEL",
    folder: str = "FOLDER",
) -> Built:
    """Sort the documents and write the store; an older store of that name is replaced.

    ``fingerprint`` and ``vocab_size``: of the tokenizer that made the tokens. ``model``, ``folder``: kept for messages.
    """
    place = destination(path)
    tokens = sum(map(len, documents))
    if tokens + len(documents) >= MOST:
        raise BadRequest(f"{tokens} tokens are more than a datastore holds ({MOST}); lower --max-tokens")
    text = join([np.asarray(document, np.int32) for document in documents])
    inside = text[text != BREAK]
    if len(inside) != tokens or (tokens and not (int(inside.min()) >= 0 and int(inside.max()) < vocab_size)):
        raise BadRequest(f"token ids must lie in 0..{vocab_size - 1}; give the tokens of the model's own tokenizer")
    order = sort_places(text) if tokens else np.zeros(0, np.int32)
    if not len(order):
        raise BadRequest("there is no document of two tokens or more; give a folder with text in it")
    counts = np.bincount(text[order - 1], minlength=vocab_size)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    arrays = {"text": text, "order": order, "starts": starts}
    sums = {name: hashlib.sha256(array.data).hexdigest() for name, array in arrays.items()}
    sizes = {name: len(array) for name, array in arrays.items()}
    header = Header(
        fingerprint, vocab_size, tokens, len(documents), sizes["text"], sizes["order"], sizes["starts"], sums, model, folder
    )
    _write(place, header, arrays)
    return Built(place, header)


def destination(path: str | os.PathLike[str]) -> Path:
    """Where a store may be written: a new name, or that of an older store."""
    place = Path(path).expanduser()
    if place.is_dir() or (place.exists() and place.stat().st_size and not is_datastore(place)):
        raise BadRequest(f"{place} exists and is not a datastore; choose another place (--out)")
    return place


def _write(place: Path, header: Header, arrays: dict[str, Any]) -> None:
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                file.write(header.prefixed())
                for name, (at, size) in header.offsets().items():
                    assert size == ITEM * len(arrays[name])
                    file.seek(at)
                    file.write(arrays[name].data)
                file.truncate(header.size)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, place)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
    except OSError as error:
        raise BackendError(f"cannot write {place} ({error.strerror}); free the disk or choose another place (--out)") from error
