"""Which passes agree bit for bit? The probe scores the same random tokens in many shapes and compares the logits.

A *class* is (least nodes of a row, masked everywhere or only for trees). Classes are tried from cheap to dear; the first in
which every case agrees with that class's own reference is the answer. A class is left at its first case that differs.
``difference`` names each case of the answer, and for the classes that failed the case at which they did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...core.protocols import InvarianceReport, Need, Slot
from ...core.tree import DraftTree, Forest

if TYPE_CHECKING:
    from .model import OpenVINOModel

CONTEXTS = (40, 300)
WIDTHS = (1, 2, 3, 4, 8, 16)
TAIL = 16
_SPARE = 640
"""Tokens of the pool that the paths of the tree may take."""
CLASSES = ((1, False), (2, False), (1, True), (2, True), (4, False), (4, True))


@dataclass(frozen=True, slots=True)
class _Bench:
    """The model, one class of passes, and the tokens that every case scores."""

    model: OpenVINOModel
    width: int
    tail: list[int]

    def score(self, slots: list[Slot], trees: list[DraftTree], wanted: bool = True) -> Tensor:
        forest = Forest.pack(trees, wanted=[wanted] * len(trees), min_width=self.width)
        return self.model.score(slots, forest, Need()).logits.clone()

    def prefill(self, tokens: list[int], chunk: int) -> Slot:
        [slot] = self.model.open(1)
        for i in range(0, len(tokens), chunk):
            part = tokens[i : i + chunk]
            self.score([slot], [DraftTree.chain(part)], wanted=False)
            self.model.commit([slot], [range(len(part))])
        return slot

    def steps(self, slot: Slot, width: int, beside: Slot | None = None) -> Tensor:
        """Logits of the tail, ``width`` tokens a pass, on a fork of ``slot``; a one-token row of ``beside`` goes along."""
        fork = self.model.fork(slot)
        out = []
        for i in range(0, len(self.tail), width):
            part = self.tail[i : i + width]
            slots, trees = [fork], [DraftTree.chain(part)]
            if beside is not None:
                slots, trees = [beside, fork], [DraftTree.chain(self.tail[:1]), trees[0]]
            out.append(self.score(slots, trees)[-len(part) :])
            self.model.commit([fork], [range(len(part))])
        self.model.close([fork])
        return torch.cat(out)


def probe(model: OpenVINOModel) -> InvarianceReport:
    """Run the probe; the model is left in the class that it was in."""
    before, steady = model.passes(), model.steady
    model.steady = False  # padding would hide the widths
    generator = torch.Generator().manual_seed(0)
    room = min(model.traits.max_context - TAIL - 1, (model.traits.capacity - _SPARE) // 3)
    contexts = sorted({max(1, min(n, room)) for n in (*CONTEXTS, *([model.window + TAIL] if model.window else []))})
    tail = _tokens(generator, model, min(TAIL, model.traits.max_context // 2))
    texts = [_tokens(generator, model, n) for n in contexts]
    difference: dict[str, float] = {}
    best: tuple[float, int, bool] | None = None
    try:
        for width, masked in CLASSES:
            model.set_passes(width, masked)
            found: dict[str, float] = {}
            for name, worst in _cases(_Bench(model, width, tail), texts):
                found[name] = worst
                if worst > 0:
                    break
            else:
                return InvarianceReport(model.can_be_exact, width, masked, {**difference, **found})
            label = f"rows of {width}, {'masked' if masked else 'causal'}"
            difference |= {f"{label}: {name}": worst for name, worst in found.items() if worst > 0}
            worst = max(found.values())
            if best is None or worst < best[0]:
                best = (worst, width, masked)
    finally:
        model.set_passes(*before)
        model.steady = steady
    _, width, masked = best or (0.0, 2, False)
    return InvarianceReport(False, width, masked, difference)


def _cases(bench: _Bench, texts: list[list[int]]) -> Iterator[tuple[str, float]]:
    """Name and largest difference of each case, the cases most likely to differ first."""
    model, tail = bench.model, bench.tail
    for text in texts:
        here = f"context {len(text)}"
        slot = bench.prefill(text, 256)
        other = bench.prefill(text[: max(1, len(text) // 3)], 256)
        opened = [slot, other]
        try:
            whole = bench.score([slot], [DraftTree.chain(tail)])
            yield f"{here}: rows of 1", _apart(bench.steps(slot, 1), whole)
            yield from ((f"{here}: {n}", d) for n, d in _trees(bench, slot, whole))
            for width in WIDTHS[1:-1]:
                yield f"{here}: rows of {width}", _apart(bench.steps(slot, width), whole)
            yield f"{here}: beside a narrow row", _apart(bench.steps(slot, 8, other), whole)
            wide = bench.score([other, slot], [DraftTree.chain(tail), DraftTree.chain(tail[:1])])
            yield f"{here}: single row beside a wide one", _apart(wide[-1:], whole[:1])
            narrow = bench.score([slot, other], [DraftTree.chain(tail[:1])] * 2)
            yield f"{here}: single row beside a single one", _apart(narrow[:1], whole[:1])
            for chunk in (7, 32) if len(text) < 100 else (48,):
                chunked = bench.prefill(text, chunk)
                opened.append(chunked)
                worst = _apart(bench.score([chunked], [DraftTree.chain(tail)]), whole)
                model.close([chunked])
                yield f"{here}: prefill in chunks of {chunk}", worst
        finally:
            model.close(opened)


def _trees(bench: _Bench, slot: Slot, whole: Tensor) -> Iterator[tuple[str, float]]:
    """A chain with siblings in between, alone; then its committed path."""
    model, tail = bench.model, bench.tail
    depth = min(6, len(tail) - 1)
    tokens, parents, path = [tail[0]], [-1], [0]
    for i in range(1, depth):
        tokens += [(tail[i] + 1) % model.traits.vocab_size, tail[i]]
        parents += [path[-1]] * 2
        path.append(len(tokens) - 1)
    tree = DraftTree(torch.tensor(tokens), torch.tensor(parents), None, torch.zeros(len(tokens), dtype=torch.int16))
    fork = model.fork(slot)
    try:
        yield "tree with siblings", _apart(bench.score([fork], [tree])[path], whole[:depth])
        model.commit([fork], [path])
        rest = bench.score([fork], [DraftTree.chain(tail[depth:])])
        yield "after a committed tree path", _apart(rest, whole[depth:])
    finally:
        model.close([fork])


def _tokens(generator: torch.Generator, model: OpenVINOModel, n: int) -> list[int]:
    return torch.randint(0, model.traits.vocab_size, (n,), generator=generator).tolist()


def _apart(a: Tensor, b: Tensor) -> float:
    """Largest difference; bitwise equal tensors are 0 apart, and NaN is infinitely far from everything."""
    if torch.equal(a, b):
        return 0.0
    worst = float((a.double() - b.double()).abs().max())
    return worst if worst == worst else float("inf")
