"""A draft from one source that is asked token by token: its believed chances, multiplied along a path, say where to go on."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from ..core.protocols import Plan
from ..core.tree import PENDING, DraftTree, integers
from .evidence import Source, Walk

if TYPE_CHECKING:
    from ..core.request import Row


def grow(source: Source, row: Row, plan: Plan) -> DraftTree:
    """The chain of best candidates (``plan.width`` 1), or the tree of the likeliest paths. q = None."""
    tokens, parents, reach = [row.tokens[-1]], [-1], 1.0
    levels = source.levels
    if min(plan.depth, plan.nodes, plan.width) > 0:
        place: Walk = source.walk(row)
        if plan.width == 1:
            for _ in range(min(plan.depth, plan.nodes)):
                found = place.candidates(1)
                if not found:
                    break
                token, level = found[0]
                reach *= levels[level]
                if reach < plan.floor:
                    break
                tokens.append(token)
                place = place.after(token)
            return DraftTree.chain(tokens, source=source.source)
        _spread(place, levels, plan, tokens, parents)
    return tree(tokens, parents, [PENDING] + [source.source] * (len(tokens) - 1))


def _spread(place: Walk, levels: Sequence[float], plan: Plan, tokens: list[int], parents: list[int]) -> None:
    heap: list[tuple[float, int, int, int, int, Walk]] = []
    node, reach, depth, order = 0, 1.0, 0, 0
    while True:
        if depth < plan.depth:
            for token, level in place.candidates(plan.width):
                value = reach * levels[level]
                if value >= plan.floor:
                    heappush(heap, (-value, order, token, node, depth + 1, place))
                    order += 1
        if not heap or len(tokens) > plan.nodes:
            return
        cost, _, token, parent, depth, before = heappop(heap)
        node, reach, place = len(tokens), -cost, before.after(token)
        tokens.append(token)
        parents.append(parent)


def tree(tokens: list[int], parents: list[int], sources: list[int]) -> DraftTree:
    """A tree of point proposals from plain lists."""
    return DraftTree(integers(tokens), integers(parents), None, integers(sources, np.int16))
