"""Draft trees of one row, and forests: the ragged pack of several rows that one pass scores.

Node 0 of a tree is the *pending* token: committed, but not yet in the KV cache. Children come after
their parents. A linear draft is a tree of width one; plain decoding is a tree of one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadDraft

PENDING = 0
"""Source number of the pending token, and of every token that the target itself chose."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """What a drafter proposes for one row.

    tokens   [N] int64; node 0 is the pending token
    parents  [N] int64; ``parents[0] == -1`` and ``parents[i] < i``
    q        ``None`` (point proposals), or the law that the children of a node were drawn from, in index
             order and without replacement: ``[N, V]``, or ``[C, V]`` with one row for each node that has
             children, in index order
    source   [N] int16; number of the drafter that proposed the node
    independent  siblings were drawn from q independently, so they may repeat; how many does not depend on them
    """

    tokens: Tensor
    parents: Tensor
    q: Tensor | None
    source: Tensor
    independent: bool = False

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    @staticmethod
    def chain(tokens: Sequence[int], q: Tensor | None = None, source: int = PENDING) -> DraftTree:
        """A linear draft. ``tokens[0]`` is the pending token, the rest were drafted by ``source``."""
        n = len(tokens)
        if n == 0:
            raise BadDraft("a chain needs its pending token; give [pending, drafted, …]")
        return DraftTree(integers(tokens), integers(range(-1, n - 1)), q, integers([PENDING] + [source] * (n - 1), np.int16))

    def law_rows(self) -> dict[int, Tensor]:
        """Node -> the law [V] its children were drawn from; empty for point proposals."""
        if self.q is None:
            return {}
        if self.q.shape[0] == len(self):
            return dict(enumerate(self.q))
        inner = sorted(set(self.parents.tolist()) - {-1})
        if len(inner) != self.q.shape[0]:
            raise BadDraft(
                f"q has {self.q.shape[0]} rows; give {len(self)} (one a node) or {len(inner)} (one a node with children)"
            )
        return dict(zip(inner, self.q, strict=True))

    def check(self, vocab_size: int, max_nodes: int) -> DraftTree:
        """Raise :class:`BadDraft` unless the tree is well formed; returns itself."""
        n = len(self)
        parents = self.parents.tolist()
        if n == 0 or len(parents) != n or len(self.source) != n:
            raise BadDraft("a draft tree needs tokens, parents and source of one equal length, the pending token included")
        if n > max_nodes:
            raise BadDraft(f"the draft has {n} nodes but the backend takes {max_nodes} a pass; lower the draft length")
        if parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(parents[1:], 1)):
            raise BadDraft("parents must start with -1 and name earlier nodes only; sort the nodes by depth")
        tokens = self.tokens.tolist()
        if not all(0 <= t < vocab_size for t in tokens):
            raise BadDraft(f"drafted token ids must lie in 0..{vocab_size - 1}; check that draft and target share a vocabulary")
        if self.independent and self.q is None:
            raise BadDraft("independent siblings need the law q that they were drawn from; give it, or leave independent out")
        if n > 2 and not self.independent and len(set(zip(parents, tokens, strict=True))) != n:
            raise BadDraft("two children of one node carry the same token; merge them")
        if self.q is not None:
            if self.q.ndim != 2 or self.q.shape[-1] != vocab_size:
                raise BadDraft(f"q has shape {list(self.q.shape)}; give rows of the target's vocabulary ({vocab_size})")
            self.law_rows()
        return self


def integers(values: Sequence[int], dtype: type[np.signedinteger[Any]] = np.int64) -> Tensor:
    """A CPU tensor by way of numpy, which between two passes (cold caches) takes half the time of ``torch.tensor``."""
    return torch.from_numpy(np.array(values, dtype))


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """The children of each node, ascending."""
    out: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            out[parent].append(node)
    return out


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each node; node 0 has depth 0."""
    out: list[int] = []
    for p in parents:
        out.append(0 if p < 0 else out[p] + 1)
    return out


def ancestor_mask(parents: Sequence[int]) -> np.ndarray:
    """[N, N] bool; ``[i, j]`` says whether node i sees node j (itself and its ancestors)."""
    n = len(parents)
    mask = np.zeros((n, n), dtype=bool)
    for i, p in enumerate(parents):
        if p >= 0:
            mask[i] = mask[p]
        mask[i, i] = True
    return mask


@dataclass(frozen=True, slots=True)
class Forest:
    """Several rows, packed without padding between them: the input of one pass. M = all nodes together.

    A row is a chain of pending tokens (one in decoding, many in prefill) and, below the last of them, a draft.
    Rows narrower than the backend's ``min_width`` are lengthened by padding nodes, whose KV is never committed.

    tokens   [M] int64
    parents  [M] int64, local to the row
    depth    [M] int64, local to the row: position = tokens in the cache + depth
    begins   B+1 offsets into the nodes
    sizes    B; nodes of the row that are not padding
    roots    B; local node from which on logits are wanted; equal to ``sizes[b]`` where none are
    linear   B; whether the row is a chain (padding included)
    """

    tokens: Tensor
    parents: Tensor
    depth: Tensor
    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    roots: tuple[int, ...]
    linear: tuple[bool, ...]

    @property
    def rows(self) -> int:
        return len(self.sizes)

    @property
    def nodes(self) -> int:
        return self.begins[-1]

    def scored(self) -> Tensor:
        """[R] int64: packed indices of the nodes whose logits are wanted, in order."""
        parts = [
            torch.arange(self.begins[b] + self.roots[b], self.begins[b] + self.sizes[b])
            for b in range(self.rows)
            if self.roots[b] < self.sizes[b]
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)

    def mask(self, row: int) -> np.ndarray:
        """[n, n] bool ancestor mask of one row, padding included."""
        lo, hi = self.begins[row], self.begins[row + 1]
        if self.linear[row]:
            return np.tri(hi - lo, dtype=bool)
        return ancestor_mask(self.parents[lo:hi].tolist())

    @staticmethod
    def pack(
        trees: Sequence[DraftTree],
        before: Sequence[Sequence[int]] | None = None,
        wanted: Sequence[bool] | None = None,
        min_width: int = 1,
        hold: Sequence[int] | None = None,
        whole: Sequence[bool] | None = None,
    ) -> Forest:
        """Pack trees. ``before[b]`` are pending tokens ahead of the row's node 0; ``wanted[b]`` asks for its logits.

        Rows are padded to ``min_width`` nodes, and to ``hold[b]`` of their own. ``whole[b]`` asks for the logits of every node.
        """
        tokens: list[int] = []
        parents: list[int] = []
        depth: list[int] = []
        begins, sizes, roots, linear = [0], [], [], []
        for b, tree in enumerate(trees):
            lead = list(before[b]) if before is not None else []
            shift = len(lead)
            row_parents = tree.parents.tolist()
            if shift:
                row_parents = list(range(-1, shift - 1)) + [p + shift if p >= 0 else shift - 1 for p in row_parents]
            row_tokens = lead + tree.tokens.tolist()
            size = len(row_tokens)
            while len(row_tokens) < max(min_width, hold[b] if hold is not None else 0):
                row_parents.append(len(row_tokens) - 1)
                row_tokens.append(row_tokens[-1])
            tokens += row_tokens
            parents += row_parents
            begins.append(len(tokens))
            sizes.append(size)
            asked = shift if wanted is None or wanted[b] else size
            roots.append(0 if whole is not None and whole[b] else asked)
            linear.append(row_parents == list(range(-1, len(row_parents) - 1)))
            depth += range(len(row_parents)) if linear[-1] else depths(row_parents)
        return Forest(
            integers(tokens),
            integers(parents),
            integers(depth),
            tuple(begins),
            tuple(sizes),
            tuple(roots),
            tuple(linear),
        )
