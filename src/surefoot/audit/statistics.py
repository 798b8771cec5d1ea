"""Is a sampled output drawn from the target's law? Tests that hold for every drafter and every rule.

*Tokens.* Let p be the target's law at a position, given the output's own beginning, and F(x-) the mass of the tokens that
come before x when they are sorted by probability. With v uniform and independent, u = F(x-) + v p(x) is uniform on [0, 1]
whenever x is drawn from p: the randomised probability integral transform (Rosenblatt, 1952; Brockwell, 2007). That holds at
every position given all before it, so the u's of a whole run are independent and uniform, whichever tokens were drafted and
by whatever rule they were verified; nothing about the drafter enters. Counts of the u's in equal bins are then multinomial, and

    G = 2 * sum over bins of n_i ln(n_i / (N / bins))

is chi-square distributed with bins - 1 degrees of freedom as N grows (Wilks, 1938). Where an output ends depends on its
tokens; N is then a stopping time, which does not change the limit (Anscombe, 1952).

*Drafted positions.* The same, over the positions at which a draft was offered: whether one was offered is known before the
token is drawn, so the u's there are uniform too. A verifier that is too kind to drafts shows here most.

*Points.* Where drafts are points (a function of what came before, without a law), some drafted token is emitted with the mass
P that the target gives to the drafted ones together. u = vP if one was, and P + v(1 - P) if not, is again uniform. Drafts that
are drawn at random are not tested so: given the token that was drawn, acceptance follows p/q and not p.

A run makes many tests; Holm's step-down rule (1979) keeps the chance of any false alarm at ``ALPHA``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
ALPHA = 1e-3
BINS = 20
_FEWEST = 5
"""Least expected count of a bin: fewer, and the limit law is not yet a good one."""


@dataclass(frozen=True, slots=True)
class Test:
    """Outcome of one G-test over ``n`` values. ``p`` is 1 where there are too few of them to tell anything."""

    case: str
    name: str
    n: int
    bins: int
    g: float
    p: float
    failed: bool = False

    # pytest takes classes of this name for its own
    __test__ = False


def transform(law: Array, token: int, v: float) -> float:
    """u of ``token`` under ``law`` [V]; equal probabilities are sorted by id."""
    p = law.astype(np.float64)
    own = p[token]
    before = p[p > own].sum() + p[:token][p[:token] == own].sum()
    return float(min(1.0, (before + v * own) / p.sum())) if own > 0 else 1.0


def transform_event(probability: float, happened: bool, v: float) -> float:
    """u of an event."""
    return v * probability if happened else probability + v * (1.0 - probability)


def g_test(case: str, name: str, values: Sequence[float]) -> Test:
    """Are these values uniform on [0, 1]?"""
    n = len(values)
    bins = min(BINS, n // _FEWEST)
    if bins < 2:
        return Test(case, name, n, bins, 0.0, 1.0)
    counts = np.bincount(np.minimum((np.asarray(values) * bins).astype(np.int64), bins - 1), minlength=bins)
    some = counts[counts > 0]
    g = 2.0 * float((some * np.log(some * bins / n)).sum())
    half = torch.tensor([(bins - 1) / 2, max(g, 0.0) / 2], dtype=torch.float64)
    return Test(case, name, n, bins, g, float(torch.special.gammaincc(half[0], half[1])))


def holm(tests: Sequence[Test], alpha: float = ALPHA) -> list[Test]:
    """The same tests, those marked whose null hypothesis is rejected."""
    counted = sorted((t.p, i) for i, t in enumerate(tests) if t.bins >= 2)
    failed: set[int] = set()
    for rank, (p, i) in enumerate(counted):
        if p > alpha / (len(counted) - rank):
            break
        failed.add(i)
    return [replace(t, failed=i in failed) for i, t in enumerate(tests)]
