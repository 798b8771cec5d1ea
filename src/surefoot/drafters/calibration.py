"""How often candidates of each kind of evidence are right, learned from what the target then says.

The kind of a candidate: at which level each source names it (:data:`SILENT`: the source says nothing at this place;
:data:`OTHER`: it names other tokens; :data:`UNASKED`: it is dear, and was not asked), and how far into the draft it stands.
The chance is a logistic regression on these, fitted online (one step a candidate, smaller the more is known of a weight),
starting from the believed chances of the levels.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from math import exp

Kind = tuple[int, ...]
"""Level in each source, SILENT, OTHER or UNASKED; last the depth class."""

SILENT, OTHER, UNASKED = -1, -2, -3
_REACHES = (0.15, 0.3, 0.5, 0.75)
DEPTHS = len(_REACHES) + 3
"""Depth classes: the first token after a refusal, the first one otherwise, later ones by the reach of their parent."""


def depth_class(reach: float) -> int:
    """Of a node below the first drafted one."""
    return 2 + bisect(_REACHES, reach)


_DEPTHS = (0.7, 0.0, 0.35, 0.45, 0.5, 0.35, -0.15)
"""Log-odds of the depth classes at first."""
_FAST, _SLOW, _AFTER = 0.4, 0.03, 12.0
"""The step of a weight: from the first to the second, half way down after so many uses."""


class Calibration:
    """``weights[s]``: log-odds of each level of source s at first, then of OTHER and SILENT."""

    def __init__(self, weights: Sequence[Sequence[float]]) -> None:
        # the last three places of each source are those of UNASKED, OTHER and SILENT, which index them
        self._weights = [[*own[:-2], 0.0, *own[-2:]] for own in weights]
        self._weights.append(list(_DEPTHS))
        self._uses = [[0.0] * len(own) for own in self._weights]

    def chance(self, kind: Kind, lean: float = 0.0) -> float:
        """Estimated chance that a candidate of this kind is the next token. ``lean``: log-odds by which the text differs."""
        z = lean
        for own, level in zip(self._weights, kind, strict=True):
            z += own[level]
        return 1.0 / (1.0 + exp(-z))

    def alone(self, source: int, level: int) -> float:
        """How strongly one source speaks for what it names at this level."""
        return self._weights[source][level]

    def learn(self, kind: Kind, right: bool, lean: float = 0.0) -> float:
        """A candidate of this kind stood at a place where the target spoke; returns by how much its chance was off."""
        error = right - self.chance(kind, lean)
        for own, uses, level in zip(self._weights, self._uses, kind, strict=True):
            n = uses[level]
            own[level] += error * (_SLOW + (_FAST - _SLOW) * _AFTER / (_AFTER + n))
            uses[level] = n + 1.0
        return error
