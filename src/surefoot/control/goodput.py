"""Draft as many tokens as measured cost says, zero included: the cost-aware cut.

For each row the controller keeps the chance a_i that the token at depth i of a draft is kept, once depth i-1 was and a
token was asked for; a drafter that has nothing to say counts as a miss. It picks the k that maximises

    (1 + sum_{i<=k} prod_{j<=i} a_j) / (draft cost x k + V(k + 1))

where V is the measured time of a pass. Where changing the size of a pass is dear, a change is paid off over ``stay``
passes, and rows hold their size: a shorter draft is padded, so that what fits is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.protocols import PLAIN, Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest

_MARGIN = 0.004
"""A longer draft must promise this much more: less is within the error of the cost curve."""


class Reach:
    """Chance of acceptance by depth, from fading evidence."""

    def __init__(self, depth: int, fade: float) -> None:
        self._hits = [0.0] * depth
        self._tries = [0.0] * depth
        self._fade = fade

    def update(self, accepted: int, asked: int) -> None:
        """A pass for which ``asked`` tokens were asked and ``accepted`` of them kept."""
        self._hits = [h * self._fade for h in self._hits]
        self._tries = [t * self._fade for t in self._tries]
        for i in range(min(asked, accepted + 1, len(self._tries))):
            self._tries[i] += 1.0
            self._hits[i] += i < accepted

    def chances(self, believed: Sequence[float], weight: float) -> list[float]:
        """a_1 … a_K; ``believed`` counts as ``weight`` tries."""
        return [(h + weight * b) / (t + weight) for h, t, b in zip(self._hits, self._tries, believed, strict=True)]

    def alone(self, prior: float, weight: float) -> list[float]:
        """a_1 … a_K with nothing else to go by: an untried depth is believed to be like the one above it.

        The first depth also counts passes in which the drafter had nothing to say, so the second may be better.
        """
        out: list[float] = []
        above = prior
        for i, (hits, tries) in enumerate(zip(self._hits, self._tries, strict=True)):
            chance = (hits + weight * above) / (tries + weight)
            out.append(chance)
            above = max(prior, chance) if i == 0 else chance
        return out


class GoodputController:
    """``cost(nodes, context)``: seconds of a pass. ``min_width``: rows are padded to it, so filling it is free.

    ``change``: seconds that a pass of another size than the last one takes longer. ``prior``: what to believe of every
    depth at first. ``retry``: where drafting does not pay, ask for one token every so many passes.
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
        stay: float = 16.0,
        prior: float = 0.6,
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
        self._retry = retry
        self._prior = prior
        self._all = Reach(max_draft, 0.995)
        self._rows: dict[int, Reach] = {}
        self._asked: dict[int, int] = {}
        self._idle: dict[int, int] = {}
        self._draft_seconds = 0.0
        """Seconds that one drafted token costs its drafter; learned."""

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        if not self._max:
            return [PLAIN] * len(rows)
        shared = self._all.alone(self._prior, 2.0)
        return [self._one(row, shared, len(rows) - 1) for row in rows]

    def _one(self, row: Row, shared: Sequence[float], others: int) -> Plan:
        reach = self._rows.get(row.id)
        chances = shared if reach is None else reach.chances(shared, 4.0)
        now = self._asked.get(row.id)
        beside = others * self._min_width
        best, rate, tokens, path = 0, 0.0, float(1 + others), 1.0
        for k in range(self._max + 1):
            if k:
                path *= chances[k - 1]
                tokens += path
            size = max(k + 1, self._min_width)
            moving = self._move if now is not None and size != max(now + 1, self._min_width) else 0.0
            worth = tokens / (self._cost(size + beside, row.cached) + moving + self._draft_seconds * k)
            if worth > rate * (1.0 + _MARGIN):
                best, rate = k, worth
        self._asked[row.id] = best
        if best == 0:
            waited = self._idle.get(row.id, 0) + 1
            self._idle[row.id] = waited
            if waited % self._retry:
                return PLAIN
            self._asked[row.id] = best = 1
        nodes = min(max(best, self._min_width - 1), self._max)
        return Plan(self._drafter, nodes, self._width, nodes, hold=nodes + 1 if self._move else 0)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        for row, verdict in zip(rows, verdicts, strict=True):
            asked = self._asked.get(row.id, 0)
            # the last draft of a row may have been cut by its budget, which is no miss
            if asked and not row.done:
                for reach in (self._all, self._rows.setdefault(row.id, Reach(self._max, 0.98))):
                    reach.update(len(verdict.path), max(asked, self._min_width - 1))
        drafted = max((len(tree) - 1 for tree in trees), default=0)
        if drafted:
            self._draft_seconds += 0.1 * (costs.draft / drafted - self._draft_seconds)

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for kept in (self._rows, self._asked, self._idle):
                kept.pop(row.id, None)
