"""Draft as many tokens as measured cost says, zero included: the cost-aware cut.

For each row the controller keeps the chance a_i that depth i is accepted once depth i-1 was, and picks the k that
maximises (1 + sum_{i<=k} prod_{j<=i} a_j) / (draft cost x k + V(k + 1)). The same rate gives the plan's floor: a
node is worth its place only if its chance exceeds (marginal seconds of one more token) x (tokens per second now).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.protocols import PLAIN, Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree, depths
from ..errors import BadRequest


class Reach:
    """Chance of acceptance by depth, with fading evidence; untried depths fall back to the one above."""

    def __init__(self, depth: int, prior: float, fade: float) -> None:
        self._hits = [0.0] * depth
        self._tries = [0.0] * depth
        self._prior = prior
        self._fade = fade

    def update(self, accepted: int, offered: int) -> None:
        self._hits = [h * self._fade for h in self._hits]
        self._tries = [t * self._fade for t in self._tries]
        for i in range(min(offered, accepted + 1, len(self._tries))):
            self._tries[i] += 1.0
            self._hits[i] += 1.0 if i < accepted else 0.0

    def chances(self, like: Sequence[float] | None = None, weight: float = 2.0) -> list[float]:
        """a_1 … a_K; ``like`` is what to believe before there is evidence."""
        out: list[float] = []
        above = self._prior
        for i, (hits, tries) in enumerate(zip(self._hits, self._tries, strict=True)):
            believed = like[i] if like is not None else above
            above = (hits + weight * believed) / (tries + weight)
            out.append(above)
        return out


class GoodputController:
    """``cost(nodes, context)``: seconds of a pass. ``min_width``: rows are padded to it, so filling it is free.

    ``change``: seconds that a pass of another size than the last one takes longer; a size is supposed to last ``stay`` passes.
    """

    def __init__(
        self,
        drafter: str,
        cost: Callable[[int, int], float],
        *,
        max_draft: int = 16,
        width: int = 1,
        min_width: int = 1,
        change: float = 0.0,
        stay: float = 8.0,
        prior: float = 0.6,
        fade: float = 0.97,
        retry: int = 16,
    ) -> None:
        if max_draft < 0 or width < 1 or retry < 1 or change < 0 or stay < 1:
            raise BadRequest("goodput takes max_draft and change from 0 up, width, retry and stay from 1 up")
        self._drafter = drafter
        self._cost = cost
        self._max = max_draft
        self._width = width
        self._min_width = min_width
        self._move = change / stay
        self._size = 0
        self._retry = retry
        self._all = Reach(max_draft, prior, fade)
        self._fade, self._prior = fade, prior
        self._rows: dict[int, Reach] = {}
        self._idle: dict[int, int] = {}
        self._draft_seconds = 0.0
        """Seconds that one drafted token costs its drafter; learned."""

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        if not self._max:
            return [PLAIN] * len(rows)
        shared = self._all.chances()
        beside = (len(rows) - 1) * self._min_width
        return [self._one(row, shared, len(rows) - 1, beside) for row in rows]

    def _one(self, row: Row, shared: Sequence[float], others: int, beside: int) -> Plan:
        reach = self._rows.get(row.id)
        chances = shared if reach is None else reach.chances(shared)
        best, rate, tokens, path = 0, 0.0, float(1 + others), 1.0
        for k in range(self._max + 1):
            if k:
                path *= chances[k - 1]
                tokens += path
            now = tokens / (self._seconds(k, beside, row.cached) + self._draft_seconds * k)
            if now > rate * (1.0 + 1e-9):
                best, rate = k, now
        if best == 0:
            waited = self._idle.get(row.id, 0) + 1
            self._idle[row.id] = waited
            if waited % self._retry:
                return PLAIN
            best = 1
        nodes = max(best, self._min_width - 1)
        here = nodes + 1 + beside
        slope = (self._cost(here + 4, row.cached) - self._cost(here, row.cached)) / 4
        floor = max(0.0, (slope + self._draft_seconds) * rate)
        return Plan(self._drafter, nodes, self._width, nodes, min(floor, 0.95))

    def _seconds(self, k: int, beside: int, context: int) -> float:
        size = max(k + 1, self._min_width) + beside
        return self._cost(size, context) + (self._move if size != self._size else 0.0)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        drafted = 0
        self._size = costs.nodes
        for row, tree, verdict in zip(rows, trees, verdicts, strict=True):
            if len(tree) > 1:
                offered = max(depths(tree.parents.tolist()))
                drafted = max(drafted, len(tree) - 1)
                for reach in (self._all, self._rows.setdefault(row.id, Reach(self._max, self._prior, self._fade))):
                    reach.update(len(verdict.path), offered)
        if drafted:
            self._draft_seconds += 0.1 * (costs.draft / drafted - self._draft_seconds)

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rows.pop(row.id, None)
            self._idle.pop(row.id, None)
