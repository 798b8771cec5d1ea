"""Prompt lookup: find the latest earlier place where the last n tokens occurred, and propose what followed there.

The longest n from ``max_n`` down to ``min_n`` wins, and of its places the latest. A copy that reaches the end of the
history goes on with the tokens it has just copied, so a repeated span extends through its own end. Proposals are
points (q = None). ``plan.floor`` ends the copy where the product of :data:`RELIABILITY` falls under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.tree import DraftTree, Forest
from ..errors import BadRequest

if TYPE_CHECKING:
    from ..core.request import Row

RELIABILITY = (0.0, 0.35, 0.6, 0.75, 0.85, 0.88, 0.9, 0.92, 0.93)
"""Chance that what followed the last n tokens before follows them again, for n = 0, 1, ... (last entry: and beyond)."""

LONGEST = len(RELIABILITY) - 1


def whole_number(drafter: str, option: str, value: int, low: int, high: int) -> int:
    """``value`` if it is an int in low..high; else a :class:`BadRequest` that names the option."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{drafter}: {option}={value!r} must be a whole number from {low} to {high}")
    return value


class _Index:
    """Where each n-gram of one row was last followed by a token. ``known`` tokens are indexed."""

    __slots__ = ("known", "places")

    def __init__(self, sizes: int) -> None:
        self.known = 0
        self.places: list[dict[tuple[int, ...], int]] = [{} for _ in range(sizes)]

    def catch_up(self, tokens: Sequence[int], min_n: int) -> None:
        end = len(tokens)
        for n, places in enumerate(self.places, min_n):
            for e in range(max(n, self.known), end):
                places[tuple(tokens[e - n : e])] = e
        self.known = end

    def find(self, tokens: Sequence[int], min_n: int) -> tuple[int, int]:
        """(n, position after the latest earlier occurrence of the last n tokens), n = 0 where there is none."""
        for n in range(min(min_n + len(self.places) - 1, len(tokens) - 1), min_n - 1, -1):
            e = self.places[n - min_n].get(tuple(tokens[-n:]))
            if e is not None:
                return n, e
        return 0, 0


class NgramDrafter:
    """Drafter ``ngram``. State: one index a row, dropped when the row ends."""

    name = "ngram"
    needs = Need()

    def __init__(self, max_n: int = 4, min_n: int = 1, *, source: int = 1) -> None:
        self._max_n = whole_number(self.name, "max_n", max_n, 1, 64)
        self._min_n = whole_number(self.name, "min_n", min_n, 1, 64)
        if min_n > max_n:
            raise BadRequest(f"ngram: min_n={min_n} is more than max_n={max_n}; lower min_n or raise max_n")
        self.source = source
        self._rows: dict[int, _Index] = {}

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [
            DraftTree.chain([row.tokens[-1], *self._copy(row, plan)], source=self.source)
            for row, plan in zip(rows, plans, strict=True)
        ]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: committed tokens are read from the rows when they next ask."""

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rows.pop(row.id, None)

    def stats(self) -> dict[str, int]:
        """Rows and tokens held."""
        return {"rows": len(self._rows), "tokens": sum(index.known for index in self._rows.values())}

    def _copy(self, row: Row, plan: Plan) -> list[int]:
        limit = min(plan.depth, plan.nodes)
        if limit <= 0:
            return []
        index = self._rows.get(row.id)
        if index is None:
            index = self._rows[row.id] = _Index(self._max_n - self._min_n + 1)
        tokens = row.tokens
        index.catch_up(tokens, self._min_n)
        n, start = index.find(tokens, self._min_n)
        draft: list[int] = []
        reach, end = 1.0, len(tokens)
        while n and len(draft) < limit:
            reach *= RELIABILITY[min(n, LONGEST)]
            if reach < plan.floor:
                break
            place = start + len(draft)
            draft.append(tokens[place] if place < end else draft[place - end])
            n += 1
        return draft
