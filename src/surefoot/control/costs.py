"""What passes and drafts cost: seeded by a measured curve, corrected by what they just cost.

The seed was measured on an idle machine at one context; load, heat and long contexts move it. What a pass took beyond its
seed is regressed on (seed, 1, nodes, context) by least squares with fading weights and a ridge at zero that does not fade,
so directions that are not seen stay with the seed (Hoerl & Kennard, 1970). The first column is the usual case: all is slower
by one factor. Nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.protocols import Costs
from ..errors import BadRequest

_RIDGE = np.diag([0.01, 0.25, 50.0, 0.25])
"""Noise of 5 % over what is believed of the four corrections: 50 %, 10 %, 0.7 % a node, 10 % a thousand tokens of context.

The slope is held most: passes of few sizes say little about it, and a flat one makes drafts twice as long as they should be.
"""
_STRANGE = 2.0
"""A pass this many times off its prediction tells about the machine, not the curve."""
_INSIST = 3
"""So many strange passes in a row are the new truth."""
_EAGER, _STRIDE = 16, 4
"""The correction is solved anew after each of the first passes, then after every so many: solving costs time itself."""


class LiveCosts:
    """``seed(nodes, context)``: seconds of a pass. ``change``: extra seconds of a pass of another size than the last one."""

    def __init__(self, seed: Callable[[int, int], float], *, change: float = 0.0, fade: float = 0.98) -> None:
        if change < 0 or not math.isfinite(change) or not 0.0 < fade <= 1.0:
            raise BadRequest(f"change={change!r}, fade={fade!r}: give change from 0 up and fade above 0, up to 1")
        self.change = change
        self._seed = seed
        self._unit = float(seed(1, 0))
        if not math.isfinite(self._unit) or self._unit <= 0:
            raise BadRequest(f"the cost of a pass over one token is {self._unit!r}; give a curve of positive seconds")
        self._fade = fade
        self._gram: np.ndarray[Any, Any] = np.zeros((4, 4))
        self._moment: np.ndarray[Any, Any] = np.zeros(4)
        self._new: list[tuple[float, ...]] = []
        """Passes since the correction was solved: regressors, weight, and what the seed left to explain."""
        self._theta = (0.0, 0.0, 0.0, 0.0)
        self.steps = 0
        """Steps learned from or looked at: a wrapper sees by it whether what it wraps has passed the step on."""
        self._last = 0
        self._strange = 0
        self._learned = 0
        self._drafts: dict[str, tuple[float, float]] = {}
        """By drafter: seconds that a step with drafts of it takes whatever their length, and seconds a token."""
        self._rising: list[float] = []
        """Scores of 1, 2, … nodes at context ``_at``, made rising."""
        self._at = -1

    def score(self, nodes: int, context: int) -> float:
        """Seconds of a pass over ``nodes`` tokens: never falling in nodes, never under a tenth of the seed's smallest."""
        if context != self._at:
            self._at, self._rising = context, []
        known = self._rising
        while len(known) < nodes:
            value = self._corrected(len(known) + 1, context)
            known.append(max(value, known[-1]) if known else value)
        return known[max(nodes, 1) - 1] if known else self._corrected(1, context)

    def draft(self, name: str) -> float:
        """Seconds that one more drafted token costs this drafter; 0 before anything is known."""
        return self._drafts.get(name, (0.0, 0.0))[1]

    def opening(self, name: str) -> float:
        """Seconds that drafts of this drafter cost beside, however long: a first call finds cold caches, and may catch up."""
        return self._drafts.get(name, (0.0, 0.0))[0]

    def learn(self, costs: Costs, drafted: Mapping[str, int]) -> None:
        """What a step took; ``drafted``: tokens that each drafter drafted in it."""
        self.steps += 1
        same, self._last = costs.nodes == self._last, costs.nodes
        if (
            costs.prefill
            or not (math.isfinite(costs.score) and math.isfinite(costs.draft))
            or min(costs.score, costs.draft) < 0
        ):
            return
        self._learn_drafts(costs.draft, {name: n for name, n in drafted.items() if n > 0})
        if same and costs.nodes > 0:
            self._learn_pass(costs)

    def _corrected(self, nodes: int, context: int) -> float:
        seed = float(self._seed(nodes, context))
        if not math.isfinite(seed):
            seed = self._rising[-1] if self._rising else self._unit
        s, a, b, c = self._theta
        return max(seed * (1.0 + s) + self._unit * (a + b * nodes + c * context / 1000.0), 0.1 * self._unit)

    def _learn_pass(self, costs: Costs) -> None:
        expected = self.score(costs.nodes, costs.context)
        odd = not expected / _STRANGE <= costs.score <= expected * _STRANGE
        self._strange = self._strange + 1 if odd else 0
        took = costs.score if self._strange >= _INSIST else min(max(costs.score, expected / _STRANGE), expected * _STRANGE)
        seed = float(self._seed(costs.nodes, costs.context)) / self._unit
        if not math.isfinite(seed):
            return
        # in units of what is expected, so that wide passes do not outweigh narrow ones
        weight = 1.0 / max(seed, 0.1) ** 2
        self._new.append((seed, 1.0, costs.nodes, costs.context / 1000.0, weight, took / self._unit - seed))
        self._learned += 1
        if self._learned > _EAGER and self._learned % _STRIDE:
            return
        n = len(self._new)
        table = np.array(self._new)
        self._new.clear()
        x, weights = table[:, :4], table[:, 4] * self._fade ** np.arange(n - 1, -1, -1)
        weighted = x.T * weights
        self._gram = self._fade**n * self._gram + weighted @ x
        self._moment = self._fade**n * self._moment + weighted @ table[:, 5]
        s, a, b, c = np.linalg.solve(self._gram + _RIDGE, self._moment).tolist()
        self._theta = (s, a, b, c)
        self._at = -1

    def _learn_drafts(self, seconds: float, drafted: Mapping[str, int]) -> None:
        """Least mean squares, normalised. Where several drafted in one step, each is charged by what it is known to cost."""
        known = [self.opening(name) + n * self.draft(name) for name, n in drafted.items()]
        shares = known if known and all(known) else [float(n) for n in drafted.values()]
        for (name, n), share in zip(drafted.items(), shares, strict=True):
            took = seconds * share / sum(shares)
            if name not in self._drafts:
                # of a first call for one token half is believed to be there for all that follow
                self._drafts[name] = (took / 2, took / 2) if n == 1 else (0.0, took / n)
                continue
            opening, each = self._drafts[name]
            before = opening + n * each
            # catching up after a pause makes a draft dear once; the usual price is the lower one
            rate = 0.25 if took < before else 0.1
            error = rate * (min(took, max(2.0 * before, 1e-6)) - before) / (1 + n * n)
            opening, each = opening + error, each + n * error
            self._drafts[name] = max(0.0, opening + n * min(0.0, each)), max(0.0, each + min(0.0, opening) / n)
