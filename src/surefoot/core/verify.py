"""The exact verifiers: which drafted tokens stay, and which token the target adds.

``greedy`` and ``coupled`` ask the target for its own token at each node and walk down while a child carries it; the
emitted token never depends on the drafter. ``ratio`` accepts a drafted token x with probability min(1, p(x)/q(x)) and, on
refusal, goes on with the residual norm((p - q)+) (Leviathan et al., 2023, algorithm 1; Chen et al., 2023); siblings drawn
without replacement follow the recursive scheme of Yang et al. (2024, multi-candidate). A point proposal under ``ratio`` is
"draw y ~ p, go down if y is a child", which accepts x with p(x) and draws from p without x otherwise.

All rules give the target's law for every proposal (for ``ratio``: provided q is the law the children were drawn from).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ..errors import BadDraft
from .noise import ACCEPT, RESIDUAL, TARGET, Noise
from .protocols import Verdict
from .tree import DraftTree

RULES = ("auto", "greedy", "coupled", "ratio")


class Choices(Protocol):
    """The target's token at a node."""

    def __getitem__(self, node: int, /) -> int: ...


class PerNode(Protocol):
    """The law [V] at a node, made when it is asked for; or only a draw from it, which costs less."""

    def __getitem__(self, node: int) -> Tensor: ...

    def draw(self, node: int, noise: Noise, position: int, lane: int, turn: int = 0) -> int: ...


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
    return walk(tree, lambda node, depth: _draw(p, node, noise, position + depth, 0))


def ratio(tree: DraftTree, p: PerNode | Tensor, noise: Noise, position: int, turn: int) -> Verdict:
    """``p`` [N, V]. ``turn`` counts the row's passes: a fresh draw for every trial of a position."""
    laws = tree.law_rows()
    if not laws:
        return walk(tree, lambda node, depth: _draw(p, node, noise, position + depth, turn))
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    path: list[int] = []
    node = 0
    while True:
        here = position + len(path)
        current = p[node]
        children = [i for i in range(node + 1, len(parents)) if parents[i] == node]
        q = laws[node].to(current) if children else current
        for index, child in enumerate(children):
            x = tokens[child]
            claimed = float(q[x])
            if claimed <= 0.0:
                raise BadDraft(f"token {x} was drafted although its q is 0; q must be the law that it was drawn from")
            if noise.accept(min(1.0, float(current[x]) / claimed), here, ACCEPT, turn, index):
                break
            current = residual(current, q)
            q = without(q, x)
        else:
            return Verdict(tuple(path), noise.categorical(current, here, RESIDUAL, turn))
        path.append(child)
        node = child


def _draw(p: PerNode | Tensor, node: int, noise: Noise, position: int, turn: int) -> int:
    if isinstance(p, Tensor):
        return noise.categorical(p[node], position, TARGET, turn)
    return p.draw(node, noise, position, TARGET, turn)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm((p - q)+), both [V]; p itself where rounding leaves nothing (then a refusal has probability 0)."""
    rest = (p - q).clamp_min_(0.0)
    mass = rest.sum()
    return rest / mass if float(mass) > 0.0 else p


def without(q: Tensor, token: int) -> Tensor:
    """q after ``token`` was drawn from it: zero there, the rest renormalised."""
    rest = q.clone()
    rest[token] = 0.0
    mass = rest.sum()
    return rest / mass if float(mass) > 0.0 else rest


def choose_rule(rule: str, greedy_law: bool, seeded: bool, has_q: bool) -> str:
    """Resolve ``auto``: coupled when a seed is given, ratio where q is known, coupled otherwise."""
    if greedy_law:
        return "greedy"
    if rule == "auto":
        return "ratio" if has_q and not seeded else "coupled"
    return rule


def verify(tree: DraftTree, p: PerNode | Tensor, noise: Noise, rule: str, position: int, turn: int) -> Verdict:
    """One row. ``p`` [N, V] is the target's law at each node; ``position`` that of the first new token."""
    if rule == "greedy":
        return walk(tree, lambda node, depth: int(p[node].argmax()))
    if rule == "coupled":
        return coupled(tree, p, noise, position)
    return ratio(tree, p, noise, position, turn)


__all__ = ["RULES", "choose_rule", "coupled", "greedy", "ratio", "residual", "verify", "walk", "without"]
