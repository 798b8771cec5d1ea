"""Cascades of drafters.

*Vertical*: a target reviews what d_1 drafted in n_1 steps, each of which reviewed what d_2 drafted in n_2 steps, …; the
last one drafts without review. With G the probability generating function (PGF) of the number of tokens that arrive for
review, a review at acceptance rate a yields tokens with the PGF

    phi(x) = x [ (1 - a) (1 - G(a x)) / (1 - a x) + G(a x) ]

(a run of accepted tokens, cut at what arrived, and the reviewer's own); n reviews in a row yield phi(x)^n. The target's
round has the mean (1 - alpha G(alpha)) / (1 - alpha). With two levels and k tokens from the last one, phi(x) = 1 + (x - 1)
(1 - (a x)^(k+1)) / (1 - a x), and this is the expected walltime improvement factor of cascade speculative drafting (Chen et
al., arXiv 2312.11462): the cost is 1 + n c_1 + n k c_2, the reviewer's steps n times and the light drafter's n k times.

*Horizontal*: the later tokens of a draft, which are less likely to count, come from lighter drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, not_negative, positive, probability, whole

Pgf = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Level:
    """One drafter of a vertical cascade, the heaviest first.

    ``alpha``: rate at which the level above accepts its tokens. ``steps``: how many it makes for one step of the level above
    (for the last level: drafted tokens). ``c``: cost of one of them, over a target pass.
    """

    alpha: float
    steps: int
    c: float


def phi(x: ArrayLike, alpha: float, k: int) -> Array:
    """PGF of the tokens of one review of k drafted ones: 1 + (x - 1) (1 - (a x)^(k+1)) / (1 - a x)."""
    a, n = float(probability("alpha", alpha)), int(whole("k", k))
    return reviewed(lambda y: y**n, a)(np.asarray(x, np.float64))


def reviewed(arriving: Pgf, alpha: float) -> Pgf:
    """PGF of the tokens of one review at rate ``alpha`` of a number of tokens with the PGF ``arriving``."""

    def of(x: Array) -> Array:
        ax = alpha * x
        g = arriving(ax)
        with np.errstate(divide="ignore", invalid="ignore"):
            cut = np.where(ax == 1.0, 0.0, (1.0 - alpha) * (1.0 - g) / (1.0 - ax))
        return np.asarray(x * (cut + g))

    return of


def round_tokens(levels: Sequence[Level]) -> float:
    """Expected tokens of a target round over a vertical cascade; without levels 1."""
    if not levels:
        return 1.0
    alpha = float(probability("alpha", levels[0].alpha))
    arriving = _arriving(levels)
    if alpha == 1.0:  # the limit: all that arrives, and the target's own
        step = 1e-6
        return 1.0 + float((1.0 - arriving(np.asarray(1.0 - step))) / step)
    return float((1.0 - alpha * arriving(np.asarray(alpha))) / (1.0 - alpha))


def round_cost(levels: Sequence[Level]) -> float:
    """1 + n_1 c_1 + n_1 n_2 c_2 + …"""
    total, times = 1.0, 1
    for level in levels:
        times *= int(whole("steps", level.steps, 1))
        total += times * float(not_negative("c", level.c))
    return total


def ewif(levels: Sequence[Level]) -> float:
    """Expected walltime improvement factor of a vertical cascade of any depth, under i.i.d. acceptance."""
    return round_tokens(levels) / round_cost(levels)


def best_vertical(alpha: float, c1: float, inner: float, c2: float, most: int = 12) -> tuple[float, int, int]:
    """(EWIF, n, k) of the best two-level cascade; n steps of d_1 (alpha, c1), each over k tokens of d_2 (inner, c2)."""
    best = (1.0, 0, 0)
    for n in range(1, most + 1):
        for k in range(1, most + 1):
            found = ewif([Level(alpha, n, c1), Level(inner, k, c2)])
            if found > best[0]:
                best = (found, n, k)
    return best


def horizontal_tokens(alphas: ArrayLike, lengths: ArrayLike) -> float:
    """Expected tokens of a round whose draft is ``lengths[i]`` tokens at rate ``alphas[i]`` each, one after the other.

    For two: (1 - a1^(k1+1)) / (1 - a1) + a1^k1 a2 (1 - a2^k2) / (1 - a2).
    """
    a, k = probability("alphas", alphas), whole("lengths", lengths)
    if a.shape != k.shape or a.ndim != 1:
        raise ValueError("give one length for each alpha")
    return 1.0 + float(np.cumprod(np.repeat(a, k)).sum())


def horizontal_speedup(alphas: ArrayLike, lengths: ArrayLike, costs: ArrayLike) -> float:
    """Those tokens over 1 + sum lengths[i] costs[i]."""
    return horizontal_tokens(alphas, lengths) / (1.0 + float((whole("lengths", lengths) * not_negative("costs", costs)).sum()))


def dytc(alpha: float, k: int, c: float, bottom_alpha: float, bottom_c: float) -> float:
    """What a leaf of a dynamic tree cascade is extended by, per cost (CAS-Spec, arXiv 2510.26843, equation of T_s).

    (a (1 - a^k) / (1 - a) + a^k a_bottom) / (k c + c_bottom): k tokens of a drafter at rate ``alpha``, then one of the bottom.
    """
    a, low, n = float(probability("alpha", alpha)), float(probability("bottom_alpha", bottom_alpha)), int(whole("k", k, 1))
    gain = float(np.cumprod(np.full(n, a)).sum()) + a**n * low
    return gain / float(positive("cost", n * float(not_negative("c", c)) + float(not_negative("bottom_c", bottom_c))))


def best_dytc(alpha: float, c: float, bottom_alpha: float, bottom_c: float, most: int) -> tuple[float, int]:
    """(T_s, k) of the best k in 1 … ``most``; the smallest of equals."""
    found = [dytc(alpha, k, c, bottom_alpha, bottom_c) for k in range(1, int(whole("most", most, 1)) + 1)]
    best = int(np.argmax(found))
    return found[best], best + 1


def _arriving(levels: Sequence[Level]) -> Pgf:
    """PGF of the tokens that the first level hands up."""
    first, rest = levels[0], levels[1:]
    steps = int(whole("steps", first.steps, 1))
    if not rest:
        return lambda x: np.asarray(x**steps)
    one = reviewed(_arriving(rest), float(probability("alpha", rest[0].alpha)))
    return lambda x: np.asarray(one(x) ** steps)
