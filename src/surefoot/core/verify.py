"""The exact verifiers: which drafted tokens stay, and which token the target adds.

``greedy`` and ``coupled`` ask the target for its own token at each node and walk down while a child carries it; the
emitted token never depends on the drafter. ``ratio`` accepts a drafted token x with probability min(1, p(x)/q(x)) and, on
refusal, goes on with the residual norm((p - q)+) (Leviathan et al., 2023, algorithm 1; Chen et al., 2023); siblings follow
the recursive scheme of Yang et al. (2024, multi-candidate). ``block`` and ``traversal`` (:mod:`.traversal`) look at whole
paths; ``kseq`` (:mod:`.kseq`) looks at independent siblings as equals. A point proposal under any of these four is "draw
y ~ p, go down if y is a child", which accepts x with p(x), the most that any rule can.

All rules give the target's law for every proposal (for the last four: provided q is the law the children were drawn from).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from .kseq import kseq
from .noise import ACCEPT, RESIDUAL, TARGET, Noise
from .protocols import PerNode, Verdict, draw
from .traversal import traversal, undrawable, without
from .tree import DraftTree, children_of

RULES = ("auto", "greedy", "coupled", "ratio", "block", "traversal", "kseq")
FRESH = ("ratio", "block", "traversal", "kseq")
"""Rules that draw anew in every pass and use the law that a proposal was drawn from."""


class Choices(Protocol):
    """The target's token at a node."""

    def __getitem__(self, node: int, /) -> int: ...


def walk(tree: DraftTree, choose: Callable[[int, int], int]) -> Verdict:
    """Go down from the root while a child carries the target's token; ``choose(node, depth)`` is that token."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    path: list[int] = []
    node = 0
    while True:
        token = choose(node, len(path))
        for child in range(node + 1, len(parents)):
            if parents[child] == node and tokens[child] == token:
                break
        else:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child


def greedy(tree: DraftTree, best: Choices) -> Verdict:
    """``best[i]``: argmax of the target's logits at node i."""
    return walk(tree, lambda node, depth: best[node])


def coupled(tree: DraftTree, p: PerNode | Tensor, noise: Noise, position: int) -> Verdict:
    """``p`` [N, V]; the token at ``position + depth`` is argmax(log p + Gumbel[seed, position + depth])."""
    return walk(tree, lambda node, depth: draw(p, node, noise, position + depth, TARGET, 0))


def ratio(tree: DraftTree, p: PerNode | Tensor, noise: Noise, position: int, turn: int) -> Verdict:
    """``p`` [N, V]. ``turn`` counts the row's passes: a fresh draw for every trial of a position."""
    laws = tree.law_rows()
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    children_at = children_of(parents)
    path: list[int] = []
    node = 0
    while True:
        here = position + len(path)
        children = children_at[node]
        if not children:
            return Verdict(tuple(path), draw(p, node, noise, here, RESIDUAL, turn))
        current = p[node]
        q = laws[node].to(current)
        for index, child in enumerate(children):
            x = tokens[child]
            if index and not tree.independent:
                q = without(q, tokens[children[index - 1]])
            claimed = float(q[x])
            if claimed <= 0.0:
                raise undrawable(x)
            if noise.accept(min(1.0, float(current[x]) / claimed), here, ACCEPT, turn, index):
                break
            current = residual(current, q)
        else:
            return Verdict(tuple(path), noise.categorical(current, here, RESIDUAL, turn))
        path.append(child)
        node = child


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm((p - q)+), both [V]; p itself where rounding leaves nothing (then a refusal has probability 0)."""
    rest = (p - q).clamp_min_(0.0)
    mass = rest.sum()
    return rest / mass if float(mass) > 0.0 else p


def choose_rule(rule: str, greedy_law: bool, seeded: bool, has_q: bool) -> str:
    """Resolve ``auto``: coupled when a seed is given or q is not known, else traversal, the best rule for a chain."""
    if greedy_law:
        return "greedy"
    if rule == "auto":
        return "traversal" if has_q and not seeded else "coupled"
    return rule


def verify(tree: DraftTree, p: PerNode | Tensor, noise: Noise, rule: str, position: int, turn: int) -> Verdict:
    """One row. ``p`` [N, V] is the target's law at each node; ``position`` that of the first new token.

    ``block`` and ``traversal`` are one rule; ``kseq`` is ``ratio`` where siblings were not drawn independently.
    """
    if rule == "greedy":
        return walk(tree, lambda node, depth: int(p[node].argmax()))
    if rule == "coupled":
        return coupled(tree, p, noise, position)
    if tree.q is None:
        return walk(tree, lambda node, depth: draw(p, node, noise, position + depth, TARGET, turn))
    if rule in ("block", "traversal"):
        return traversal(tree, p, noise, position, turn)
    if rule == "kseq" and tree.independent:
        return kseq(tree, p, noise, position, turn)
    return ratio(tree, p, noise, position, turn)


__all__ = [
    "FRESH",
    "RULES",
    "choose_rule",
    "coupled",
    "greedy",
    "kseq",
    "ratio",
    "residual",
    "traversal",
    "verify",
    "walk",
    "without",
]
