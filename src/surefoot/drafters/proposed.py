"""A drafter that proposes whole drafts, as a source: its tree is asked node by node.

So a draft model, or a drafter of one's own, can be merged with others. Its tokens become point proposals, whatever law they
were drawn from. Levels are depth and rank among siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.protocols import Drafter, Plan
from ..core.tree import DraftTree, children_of
from .evidence import Candidate
from .ngram import whole_number

if TYPE_CHECKING:
    from ..core.request import Row

_DEPTHS, _RANKS = 6, 3
_FIRST = (0.8, 0.75, 0.7, 0.65, 0.6, 0.6)
_RANK = (1.0, 0.2, 0.1)
_LEVELS = tuple(first * rank for first in _FIRST for rank in _RANK)
WEIGHTS = (*(weight for _ in range(_DEPTHS) for weight in (1.2, -1.2, -2.0)), -0.8, 0.0)


class Proposed:
    """``inner`` is also a drafter of the engine. ``depth``: tokens deep that it is asked for, where the plan allows more."""

    levels: Sequence[float] = _LEVELS
    weights: Sequence[float] = WEIGHTS

    def __init__(self, inner: Drafter, depth: int = 4) -> None:
        self.inner = inner
        self.name, self.source, self.needs = inner.name, inner.source, inner.needs
        self._depth = whole_number(inner.name, "depth", depth, 1, 64)
        self._trees: dict[Row, DraftTree] = {}
        """By row, for shadows have the id of their request."""

    def prepare(self, rows: Sequence[Row], plans: Sequence[Plan]) -> None:
        """Ask the drafter for the drafts of these rows' next pass."""
        asked = []
        for plan in plans:
            depth = min(plan.depth, self._depth)
            nodes = min(plan.nodes, depth if plan.width == 1 else plan.nodes)
            asked.append(replace(plan, depth=depth, nodes=nodes, cut=None, floor=0.0))
        self._trees = dict(zip(rows, self.inner.propose(rows, asked), strict=True))

    def walk(self, row: Row) -> TreeWalk:
        tree = self._trees.pop(row, None)
        if tree is None:
            return TreeWalk([], [], -1, 0)
        return TreeWalk(tree.tokens.tolist(), children_of(tree.parents.tolist()), 0, 0)


class TreeWalk:
    """At a node of a tree; -1: beside it."""

    __slots__ = ("_children", "_depth", "_node", "_tokens")

    def __init__(self, tokens: Sequence[int], children: Sequence[Sequence[int]], node: int, depth: int) -> None:
        self._tokens, self._children, self._node, self._depth = tokens, children, node, depth

    def candidates(self, width: int) -> list[Candidate]:
        if self._node < 0:
            return []
        level = _RANKS * min(self._depth, _DEPTHS - 1)
        named = self._children[self._node][:width]
        return [(self._tokens[child], level + min(rank, _RANKS - 1)) for rank, child in enumerate(named)]

    def after(self, token: int) -> TreeWalk:
        found = -1
        if self._node >= 0:
            found = next((child for child in self._children[self._node] if self._tokens[child] == token), -1)
        return TreeWalk(self._tokens, self._children, found, self._depth + 1)
