"""From a ragged forest to the padded batch of one pass: token ids, positions, cache columns and masks.

Batch row of a node: the rank of its slot. Rows and widths are padded here; padding sees itself and what is committed,
is seen by nobody and is never read back. A node at depth d has position (committed tokens) + d; a windowed layer lets
it see position k iff (its position) - k < window, whatever the cache column of k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.tree import Forest
from .torch_cache import Place


@dataclass(frozen=True, slots=True)
class Batch:
    ids: Tensor
    """[B, W] int64."""
    positions: Tensor
    """[B, W] int64."""
    masks: dict[str, Tensor]
    """Attention kind -> [B, 1, W, C]."""
    place: Place
    row: np.ndarray
    """[M] batch row of each node of the forest."""
    column: np.ndarray
    """[M] place of each node within its batch row."""


def lay_out(
    forest: Forest,
    slots: Sequence[int],
    lengths: Mapping[int, int],
    *,
    rows: Sequence[int],
    width: int,
    seen: int,
    max_context: int,
    windows: Mapping[str, int | None],
    device: torch.device,
    dtype: torch.dtype,
) -> Batch:
    """``rows``: slot numbers of the batch, ascending, with those of ``slots``; ``lengths``: their committed tokens."""
    n = len(rows)
    rank = {slot: i for i, slot in enumerate(rows)}
    ids = np.zeros((n, width), dtype=np.int64)
    depth = np.zeros((n, width), dtype=np.int64)
    ancestors = np.zeros((n, width, width), dtype=bool)
    ancestors[:, np.arange(width), np.arange(width)] = True
    row = np.empty(forest.nodes, dtype=np.int64)
    column = np.empty(forest.nodes, dtype=np.int64)
    tokens, depths = forest.tokens.numpy(), forest.depth.numpy()
    for b, slot in enumerate(slots):
        lo, hi = forest.begins[b], forest.begins[b + 1]
        i, m = rank[slot], hi - lo
        ids[i, :m], depth[i, :m] = tokens[lo:hi], depths[lo:hi]
        ancestors[i, :m, :m] = forest.mask(b)
        row[lo:hi], column[lo:hi] = i, np.arange(m)

    committed = torch.tensor([lengths.get(slot, 0) for slot in rows], device=device)[:, None]
    # Padding may run past the last position of the model; its own position does not matter.
    positions = (torch.from_numpy(depth).to(device) + committed).clamp_(max=max_context - 1)
    columns = torch.arange(width, device=device)[None, :] + committed
    every = torch.arange(seen, device=device)
    visible = (every < committed)[:, None, :].repeat(1, width, 1)
    visible.scatter_(2, columns[:, None, :].expand(-1, width, -1), torch.from_numpy(ancestors).to(device))
    masks: dict[str, Tensor] = {}
    for kind, window in windows.items():
        allowed = visible
        if window is not None:
            where = every.repeat(n, 1).scatter_(1, columns, positions)
            allowed = visible & (positions[:, :, None] - where[:, None, :] < window)
        masks[kind] = additive(allowed, dtype)
    first = rows[0] if list(rows) == list(range(rows[0], rows[0] + n)) else None
    place = Place(torch.tensor(rows, device=device), columns, seen, first)
    return Batch(torch.from_numpy(ids).to(device), positions, masks, place, row, column)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, W, C] bool -> [B, 1, W, C] mask that is added to the attention scores."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min).unsqueeze(1)


def bucket(n: int) -> int:
    """The power of two at or above n."""
    return 1 << max(0, n - 1).bit_length()
