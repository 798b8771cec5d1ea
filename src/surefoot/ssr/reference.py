"""What an earlier answer says about the next token of this one: the place where the two run side by side.

As long as they agree from the beginning, the earlier answer is read on (its prefix). Behind the first difference the place is
found again by the last tokens (suffix decoding, arXiv 2411.04975); until then the answer is read on as if one token had been
exchanged for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from ..drafters.evidence import Candidate
from ..drafters.suffix_store import ContextStore
from .control import SsrOptions

DEPTH = 4
"""Tokens by which a place is looked up; longer agreements are compared."""
_LONGEST = 32
_RUNS = (1, 2, 3, 4, 8, 16)
_INTACT = (0.75, 0.8, 0.85, 0.88, 0.9, 0.93, 0.96)
_AGAIN = (0.3, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9)
LEVELS = (*_INTACT, *_AGAIN)
"""By level: agreement since the beginning, then agreement found again, each by its length."""
WEIGHTS = (*(log(p / (1 - p)) for p in LEVELS), -0.6, 0.0)


class Reference:
    """An earlier answer, or as much of it as there is."""

    __slots__ = ("store", "tokens")

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self.store = ContextStore(DEPTH)
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.store.add(tokens)


class Place:
    """Behind some tokens of an answer, side by side with one reference.

    ``prefix``, ``suffix``: whether it speaks as long as the two agree from the beginning, and is found again behind the first
    difference.
    """

    __slots__ = ("at", "intact", "of", "prefix", "run", "suffix")

    def __init__(
        self, of: Reference, at: int = 0, run: int = 0, intact: bool = True, prefix: bool = True, suffix: bool = True
    ) -> None:
        self.of = of
        self.at, self.run, self.intact = at, run, intact
        self.prefix, self.suffix = prefix, suffix

    def candidate(self) -> Candidate | None:
        if self.at >= len(self.of.tokens) or not (self.prefix if self.intact else self.suffix):
            return None
        level = sum(self.run >= least for least in _RUNS)
        return self.of.tokens[self.at], level if self.intact else len(_INTACT) + level

    def after(self, token: int, tail: Sequence[int]) -> Place:
        """Behind ``token``; ``tail``: the latest tokens of the answer, that one included."""
        tokens = self.of.tokens
        if self.at < len(tokens) and tokens[self.at] == token:
            return self._to(self.at + 1, self.run + 1, self.intact)
        found = self.of.store.matches(tail, _LONGEST) if self.suffix else []
        if found and found[-1][0] > 1:
            n, hit = found[-1]
            return self._to(hit if isinstance(hit, int) else hit.last, n, False)
        return self._to(min(self.at + 1, len(tokens)), 0, False)

    def _to(self, at: int, run: int, intact: bool) -> Place:
        return Place(self.of, at, run, intact, self.prefix, self.suffix)


class ReferenceWalk:
    """Behind some tokens of an answer, side by side with several references."""

    __slots__ = ("_places", "_tail")

    def __init__(self, places: Sequence[Place], tail: Sequence[int] = ()) -> None:
        self._places = places
        self._tail = tail

    @staticmethod
    def begin(references: Sequence[Reference], options: SsrOptions) -> ReferenceWalk:
        """In front of an answer; of equal candidates the latest reference's come first."""
        return ReferenceWalk([Place(r, prefix=options.prefix, suffix=options.suffix) for r in reversed(references)])

    @property
    def intact(self) -> bool:
        """Whether some reference agreed from the beginning."""
        return any(place.intact for place in self._places)

    def candidates(self, width: int) -> list[Candidate]:
        found: dict[int, int] = {}
        for place in self._places:
            named = place.candidate()
            if named is not None:
                token, level = named
                found[token] = max(found.get(token, level), level, key=LEVELS.__getitem__)
        return sorted(found.items(), key=lambda pair: -LEVELS[pair[1]])[:width]

    def after(self, token: int) -> ReferenceWalk:
        tail = [*self._tail[1 - _LONGEST :], token]
        return ReferenceWalk([place.after(token, tail) for place in self._places], tail)


SILENT = ReferenceWalk(())
