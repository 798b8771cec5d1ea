"""How far the provisional tokens of each row have come through a model that is cut into sections.

Section i are the layers between cut i - 1 and cut i. A token that a section has read leaves keys and values there and a stream
behind it; both hold until a commit, or until another token takes its place. So what a drafter ran is run once only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import BadRequest, Unsupported


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens of one row that a section has to read, the first of them ``ahead`` tokens behind the committed ones.

    stream  [n, H] what the section reads; None: it is the first, which reads tokens
    """

    slot: Any
    tokens: Sequence[int]
    ahead: int
    stream: Tensor | None


class Run(Protocol):
    def __call__(self, section: int, works: Sequence[Work]) -> list[Tensor]:
        """Outputs [n, width] of all tokens, row by row; the first is the stream at the cut. They are copied at once."""
        ...


@dataclass(slots=True)
class _Chain:
    """``base``: committed tokens before it. ``outputs[i]``: of section i, each [read, width]; later sections read no more."""

    base: int
    tokens: list[int]
    outputs: list[list[Tensor]] = field(default_factory=list)

    def read(self, section: int) -> int:
        return self.outputs[section][0].shape[0] if section < len(self.outputs) else 0

    def begin(self, tokens: Sequence[int]) -> None:
        """Keep what these tokens have in common with the chain; then they are the chain, unless it goes on beyond them."""
        same = 0
        for ours, theirs in zip(self.tokens, tokens, strict=False):
            if ours != theirs:
                break
            same += 1
        if same == len(tokens):
            return
        if same < len(self.tokens):
            self.outputs = [[x[:same] for x in section] for section in self.outputs] if same else []
        self.tokens = list(tokens)

    def extend(self, section: int, outputs: Sequence[Tensor]) -> None:
        if section == len(self.outputs):
            self.outputs.append([x.clone() for x in outputs])
        else:
            self.outputs[section] = [torch.cat(pair) for pair in zip(self.outputs[section], outputs, strict=True)]


class Progress:
    """``cuts``: layers, rising. A slot must have ``length`` and be told apart by identity."""

    def __init__(self, cuts: Sequence[int]) -> None:
        self.cuts = tuple(cuts)
        self._chains: dict[int, tuple[Any, _Chain]] = {}
        """By identity of the slot, which is kept so that no other can have it."""

    def section(self, layer: int) -> int:
        """The section that ends behind this layer."""
        if not self.cuts:
            raise Unsupported(f"the model was loaded whole; load it with cut={layer} for early exit")
        if layer not in self.cuts:
            raise BadRequest(f"the model is cut behind layers {list(self.cuts)}, not {layer}; load it with cut={layer}")
        return self.cuts.index(layer)

    def ahead(self, slot: Any) -> int:
        """Tokens behind the committed ones that some section has read."""
        chain = self._of(slot)
        return 0 if chain is None else chain.read(0)

    def advance(self, slots: Sequence[Any], chains: Sequence[Sequence[int]], sections: int, run: Run) -> None:
        """Take the tokens of these chains through the first ``sections`` sections, so far as they have not been there."""
        ours = []
        for slot, tokens in zip(slots, chains, strict=True):
            chain = self._of(slot)
            if chain is None:
                chain = _Chain(slot.length, list(tokens))
                self._chains[id(slot)] = slot, chain
            else:
                chain.begin(tokens)
            ours.append(chain)
        for section in range(sections):
            works, rows = [], []
            for slot, chain, tokens in zip(slots, ours, chains, strict=True):
                ahead, end = chain.read(section), len(tokens)
                if ahead < end:
                    stream = chain.outputs[section - 1][0][ahead:end] if section else None
                    works.append(Work(slot, tokens[ahead:end], ahead, stream))
                    rows.append(chain)
            if works:
                sizes = [len(work.tokens) for work in works]
                split = [x.split(sizes) for x in run(section, works)]
                for chain, *outputs in zip(rows, *split, strict=True):
                    chain.extend(section, outputs)

    def outputs(self, slot: Any, section: int) -> list[Tensor]:
        """What the section said of the row's chain so far, each [n, width]."""
        return self._chains[id(slot)][1].outputs[section]

    def at(
        self, slots: Sequence[Any], chains: Sequence[Sequence[int]], section: int, counts: Sequence[int] | None = None
    ) -> Tensor:
        """[sum, H] the stream at the section's end of the last ``counts[b]`` tokens of each chain; None: one of each."""
        ends = [len(chain) for chain in chains]
        if counts is None:
            counts = [1] * len(ends)
        for end, count in zip(ends, counts, strict=True):
            if not 0 < count <= end:
                raise BadRequest(f"counts has {count} for a chain of {end} tokens; give 1..{end}")
        parts = zip(slots, ends, counts, strict=True)
        return torch.cat([self.outputs(slot, section)[0][end - count : end] for slot, end, count in parts])

    def forget(self, slots: Iterable[Any]) -> None:
        """The rows' provisional tokens are gone, or were overwritten."""
        for slot in slots:
            self._chains.pop(id(slot), None)

    def _of(self, slot: Any) -> _Chain | None:
        found = self._chains.get(id(slot))
        return found[1] if found is not None and found[1].base == slot.length else None


def as_cuts(cut: int | Sequence[int] | None) -> tuple[int, ...]:
    """An option ``cut``, rising."""
    if cut is None:
        return ()
    return (cut,) if isinstance(cut, int) else tuple(sorted(set(cut)))
