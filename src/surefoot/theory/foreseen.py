"""Reading an earlier answer side by side with the one that is being said: tokens and cost of the passes.

The two agree in runs. A token agrees with chance a if the one before it did; behind a difference r tokens (that one included)
are said before the place is found again. So a share

    omega = R / (R + r),  R = a / (1 - a)

of the answer is foreseen, the *overlap*. A pass over a chain of k gives (1 - a^(k+1)) / (1 - a) tokens and is followed by
another without a difference between them with chance a^(k+1), so that the cost of n tokens obeys

    C(n) = V(k+1) + sum_{g<=k} a^g (1 - a) [ (r - 1) V(w) / tau + C(n - g - r) ] + a^(k+1) C(n - k - 1)

and grows by 1 / :func:`rate` a token; w tokens make a pass without a chain, which gives tau. Costs are in passes of one token.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, Curve, curve, positive, probability, whole

LONGEST = 16
"""Longest chain that is tried where none is given."""


def agreement(overlap: float, recovery: float = 1.0) -> float:
    """a of an overlap: omega r / (1 - omega + omega r)."""
    o, r = float(probability("overlap", overlap)), float(positive("recovery", recovery))
    return o * r / (1.0 - o + o * r)


def overlap(agree: float, recovery: float = 1.0) -> float:
    """omega of a chance of agreement: a / (a + r (1 - a))."""
    a, r = float(probability("agree", agree)), float(positive("recovery", recovery))
    return a / (a + r * (1.0 - a))


def rate(agree: float, recovery: float, chain: int, cost: Curve | ArrayLike, *, tokens: float = 1.0, width: int = 1) -> float:
    """Tokens of a long answer for the cost of a pass of one token, while its draft goes on; ``chain`` 0: it is not read."""
    a, k, w = float(probability("agree", agree)), int(whole("chain", chain)), int(whole("width", width, 1))
    v = curve(cost, max(k + 1, w))
    plain = tokens / float(v[w])
    if k == 0:
        return plain
    end = 1.0 - a ** (k + 1)
    lost = end * (recovery - 1.0) if end else 0.0
    if math.isinf(lost):
        return plain
    gives = (end / (1.0 - a) if a < 1.0 else k + 1.0) + lost
    return gives / (float(v[max(k + 1, w)]) + lost / plain)


def best_chain(agree: float, recovery: float, cost: Curve | ArrayLike, most: int = LONGEST, **row: float) -> int:
    """The chain of largest :func:`rate`, the shortest of equals; 0: reading the draft does not pay."""
    found = [rate(agree, recovery, k, cost, **row) for k in range(int(whole("most", most)) + 1)]  # type: ignore[arg-type]
    return int(np.argmax(np.array(found) > max(found) * (1.0 - 1e-12)))


def intact(a: float, k: int, n: int, v: Array, w: int) -> tuple[float, float, float]:
    """Of the passes before the first difference: cost, kept drafted tokens; and the chance that there is none in n tokens."""
    cost = kept = 0.0
    for at in range(0, n, k + 1):
        q = min(k, n - at)
        reached = a**at
        cost += reached * float(v[max(q + 1, w)])
        kept += reached * float((a ** np.arange(1, q + 1)).sum())
    return cost, kept, float(a**n)


def read(
    a: float, r: float, k: int, n: int, v: Array, *, more: bool, tokens: float = 1.0, width: int = 1
) -> tuple[float, float]:
    """C(n), and the drafted tokens that are kept; ``more``: the answer goes on behind these n tokens."""
    w = width
    plain = float(v[w]) / tokens
    if k == 0 or n == 0:
        return n * plain, 0.0
    back = [r] if math.isinf(r) else [math.floor(r), math.ceil(r)]
    weight = [1.0] if len(back) == 1 else [math.floor(r) + 1 - r, r - math.floor(r)]
    # place n + 1 stands for one token beyond the draft, which the last pass gave and nobody has to say any more
    cost, kept = np.zeros(n + 2), np.zeros(n + 2)
    gone, held = np.zeros(n + 2), np.zeros(n + 2)
    cost[n + 1] = gone[n + 1] = -plain if more else 0.0
    powers = a ** np.arange(k + 1)
    for left in range(n + 1):
        if left:
            q = min(k, left)
            agree = powers[:q] * (1.0 - a)
            behind = left - 1 - np.arange(q)
            last = left - q - 1 if left > q else n + 1
            whole_chain = float(a**q)
            cost[left] = v[max(q + 1, w)] + agree @ gone[behind] + whole_chain * (a * cost[last] + (1.0 - a) * gone[last])
            kept[left] = agree @ (np.arange(q) + held[behind]) + whole_chain * (q + a * kept[last] + (1.0 - a) * held[last])
        for length, p in zip(back, weight, strict=True):
            skip = int(min(length - 1, left))
            gone[left] += p * (skip * plain + cost[left - skip])
            held[left] += p * kept[left - skip]
    return float(cost[n]), float(kept[n])
