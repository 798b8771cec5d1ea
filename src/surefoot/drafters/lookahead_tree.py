"""Trees of lookahead decoding: growing one beside the window, and finding the guesses in one that was verified."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from ..core.protocols import Plan
from .lookahead_pool import LookaheadWalk


def branches(
    walk: LookaheadWalk,
    levels: Sequence[float],
    plan: Plan,
    pending: int,
    window: Sequence[int],
    most: int,
    paths: bool,
) -> tuple[list[int], list[int]]:
    """Tokens and parents: the chain ``window``, then what ``walk`` names, the likeliest first, in ``most`` branches.

    A node that both want is one. ``plan.cut`` is asked where there is no window, which is there to be learned from.
    """
    tokens, parents, kids, depths = [pending], [-1], [dict[int, int]()], [0]

    def add(parent: int, token: int) -> int:
        kids[parent][token] = len(tokens)
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        kids.append({})
        return len(tokens) - 1

    node = 0
    for token in window:
        node = add(node, token)
    heap: list[tuple[float, int, int, int, LookaheadWalk]] = []
    grown: set[int] = set()
    reaches: list[float] = []
    work: list[int] = []
    begun = order = node = 0
    reach = 1.0
    while True:
        if depths[node] < plan.depth:
            for token, level in walk.candidates(plan.width):
                value = reach * levels[level]
                if value >= plan.floor:
                    heappush(heap, (-value, order, token, node, walk))
                    order += 1
        while heap:
            cost, _, token, parent, before = heappop(heap)
            more = parent == 0 or parent in grown  # else it only lengthens a branch
            fresh = token not in kids[parent]
            full = fresh and (len(tokens) > plan.nodes or len(kids[parent]) >= plan.width)
            if not full and begun + more <= most:
                break
        else:
            break
        begun += more
        grown.add(parent)
        if fresh:
            reaches.append(-cost)
            work.append(depths[parent] + 2 if paths and kids[parent] else 1)
            node = add(parent, token)
        else:
            node = kids[parent][token]
        walk, reach = before.after(token), -cost
    kept = len(tokens) if window or plan.cut is None else 1 + plan.cut(reaches, work)
    return tokens[:kept], parents[:kept]


def carrier(parents: Sequence[int], depth: Sequence[int], path: Sequence[int]) -> list[int]:
    """Refused nodes from the new pending token's place downwards, on the deepest branch that leaves ``path`` latest."""
    low = list(depth)  # the deepest place under each node
    for node in range(len(parents) - 1, 0, -1):
        low[parents[node]] = max(low[parents[node]], low[node])
    kept = {0, *path}
    for top in (*reversed(path), 0):
        away = [i for i in range(top + 1, len(parents)) if parents[i] == top and i not in kept]
        node = max(away, key=low.__getitem__, default=-1)
        if node < 0 or low[node] <= len(path):
            continue
        found: list[int] = []
        while node > 0:
            if depth[node] > len(path):
                found.append(node)
            node = next((i for i in range(node + 1, len(parents)) if parents[i] == node and low[i] == low[node]), -1)
        return found
    return []
