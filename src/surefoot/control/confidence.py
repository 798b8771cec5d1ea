"""Stop a draft after the token at which the drafter became unsure.

A stop rule looks at the law q that a token was drawn from, never takes the token back, and so leaves the output's law alone:
the unsure token is still verified. Three rules, none of them trained:

    top      max q < threshold                                          (Kangaroo, arXiv 2404.18911)
    product  prod of max q along the draft < threshold: the chance that all is kept, estimated by the drafter itself in
             place of SpecDec++'s head (arXiv 2405.19715)
    entropy  1 - sqrt(gamma H(q)) < threshold, H in nats: a lower bound of acceptance (AdaEDL, arXiv 2410.18351)

With ``adapt`` the threshold moves to hold a share of accepted tokens (Draft & Verify, arXiv 2309.08168):
lambda <- beta lambda + (1 - beta) (lambda +- step), up while the smoothed share lies under the target.

Drafters that know no law ignore stop rules. Under ``product`` they get the threshold as ``Plan.floor``, which is the same
estimate in their words, the chance that a token is reached; the other two rules judge single tokens, and have no such twin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..core.protocols import PLAIN, Array, Costs, Plan, Stop, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest
from .asked import Asked, drafted
from .options import names, number, whole

if TYPE_CHECKING:
    from .costs import LiveCosts

THRESHOLDS = {"top": 0.6, "product": 0.7, "entropy": 0.4}
"""Rules and their default thresholds."""
_FADE = 0.5
"""What one draft leaves of the smoothed share of accepted tokens."""


@dataclass(frozen=True, slots=True)
class TopStop:
    """Stop after a token in whose law the most probable one has less than ``threshold``."""

    threshold: float

    def __call__(self, law: Array, token: int, depth: int) -> bool:
        return float(law.max()) < self.threshold


@dataclass(frozen=True, slots=True)
class EntropyStop:
    """Stop after a token whose law H leaves 1 - sqrt(gamma H) below ``threshold``."""

    threshold: float
    gamma: float

    def __call__(self, law: Array, token: int, depth: int) -> bool:
        some = law[law > 0]
        entropy = max(0.0, -float((some * np.log(some)).sum()))
        return 1.0 - math.sqrt(self.gamma * entropy) < self.threshold


class ProductStop:
    """Stop after the token with which the product of the largest probabilities falls below ``threshold``. For one chain."""

    __slots__ = ("_product", "threshold")

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._product = 1.0

    def __call__(self, law: Array, token: int, depth: int) -> bool:
        self._product = float(law.max()) * (1.0 if depth == 1 else self._product)
        return self._product < self.threshold


class ConfidenceController:
    """``kind``: top, product or entropy. ``threshold``: see :data:`THRESHOLDS`. ``gamma``: of the entropy bound.

    ``adapt``: share of drafted tokens that should be accepted; the threshold then moves, by ``beta`` and ``step``, over all
    requests. ``min_width``: rows are padded to it. ``seed`` is taken for the sake of uniformity: nothing is drawn.
    """

    def __init__(
        self,
        drafters: str | Sequence[str],
        costs: LiveCosts,
        *,
        max_draft: int = 8,
        min_width: int = 1,
        seed: int = 0,
        kind: str = "top",
        threshold: float | None = None,
        gamma: float = 0.2,
        adapt: float | None = None,
        beta: float = 0.9,
        step: float = 0.01,
    ) -> None:
        found = names("confidence", drafters)
        if len(found) > 1:
            raise BadRequest(f"confidence: drafters={list(found)}; give one, or take goodput, thompson or bandit, which choose")
        if kind not in THRESHOLDS:
            raise BadRequest(f"confidence: kind={kind!r}; give one of {', '.join(THRESHOLDS)}")
        self._drafter = found[0]
        self._costs = costs
        self._max = whole("confidence", "max_draft", max_draft, 0)
        self._min_width = whole("confidence", "min_width", min_width, 1)
        whole("confidence", "seed", seed, 0)
        self._kind = kind
        first = THRESHOLDS[kind] if threshold is None else number("confidence", "threshold", threshold, 0.0, 1.0)
        self._gamma = number("confidence", "gamma", gamma, 0.0, above=True)
        self._target = None if adapt is None else number("confidence", "adapt", adapt, 0.0, 1.0)
        self._beta = number("confidence", "beta", beta, 0.0, 1.0)
        self._step = number("confidence", "step", step, 0.0, 1.0)
        self._asked = Asked()
        # fixed: a floor that rises until nothing is drafted would never learn that it should fall
        self._floor = first if kind == "product" else 0.0
        self._share: float | None = None
        self.threshold = first
        """The one in force."""

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        if not self._max or not rows:
            return [PLAIN] * len(rows)
        hold = self._max + 1 if self._steady(rows) else 0
        return [
            replace(self._asked.plan(row, self._drafter, self._max, hold), floor=self._floor, stop=self._stop()) for row in rows
        ]

    def _steady(self, rows: Sequence[Row]) -> bool:
        """Whether padding every draft to the longest one costs less than changing the size of the pass."""
        change = self._costs.change
        if change <= 0:
            return False
        context = max(row.cached for row in rows)
        sizes = len(rows) * (self._max + 1), len(rows) * max(2, self._min_width)
        widest, narrowest = (self._costs.score(size, context) for size in sizes)
        return widest - narrowest <= change

    def _stop(self) -> Stop:
        """A rule for one draft."""
        if self._kind == "top":
            return TopStop(self.threshold)
        return ProductStop(self.threshold) if self._kind == "product" else EntropyStop(self.threshold, self._gamma)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        tried = self._asked.settle(rows, trees, verdicts)
        self._costs.learn(costs, drafted(tried))
        if self._target is None:
            return
        for each in tried:
            if each.drafted:
                share = each.kept / each.drafted
                self._share = share if self._share is None else _FADE * self._share + (1.0 - _FADE) * share
                wanted = self.threshold + (self._step if self._share < self._target else -self._step)
                moved = self._beta * self.threshold + (1.0 - self._beta) * wanted
                self.threshold = min(max(moved, 0.0), 1.0)

    def forget(self, rows: Sequence[Row]) -> None:
        self._asked.forget(rows)
