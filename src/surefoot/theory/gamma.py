"""The best draft length.

S(gamma) = E[L] / (1 + gamma c) is unimodal in gamma: one more token pays as long as

    alpha^(gamma+1) > c S(gamma)

(the token adds alpha^(gamma+1) tokens and c of time). The continuous optimum solves dS/dgamma = 0; with L = -ln alpha,
B = 1 + L (1 - c) / c it is gamma = (w - B) / L - 1, where w > 1 solves w - ln w = B, that is w = -W_{-1}(-e^{-B})
(Lambert W, Corless et al., 1996).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from .checks import Curve, positive, probability
from .speedup import expected_tokens, speedup, speedup_measured

_MOST = 10_000


def optimal_gamma(alpha: float, c: float, most: int = _MOST) -> int:
    """The integer that maximises S(gamma), 0 included (0: drafting does not pay); the smallest of equals."""
    a, cost = float(probability("alpha", alpha)), float(positive("c", c))
    if a == 1.0:  # every token adds one and costs c: S grows for ever if c < 1
        return most if cost < 1.0 else 0
    gamma, power, tokens = 0, a, 1.0
    while gamma < most and power > cost * tokens / (1 + gamma * cost):
        gamma += 1
        tokens += power
        power *= a
    return gamma


def optimal_gamma_measured(tokens: ArrayLike, c: float, cost: Curve | ArrayLike) -> int:
    """The draft length of the largest :func:`surefoot.theory.speedup.speedup_measured`; ``tokens`` [K+1] from length 0."""
    return int(np.argmax(speedup_measured(tokens, c, cost)))


def continuous_gamma(alpha: float, c: float) -> float:
    """The real number at which S is largest; negative where drafting does not pay at all. alpha below 1."""
    a, cost = float(probability("alpha", alpha)), float(positive("c", c))
    if not 0.0 < a < 1.0:
        raise ValueError(f"the continuous optimum needs 0 < alpha < 1; got {a}")
    rate = -math.log(a)
    b = 1.0 + rate * (1.0 - cost) / cost
    if b < 1.0:  # c > 1: S falls from the beginning
        return -1.0
    w = _lambert(b)
    return (w - b) / rate - 1.0


def lambert_gamma(alpha: float, c: float) -> int:
    """The better neighbour of :func:`continuous_gamma`."""
    a = float(probability("alpha", alpha))
    if a == 0.0:
        return 0
    low = max(0, math.floor(continuous_gamma(a, c)))
    return low if float(speedup(a, low, c)) >= float(speedup(a, low + 1, c)) else low + 1


def gamma_seed_approximation(alpha: float, c: float) -> float:
    """alpha / ((1 - alpha) sqrt(c)) - 1 / (1 - alpha), a closed form that circulates; :func:`seed_loss` tells what it loses."""
    a, cost = float(probability("alpha", alpha)), float(positive("c", c))
    if a == 1.0:
        return math.inf
    return a / ((1.0 - a) * math.sqrt(cost)) - 1.0 / (1.0 - a)


def seed_loss(alpha: float, c: float) -> float:
    """Share of the best speed-up that :func:`gamma_seed_approximation`, rounded and not below 0, gives away."""
    printed = max(0, round(gamma_seed_approximation(alpha, c)))
    return 1.0 - float(speedup(alpha, printed, c)) / float(speedup(alpha, optimal_gamma(alpha, c), c))


def tokens_at(alpha: float, most: int) -> np.ndarray:
    """E[L] for gamma = 0 … ``most``."""
    return np.asarray(expected_tokens(alpha, np.arange(most + 1)))


def _lambert(b: float) -> float:
    """w >= 1 with w - ln w = b >= 1, by Newton's method on a convex function: from the right, so it cannot overshoot."""
    w = b + math.log(b) + 1.0 if b > 1.5 else 1.0 + math.sqrt(2.0 * (b - 1.0)) + (b - 1.0)
    for _ in range(100):
        if w <= 1.0:
            return 1.0
        step = (w - math.log(w) - b) / (1.0 - 1.0 / w)
        w -= step
        if abs(step) <= 1e-15 * w:
            break
    return max(w, 1.0)
