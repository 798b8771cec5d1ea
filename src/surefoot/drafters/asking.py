"""Whether a step of a dear source pays: what it settles, against what its time is worth.

Where the cheap sources of a merge leave the doubt d = reach x (1 - chance of their best candidate), a dear one is believed to
add r d tokens; r is learned: tokens that were kept thanks to it, less those that it spoiled, over the doubts at which it was
asked. Its step takes t seconds, in which decoding brings R t tokens (``Plan.rate``). So it is asked from the doubt R t / r on,
and in spite of that now and then, ever more seldom, so that r and t are known as the text and the machine go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

UNKNOWN = 0.5
"""The doubt from which on it is asked where nobody says what a second is worth."""
_WORTH, _BELIEF, _FADE = 0.4, 4.0, 0.98
"""Share of the doubt that a dear source is believed to settle at first, and how much that counts."""
_SOON, _SELDOM = 4, 256
"""Places at the root at which it is not asked before it is all the same: at first, and after many that did not pay."""
_TRIAL = 3
"""Places in a row at which it then is: at the first of them it has to catch up, and is dearer than it would be."""
_LEAST = 0.02


class Timed(Protocol):
    """A dear source that knows what its steps take."""

    def seconds(self, first: bool) -> float:
        """Of a step: the first of a draft, which meets cold caches, or a later one; 0 before anything is known."""
        ...


class Asking:
    """For one dear source. ``least``: the doubt from which on it is asked, whatever it costs; None: as above."""

    def __init__(self, source: Timed, least: float | None) -> None:
        self._source, self._least = source, least
        self._settled, self._doubt = _WORTH * _BELIEF, _BELIEF
        self._passed, self._wait, self._left = 0, _SOON, 0

    @property
    def worth(self) -> float:
        """Tokens that it adds, of each by which the others were in doubt."""
        return max(_LEAST, self._settled / self._doubt)

    def pays(self, doubt: float, first: bool, rate: float, crowd: float) -> bool:
        """``first``: at the root of a draft; ``rate``: tokens a second; ``crowd``: multiplies a given ``least``."""
        if self._least is not None:
            return doubt >= min(1.0, self._least * crowd)
        if rate <= 0.0:
            return doubt >= min(1.0, UNKNOWN * crowd)
        if doubt * self.worth >= rate * self._source.seconds(first):
            if first:
                self._passed, self._wait = 0, _SOON
            return True
        if not first or doubt < UNKNOWN:
            return False
        if self._left > 0:
            self._left -= 1
            return True
        self._passed += 1
        if self._passed < self._wait:
            return False
        self._passed, self._wait, self._left = 0, min(2 * self._wait, _SELDOM), _TRIAL - 1
        return True

    def learn(self, doubt: float, gained: int) -> None:
        """At a place that was reached. ``gained``: tokens of the draft that were kept from there on, if it put the first of
        them right; -1 if it put it wrong, else 0."""
        self._settled = _FADE * self._settled + (1.0 - _FADE) * _WORTH * _BELIEF + gained
        self._doubt = _FADE * self._doubt + (1.0 - _FADE) * _BELIEF + doubt


def best(chances: Sequence[tuple[float, int]]) -> tuple[float, int | None]:
    """Chance and token of the likeliest candidate; of equal ones the smallest token, as a chain takes it."""
    if not chances:
        return 0.0, None
    sure, negative = max(chances)
    return sure, -negative
