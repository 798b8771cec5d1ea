"""Drafts that a model grows, level by level: a chain, a tree of the likeliest tokens, or a tree of drawn ones.

Each is given the logits of the nodes it asked for (``level``), adds their children, and says which of them it asks for next.
A request's options shape every node's logits by its own path; where they leave no token, the node stays a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.protocols import Array, Plan
from ..core.request import Row
from ..core.shaping import State
from ..core.tree import DraftTree, integers
from ..errors import BadRequest
from .draft_law import DraftLaw, agreement
from .draft_shape import below


class Growing(Protocol):
    """A draft on its way. Node 0 is the row's last token; children have higher numbers than all nodes of earlier levels."""

    tokens: list[int]
    parents: list[int]
    level: list[int]
    """Nodes whose logits are asked for, ascending; at first node 0."""

    def grow(self, nodes: Sequence[int], logits: Sequence[Tensor]) -> None:
        """``nodes``: those of ``level``, or fewer where the backend had no room, and their logits [V]."""
        ...

    def tree(self, source: int) -> DraftTree: ...


def start(law: DraftLaw, plan: Plan) -> Growing:
    """The draft that fits plan and row."""
    if plan.width == 1:
        return Chain(law, plan)
    return DrawnTree(law, plan) if law.fresh else LikelyTree(law, plan)


class Plainest:
    """A greedy chain of at most ``depth`` tokens whose logits nothing shapes; ``ids``: what a reduced vocabulary stands for.

    Between two passes each operation on a whole vocabulary takes as long as a part of the head, so none is made.
    """

    def __init__(self, row: Row, depth: int, ids: Sequence[int] | None) -> None:
        self.tokens, self.parents, self.level = row.tokens[-1:], [-1], [0]
        self._depth, self._ids = depth, ids

    def grow(self, nodes: Sequence[int], logits: Sequence[Tensor]) -> None:
        """``logits``: of one node, over the reduced vocabulary."""
        at = len(self.tokens)
        best = int(logits[0].argmax())
        self.tokens.append(best if self._ids is None else self._ids[best])
        self.parents.append(at - 1)
        self.level = [at] if at < self._depth else []

    def tree(self, source: int) -> DraftTree:
        return DraftTree.chain(self.tokens, None, source)


class Chain:
    """One token after the other. ``plan.stop`` ends it."""

    def __init__(self, law: DraftLaw, plan: Plan) -> None:
        self.tokens = law.row.tokens[-1:]
        self.parents = [-1]
        self.level = [0]
        self._law = law
        self._plan = plan
        self._state: State | None = None
        self._laws: list[Tensor] = []

    def grow(self, nodes: Sequence[int], logits: Sequence[Tensor]) -> None:
        self.level = []
        depth = len(self.tokens) - 1
        try:
            if depth == 0 and self._law.row.state is not None:
                self._state = self._law.row.state.fork()
            x = self._law.shaped(self._state, logits[0])
            token, q = self._law.one(x, depth)
            self.parents.append(depth)
            self.tokens.append(token)
            if q is not None:
                self._laws.append(q)
            if self._state is not None:
                self._state.advance(token)
        except BadRequest:  # the options leave no token here, or none after this one
            return
        stopped = self._plan.stop is not None and self._plan.stop(self._law.law(x), token, depth + 1)
        if not stopped and depth + 1 < self._plan.depth:
            self.level = [depth + 1]

    def tree(self, source: int) -> DraftTree:
        return DraftTree.chain(self.tokens, torch.stack(self._laws) if self._laws else None, source)


class _Nodes:
    """Nodes and the logits at each, shaped by its path."""

    def __init__(self, law: DraftLaw) -> None:
        self.tokens = law.row.tokens[-1:]
        self.parents = [-1]
        self.depth = [0]
        self.value = [1.0]
        """Estimated probability that verification accepts the node."""
        self._law = law
        self._states: dict[int, State] = {}

    def add(self, parent: int, token: int, value: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depth.append(self.depth[parent] + 1)
        self.value.append(value)
        return len(self.tokens) - 1

    def shaped(self, node: int, logits: Tensor) -> Array | None:
        """Logits [V] at a node; ``None`` where the options leave no token."""
        origin = self._law.row.state
        try:
            if origin is None:
                return self._law.shaped(None, logits)
            if node == 0:
                state = origin.fork()
            else:
                state = self._states[self.parents[node]].fork()
                state.advance(self.tokens[node])
            self._states[node] = state
            return self._law.shaped(state, logits)
        except BadRequest:
            return None


class LikelyTree:
    """Point proposals (EAGLE-2, arXiv 2406.16858; OPT-Tree, arXiv 2406.17276).

    Of each level the ``width`` likeliest nodes are expanded, of all nodes the ``nodes`` likeliest kept. A node is never
    likelier than its parent, so those kept hang together.
    """

    def __init__(self, law: DraftLaw, plan: Plan) -> None:
        self._nodes = nodes = _Nodes(law)
        self.tokens, self.parents = nodes.tokens, nodes.parents
        self.level = [0]
        self._law = law
        self._plan = plan

    def grow(self, nodes: Sequence[int], logits: Sequence[Tensor]) -> None:
        own, new = self._nodes, len(self.tokens)
        for node, found in zip(nodes, logits, strict=True):
            x = own.shaped(node, found)
            if x is None:
                continue
            for token, chance in self._law.several(x, own.depth[node], self._plan.width):
                own.add(node, token, own.value[node] * chance)
        kept = self._kept()
        best = [n for n in kept if n >= new and own.depth[n] < self._plan.depth]
        self.level = sorted(best[: self._plan.width])

    def tree(self, source: int) -> DraftTree:
        kept = [0, *sorted(self._kept())]
        place = {node: i for i, node in enumerate(kept)} | {-1: -1}
        return DraftTree(
            integers([self.tokens[n] for n in kept]),
            integers([place[self.parents[n]] for n in kept]),
            None,
            integers([0] + [source] * (len(kept) - 1), np.int16),
        )

    def _kept(self) -> list[int]:
        """The likeliest nodes, likeliest first; of equal ones the earlier, so never a child before its parent."""
        value = self._nodes.value
        order = sorted(range(1, len(value)), key=lambda n: (-value[n], n))
        return [n for n in order[: self._plan.nodes] if value[n] >= self._plan.floor]


class DrawnTree:
    """Siblings drawn without replacement, with the laws they were drawn from.

    Whether a node is drawn depends on its ancestors, its earlier siblings and the plan alone (:mod:`.draft_shape`).
    """

    def __init__(self, law: DraftLaw, plan: Plan) -> None:
        self._nodes = nodes = _Nodes(law)
        self.tokens, self.parents = nodes.tokens, nodes.parents
        self.level = [0]
        self._law = law
        self._plan = plan
        self._budget = [plan.nodes]
        """Nodes allowed below each node."""
        self._laws: dict[int, Tensor] = {}

    def grow(self, nodes: Sequence[int], logits: Sequence[Tensor]) -> None:
        self.level = []
        for node, found in zip(nodes, logits, strict=True):
            x = self._nodes.shaped(node, found)
            if x is not None:
                self._children(node, self._law.law(x))

    def _children(self, node: int, q: Array) -> None:
        own, plan = self._nodes, self._plan
        depth = own.depth[node]
        budget, reached = self._budget[node], own.value[node]
        left, mass = q, 1.0
        for more in reversed(range(plan.width)):
            if budget < 1 or mass <= 0.0 or reached < plan.floor:
                break
            token = self._law.draw(left, depth, len(self.tokens))
            share = min(float(left[token]) / mass, 1.0)
            # a later sibling meets what the target says beyond the draft's law, so it is believed less
            chance = agreement(share) if left is q else share
            given = below(chance, budget - 1, plan.depth - depth - 1, plan.width, more)
            child = own.add(node, token, reached * chance)
            self._budget.append(given)
            if given:
                self.level.append(child)
            budget -= 1 + given
            reached *= 1.0 - chance
            if left is q:
                self._laws[node] = torch.from_numpy(q)
                left = q.copy()
            left[token] = 0.0
            mass = float(left.sum())

    def tree(self, source: int) -> DraftTree:
        n = len(self.tokens)
        q = torch.stack([self._laws[node] for node in sorted(self._laws)]) if self._laws else None
        return DraftTree(integers(self.tokens), integers(self.parents), q, integers([0] + [source] * (n - 1), np.int16))
