"""A trained head as a drafter of its own: chains and trees, greedy or drawn, from what a :class:`~.lane.Lane` says.

What the head says is shaped by each request's options as the target is (:mod:`.draft_law`), and drafts grow level by level
(:mod:`.model_tree`), one step of the head a level for all rows. Tokens that a reduced vocabulary leaves out have no chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.protocols import Plan, Scores, Verdict
from ..core.request import Row
from ..core.tree import DraftTree, Forest
from .draft_law import DraftLaw
from .lane import Lane
from .model_tree import Growing, start


class HeadDrafter:
    """``lane``: the head. ``vocab_size``: the target's; ids from ``known`` on stand for nothing and are never drafted."""

    def __init__(self, lane: Lane, vocab_size: int, *, name: str, known: int | None = None, source: int = 10) -> None:
        self.name, self.source, self.needs = name, source, lane.needs
        self.lane = lane
        self._vocab = vocab_size
        self.known = vocab_size if known is None else min(known, vocab_size)

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        trees = [DraftTree.chain(row.tokens[-1:]) for row in rows]
        growing: dict[int, Growing] = {}
        states: dict[int, dict[int, Any]] = {}
        for i, (row, plan) in enumerate(zip(rows, plans, strict=True)):
            depth = min(plan.depth, plan.nodes, self.lane.depth)
            if depth < 1 or plan.width < 1:
                continue
            root = self.lane.root(row)
            if root is not None:
                growing[i] = start(DraftLaw(row, self._vocab, self.known), replace(plan, depth=depth))
                states[i] = {-1: root}
        while asked := [(i, node) for i, draft in growing.items() for node in draft.level]:
            before = [states[i][growing[i].parents[node]] for i, node in asked]
            after, logits = self.lane.step(before, [growing[i].tokens[node] for i, node in asked])
            whole = self._whole(logits)
            at = 0
            for i, draft in growing.items():
                nodes = list(draft.level)
                for node, state in zip(nodes, after[at : at + len(nodes)], strict=True):
                    states[i][node] = state
                if nodes:
                    draft.grow(nodes, list(whole[at : at + len(nodes)]))
                at += len(nodes)
        for i, draft in growing.items():
            trees[i] = draft.tree(self.source)
        return trees

    def _whole(self, logits: Tensor) -> Tensor:
        """[n, Vd] -> [n, V] over the target's vocabulary."""
        ids = self.lane.draft_ids
        if ids is None:
            return logits
        out = torch.full((logits.shape[0], self._vocab), -torch.inf, dtype=logits.dtype, device=logits.device)
        out[:, ids] = logits
        return out

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        self.lane.observe(rows, forest, scores, verdicts)

    def forget(self, rows: Sequence[Row]) -> None:
        self.lane.forget(rows)
