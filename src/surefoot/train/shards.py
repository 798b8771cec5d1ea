"""Captured text on disk: shards of whole documents, tokens and the target's activations side by side.

A shard is one safetensors file, written whole and renamed into place, so a killed capture leaves no half of one:

    tokens    [N] int32     all documents, one behind the other
    starts    [D] int64     offset of each document
    answers   [D] int64     offset, in the whole file, of the first token that is the target's own
    hidden.l  [N, H] float16  activations of tap l where the target had read the token; a captured document's last token
                              it has not read, and the row before is there again

``set.json`` says of which target, with which settings and seed, the shards are; capture goes on only with the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import BadRequest, ModelNotFound

FACTS_FILE = "set.json"
_PATTERN = "shard-*.safetensors"
_MOST = 65504.0


@dataclass(frozen=True, slots=True)
class Document:
    """tokens [n] int32; ``answer``: place of the first token of the target's own; hidden: tap -> [n, H] float16."""

    tokens: Tensor
    answer: int
    hidden: Mapping[int, Tensor]


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def documents_in(path: Path) -> int:
    """Documents of a shard; 0 where there is none, or a damaged one."""
    try:
        with safe_open(path, "pt") as file:
            return int(file.get_slice("starts").get_shape()[0])
    except (SafetensorError, OSError):
        return 0


def write_shard(folder: Path, number: int, documents: Sequence[Document]) -> Path:
    """Raises :class:`OSError` (a full disk) with nothing left behind."""
    sizes = [len(d.tokens) for d in documents]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    data = {
        "tokens": torch.cat([d.tokens for d in documents]).to(torch.int32),
        "starts": torch.tensor(starts),
        "answers": torch.tensor([start + d.answer for start, d in zip(starts, documents, strict=True)]),
    }
    for tap in documents[0].hidden:
        # residual streams may hold a few numbers that float16 cannot
        data[f"hidden.{tap}"] = torch.cat([d.hidden[tap] for d in documents]).clamp(-_MOST, _MOST).to(torch.float16)
    place = shard_path(folder, number)
    staging = place.with_suffix(".part")
    try:
        save_file(data, staging)
        staging.replace(place)
    except BaseException as error:
        staging.unlink(missing_ok=True)
        if isinstance(error, SafetensorError):  # it wraps what the system said
            raise OSError(str(error)) from None
        raise
    return place


class Shards:
    """The documents of a folder, in order, read when they are asked for. ``facts``: what ``set.json`` says."""

    def __init__(self, folder: Path) -> None:
        try:
            self.facts: dict[str, Any] = json.loads((folder / FACTS_FILE).read_text("utf-8"))
        except FileNotFoundError:
            raise ModelNotFound(f"{folder} holds no captured text ({FACTS_FILE} is missing); run the capture first") from None
        except ValueError:
            self.facts = {}
        if not isinstance(self.facts, dict) or not self.facts:
            raise BadRequest(f"{folder / FACTS_FILE} is damaged; delete the folder and capture again")
        self._files: list[Any] = []
        self.taps: tuple[int, ...] = ()
        self._index: list[tuple[int, int, int, int]] = []
        """File, begin, end and answer of each document."""
        for path in sorted(folder.glob(_PATTERN)):
            try:
                file = safe_open(path, "pt")
                starts, answers = file.get_tensor("starts").tolist(), file.get_tensor("answers").tolist()
                ends = [*starts[1:], file.get_slice("tokens").get_shape()[0]]
            except (SafetensorError, OSError) as error:
                raise BadRequest(f"{path} is damaged ({error}); delete it and capture again") from None
            self._index += [(len(self._files), *each) for each in zip(starts, ends, answers, strict=True)]
            self._files.append(file)
            taps = tuple(sorted(int(name.split(".")[1]) for name in file.keys() if name.startswith("hidden.")))  # noqa: SIM118
            if len(self._files) > 1 and taps != self.taps:
                raise BadRequest(
                    f"{path} has other taps ({taps}) than the shards before it ({self.taps}); delete it and capture again"
                )
            self.taps = taps

    def __len__(self) -> int:
        return len(self._index)

    def size(self, i: int) -> int:
        """Tokens of document i."""
        _, begin, end, _ = self._index[i]
        return end - begin

    def answer(self, i: int) -> int:
        """Place in document i of the first token that is the target's own."""
        _, begin, _, answer = self._index[i]
        return answer - begin

    def document(self, i: int, taps: Sequence[int] = (), begin: int = 0, end: int | None = None) -> Document:
        """Document i, or the window [begin, end) of it, with the activations of these taps."""
        number, start, stop, answer = self._index[i]
        lo, hi = start + begin, stop if end is None else min(start + end, stop)
        file = self._files[number]
        tokens = file.get_slice("tokens")[lo:hi]
        hidden = {tap: file.get_slice(f"hidden.{tap}")[lo:hi] for tap in taps}
        return Document(tokens, max(0, min(answer, hi) - lo), hidden)
