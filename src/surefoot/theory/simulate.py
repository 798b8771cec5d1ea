"""Monte Carlo without models: the processes whose means the other modules give in closed form.

Every function takes a ``numpy.random.Generator`` and returns one number a round (or run), so that a mean comes with its error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .cascade import Level
from .checks import Array, Curve, curve, not_negative, probability, whole


def accepted(rng: np.random.Generator, chances: ArrayLike, rounds: int) -> Array:
    """Accepted tokens of each round [rounds]; ``chances`` [K]: chance at each depth once the depth above was accepted."""
    p = probability("chances", chances)
    if not len(p):
        return np.zeros(int(rounds), np.int64)
    tried = rng.random((int(whole("rounds", rounds, 1)), len(p))) < p
    return np.asarray(np.cumprod(tried, axis=1).sum(1))


def chain_tokens(rng: np.random.Generator, alpha: float, gamma: int, rounds: int) -> Array:
    """Tokens of each round of a chain of ``gamma`` drafted tokens, the target's own included."""
    return accepted(rng, np.full(int(whole("gamma", gamma)), float(probability("alpha", alpha))), rounds) + 1


def chain_speedup(rng: np.random.Generator, alpha: float, gamma: int, c: float, cost: Curve | ArrayLike, tokens: int) -> float:
    """Speed-up of a run of ``tokens`` tokens: time of plain decoding over that of rounds of gamma drafted tokens."""
    v = curve(cost, int(gamma) + 1)
    need, rounds = int(whole("tokens", tokens, 1)), 0
    made = 0
    while made < need:
        some = chain_tokens(rng, alpha, gamma, max(16, need // (int(gamma) + 1)))
        sums = made + np.cumsum(some)
        last = int(np.searchsorted(sums, need))
        rounds += min(last + 1, len(some))
        made = int(sums[-1]) if last >= len(some) else need
    return need / (rounds * (int(gamma) * float(not_negative("c", c)) + float(v[int(gamma) + 1])))


def vertical_tokens(rng: np.random.Generator, levels: Sequence[Level], rounds: int) -> Array:
    """Tokens of each target round over a vertical cascade, by playing every review."""
    return np.array([1 + _run(rng, levels[0].alpha, _arrive(rng, levels)) if levels else 1 for _ in range(int(rounds))])


def horizontal_tokens(rng: np.random.Generator, alphas: ArrayLike, lengths: ArrayLike, rounds: int) -> Array:
    """Tokens of each round of a horizontal cascade."""
    return accepted(rng, np.repeat(probability("alphas", alphas), whole("lengths", lengths)), rounds) + 1


def tree_tokens(
    rng: np.random.Generator, parents: Sequence[int], ranks: Sequence[int], chances: ArrayLike, rounds: int
) -> Array:
    """Tokens of each round of a tree: at each node the target's token is child b with chance p_b, else none of them."""
    p = probability("chances", chances)
    children: dict[int, dict[int, int]] = {}
    for node, (parent, rank) in enumerate(zip(parents, ranks, strict=True)):
        children.setdefault(parent, {})[rank] = node
    bounds = np.cumsum(p)
    out = np.ones(int(whole("rounds", rounds, 1)), np.int64)
    for i in range(len(out)):
        node = -1
        while True:
            child = children.get(node, {}).get(int(np.searchsorted(bounds, rng.random(), side="right")))
            if child is None:
                break
            node = child
            out[i] += 1
    return out


def batch_rounds(
    rng: np.random.Generator, alpha: float, gamma: int, rows: int, tokens: int, runs: int, *, ragged: bool = True
) -> Array:
    """Rounds of each run until all rows have ``tokens`` tokens."""
    out = np.zeros(int(runs), np.int64)
    for i in range(int(runs)):
        left = np.full(int(whole("rows", rows, 1)), int(whole("tokens", tokens, 1)))
        while np.any(left > 0):
            made = chain_tokens(rng, alpha, gamma, len(left))
            left = left - (made if ragged else made.min())
            out[i] += 1
    return out


def _run(rng: np.random.Generator, alpha: float, most: int) -> int:
    """Accepted tokens of ``most`` that arrived."""
    n = 0
    while n < most and rng.random() < alpha:
        n += 1
    return n


def _arrive(rng: np.random.Generator, levels: Sequence[Level]) -> int:
    """Tokens that the first level hands up in one round."""
    first, rest = levels[0], levels[1:]
    if not rest:
        return first.steps
    return sum(1 + _run(rng, rest[0].alpha, _arrive(rng, rest)) for _ in range(first.steps))
