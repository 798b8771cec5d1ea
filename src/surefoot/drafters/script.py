"""Scripted drafts: right, wrong, or right with a given probability. Public: for tests and for measuring the engine.

The script needs to know the answer: ``truth(row)`` is the row's whole output under plain decoding, as far as known.
Whether the draft at a position is right is a function of (seed, position), so every run offers the same drafts, whatever
others drafted before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.request import Row
from ..core.tree import DraftTree, Forest
from ..errors import BadRequest

_M64 = (1 << 64) - 1


class ScriptDrafter:
    """``accuracy``: 1.0 is an oracle, 0.0 always wrong. ``tree``: beside each node of the chain a wrong sibling."""

    name = "script"
    needs = Need()

    def __init__(
        self,
        truth: Callable[[Row], Sequence[int]] | Mapping[tuple[int, ...], Sequence[int]],
        vocab_size: int,
        *,
        accuracy: float = 1.0,
        tree: bool = False,
        seed: int = 0,
        source: int = 1,
    ) -> None:
        if not 0.0 <= accuracy <= 1.0:
            raise BadRequest(f"accuracy={accuracy!r} is not allowed; give a probability from 0 to 1")
        if vocab_size < 2:
            raise BadRequest("a script needs a vocabulary of two tokens or more, to be able to be wrong")
        self._truth = truth if callable(truth) else lambda row: truth[tuple(row.tokens[: row.n_prompt])]
        self._vocab = vocab_size
        self._accuracy = accuracy
        self._tree = tree
        self._seed = seed
        self.source = source

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._one(row, plan) for row, plan in zip(rows, plans, strict=True)]

    def _one(self, row: Row, plan: Plan) -> DraftTree:
        at = len(row.tokens)
        truth = self._truth(row.base)[at - row.n_prompt : at - row.n_prompt + plan.depth]
        wrong = [(right + 1) % self._vocab for right in truth]
        hits = [_uniform(self._seed, at + i) < self._accuracy for i in range(len(truth))]
        drafted = [right if hit else miss for right, miss, hit in zip(truth, wrong, hits, strict=True)]
        if not self._tree or plan.width < 2:
            return DraftTree.chain([row.tokens[-1], *drafted[: plan.nodes]], source=self.source)
        tokens, parents, node = [row.tokens[-1]], [-1], 0
        for i, token in enumerate(drafted):
            other = wrong[i] if hits[i] else (truth[i] + 2) % self._vocab
            siblings = [token] if other == token else [other, token] if i % 2 == 0 else [token, other]
            if len(tokens) + len(siblings) > plan.nodes + 1:
                break
            first = len(tokens)
            tokens += siblings
            parents += [node] * len(siblings)
            node = first + siblings.index(token)
        source = torch.tensor([0] + [self.source] * (len(tokens) - 1), dtype=torch.int16)
        return DraftTree(torch.tensor(tokens), torch.tensor(parents), None, source)

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None: ...

    def forget(self, rows: Sequence[Row]) -> None: ...


def _uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position): SplitMix64's finalizer. Cheap, since the engine is measured with it."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _M64
    return (x ^ (x >> 31)) / 2.0**64
