"""The KV cache: reference-counted blocks of one lazily touched allocation.

Keys are stored after the rotary embedding, so a token's KV may lie anywhere: committing a tree path is moving rows, sharing
a prefix is sharing full blocks. A block that is shared is always full and committed, hence never written: copy on write
happens once, at the fork, for the partly filled last block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import BackendError, BadRequest

Shape = tuple[int, int, int]
"""KV heads, block size, head size of one cache tensor."""


class Slot:
    """One row: block ids and the number of committed tokens.

    ``pending``: nodes of the last pass, not yet committed. ``lines``, ``branches``: the paths of a tree that the last pass
    took apart, and the slots of all but the first.
    """

    __slots__ = ("table", "length", "pending", "open", "lines", "branches")

    def __init__(self) -> None:
        self.table: list[int] = []
        self.length = 0
        self.pending = 0
        self.open = True
        self.lines: list[list[int]] = []
        self.branches: list[Slot] = []


class BlockPool:
    """Blocks for every cache tensor of a model. ``arrays[i]`` is [blocks, kv_heads, block, head_size]."""

    def __init__(self, shapes: Sequence[Shape], dtype: np.dtype, tokens: int) -> None:
        self.block = shapes[0][1]
        self.blocks = max(1, -(-tokens // self.block))
        # One allocation a shape: a row move then is one indexed assignment over all layers. The pages that zeros() maps
        # cost nothing until they are written, and stale KV must be finite, so zeroed once is enough.
        order = sorted(set(shapes), key=shapes.index)
        try:
            self._stores = {s: np.zeros((shapes.count(s), self.blocks, *s), dtype) for s in order}
        except MemoryError:
            raise BackendError(f"no memory for a KV cache of {tokens} tokens; lower kv_tokens") from None
        taken = dict.fromkeys(order, 0)
        self.arrays: list[np.ndarray] = []
        for s in shapes:
            self.arrays.append(self._stores[s][taken[s]])
            taken[s] += 1
        self._count = [0] * self.blocks
        self._free = list(range(self.blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def capacity(self) -> int:
        """Tokens that the pool holds."""
        return self.blocks * self.block

    def reserve(self, slots: Sequence[Slot], widths: Sequence[int]) -> None:
        """Give every slot blocks for ``width`` tokens after its committed ones; all or nothing."""
        want = [-(-(s.length + w) // self.block) - len(s.table) for s, w in zip(slots, widths, strict=True)]
        total = sum(w for w in want if w > 0)
        if total > len(self._free):
            raise BackendError(
                f"the KV cache is full ({self.capacity} tokens; {total} blocks needed, {len(self._free)} free); "
                "raise kv_tokens or run fewer or shorter requests at once"
            )
        for slot, w in zip(slots, want, strict=True):
            for _ in range(w):
                slot.table.append(self._take())

    def keep(self, slot: Slot, path: Sequence[int]) -> None:
        """Commit these nodes of the last pass: move their rows behind the committed ones, give spare blocks back."""
        start, block, table = slot.length, self.block, slot.table
        moves = [(start + k, start + node) for k, node in enumerate(path) if node != k]
        if moves:
            to_block = [table[d // block] for d, _ in moves]
            from_block = [table[s // block] for _, s in moves]
            to_row, from_row = [d % block for d, _ in moves], [s % block for _, s in moves]
            for store in self._stores.values():
                store[:, to_block, :, to_row] = store[:, from_block, :, from_row]
        slot.length = start + len(path)
        slot.pending = 0
        self._trim(slot)

    def fork(self, slot: Slot, length: int) -> Slot:
        """A slot with the first ``length`` committed tokens; full blocks are shared, the last partial one is copied."""
        if not 0 <= length <= slot.length:
            raise BadRequest(f"cannot fork at {length}: the slot has {slot.length} committed tokens")
        full, rest = divmod(length, self.block)
        if rest and not self._free:
            raise BackendError(f"the KV cache is full ({self.capacity} tokens); raise kv_tokens or run fewer requests at once")
        new = Slot()
        new.length = length
        for b in slot.table[:full]:
            self._count[b] += 1
            new.table.append(b)
        if rest:
            b = self._take()
            for store in self._stores.values():
                store[:, b, :, :rest] = store[:, slot.table[full], :, :rest]
            new.table.append(b)
        return new

    def prune(self, slot: Slot) -> None:
        """Give the branches of the last pass back."""
        for branch in slot.branches:
            self.release(branch)
        slot.branches, slot.lines = [], []

    def release(self, slot: Slot) -> None:
        """Give all blocks of the slot back."""
        self.prune(slot)
        slot.length = slot.pending = 0
        slot.open = False
        self._trim(slot)

    def _take(self) -> int:
        b = self._free.pop()
        self._count[b] = 1
        return b

    def _trim(self, slot: Slot) -> None:
        table = slot.table
        for _ in range(len(table) - -(-slot.length // self.block)):
            b = table.pop()
            self._count[b] -= 1
            if self._count[b] == 0:
                self._free.append(b)
