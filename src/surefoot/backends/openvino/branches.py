"""A tree as several chains, so that its logits are bitwise those of plain decoding.

Under a tree mask a node's ancestors lie further apart in the cache than they would in a chain. The attention kernel then
adds the same numbers in another order, and now and then a logit changes (measured: 1 to 3 % of the nodes off the first path
in bf16, most in f32). Here each path from the root to a leaf is a chain of its own over shared cache blocks. Shared
ancestors are computed once a path, which costs a few more tokens a pass and nothing in exactness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ...core.tree import Forest
from ...errors import BackendError, BadRequest
from .pool import BlockPool, Slot


@dataclass(frozen=True, slots=True)
class Lines:
    """Chains of one pass, in the order of the forest's rows.

    slots   one a chain
    nodes   [L] int64: packed forest node behind each token of the pass; None: the forest as it is
    place   [M] int64: for each forest node its first token in the pass; None: the same
    begins  C+1 offsets of the chains into the L tokens
    pad     tokens at the end of the last chain that belong to no node
    """

    slots: Sequence[Slot]
    nodes: np.ndarray | None
    place: np.ndarray | None
    begins: tuple[int, ...]
    pad: int = 0

    @property
    def size(self) -> int:
        return self.begins[-1]

    def padded(self, pool: BlockPool, size: int, ahead: int = 0) -> Lines:
        """The same with padding up to ``size`` tokens, if the pool has room; ``ahead``: tokens before the last chain's own."""
        pad = size - self.size
        last = self.slots[-1]
        width = ahead + self.begins[-1] - self.begins[-2] + pad
        if pad <= 0 or -(-(last.length + width) // pool.block) - len(last.table) > pool.free:
            return self
        pool.reserve([last], [width])
        return replace(self, begins=(*self.begins[:-1], size), pad=pad)


def paths(parents: Sequence[int], min_width: int = 1) -> list[list[int]]:
    """Nodes on each path from the root to a leaf, leaves ascending; short paths repeat their last node."""
    inner = set(parents)
    out = []
    for leaf in range(len(parents)):
        if leaf in inner:
            continue
        path, node = [], leaf
        while node >= 0:
            path.append(node)
            node = parents[node]
        path.reverse()
        out.append(path + [leaf] * (min_width - len(path)))
    return out


def work(forest: Forest) -> int:
    """Tokens that a pass over this forest computes when its trees are taken apart."""
    total = 0
    for b, linear in enumerate(forest.linear):
        lo, hi = forest.begins[b], forest.begins[b + 1]
        total += hi - lo if linear else sum(map(len, paths(forest.parents[lo:hi].tolist())))
    return total


def lay_out(pool: BlockPool, slots: Sequence[Slot], forest: Forest, min_width: int) -> Lines:
    """Give every chain of the forest a slot: the row's own for the first path, forks that end with the pass for the rest."""
    for slot, linear in zip(slots, forest.linear, strict=True):
        if linear:
            pool.prune(slot)
    if all(forest.linear):
        pool.reserve(slots, [forest.begins[b + 1] - forest.begins[b] for b in range(forest.rows)])
        return Lines(slots, None, None, forest.begins)
    try:
        return _spread(pool, slots, forest, min_width)
    except BackendError:
        for slot in slots:
            pool.prune(slot)
        raise


def _spread(pool: BlockPool, slots: Sequence[Slot], forest: Forest, min_width: int) -> Lines:
    chains: list[Slot] = []
    nodes: list[int] = []
    begins, place = [0], np.full(forest.nodes, -1, np.int64)
    for b, slot in enumerate(slots):
        lo, hi = forest.begins[b], forest.begins[b + 1]
        lines = [list(range(hi - lo))]
        if not forest.linear[b]:
            lines = paths(forest.parents[lo:hi].tolist(), min_width)
            if slot.lines != lines:
                pool.prune(slot)
                slot.lines = lines
                for _ in lines[1:]:
                    slot.branches.append(pool.fork(slot, slot.length))
        for path, chain in zip(lines, [slot, *slot.branches], strict=True):
            for i, node in enumerate(path):
                if place[lo + node] < 0:
                    place[lo + node] = begins[-1] + i
                nodes.append(lo + node)
            begins.append(begins[-1] + len(path))
            chains.append(chain)
    pool.reserve(chains, [hi - lo for lo, hi in pairwise(begins)])
    return Lines(chains, np.array(nodes, np.int64), place, tuple(begins))


def keep(pool: BlockPool, slot: Slot, path: Sequence[int]) -> None:
    """Commit a path of the last pass: the chain that computed it becomes the row's."""
    if slot.lines and len(path):
        want = list(path)
        found = next((k for k, line in enumerate(slot.lines) if line[: len(want)] == want), None)
        if found is None:
            raise BadRequest(f"cannot commit nodes {want}: name a path of the tree, from its root downwards")
        if found:
            branch = slot.branches[found - 1]
            slot.table, branch.table = branch.table, slot.table
        path = range(len(want))
    pool.prune(slot)
    pool.keep(slot, path)
