"""What a distilled draft has read of one row: keys and values of its committed tokens and, behind them, of drafted ones.

Drafted tokens lie in the order in which they were read, each with the place of the token that it stands behind, so the branches
of a draft share what they have in common. When tokens were committed, those of the draft among them move into place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 128
"""Capacity grows in such steps: rarely, as a compiled function is slow with a shape that is new to it."""


class Held:
    """``form``: 2 L tensors, g key heads, d numbers."""

    __slots__ = ("_behind", "buffer", "length", "tokens", "turn", "used")

    def __init__(self, form: tuple[int, int, int], device: torch.device) -> None:
        tensors, heads, size = form
        self.buffer = torch.zeros(tensors, heads, 0, size, device=device)
        """[2 L, g, capacity, d]; finite everywhere, as places that are not seen are computed with, too."""
        self.tokens: Sequence[int] = ()
        """The row's; the first ``length`` of them are held."""
        self.length = 0
        self.used = 0
        """Places in use, drafted tokens included."""
        self.turn = 0
        """Changes when places change their meaning."""
        self._behind: dict[tuple[int, int], int] = {}
        """(place before, token) -> place of a drafted token; -1 is the last committed one."""

    def settle(self, tokens: Sequence[int]) -> None:
        """Hold what was read of ``tokens``, which the row has committed, and of drafts no more."""
        self.tokens = tokens
        self.length = min(self.length, len(tokens))
        path: list[int] = []
        for token in tokens[self.length :]:
            place = self._behind.get((path[-1] if path else -1, token))
            if place is None:
                break
            path.append(place)
        end = self.length + len(path)
        if path != list(range(self.length, end)):
            self.buffer[:, :, self.length : end] = self.buffer[:, :, path]
        self._behind.clear()
        self.length = self.used = end
        self.turn += 1

    @property
    def capacity(self) -> int:
        return self.buffer.shape[2]

    def reserve(self, places: int) -> None:
        if places > self.capacity:
            tensors, heads, _, size = self.buffer.shape
            more = torch.zeros(tensors, heads, -(-places // BLOCK) * BLOCK, size, device=self.buffer.device)
            more[:, :, : self.used] = self.buffer[:, :, : self.used]
            self.buffer = more

    def commit(self, made: Tensor) -> None:
        """Keys and values [2 L, g, n, d] of the next committed tokens; no draft may be under way."""
        self._put(made)
        self.length = self.used
        self.turn += 1

    def draft(self, path: tuple[int, ...], tokens: Sequence[int], made: Tensor) -> tuple[int, ...]:
        """Drafted tokens, one behind the other, behind ``path``; returns the longer path."""
        place = self.used
        self._put(made)
        for token in tokens:
            self._behind[path[-1] if path else -1, token] = place
            path = (*path, place)
            place += 1
        return path

    def copy(self, length: int) -> Held:
        """Another row's, with the first ``length`` committed tokens."""
        tensors, heads, _, size = self.buffer.shape
        other = Held((tensors, heads, size), self.buffer.device)
        other._put(self.buffer[:, :, :length])
        other.tokens, other.length = self.tokens[:length], length
        return other

    def _put(self, made: Tensor) -> None:
        end = self.used + made.shape[2]
        self.reserve(end)
        self.buffer[:, :, self.used : end] = made
        self.used = end


class Joint:
    """The caches of several rows side by side. They are copied once a round, not once a step."""

    def __init__(self) -> None:
        self._rows: list[tuple[Held, int]] = []
        self._buffer: Tensor | None = None

    def of(self, rows: Sequence[Held]) -> Tensor:
        """[2 L, B, g, S, d], S being the largest capacity."""
        size = max(held.capacity for held in rows)
        now = [(held, held.turn) for held in rows]
        if self._buffer is None or self._buffer.shape[3] != size or now != self._rows:
            for held in rows:
                held.reserve(size)
            self._rows, self._buffer = now, torch.stack([held.buffer for held in rows], 1)
        return self._buffer

    def draft(self, held: Held, begin: int, made: Tensor) -> None:
        """What was written into ``held`` from place ``begin`` on, if its copy has room."""
        if self._buffer is not None and begin + made.shape[2] <= self._buffer.shape[3] and (held, held.turn) in self._rows:
            self._buffer[:, self._rows.index((held, held.turn)), :, begin : begin + made.shape[2]] = made

    def clear(self) -> None:
        self._rows, self._buffer = [], None


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
