"""The acceptance rate: from laws, and from logs.

A token drawn from q and verified against p stays with probability beta = sum_x min(p(x), q(x)) = 1 - TV(p, q)
(Leviathan et al., 2023, theorem 3.5; Chen et al., 2023); alpha is the mean of beta over contexts. A point proposal x
stays with p(x).

From logs, a draft of ``length`` tokens of which ``accepted`` stayed tells about ``min(accepted + 1, length)`` trials: what
comes after the first refusal was not tried (it is censored), and what was never drafted was not refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, probability, whole

_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Estimate:
    """A proportion with its interval; ``trials`` observations behind it (0: nothing is known, the interval is [0, 1])."""

    value: float
    low: float
    high: float
    trials: int


def total_variation(p: ArrayLike, q: ArrayLike) -> Array:
    """TV(p, q) = sum |p - q| / 2 over the last axis; p, q [..., V] laws."""
    a, b = _law("p", p), _law("q", q)
    return np.asarray(0.5 * np.abs(a - b).sum(-1))


def overlap(p: ArrayLike, q: ArrayLike) -> Array:
    """beta = sum min(p, q) = 1 - TV(p, q) over the last axis."""
    a, b = _law("p", p), _law("q", q)
    return np.asarray(np.minimum(a, b).sum(-1))


def alpha(p: ArrayLike, q: ArrayLike) -> float:
    """Mean of :func:`overlap` over contexts; p, q [contexts, V]."""
    return float(overlap(p, q).mean())


def proportion(hits: int, trials: int, z: float = _Z95) -> Estimate:
    """Wilson's interval (1927) of ``hits`` out of ``trials``; ``z`` 1.96 is 95 %."""
    n, k = int(whole("trials", trials)), int(whole("hits", hits))
    if k > n:
        raise ValueError(f"{k} hits of {n} trials: the hits are part of the trials")
    if n == 0:
        return Estimate(0.5, 0.0, 1.0, 0)
    return Estimate(k / n, *_wilson(k / n, n, z), n)


def _wilson(share: float, n: float, z: float) -> tuple[float, float]:
    z2 = z * z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * float(np.sqrt(share * (1 - share) / n + z2 / (4 * n * n)))
    return max(0.0, middle - half), min(1.0, middle + half)


def from_drafts(accepted: Sequence[int], lengths: Sequence[int], z: float = _Z95) -> Estimate:
    """alpha from a log of drafts, under one rate for all positions: the maximum-likelihood estimate, refusals censoring."""
    hits, drafted = _drafts(accepted, lengths)
    return proportion(int(hits.sum()), int(np.minimum(hits + 1, drafted).sum()), z)


def by_position(accepted: Sequence[int], lengths: Sequence[int], z: float = _Z95) -> list[Estimate]:
    """a_i: chance that the token at depth i stays once those above it did, i = 1 … longest draft (Kaplan and Meier, 1958)."""
    hits, drafted = _drafts(accepted, lengths)
    out = []
    for i in range(1, int(drafted.max(initial=0)) + 1):
        tried = (hits >= i - 1) & (drafted >= i)
        out.append(proportion(int((hits[tried] >= i).sum()), int(tried.sum()), z))
    return out


def reach_by_position(accepted: Sequence[int], lengths: Sequence[int], z: float = _Z95) -> list[Estimate]:
    """r_i = a_1 … a_i with its interval; ``trials``: drafts that came to depth i.

    The variance of a product of such proportions is r^2 sum (1 - a_i) / (n_i a_i) (Greenwood, 1926); the interval is Wilson's
    of as many independent drafts as have this variance, which are all drafts where all have the same length.
    """
    out: list[Estimate] = []
    value, spread, n = 1.0, 0.0, 0.0
    for a in by_position(accepted, lengths, z):
        value *= a.value
        if a.trials == 0:  # no draft came this far: nothing is known but that it is no more than above
            out.append(Estimate(value, 0.0, out[-1].high, 0))
            continue
        if a.value > 0.0:
            spread += (1.0 - a.value) / (a.trials * a.value)
            n = (1.0 - value) / (value * spread) if spread else float(a.trials)
        elif not spread:
            n = float(a.trials)
        out.append(Estimate(value, *_wilson(value, n, z), a.trials))
    return out


def reach(chances: ArrayLike) -> Array:
    """r_i = a_1 … a_i: chance that a draft stays down to depth i; ``chances`` [K]."""
    return np.asarray(np.cumprod(probability("acceptance", chances)))


def from_mean_length(tau: float, gamma: int) -> float:
    """The alpha whose expected tokens a round (own token included) are ``tau`` at draft length ``gamma``, by bisection."""
    k = int(whole("gamma", gamma, 1))
    if not 1.0 <= tau <= k + 1:
        raise ValueError(f"a draft of {k} tokens yields 1 to {k + 1} tokens a round; got {tau}")
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        if sum(middle**j for j in range(k + 1)) < tau:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _drafts(accepted: Sequence[int], lengths: Sequence[int]) -> tuple[Array, Array]:
    hits, drafted = whole("accepted", accepted), whole("lengths", lengths)
    if hits.shape != drafted.shape or hits.ndim != 1:
        raise ValueError(f"one accepted count a draft: got {hits.size} counts for {drafted.size} drafts")
    if np.any(hits > drafted):
        raise ValueError("a draft cannot have more accepted tokens than drafted ones; check the log")
    return hits, drafted


def _law(name: str, value: ArrayLike) -> Array:
    found = probability(name, value)
    if found.ndim < 1 or not np.allclose(found.sum(-1), 1.0, atol=1e-6):
        raise ValueError(f"{name} must be laws over the last axis, each with sum 1")
    return found
