"""Thompson sampling: which drafter, and how long a draft, from what may be true of each drafter's acceptance.

For each drafter (an early exit is one, so several exits are several drafters) the chance theta that a drafted token is kept
has a Beta posterior. A draft of which n tokens were kept adds n to a, and 1 to b if it ended in a miss: tokens after the
first refused one were never tried, and counting them would bias theta low. All evidence fades, so what is not tried drifts
back to the prior and is tried again; plain decoding teaches nothing about drafters.

Once a round theta is drawn for each drafter, and the drafter and k are taken that maximise

    S(k) = (1 + sum_{j<=k} theta^j) / (k x draft cost + V(k + 1)),

which, S being unimodal where V is convex, is to go on while theta^(k+1) > c S(k), c being the cost of one more token.
Thompson (1933); censored counts and stopping by a Beta posterior: arXiv 2406.03853.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.protocols import PLAIN, Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest
from .asked import Asked, drafted
from .options import names, number, stay_of, whole

if TYPE_CHECKING:
    from .costs import LiveCosts


class Beta:
    """Posterior of one drafter's chance of acceptance; evidence fades, the prior does not."""

    __slots__ = ("_hits", "_misses", "_prior")

    def __init__(self, prior: tuple[float, float]) -> None:
        self._prior = prior
        self._hits = self._misses = 0.0

    @property
    def shape(self) -> tuple[float, float]:
        """a and b."""
        return self._prior[0] + self._hits, self._prior[1] + self._misses

    def fade(self, by: float) -> None:
        self._hits *= by
        self._misses *= by

    def see(self, kept: int, asked: int, missed: bool) -> None:
        """``kept`` of ``asked`` tokens were accepted; ``missed``: the one after them was tried, and was not."""
        self._hits += kept
        self._misses += missed


class ThompsonController:
    """``prior``: (a, b) of every drafter. ``discount``: what a round leaves of evidence. ``per_row``: rows share nothing.

    ``stay``: rounds for which a choice is kept (default: 16 where changing the size of a pass is dear, else 1); rows then hold
    their size. ``min_width``: rows are padded to it. ``seed`` is of this controller's own numbers, which no request sees.
    """

    def __init__(
        self,
        drafters: str | Sequence[str],
        costs: LiveCosts,
        *,
        max_draft: int = 8,
        min_width: int = 1,
        seed: int = 0,
        prior: tuple[float, float] = (1.0, 1.0),
        discount: float = 0.98,
        per_row: bool = False,
        stay: int | None = None,
    ) -> None:
        self._names = names("thompson", drafters)
        self._costs = costs
        self._max = whole("thompson", "max_draft", max_draft, 0)
        self._min_width = whole("thompson", "min_width", min_width, 1)
        self._rng = np.random.default_rng(whole("thompson", "seed", seed, 0))
        if not isinstance(prior, tuple | list) or len(prior) != 2:
            raise BadRequest(f"thompson: prior={prior!r}; give two numbers above 0, (a, b)")
        self._prior = (
            number("thompson", "prior", prior[0], 0.0, above=True),
            number("thompson", "prior", prior[1], 0.0, above=True),
        )
        self._discount = number("thompson", "discount", discount, 0.0, 1.0, above=True)
        self._per_row = per_row
        self._stay = stay_of("thompson", stay, costs.change)
        self._asked = Asked()
        self._posteriors: dict[int | None, dict[str, Beta]] = {}
        self._choices: dict[int | None, tuple[str | None, int]] = {}
        """Of the running block, by row, or one for all."""
        self._sizes: dict[int | None, int] = {}
        """Nodes of a row in the last pass."""
        self._left = 0
        self._crowd = 0

    def posterior(self, drafter: str, row: Row | None = None) -> tuple[float, float]:
        """(a, b) of the Beta law of this drafter's acceptance; ``row``: with ``per_row``, whose."""
        return self._beliefs(row)[drafter].shape

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        if not self._max or not rows:
            return [PLAIN] * len(rows)
        if self._left < 1 or len(rows) != self._crowd:  # another number of rows changes the pass anyway
            self._choices.clear()
            self._left, self._crowd = self._stay, len(rows)
        self._left -= 1
        context = max(row.cached for row in rows)
        return [self._one(row, context) for row in rows]

    def _one(self, row: Row, context: int) -> Plan:
        key = self._key(row)
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices[key] = self._choose(row, context)
            self._sizes[key] = self._size(choice[1])
        name, k = choice
        return self._asked.plan(row, name, k, hold=k + 1 if self._costs.change > 0 else 0)

    def _choose(self, row: Row, context: int) -> tuple[str | None, int]:
        """The best (drafter, k) if the thetas drawn now were true and all rows did the same."""
        rows, last = self._crowd, self._sizes.get(self._key(row))
        move = self._costs.change / self._stay if last is not None else 0.0
        passes = [
            self._costs.score(rows * (size := self._size(k)), context) + (move if size != last else 0.0)
            for k in range(self._max + 1)
        ]
        best: tuple[str | None, int] = (None, 0)
        most = rows / passes[0]
        beliefs = self._beliefs(row)
        for name in self._names:
            theta = float(self._rng.beta(*beliefs[name].shape))
            each, opening = rows * self._costs.draft(name), self._costs.opening(name)
            tokens = reach = 1.0
            for k in range(1, self._max + 1):
                reach *= theta
                tokens += reach
                worth = rows * tokens / (opening + k * each + passes[k])
                if worth > most:
                    best, most = (name, k), worth
        return best

    def _size(self, k: int) -> int:
        return max(k + 1, self._min_width)

    def _key(self, row: Row | None) -> int | None:
        return row.id if self._per_row and row is not None else None

    def _beliefs(self, row: Row | None) -> dict[str, Beta]:
        key = self._key(row)
        if key not in self._posteriors:
            self._posteriors[key] = {name: Beta(self._prior) for name in self._names}
        return self._posteriors[key]

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        tried = self._asked.settle(rows, trees, verdicts)
        self._costs.learn(costs, drafted(tried))
        for key in {self._key(row) for row in rows}:
            for belief in self._posteriors.get(key, {}).values():
                belief.fade(self._discount)
        for each in tried:
            self._beliefs(each.row)[each.drafter].see(each.kept, each.asked, each.missed)

    def forget(self, rows: Sequence[Row]) -> None:
        self._asked.forget(rows)
        if self._per_row:
            for row in rows:
                self._posteriors.pop(row.id, None)
                self._choices.pop(row.id, None)
                self._sizes.pop(row.id, None)
