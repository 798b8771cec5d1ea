"""From a folder to documents: text files by way of a tokenizer, and files that hold tokens already.

``*.npy`` is one document, a one-dimensional array of ids. ``*.jsonl`` has a document a line: a list of ids, or an object
with ``"tokens"`` (such a list) or ``"text"``. Every other file is a document of UTF-8 text; CR LF becomes LF. Whatever is
left out is told, with the reason; ids that the tokenizer does not have are an error.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import BadRequest
from .datastore_build import Ints
from .datastore_format import is_datastore

_CHUNK = 1 << 20
"""Characters that are tokenized at once; the next line end closes the chunk."""

_LONG = 16 << 20
"""Bytes that take long enough to tell of progress."""

Tell = Callable[[str, int, int | None], None]
"""``tell(label, bytes done, total)``."""


class Encoder(Protocol):
    """As much of a codec as building needs."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, special: bool = True) -> list[int]: ...


@dataclass(slots=True)
class Corpus:
    """What was found. ``skipped``: (file, reason)."""

    documents: list[Ints] = field(default_factory=list)
    tokens: int = 0
    files: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    unmatched: int = 0
    """Files whose names the pattern does not match."""


class _Skip(Exception):
    """Why a file is left out."""


class _Full(Exception):
    """No room for more tokens."""


def gather(
    folder: str | os.PathLike[str], codec: Encoder, glob: str = "*", most: int | None = None, tell: Tell | None = None
) -> Corpus:
    """The documents of a folder, in the order of their paths; ``glob`` is matched against name and path below the folder.

    At ``most`` tokens the file being read is cut, and those behind it are left out.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise BadRequest(f"{root} {what}; give a folder of text files (or of .npy and .jsonl files with token ids)")
    if most is not None and most < 2:
        raise BadRequest(f"--max-tokens={most} leaves nothing to retrieve; give a whole number from 2 up")
    corpus = Corpus()
    read = 0
    for name in list(_names(root, glob, corpus)):
        if tell is not None and read > _LONG:
            tell(f"reading {root}", read, None)
        if most is not None and corpus.tokens >= most:
            corpus.skipped.append((name, f"beyond --max-tokens ({most})"))
            continue
        try:
            read += (root / name).stat().st_size
            found, cut = _documents(root / name, name, codec, None if most is None else most - corpus.tokens)
        except _Skip as why:
            corpus.skipped.append((name, str(why)))
            continue
        except OSError as error:
            corpus.skipped.append((name, f"cannot be read ({error.strerror or error})"))
            continue
        size = sum(map(len, found))
        if not size:
            corpus.skipped.append((name, "empty"))
            continue
        if cut:
            corpus.skipped.append((name, f"only its first {size} tokens were taken: --max-tokens ({most}) was reached"))
        corpus.documents += [document for document in found if len(document)]
        corpus.tokens += size
        corpus.files += 1
    return corpus


def _names(root: Path, glob: str, corpus: Corpus) -> Iterator[str]:
    """Paths below ``root`` to read; hidden folders and files are told as left out."""

    def unreadable(error: OSError) -> None:
        name = os.path.relpath(error.filename, root) if error.filename else "."
        corpus.skipped.append((name, f"folder cannot be listed ({error.strerror})"))

    for at, folders, files in os.walk(root, onerror=unreadable):
        here = Path(at).relative_to(root)
        for hidden in sorted(name for name in folders if name.startswith(".")):
            corpus.skipped.append(((here / hidden).as_posix() + "/", "hidden folder"))
        for linked in sorted(name for name in folders if not name.startswith(".") and (Path(at) / name).is_symlink()):
            corpus.skipped.append(((here / linked).as_posix() + "/", "link to a folder"))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in sorted(files):
            name = (here / file).as_posix()
            if file.startswith("."):
                corpus.skipped.append((name, "hidden file"))
            elif fnmatch(file, glob) or fnmatch(name, glob):
                yield name
            else:
                corpus.unmatched += 1


def _documents(path: Path, name: str, codec: Encoder, room: int | None) -> tuple[list[Ints], bool]:
    """The documents of a file, together at most ``room`` tokens, and whether it has more."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise _Skip("not a regular file")
    if is_datastore(path):
        raise _Skip("a datastore")
    suffix = path.suffix.lower()
    source = _array(path) if suffix == ".npy" else _lines(path, codec) if suffix == ".jsonl" else _text(path, codec)
    documents: list[Ints] = []
    parts: list[Ints] = []
    cut = False
    for ids in source:
        if ids is None:
            documents.append(_whole(parts))
            parts = []
            continue
        part = _checked(ids, name, codec.vocab_size)
        cut = room is not None and len(part) > room
        parts.append(part[:room])
        if cut:
            break
        room = room - len(part) if room is not None else None
    return [*documents, _whole(parts)], cut


def _whole(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _checked(ids: Any, name: str, vocab_size: int) -> Ints:
    array = np.asarray(ids, np.int64) if isinstance(ids, list) else ids
    if len(array):
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= vocab_size:
            raise BadRequest(
                f"{name}: token id {low if low < 0 else high} is not in the vocabulary (0 to {vocab_size - 1}); "
                "give tokens of the model's own tokenizer, or the text"
            )
    return np.asarray(array, np.int32)


def _text(path: Path, codec: Encoder) -> Iterator[list[int]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            while piece := file.read(_CHUNK):
                piece += file.readline()
                if "\0" in piece:
                    raise _Skip("not text (it holds zero bytes)")
                yield codec.encode(piece, special=False)
    except UnicodeDecodeError:
        raise _Skip("not UTF-8 text") from None


def _array(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as file:
            array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _Skip(f"not a readable .npy file ({str(error)[:80]})") from None
    if not isinstance(array, np.ndarray):
        raise _Skip("an archive of arrays; give .npy files")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _Skip(f"an array of {array.dtype} with {array.ndim} dimensions; one dimension of integers is needed")
    yield array


def _lines(path: Path, codec: Encoder) -> Iterator[list[int] | None]:
    """The ids of each line, and ``None`` behind each."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    raise _Skip(f"line {number} is not JSON") from None
                if isinstance(value, dict):
                    value = value.get("tokens", value.get("text"))
                if isinstance(value, str):
                    value = codec.encode(value, special=False)
                if not isinstance(value, list) or not all(type(i) is int and abs(i) < 1 << 62 for i in value):
                    raise _Skip(f'line {number} is neither a list of token ids nor an object with "tokens" or "text"')
                yield value
                yield None
    except UnicodeDecodeError:
        raise _Skip("not UTF-8 text") from None
