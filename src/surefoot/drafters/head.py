"""A trained head as a drafter of its own: chains and trees, greedy or drawn, from what a :class:`~.lane.Lane` says.

What the head says is shaped by each request's options as the target is (:mod:`.draft_law`), and drafts grow level by level
(:mod:`.model_tree`), one step of the head a level for all rows. Tokens that a reduced vocabulary leaves out have no chance.
Behind what others drafted (a shadow, see :mod:`surefoot.core.shadow`) the head reads that first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core.protocols import Plan, Scores, Verdict
from ..core.request import Row
from ..core.tree import DraftTree, Forest
from .draft_law import DraftLaw
from .lane import Lane
from .model_tree import Growing, Plainest, start
from .paths import Path, Paths, path, whole


class HeadDrafter:
    """``lane``: the head. ``vocab_size``: the target's; ids from ``known`` on stand for nothing and are never drafted."""

    def __init__(self, lane: Lane, vocab_size: int, *, name: str, known: int | None = None, source: int = 10) -> None:
        self.name, self.source, self.needs = name, source, lane.needs
        self.paths = Paths(lane)
        self._vocab = vocab_size
        self.known = vocab_size if known is None else min(known, vocab_size)
        self._ids = None if lane.draft_ids is None else lane.draft_ids.tolist()
        self._sound = max(self._ids, default=-1) < self.known if self._ids is not None else self.known == vocab_size
        """Whether the head names no token that stands for nothing."""

    @property
    def lane(self) -> Lane:
        return self.paths.lane

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        trees = [DraftTree.chain(row.tokens[-1:]) for row in rows]
        growing: dict[int, Growing] = {}
        read: dict[int, dict[int, Path]] = {}
        """By row: what the head reads down to each node."""
        for i, (row, plan) in enumerate(zip(rows, plans, strict=True)):
            behind = path(row)
            depth = min(plan.depth, plan.nodes, self.lane.depth - len(behind) + 1)
            if depth >= 1 and plan.width >= 1 and self.paths.knows(row):
                law, plan = DraftLaw(row, self._vocab, self.known), replace(plan, depth=depth)
                growing[i] = Plainest(row, depth, self._ids) if self._plain(law, plan) else start(law, plan)
                read[i] = {-1: behind[:-1]}
        while asked := [(i, node) for i, draft in growing.items() for node in draft.level]:
            for i, node in asked:
                draft = growing[i]
                read[i][node] = (*read[i][draft.parents[node]], draft.tokens[node])
            said = self.paths.said([(rows[i], read[i][node]) for i, node in asked])
            at = 0
            for draft in growing.values():
                nodes = list(draft.level)
                if nodes:
                    own = said[at : at + len(nodes)]
                    draft.grow(nodes, own if isinstance(draft, Plainest) else whole(own, self.lane.draft_ids, self._vocab))
                at += len(nodes)
        for i, draft in growing.items():
            trees[i] = draft.tree(self.source)
        return trees

    def _plain(self, law: DraftLaw, plan: Plan) -> bool:
        """Whether the draft is a greedy chain that nothing shapes or stops, so that the head's own logits are enough."""
        simple = law.greedy and law.row.state is None and plan.width == 1 and plan.stop is None
        return simple and self._sound

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        self.paths.forget(rows)
        self.lane.observe(rows, forest, scores, verdicts)

    def forget(self, rows: Sequence[Row]) -> None:
        self.paths.forget(rows)
        self.lane.forget(rows)
