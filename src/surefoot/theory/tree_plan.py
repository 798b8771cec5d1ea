"""Trees: which nodes to draft.

If the b-th child of a node is the target's token with probability p_b, whatever the node, then a node is reached with the
product of the p along its path, and a tree is worth the sum of its nodes' products (and 1 for the target's own token):

- :func:`sequoia`: the dynamic programme over (nodes, depth, children) of Sequoia (Chen et al., 2024, arXiv 2402.12374);
- :func:`greedy`: take the most probable node next. A node's product is at most its parent's and its elder sibling's, so this
  is the same optimum for every size at once, and it can stop by itself: when the next node costs more than it brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, Curve, curve, not_negative, probability, whole


@dataclass(frozen=True, slots=True)
class Tree:
    """``parents`` [N]: index of each node's parent below the root, -1 for the root; parents come first.

    ``rank``: which child of its parent a node is (0: the most probable). ``reach``: probability that it is accepted.
    """

    parents: tuple[int, ...]
    rank: tuple[int, ...]
    reach: tuple[float, ...]

    @property
    def tokens(self) -> float:
        """Expected tokens of a round, the target's own included."""
        return 1.0 + sum(self.reach)

    @property
    def depth(self) -> int:
        return max(self.depths(), default=0)

    def depths(self) -> list[int]:
        out: list[int] = []
        for parent in self.parents:
            out.append(1 if parent < 0 else out[parent] + 1)
        return out

    def work(self) -> int:
        """Tokens of a pass that runs each path from root to leaf as a chain of its own, as exact trees without a mask do."""
        inner = set(self.parents)
        depth = self.depths()
        leaves = [depth[i] for i in range(len(self.parents)) if i not in inner]
        return sum(leaves) + max(1, len(leaves))


def greedy(chances: ArrayLike, most: int, depth: int, cost: Curve | ArrayLike | None = None, draft: float = 0.0) -> Tree:
    """The best tree of at most ``most`` drafted nodes and ``depth`` levels; ``chances`` [B]: p_b, falling.

    With ``cost`` (V, see :func:`surefoot.theory.checks.curve`) the tree grows only while that raises tokens per time, and
    ``draft`` is what a drafted node costs its drafter, over a pass of one token.
    """
    p = _falling(chances)
    limit, levels = int(whole("most", most)), int(whole("depth", depth))
    v = None if cost is None else curve(cost, limit + 1)
    own = float(not_negative("draft", draft))
    parents: list[int] = []
    ranks: list[int] = []
    reach: list[float] = []
    heap: list[tuple[float, int, int, int]] = []  # -reach, parent, rank, level
    if levels and len(p) and p[0] > 0:
        heappush(heap, (-float(p[0]), -1, 0, 1))
    best, tokens = 0, 1.0
    rate = 1.0
    while heap and len(parents) < limit:
        chance, parent, rank, level = heappop(heap)
        above = 1.0 if parent < 0 else reach[parent]
        node = len(parents)
        parents.append(parent)
        ranks.append(rank)
        reach.append(-chance)
        tokens -= chance
        if v is not None and (now := tokens / (v[node + 2] + own * (node + 1))) > rate:
            best, rate = node + 1, now
        if rank + 1 < len(p) and p[rank + 1] > 0:
            heappush(heap, (-above * float(p[rank + 1]), parent, rank + 1, level))
        if level < levels:
            heappush(heap, (chance * float(p[0]), node, 0, level + 1))
    size = len(parents) if v is None else best
    return Tree(tuple(parents[:size]), tuple(ranks[:size]), tuple(reach[:size]))


def sequoia(chances: ArrayLike, nodes: int, depth: int) -> Tree:
    """The best tree of exactly ``nodes`` drafted nodes (fewer where ``depth`` and ``chances`` [B] allow no more)."""
    p = _falling(chances)
    n, levels = int(whole("nodes", nodes)), int(whole("depth", depth))
    value = np.zeros((levels + 1, n + 2))
    value[0, 2:] = -np.inf  # value[d, m]: a subtree of m nodes, its root counted as 1, at most d levels below
    value[:, 0] = -np.inf
    value[:, 1] = 1.0
    choice: dict[tuple[int, int, int], int] = {}
    for d in range(1, levels + 1):
        # forest[m]: best sum of children b, b+1, … with m nodes in all, from the last child forwards
        forest = np.full(n + 2, -np.inf)
        forest[0] = 0.0
        for b in range(len(p) - 1, -1, -1):
            longer = np.full(n + 2, -np.inf)
            longer[0] = 0.0
            for m in range(1, n + 1):
                first = np.arange(1, m + 1)
                sums = p[b] * value[d - 1, first] + forest[m - first]
                at = int(np.argmax(sums))
                longer[m] = sums[at]
                choice[d, b, m] = int(first[at])
            forest = longer
        value[d, 2 : n + 2] = 1.0 + forest[1 : n + 1]
    size = max((m for m in range(n + 1) if np.isfinite(value[levels, m + 1])), default=0)
    return _unfold(p, levels, size, choice)


def _unfold(p: Array, levels: int, size: int, choice: dict[tuple[int, int, int], int]) -> Tree:
    parents: list[int] = []
    ranks: list[int] = []
    reach: list[float] = []
    queue = [(-1, 1.0, levels, size)]
    while queue:
        parent, above, d, m = queue.pop(0)
        b = 0
        while m > 0:
            own = choice[d, b, m]
            node = len(parents)
            parents.append(parent)
            ranks.append(b)
            reach.append(above * float(p[b]))
            queue.append((node, reach[-1], d - 1, own - 1))
            m -= own
            b += 1
    return Tree(tuple(parents), tuple(ranks), tuple(reach))


def value_of(parents: Sequence[int], ranks: Sequence[int], chances: ArrayLike) -> float:
    """Expected tokens of any tree under p_b."""
    p = probability("chances", chances)
    reach: list[float] = []
    for parent, rank in zip(parents, ranks, strict=True):
        reach.append((1.0 if parent < 0 else reach[parent]) * float(p[rank]))
    return 1.0 + sum(reach)


def _falling(chances: ArrayLike) -> Array:
    p = probability("chances", chances)
    if p.ndim != 1 or np.any(np.diff(p) > 0) or float(p.sum()) > 1.0 + 1e-9:
        raise ValueError("chances of the first, second, … child must fall and add up to at most 1")
    return p
