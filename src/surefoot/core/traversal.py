"""Traversal verification of trees (arXiv 2505.12398); on a chain it is block verification (arXiv 2403.10444, algorithm 2).

A tree is gone through from its leaves upwards. A node carries an acceptance mass a, 1 at the root; with P the target's law at
the node and Q the law its children were drawn from:

    for each child x, in the order drawn: go through x with mass min(1, a P(x) / Q(x)); stop if something there is accepted
        R = (a P - Q)+,  Z = sum R,  a = Z / (Z + 1 - a),  P = R / Z;  drawn without replacement, Q loses x
    accept the node with probability a: its path stays, and a token drawn from P follows

Exact for every tree in which whether a token is drawn depends on nothing but what was drawn before it. A node of mass 0 is
refused, with all below it, without a look at the target's law there. What is measured: docs/verification.md.
"""

from __future__ import annotations

from torch import Tensor

from ..errors import BadDraft, BadRequest
from .noise import ACCEPT, RESIDUAL, Noise
from .protocols import PerNode, Verdict, draw
from .tree import DraftTree, children_of

_NOTHING = 1e-30
"""Sums up to here are rounding; what is left of a law is not scaled up from them."""


def traversal(tree: DraftTree, p: PerNode | Tensor, noise: Noise, position: int, turn: int) -> Verdict:
    """``p`` [N, V]; ``position``: that of the first new token; ``turn``: the row's passes so far."""
    laws = tree.law_rows()
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    children = children_of(parents)

    def go(node: int, mass: float, path: tuple[int, ...]) -> Verdict | None:
        """The verdict, if a node of this subtree is accepted."""
        if mass <= 0.0:
            return None
        here = position + len(path)
        below, current = children[node], None
        if below:
            try:
                current = p[node]
            except BadRequest:
                below = []  # plain decoding would say this token and fail after it: a leaf, whose next token is the failure
        if current is not None:
            left = laws[node].to(current)
            share = mass  # a P is share * current: nothing is divided before it is needed
            for nth, child in enumerate(below):
                x = tokens[child]
                if nth and not tree.independent:
                    left = without(left, tokens[below[nth - 1]])
                claimed = float(left[x])
                if claimed <= 0.0:
                    raise undrawable(x)
                found = go(child, min(1.0, share * float(current[x]) / claimed), (*path, child))
                if found is not None:
                    return found
                rest = (share * current).sub_(left).clamp_min_(0.0)
                total = float(rest.sum())
                if total > _NOTHING:
                    whole = total + (1.0 - mass)
                    current, share, mass = rest, 1.0 / whole, total / whole
                elif mass < 1.0:
                    return None
                # else the refusal had probability 0, but for rounding, and the law stays
        if path and not noise.accept(mass, here - 1, ACCEPT, turn, node):
            return None
        if current is None:
            return Verdict(path, draw(p, node, noise, here, RESIDUAL, turn))
        return Verdict(path, noise.categorical(current, here, RESIDUAL, turn))

    found = go(0, 1.0, ())
    assert found is not None  # a mass of 1 stays 1
    return found


def without(q: Tensor, token: int) -> Tensor:
    """q [V] after ``token`` was drawn from it: zero there, the rest renormalised."""
    rest = q.clone()
    rest[token] = 0.0
    mass = rest.sum()
    return rest / mass if float(mass) > 0.0 else rest


def undrawable(token: int) -> BadDraft:
    return BadDraft(f"token {token} was drafted although its q is 0; q must be the law that it was drawn from")
