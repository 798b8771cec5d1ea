"""What an earlier answer says about the next token of this one: the place where the two run side by side.

As long as they agree from the beginning, the earlier answer is read on (its prefix). Behind a difference the place is found
again by the last tokens (suffix decoding, arXiv 2411.04975), the nearest of equally good ones, for much in answers repeats
itself; beside it, and as long as none is found, the answer is read on as if one token had been exchanged for another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import log

from ..drafters.evidence import Candidate
from .control import SsrOptions

_LONGEST = 32
"""Tokens by which places are compared, at most."""
_LOOKED = 16
"""Places with the same last two tokens that are compared, at most, on either side."""
_SURE = 4
"""Tokens of agreement behind which a place that was found again is not doubted any more."""
_RUNS = (1, 2, 3, 4, 8, 16)
_INTACT = (0.75, 0.8, 0.85, 0.88, 0.9, 0.93, 0.96)
_AGAIN = (0.3, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9)
LEVELS = (*_INTACT, *_AGAIN)
"""By level: agreement since the beginning, then agreement found again, each by its length."""
WEIGHTS = (*(log(p / (1 - p)) for p in LEVELS), -0.6, 0.0)


class Reference:
    """An earlier answer, or as much of it as there is."""

    __slots__ = ("_places", "tokens")

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self._places: dict[tuple[int, int], list[int]] = {}
        """Behind each pair of tokens, rising."""
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.tokens:
                self._places.setdefault((self.tokens[-1], token), []).append(len(self.tokens) + 1)
            self.tokens.append(token)

    def find(self, tail: Sequence[int], near: int) -> tuple[int, int] | None:
        """(place, length) of the longest agreement with the end of ``tail``, two tokens at least; of equals the nearest."""
        places = self._places.get((tail[-2], tail[-1]), ()) if len(tail) > 1 else ()
        middle = bisect_left(places, near)
        found: tuple[int, int] | None = None
        best = (0, 0)
        for place in places[max(0, middle - _LOOKED) : middle + _LOOKED]:
            n, most = 2, min(len(tail), place, _LONGEST)
            while n < most and self.tokens[place - n - 1] == tail[-n - 1]:
                n += 1
            if found is None or (n, -abs(place - near)) >= best:  # of two as near the later: answers go on
                found, best = (place, n), (n, -abs(place - near))
        return found


class Place:
    """Behind some tokens of an answer, side by side with one reference.

    ``at``: the next token of the reference; -1: the place is not known. ``run``: tokens that agreed up to there.
    ``intact``: all did. ``line``: while ``at`` is in doubt, where it would be had tokens only been exchanged; else -1.
    """

    __slots__ = ("_options", "at", "intact", "line", "of", "run")

    def __init__(self, of: Reference, options: SsrOptions, at: int, run: int, intact: bool, line: int = -1) -> None:
        self.of = of
        self._options = options
        self.at, self.run, self.intact, self.line = at, run, intact, line

    @staticmethod
    def begin(of: Reference, options: SsrOptions) -> Place:
        return Place(of, options, 0, 0, True) if options.prefix else Place(of, options, -1, 0, False)

    def candidates(self) -> list[Candidate]:
        tokens, found = self.of.tokens, []
        if 0 <= self.at < len(tokens) and (self.intact or self._options.suffix):
            level = sum(self.run >= least for least in _RUNS)
            found.append((tokens[self.at], level if self.intact else len(_INTACT) + level))
        if 0 <= self.line < len(tokens):
            found.append((tokens[self.line], len(_INTACT)))
        return found

    def after(self, token: int, tail: Sequence[int]) -> Place:
        """Behind ``token``; ``tail``: the latest tokens of the answer, that one included."""
        tokens, options = self.of.tokens, self._options
        if not self.intact and not options.suffix:
            return self
        if 0 <= self.at < len(tokens) and tokens[self.at] == token:
            line = self.line + 1 if self.line >= 0 and self.run < _SURE else -1
            return Place(self.of, options, self.at + 1, self.run + 1, self.intact, line)
        if 0 <= self.line < len(tokens) and tokens[self.line] == token:
            return Place(self.of, options, self.line + 1, 1, False)
        on = min(max(self.at, self.line) + 1, len(tokens)) if self.line < 0 else self.line + 1
        found = self.of.find(tail, on) if options.suffix else None
        if found is not None:
            place, run = found
            return Place(self.of, options, place, run, False, -1 if place == on or self.at < 0 else on)
        return Place(self.of, options, -1 if self.at < 0 else on, 0, False)


class ReferenceWalk:
    """Behind some tokens of an answer, side by side with several references."""

    __slots__ = ("_places", "_tail")

    def __init__(self, places: Sequence[Place], tail: Sequence[int] = ()) -> None:
        self._places = places
        self._tail = tail

    @staticmethod
    def begin(references: Sequence[Reference], options: SsrOptions) -> ReferenceWalk:
        """In front of an answer; of equal candidates the latest reference's come first."""
        return ReferenceWalk([Place.begin(r, options) for r in reversed(latest(references, options.drafts))])

    @property
    def intact(self) -> bool:
        """Whether some reference agreed from the beginning."""
        return any(place.intact for place in self._places)

    def foretold(self, token: int) -> bool:
        """Whether a reference that agreed from the beginning names ``token``."""
        return any(place.intact and token in [named for named, _ in place.candidates()] for place in self._places)

    def candidates(self, width: int) -> list[Candidate]:
        found: dict[int, int] = {}
        for place in self._places:
            for token, level in place.candidates():
                found[token] = max(found.get(token, level), level, key=LEVELS.__getitem__)
        return sorted(found.items(), key=lambda pair: -LEVELS[pair[1]])[:width]

    def after(self, token: int) -> ReferenceWalk:
        tail = [*self._tail[1 - _LONGEST :], token]
        return ReferenceWalk([place.after(token, tail) for place in self._places], tail)


def latest(references: Sequence[Reference], most: int) -> list[Reference]:
    """So many of the latest, and of those before them the ones that go further than all behind them."""
    kept: list[Reference] = []
    for reference in reversed(references):
        if len(kept) < most or len(reference.tokens) > max(len(r.tokens) for r in kept):
            kept.append(reference)
    return kept[::-1]


SILENT = ReferenceWalk(())
