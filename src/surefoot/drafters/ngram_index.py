"""Where the n-grams of one row last occurred, over its latest ``capacity`` tokens.

A *place* of an n-gram is the position of the token that followed it. An entry leaves when its place does, so the index then
equals one that was built from what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

TRIES = 32
"""Most places of the largest n-gram that :meth:`NgramIndex.longest` compares, the latest first: bounds its cost."""

FAR = 32
"""Most tokens that :meth:`NgramIndex.longest` compares."""


class NgramIndex:
    """Sizes ``least`` to ``most``; ``chained``: keep all places of the largest, not only the latest."""

    __slots__ = ("_before", "_capacity", "_first", "_least", "_places", "known")

    def __init__(self, least: int, most: int, capacity: int, chained: bool = False) -> None:
        self.known = 0
        self._first = 0  # places before it are not held
        self._least = least
        self._capacity = capacity
        self._places: list[dict[tuple[int, ...], int]] = [{} for _ in range(most - least + 1)]
        self._before: dict[int, int] | None = {} if chained else None

    def __len__(self) -> int:
        """Positions held."""
        return self.known - self._first

    @property
    def nbytes(self) -> int:
        """Estimated bytes held: key, position and entry."""
        grams = sum(len(places) * (136 + 8 * n) for n, places in enumerate(self._places, self._least))
        return grams + 136 * len(self._before or ())

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Learn ``tokens[known:]``; what would not stay is not looked at."""
        end = len(tokens)
        first = max(self._first, end - self._capacity)
        if first >= self.known:
            self._first = self.known = first
            for places in self._places:
                places.clear()
            if self._before is not None:
                self._before.clear()
        known, before, most = self.known, self._before, len(self._places) - 1
        for size, places in enumerate(self._places):
            n = self._least + size
            for place in range(max(n, known), end):
                gram = tuple(tokens[place - n : place])
                if before is not None and size == most and (last := places.get(gram)) is not None:
                    before[place] = last
                places[gram] = place
        self.known = end
        if first > self._first:
            self._drop(tokens, first)

    def find(self, tail: Sequence[int]) -> tuple[int, int]:
        """(n, latest place of the n-gram that ends ``tail``), of the largest n; n = 0 where there is none."""
        for n in range(min(self._least + len(self._places) - 1, len(tail)), self._least - 1, -1):
            place = self._places[n - self._least].get(tuple(tail[-n:]))
            if place is not None:
                return n, place
        return 0, 0

    def longest(self, tokens: Sequence[int], tail: Sequence[int]) -> tuple[int, int]:
        """:meth:`find`, but of several places of the largest n-gram the one before which most of ``tail`` is found."""
        n, place = self.find(tail)
        before = self._before
        if before is None or n < self._least + len(self._places) - 1:
            return n, place
        best, here, size = (0, place), place, len(tail)
        for _ in range(TRIES):
            m, stop = n, min(FAR, here, size)
            while m < stop and tokens[here - m - 1] == tail[size - m - 1]:
                m += 1
            if m > best[0]:
                best = m, here
                if m >= FAR:
                    break
            here = before.get(here, -1)
            if here < self._first:
                break
        return best

    def _drop(self, tokens: Sequence[int], first: int) -> None:
        """Forget the places before ``first``."""
        for n, places in enumerate(self._places, self._least):
            for place in range(max(n, self._first), first):
                gram = tuple(tokens[place - n : place])
                if places.get(gram) == place:
                    del places[gram]
        if self._before is not None:
            for place in range(self._first, first):
                self._before.pop(place, None)
        self._first = first
