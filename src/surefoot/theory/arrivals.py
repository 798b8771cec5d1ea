"""The law of the number of tokens that a cascade drafts in a round, and what the round costs where wide passes cost more.

A cascade's draft has a random length N, since a review ends at the first token that it refuses. The target's pass runs over
N + 1 tokens, and a reviewer's over what arrived and one more, so the cost of a round is

    E[V(N + 1)] + sum over levels of (passes of it in a round) c_i E[V_i(N_i + 1)]

with N_i the number that arrives at level i for one review. Laws are arrays: entry n is the chance of n tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .cascade import Level
from .checks import Array, Curve, curve, not_negative, probability, whole

Cost = Curve | ArrayLike | None
"""Passes over 1, 2, … tokens, see :func:`surefoot.theory.checks.curve`; None: all cost the same."""
Rate = float | tuple[float, ...]
"""How often tokens are accepted: everywhere, or the chance at depth 1, 2, … once those above were; the last holds on."""


def chances(alpha: Rate, most: int) -> Array:
    """a_1 … a_most."""
    own = np.atleast_1d(probability("alpha", alpha))
    if not len(own):
        raise ValueError("alpha is empty; give one rate, or those of depth 1, 2, …")
    return np.concatenate([own[:most], np.full(max(0, most - len(own)), own[-1])])


def reach(alpha: Rate, most: int) -> Array:
    """1, a_1, a_1 a_2, … [most+1]."""
    return np.concatenate([[1.0], np.cumprod(chances(alpha, most))])


def review_law(arriving: ArrayLike, alpha: Rate) -> Array:
    """Law of the tokens of one review of what arrives: what is accepted, and the reviewer's own."""
    law = probability("a law", arriving)
    left = np.append(law[::-1].cumsum()[::-1][1:], 0.0)  # P(N > j)
    stays = chances(alpha, len(law))
    return np.concatenate([[0.0], reach(alpha, len(law) - 1) * (left * (1.0 - stays) + law)])


def point(n: int) -> Array:
    """The law of a number that is certain."""
    found: Array = np.zeros(n + 1)
    found[n] = 1.0
    return found


def draft_law(levels: Sequence[Level]) -> Array:
    """Law of the tokens that a vertical cascade, the heaviest level first, drafts for a target round."""
    if not levels:
        return point(0)
    first, rest = levels[0], levels[1:]
    steps = int(whole("steps", first.steps, 1))
    if not rest:
        return point(steps)
    one = review_law(draft_law(rest), rest[0].alpha)
    law = one
    for _ in range(steps - 1):
        law = np.convolve(law, one)
    return law


def kept(law: ArrayLike, alpha: Rate) -> float:
    """Expected tokens of a round, the target's own included: 1 + sum of r_j P(N >= j), with the reach r_j (alpha^j)."""
    drafted = np.cumsum(np.asarray(law, np.float64)[::-1])[::-1]
    return float(np.dot(drafted, reach(alpha, len(drafted) - 1)))


def pass_cost(law: ArrayLike, cost: Cost = None) -> float:
    """E[V(N + 1)] of a pass over the drafted tokens and one more."""
    found = np.asarray(law, np.float64)
    return 1.0 if cost is None else float(np.dot(found, curve(cost, len(found))[1:]))


def round_cost(levels: Sequence[Level], cost: Cost = None, reviews: Sequence[Cost] = ()) -> float:
    """Cost of a round over a plain target pass. ``cost``: V; ``reviews``: V_i of each level but the last (none: constant)."""
    total, times = pass_cost(draft_law(levels), cost), 1
    for i, level in enumerate(levels):
        times *= int(whole("steps", level.steps, 1))
        rest = levels[i + 1 :]
        own = reviews[i] if rest and i < len(reviews) else None
        total += times * float(not_negative("c", level.c)) * pass_cost(draft_law(rest), own)
    return total


def ewif(levels: Sequence[Level], cost: Cost = None, reviews: Sequence[Cost] = ()) -> float:
    """Expected walltime improvement factor of a vertical cascade; that of :mod:`.cascade` where all passes cost the same."""
    tokens = kept(draft_law(levels), levels[0].alpha) if levels else 1.0
    return tokens / round_cost(levels, cost, reviews)
