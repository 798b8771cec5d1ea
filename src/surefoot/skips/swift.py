"""SWIFT's search (Xia et al., 2024, arXiv 2410.06916): random skip sets of one size, every 25th chosen by a surrogate model.

The score of a set is the share of places at which the skipping model's argmax is the target's own token; the search ends at
0.93, or with the bound on evaluations. The size is a share of the sublayers that may be skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..core.sublayers import SkipSet, Sublayer
from .surrogate import Array, propose

ENOUGH = 0.93
EVERY = 25


def search(
    score: Callable[[SkipSet], float],
    sublayers: Sequence[Sublayer],
    size: int,
    places: int,
    *,
    evaluations: int,
    seed: int = 0,
    every: int = EVERY,
) -> tuple[SkipSet, float, int]:
    """The best set, its score and the evaluations made; ``places``: tokens behind a score. Ties: the first found."""
    rng = np.random.default_rng(seed)

    def draw() -> Array:
        bits = np.zeros(len(sublayers))
        bits[rng.choice(len(sublayers), size, replace=False)] = 1.0
        return bits

    tried: list[Array] = []
    scores: list[float] = []
    for i in range(evaluations):
        if i == 0:  # evenly spread
            bits = np.zeros(len(sublayers))
            bits[np.arange(size) * len(sublayers) // size] = 1.0
        elif i % every == 0:
            bits = propose(np.stack(tried), np.array(scores), places, draw, rng)
        else:
            bits = draw()
        tried.append(bits)
        scores.append(score(_set(bits, sublayers)))
        if scores[-1] >= ENOUGH:
            break
    best = int(np.argmax(scores))
    return _set(tried[best], sublayers), scores[best], len(scores)


def _set(bits: Array, sublayers: Sequence[Sublayer]) -> SkipSet:
    return SkipSet.of([sublayers[int(i)] for i in np.flatnonzero(bits)])
