"""What happens inside a cascade: a controller that plans as another does, and keeps what each review brought and cost."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from ..core.cost import CostModel, rising
from ..core.protocols import Controller, Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest

_CATCHING_UP = 2
"""Tokens that a pass may fill the cache with beside its review: more are the prompt."""


class Reviews:
    """``most``: tokens that the bottom drafter is asked for. Entries are per review: ``asked``, ``drafted``, ``accepted``."""

    def __init__(self, inner: Controller, most: int) -> None:
        self._inner, self._most = inner, most
        self.asked: list[int] = []
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        self.draft_seconds = 0.0
        self._times: dict[int, list[float]] = defaultdict(list)
        self._context = 0

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        return self._inner.plan(rows)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        self._inner.learn(rows, trees, verdicts, costs)
        if costs.prefill > _CATCHING_UP:
            return
        self._times[costs.nodes].append(costs.score + costs.other)
        self._context = max(self._context, costs.context)
        self.draft_seconds += costs.draft
        for row, tree, verdict in zip(rows, trees, verdicts, strict=True):
            asked = min(self._most, row.base.remaining - 2)  # the reviewer's own token and the target's come behind the draft
            if asked > 0:
                self.asked.append(asked)
                self.drafted.append(len(tree) - 1)
                self.accepted.append(min(asked, len(verdict.path)))

    def forget(self, rows: Sequence[Row]) -> None:
        self._inner.forget(rows)

    @property
    def token_seconds(self) -> float:
        """Of one token of the bottom drafter."""
        return self.draft_seconds / max(1, sum(self.drafted))

    def cost(self) -> CostModel:
        """Seconds of the reviewer's passes by their tokens, with the engine's own work; typical ones."""
        if not self._times:
            raise BadRequest("the reviewer made no pass over these prompts; give others, or longer answers")
        widths = sorted(self._times)
        return CostModel(tuple(widths), tuple(rising([statistics.median(self._times[w]) for w in widths])), self._context)
