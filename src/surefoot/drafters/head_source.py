"""A trained head as a source of ``hybrid``: asked token by token, also behind tokens that other sources drafted.

A step of a head costs far more than a look into text, so a head is *dear*: hybrid asks it only where cheap sources leave
doubt. Its level of evidence is the head's own probability of the candidate, in classes, and how deep into the draft it stands:
behind the pending token the head has read the target's own activations, further on only what it made of them.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from math import log
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from ..core.protocols import Need
from .evidence import Candidate
from .head import HeadDrafter
from .paths import Path, path

if TYPE_CHECKING:
    from ..core.request import Row

_LATE, _ROWS = 16, 256
"""Tokens since a row was last asked about after which the head has to catch up; rows that this is known of."""
_BOUNDS = (0.02, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96)
"""Bounds of the classes of probability."""
_CLASSES = len(_BOUNDS) + 1
_MIDDLES = (0.01, 0.04, 0.09, 0.16, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.98)
_DEPTHS = (1.0, 0.9, 0.85, 0.8)
"""How far the head's own probability is believed at first, by depth."""
_LEVELS = tuple(trust * middle for trust in _DEPTHS for middle in _MIDDLES)
WEIGHTS = (*(log(chance / (1.0 - chance)) - 0.3 for chance in _LEVELS), -1.5, 0.0)


class HeadSource:
    """``inner`` is also a drafter of the engine, which tells it of passes. ``depth``: steps of the head in a draft, at most.

    ``clock``: seconds.
    """

    dear = True
    levels: Sequence[float] = _LEVELS
    weights: Sequence[float] = WEIGHTS

    def __init__(self, inner: HeadDrafter, depth: int = 8, *, clock: Callable[[], float] = perf_counter) -> None:
        self.inner = inner
        self.name, self.source = inner.name, inner.source
        self.needs: Need = inner.needs
        self.depth = min(depth, inner.lane.depth)
        ids = inner.lane.draft_ids
        self._ids = None if ids is None else ids.tolist()
        self._clock = clock
        self._took = [0.0, 0.0]
        """Seconds of later steps, and of first ones."""
        self._read: dict[int, int] = {}
        """By row: tokens that it had when the head was last asked."""

    def walk(self, row: Row) -> HeadWalk:
        return HeadWalk(self, row, path(row))

    def say(self, row: Row, read: Path, width: int) -> list[tuple[int, float]]:
        """The likeliest tokens behind what the head has to read, with their probabilities; none where it cannot."""
        if len(read) > self.depth or not self.inner.paths.knows(row):
            return []
        start = self._clock()
        [logits] = self.inner.paths.said([(row, read)])
        values, at = logits.topk(width)
        chances = (values - torch.logsumexp(logits, 0)).exp().tolist()
        known, ids = self.inner.known, self._ids
        found = [(at if ids is None else ids[at], chance) for at, chance in zip(at.tolist(), chances, strict=True)]
        self._learn(row.base, self._clock() - start, len(read) == 1)
        return [(token, chance) for token, chance in found if token < known]

    def seconds(self, first: bool) -> float:
        """As :meth:`.asking.Timed.seconds`."""
        return self._took[first] or max(self._took)

    def _learn(self, row: Row, seconds: float, first: bool) -> None:
        """What is read of a prompt, or caught up with after a pause, makes a step dear once: that is not its price."""
        late = len(row.tokens) - self._read.get(row.id, 0) > _LATE
        if first:
            self._read.pop(row.id, None)  # the latest comes last
            self._read[row.id] = len(row.tokens)
            if len(self._read) > _ROWS:
                del self._read[next(iter(self._read))]
        before = self._took[first]
        if not before:
            self._took[first] = seconds
        elif not late:
            rate = 0.5 if seconds < before else 0.1
            self._took[first] = before + rate * (min(seconds, 2.0 * before) - before)


class HeadWalk:
    """Behind a path of drafted tokens, the pending one first. The head reads it when it is first asked for candidates."""

    __slots__ = ("_found", "_of", "_read", "_row")

    def __init__(self, of: HeadSource, row: Row, read: Path) -> None:
        self._of, self._row, self._read = of, row, read
        self._found: list[tuple[int, float]] | None = None

    def candidates(self, width: int) -> list[Candidate]:
        if self._found is None:
            self._found = self._of.say(self._row, self._read, 3)
        base = _CLASSES * min(len(self._read) - 1, len(_DEPTHS) - 1)
        return [(token, base + bisect(_BOUNDS, chance)) for token, chance in self._found[:width]]

    def after(self, token: int) -> HeadWalk:
        return HeadWalk(self._of, self._row, (*self._read, token))
