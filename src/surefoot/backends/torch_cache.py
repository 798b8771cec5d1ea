"""KV storage of the torch backend: one rectangular buffer a layer, handed to the model as a transformers ``Cache``.

A buffer is ``[S, heads, columns, head_dim]``: a row for each slot, a column for each cached token. A pass writes the
keys and values of its nodes behind the committed length of each row and reads the first C columns of these rows.
Nothing else tells committed from provisional columns: a row's length is advanced by the owner, so what is not
committed is overwritten by the next pass. Sliding layers keep every column too; their window lives in the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ..errors import BackendError


def round_up(n: int, step: int) -> int:
    return -(-n // step) * step


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pass in progress writes and reads.

    rows     [B] int64, ascending slot numbers
    columns  [B, W] int64, where the new keys and values go
    seen     C, columns that the pass reads
    """

    rows: Tensor
    columns: Tensor
    seen: int
    first: int | None
    """Number of the first slot if the slots are consecutive: then the batch is a view, not a copy."""


@dataclass(slots=True, eq=False)
class TorchSlot:
    """``pending``: parents of the row's nodes in the last pass, padding excluded, until they are committed."""

    index: int
    length: int = 0
    pending: list[int] | None = None


class LayerStore(CacheLayerMixin):
    """Keys and values of one layer. Shapes are taken from the first pass, so layers may differ."""

    is_sliding = False

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        shape = (self.pool.rows, key_states.shape[1], self.pool.columns)
        self.keys = key_states.new_zeros(*shape, key_states.shape[-1])
        self.values = value_states.new_zeros(*shape, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """[B, heads, W, head_dim] new keys and values -> [B, heads, C, head_dim] all that the rows may see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place = self.pool.place
        if place is None:
            raise BackendError("the cache was used outside a pass; score through the TorchModel that owns it")
        out = []
        for buffer, new in zip(self.buffers(), (key_states, value_states), strict=True):
            buffer.transpose(1, 2)[place.rows[:, None], place.columns] = new.transpose(1, 2)
            if place.first is None:
                out.append(buffer[:, :, : place.seen].index_select(0, place.rows))
            else:
                out.append(buffer[place.first : place.first + len(place.rows), :, : place.seen])
        return out[0], out[1]

    def buffers(self) -> tuple[Tensor, ...]:
        return () if self.keys is None or self.values is None else (self.keys, self.values)

    def resize(self, rows: int, columns: int) -> None:
        """Keep what fits, zero the rest; no rows: give the memory back."""
        if not self.is_initialized:
            return
        if rows == 0:
            self.keys = self.values = None
            self.is_initialized = False
            return
        fresh = []
        for old in self.buffers():
            new = old.new_zeros(rows, old.shape[1], columns, old.shape[3])
            r, c = min(rows, old.shape[0]), min(columns, old.shape[2])
            new[:r, :, :c] = old[:r, :, :c]
            fresh.append(new)
        self.keys, self.values = fresh

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (self.pool.place.seen if self.pool.place else query_length), 0

    def get_seq_length(self, *args: Any) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class Pool:
    """Slots of all layers. Rows and columns grow by doubling (columns from ``columns``), unless ``fixed``."""

    def __init__(self, layers: int, max_rows: int, columns: int, fixed: bool = False) -> None:
        self.fixed = fixed
        self.max_rows = max_rows
        self.rows = max_rows if fixed else 0
        self.columns = columns
        self.start = columns
        self.place: Place | None = None
        self.free = list(range(max_rows))
        self.stores = [LayerStore(self) for _ in range(layers)]
        self.cache = Cache(layers=list(self.stores))

    @torch.no_grad()
    def take(self) -> int:
        """The lowest free slot number, its columns zeroed: a NaN would get through the mask."""
        if not self.free:
            raise BackendError(f"all {self.max_rows} cache rows are in use; close a row or raise max_rows")
        index = min(self.free)
        if index >= self.rows:
            self._resize(min(self.max_rows, max(index + 1, 2 * self.rows)), self.columns)
        else:
            for store in self.stores:
                for buffer in store.buffers():
                    buffer[index].zero_()
        self.free.remove(index)
        return index

    def give(self, index: int) -> None:
        self.free.append(index)
        if len(self.free) == self.max_rows and not self.fixed:
            self.rows, self.columns = 0, self.start
            for store in self.stores:
                store.resize(0, 0)

    def reserve(self, columns: int) -> None:
        """Make room for rows of this many columns."""
        if columns > self.columns:
            self._resize(self.rows, max(columns, 2 * self.columns))

    def _resize(self, rows: int, columns: int) -> None:
        try:
            with torch.no_grad():
                for store in self.stores:
                    store.resize(rows, columns)
        except (torch.OutOfMemoryError, RuntimeError) as e:
            raise BackendError(
                f"no memory for a KV cache of {rows} rows x {columns} tokens; lower max_rows or capacity_tokens"
            ) from e
        self.rows, self.columns = rows, columns

    @torch.no_grad()
    def copy(self, source: int, target: int, length: int) -> None:
        for store in self.stores:
            for buffer in store.buffers():
                buffer[target, :, :length] = buffer[source, :, :length]

    @torch.no_grad()
    def keep(self, index: int, length: int, path: Sequence[int]) -> None:
        """Move the provisional columns ``length + path`` of a row to ``length, length + 1, ...``."""
        moved = next((i for i, p in enumerate(path) if i != p), len(path))
        if moved == len(path):
            return
        for store in self.stores:
            for buffer in store.buffers():
                source = torch.tensor(path[moved:], device=buffer.device) + length
                buffer[index, :, length + moved : length + len(path)] = buffer[index].index_select(1, source)
