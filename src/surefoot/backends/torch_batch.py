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

from ..core.protocols import Need, Traits
from ..core.tree import Forest
from ..errors import BackendError, Unsupported
from .torch_cache import Place, round_up


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


def check_pass(traits: Traits, slots: Sequence[int], lengths: Sequence[int], forest: Forest, need: Need) -> None:
    """Raise a typed error for a pass that the target cannot make."""
    if len(slots) != forest.rows or len(set(slots)) != len(slots):
        raise BackendError(f"{forest.rows} rows need as many different slots; got {len(slots)}")
    missing = set(need.hidden) - set(traits.hidden)
    if missing:
        raise Unsupported(f"no hidden states after layer {min(missing)}; this model offers {traits.hidden}")
    if not traits.tree and not all(forest.linear):
        raise Unsupported("this model was built with trees=False; draft chains only, or leave that option out")
    longest = traits.max_context
    for b, length in enumerate(lengths):
        lo, hi = forest.begins[b], forest.begins[b + 1]
        if hi - lo > traits.max_nodes:
            raise BackendError(f"{hi - lo} nodes in a row, the limit is {traits.max_nodes}; raise max_nodes")
        if forest.sizes[b] and length + int(forest.depth[lo : lo + forest.sizes[b]].max()) >= longest:
            raise BackendError(f"the row would pass {longest} tokens, the model's context; shorten prompt or draft")


def kept_columns(batch: Batch, forest: Forest, least: int, step: int, static: bool) -> np.ndarray:
    """[K] ascending columns whose logits are computed: those wanted, and more where the shape class asks for it."""
    width = batch.ids.shape[1]
    wanted = np.unique(batch.column[forest.scored().numpy()])
    count = round_up(max(len(wanted), least), step)
    count = min(width, bucket(count) if static else count)
    spare = np.setdiff1d(np.arange(width), wanted)
    return np.sort(np.concatenate([wanted, spare[: count - len(wanted)]]))


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, W, C] bool -> [B, 1, W, C] mask that is added to the attention scores."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min).unsqueeze(1)


def bucket(n: int) -> int:
    """The power of two at or above n."""
    return 1 << max(0, n - 1).bit_length()
