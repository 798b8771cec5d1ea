"""K-SEQ: K independent drafts of one token, looked at in turn (SpecTr, Sun et al., 2023, algorithm 3).

With beta(rho) = sum_x min(p(x) / rho, q(x)) and rho in [1, K] the solution of 1 - (1 - beta)^K = rho beta, a draft x is
accepted with probability min(1, p(x) / (rho q(x))). If none is, the token is drawn in proportion to
p - min(p / rho, q) (1 - (1 - beta)^K) / beta, which at the solution is (p - rho q)+.

K enters before the first draft is looked at, so how many siblings a node has must not depend on them, nor on what is below.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .noise import ACCEPT, RESIDUAL, Noise
from .protocols import Array, PerNode, Verdict, draw
from .traversal import undrawable
from .tree import DraftTree, children_of

_STEPS = 60
"""Halvings of the interval of rho: down to the rounding of a double."""


def kseq(tree: DraftTree, p: PerNode | Tensor, noise: Noise, position: int, turn: int) -> Verdict:
    """``p`` [N, V]; the siblings of ``tree`` are independent of each other and may repeat."""
    laws = tree.law_rows()
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    children = children_of(parents)
    path: list[int] = []
    node = 0
    while True:
        here = position + len(path)
        drawn = children[node]
        if not drawn:
            return Verdict(tuple(path), draw(p, node, noise, here, RESIDUAL, turn))
        target, q = (x.detach().cpu().double().numpy() for x in (p[node], laws[node]))
        rho = solve(target, q, len(drawn))
        for index, child in enumerate(drawn):
            x = tokens[child]
            if q[x] <= 0.0:
                raise undrawable(x)
            if noise.accept(min(1.0, float(target[x] / (rho * q[x]))), here, ACCEPT, turn, index):
                break
        else:
            rest = np.maximum(target - rho * q, 0.0)
            # nothing is left where a refusal has probability 0, but for rounding
            return Verdict(tuple(path), noise.categorical(rest if rest.any() else target, here, RESIDUAL, turn))
        path.append(child)
        node = child


def solve(p: Array, q: Array, k: int) -> float:
    """rho for k drafts; p and q [V].

    Only tokens with 1 < p / q < k change sides within the interval of rho: these are sorted, the others summed once.
    """
    low = p <= q
    high = ~low & (p >= k * q)
    head, tail = float(q[high].sum()), float(p[low].sum())
    middle = np.flatnonzero(~(low | high))
    ratio = p[middle] / q[middle]
    order = np.argsort(ratio)
    ratio, middle = ratio[order], middle[order]
    below = tail + np.concatenate([[0.0], np.cumsum(p[middle])])
    above = head + np.concatenate([np.cumsum(q[middle][::-1])[::-1], [0.0]])
    least, most = 1.0, float(k)
    for _ in range(_STEPS):
        rho = 0.5 * (least + most)
        at = int(np.searchsorted(ratio, rho))
        beta = float(below[at] / rho + above[at])
        if 1.0 - (1.0 - beta) ** k > rho * beta:
            least = rho
        else:
            most = rho
    return most
