"""Where to look next, given the skip sets tried so far: a Gaussian process over sets, and its expected improvement.

Sets are bit vectors. The kernel falls with the number of bits in which two sets differ, k(a, b) = exp(-|a - b| / (2 s)) for
sets of s sublayers, which differ in at most 2 s. Scores are shares of n tokens, so their noise is p (1 - p) / n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def expected_improvement(tried: Array, scores: Array, places: int, candidates: Array) -> Array:
    """[C] expected gain over the best of ``scores`` [N] of each of ``candidates`` [C, D]; ``tried`` [N, D], all bits."""
    scale = max(1.0, 2.0 * float(tried.sum(1).mean()))
    mean = float(scores.mean())
    spread = max(float(scores.var()), 1e-6)
    noise = np.maximum(scores * (1 - scores), 0.01) / places / spread
    inner = _kernel(tried, tried, scale) + np.diag(noise)
    across = _kernel(candidates, tried, scale)
    weights = np.linalg.solve(inner, np.column_stack([(scores - mean) / math.sqrt(spread), across.T]))
    guess = across @ weights[:, 0]
    doubt = np.sqrt(np.maximum(1.0 - np.einsum("ij,ji->i", across, weights[:, 1:]), 1e-12))
    z = (guess - (float(scores.max()) - mean) / math.sqrt(spread)) / doubt
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(z / math.sqrt(2)))
    gain: Array = doubt * (z * below + density) * math.sqrt(spread)
    return gain


def _kernel(a: Array, b: Array, scale: float) -> Array:
    differ = a.sum(1)[:, None] + b.sum(1)[None, :] - 2 * (a @ b.T)
    found: Array = np.exp(-differ / scale)
    return found


def propose(
    tried: Array, scores: Array, places: int, draw: Callable[[], Array], rng: np.random.Generator, pool: int = 256
) -> Array:
    """The set [D] that promises most among ``pool`` drawn ones and as many neighbours of the best, all of them new."""
    best = tried[np.argsort(-scores, kind="stable")[:4]]
    seen = {row.tobytes() for row in tried}
    options = [draw() for _ in range(pool)]
    for i in range(pool):
        near = best[i % len(best)].copy()
        inside, outside = np.flatnonzero(near), np.flatnonzero(near == 0)
        if len(inside) and len(outside):
            near[rng.choice(inside)], near[rng.choice(outside)] = 0.0, 1.0
        options.append(near)
    fresh = [row for row in options if row.tobytes() not in seen]
    if not fresh:
        return draw()
    candidates = np.stack(fresh)
    chosen: Array = candidates[int(expected_improvement(tried, scores, places, candidates).argmax())]
    return chosen
