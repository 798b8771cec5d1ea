"""A guard around any controller: where its plans lose against plain decoding, plain decoding it is, for a while.

The gain of a pass is what it kept, at the price of plain decoding, over what it took:

    tokens kept a row x seconds of a plain pass / (draft + score + other)

Closed (the inner controller plans) until the fading mean of the gain has been below 1 - ``margin`` for ``patience`` passes, by
``doubt`` standard errors: tokens come in runs, so a poor stretch is no proof. Then open (all plans are plain) for ``wait``
passes; then ``probe`` passes are planned by the inner controller again. If they did not lose, it is closed, else open for twice
as long, up to ``longest``. Where all rows are new, so is the verdict: closed. The inner controller never hears of passes that
it did not plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

from ..core.protocols import PLAIN, Controller, Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest
from .costs import LiveCosts

_FADE = 0.97
_STRANGE = 2.0
"""A pass that took this many times longer than predicted tells about the machine, not about the plan,"""
_INSIST = 3
"""unless so many do in a row."""


class _Fading:
    """Mean of the latest values, and its standard error."""

    __slots__ = ("_squares", "_sum", "_weight", "_weights")

    def __init__(self) -> None:
        self._weight = self._weights = self._sum = self._squares = 0.0

    def add(self, value: float) -> None:
        self._weight, self._weights = _FADE * self._weight + 1.0, _FADE * _FADE * self._weights + 1.0
        self._sum, self._squares = _FADE * self._sum + value, _FADE * self._squares + value * value

    @property
    def mean(self) -> float:
        return self._sum / self._weight

    @property
    def error(self) -> float:
        spread = max(0.0, self._squares / self._weight - self.mean**2)
        return sqrt(spread * self._weights) / self._weight


class Breaker:
    """``costs``: what a plain pass takes; rows are padded to ``min_width``."""

    def __init__(
        self,
        inner: Controller,
        costs: LiveCosts,
        *,
        margin: float = 0.02,
        patience: int = 8,
        doubt: float = 0.0,
        wait: int = 32,
        longest: int = 1024,
        probe: int = 8,
        min_width: int = 1,
    ) -> None:
        if not 0.0 <= margin < 1.0 or doubt < 0.0 or min(patience, wait, probe, min_width) < 1 or longest < wait:
            raise BadRequest(
                "breaker takes a margin in [0, 1), a doubt from 0 up, patience, wait, probe and min_width from 1 up, "
                "longest from wait up"
            )
        self.inner = inner
        self.state = "closed"
        """``closed``: the inner controller plans; ``open``: plain decoding; ``probing``: it is tried again."""
        self._costs = costs
        self._margin, self._patience, self._probe, self._min_width = margin, patience, probe, min_width
        self._doubt = doubt
        self._first = self._wait = wait
        self._longest = longest
        self._worth = self._took = 0.0
        """Fading sums of the two sides of the gain."""
        self._losses = _Fading()
        self._low = self._left = self._strange = 0
        self._drafted = False
        """Whether the inner controller drafted anything in this probe."""
        self._other: float | None = None
        """Seconds of a plain step beside its pass."""
        self._ours = False
        """Whether the pass under way was planned here."""
        self._known: set[int] = set()
        self._opened = self._probes = self._closed = 0

    @property
    def gain(self) -> float:
        """Speed of the inner controller's recent passes over that of plain decoding."""
        return self._worth / self._took if self._took > 0 else 1.0

    def stats(self) -> dict[str, Any]:
        """State, recent gain, and how often it opened, probed and closed again."""
        return {
            "state": self.state,
            "opened": self._opened,
            "probes": self._probes,
            "closed": self._closed,
            "gain": self.gain,
        }

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        if rows and self._known.isdisjoint(row.id for row in rows):  # other text: what was learned of drafts is past
            self._wait = self._first
            if self.state != "closed":
                self._begin("closed", 0)
        self._known.update(row.id for row in rows)
        if self.state == "open" and self._left <= 0:
            self._begin("probing", self._probe)
            self._probes += 1
        self._ours = self.state == "open"
        return [PLAIN] * len(rows) if self._ours else self.inner.plan(rows)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        ours, self._ours = self._ours, self.state == "open"
        drafted = any(len(tree) > 1 for tree in trees)
        gained = self._measure(rows, trees, verdicts, costs)
        seen = self._costs.steps
        if not ours:
            self.inner.learn(rows, trees, verdicts, costs)
        if self._costs.steps == seen:  # the inner controller does not share these costs
            self._costs.learn(costs, {})
        if ours:
            self._left -= 1
        elif gained is not None:
            self._judge(*gained, drafted)

    def _measure(
        self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs
    ) -> tuple[float, float] | None:
        """Seconds that plain decoding takes for what was kept, and what the pass took; None: it tells nothing."""
        step = costs.draft + costs.score + costs.other
        # of a row that has ended, the verdict does not tell what was kept
        if costs.prefill or not rows or not 0.0 < step < float("inf") or any(row.done for row in rows):
            return None
        drafted = any(len(tree) > 1 for tree in trees)
        self._drafted = self._drafted or drafted
        if not drafted:
            self._other = costs.other if self._other is None else self._other + 0.1 * (costs.other - self._other)
        usual = costs.other if self._other is None else self._other
        plain = self._costs.score(len(rows) * self._min_width, costs.context) + usual
        most = _STRANGE * self._costs.score(costs.nodes, costs.context)
        self._strange = self._strange + 1 if costs.score > most else 0
        score = costs.score if self._strange >= _INSIST else min(costs.score, most)
        other = min(costs.other, _STRANGE * usual)
        kept = sum(len(verdict.path) + 1 for verdict in verdicts)
        return kept / len(rows) * plain, costs.draft + score + other

    def _judge(self, worth: float, took: float, drafted: bool) -> None:
        if self.state == "probing":
            self._worth, self._took = self._worth + worth, self._took + took
            self._left -= 1
            if self._left <= 0:
                self._decide()
            return
        self._worth, self._took = _FADE * self._worth + worth, _FADE * self._took + took
        self._losses.add((1.0 - self._margin) * took - worth)
        if self._losses.mean <= self._doubt * self._losses.error:
            self._low = 0
        elif drafted:  # where it plans plain decoding itself, there is nothing to break
            self._low += 1
        if self._low >= self._patience:
            self._opened += 1
            self._begin("open", self._wait)

    def _decide(self) -> None:
        """After a probe. A controller that drafted nothing does no harm."""
        if not self._drafted or self.gain >= 1.0:
            if self._drafted and self.gain > 1.0 + self._margin:
                self._wait = self._first
            self._closed += 1
            self._begin("closed", 0)
        else:
            self._wait = min(2 * self._wait, self._longest)
            self._begin("open", self._wait)

    def _begin(self, state: str, left: int) -> None:
        self.state, self._left, self._low, self._drafted = state, left, 0, False
        if state != "open":  # an open breaker shows the gain that opened it
            self._worth = self._took = 0.0
            self._losses = _Fading()

    def forget(self, rows: Sequence[Row]) -> None:
        self._known.difference_update(row.id for row in rows)
        self.inner.forget(rows)
