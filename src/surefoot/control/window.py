"""Draft length from a window of recent acceptance rates, one window a row."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from ..core.protocols import Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest


class WindowController:
    """Under ``warmup`` samples: ``default`` tokens; then by the mean acceptance rate of the last ``window`` drafts:
    above ``high``: min(max_draft, int(max_draft x rate)); below ``low``: min_draft; else ``default``.
    """

    def __init__(
        self,
        drafter: str,
        max_draft: int = 8,
        min_draft: int = 2,
        default: int = 4,
        *,
        window: int = 20,
        warmup: int = 10,
        high: float = 0.8,
        low: float = 0.4,
    ) -> None:
        if not 0 <= min_draft <= default <= max_draft:
            raise BadRequest(f"draft lengths must satisfy 0 <= {min_draft} <= {default} <= {max_draft} (min, default, max)")
        if not 0.0 <= low <= high <= 1.0 or warmup < 0 or window < 1:
            raise BadRequest("window needs 0 <= low <= high <= 1, warmup from 0 and a window of 1 or more")
        self._drafter = drafter
        self._max, self._min, self._default = max_draft, min_draft, default
        self._window, self._warmup, self._high, self._low = window, warmup, high, low
        self._rates: dict[int, deque[float]] = {}

    def length(self, row: Row) -> int:
        """Tokens to draft for this row now."""
        rates = list(self._rates.get(row.id, ()))
        if len(rates) < self._warmup or not rates:
            return self._default
        recent = rates[-self._window :]
        rate = math.fsum(recent) / len(recent)
        if rate > self._high:
            return min(self._max, int(self._max * rate))
        return self._min if rate < self._low else self._default

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        return [Plan(self._drafter, k, 1, k) for k in map(self.length, rows)]

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        for row, tree, verdict in zip(rows, trees, verdicts, strict=True):
            if len(tree) > 1:
                rates = self._rates.setdefault(row.id, deque(maxlen=max(self._window, self._warmup)))
                rates.append(len(verdict.path) / (len(tree) - 1))

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rates.pop(row.id, None)
