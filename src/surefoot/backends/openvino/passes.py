"""The arrays of one pass: from chains and a forest to the inputs of the paged graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from ...core.tree import Forest
from .branches import Lines
from .graph import ROWS

_NO_MASK = np.zeros(0, np.uint8)
_NO_BEGINS = np.zeros(0, np.int32)
_HEAD_ROWS = 2
"""Least rows of the head's product: its one-row kernel rounds differently."""


@lru_cache(maxsize=64)
def _triangle(n: int) -> np.ndarray:
    return np.tri(n, dtype=np.uint8).reshape(-1)


def arrays(
    lines: Lines, forest: Forest, block: int, masked: bool, ahead: Sequence[int] | None = None
) -> tuple[dict[str, np.ndarray], int]:
    """Inputs by name, and the number of rows of the logits output (at least two, the spare ones last).

    ``masked``: hand the ancestor masks over (each chain's own, if the forest was taken apart). ``ahead[b]``: provisional tokens
    behind the committed ones whose KV counts as context of row b.
    """
    begins, slots = lines.begins, lines.slots
    past = [s.length for s in slots] if ahead is None else [s.length + a for s, a in zip(slots, ahead, strict=True)]
    # Between passes the processor's caches are cold and each library call costs microseconds: plain lists are cheaper.
    blocks: list[int] = []
    block_begins, longest = [0], 0
    for c, slot in enumerate(slots):
        total = past[c] + begins[c + 1] - begins[c]
        longest = max(longest, total)
        blocks += slot.table[: -(-total // block)]
        block_begins.append(len(blocks))
    wanted: list[int] = []
    for b in range(forest.rows):
        wanted += range(forest.begins[b] + forest.roots[b], forest.begins[b] + forest.sizes[b])
    tokens, depth = forest.tokens.numpy(), forest.depth.numpy()
    if lines.nodes is not None and lines.place is not None:
        tokens, depth = tokens[lines.nodes], depth[lines.nodes]
        wanted = lines.place[wanted].tolist()
    if lines.pad:
        tokens = np.append(tokens, np.repeat(tokens[-1:], lines.pad))
        depth = np.append(depth, np.repeat(depth[-1:], lines.pad))
    positions = depth + (past[0] if len(past) == 1 else np.repeat(past, np.diff(begins)))
    bias, bias_begins = _NO_MASK, _NO_BEGINS
    if masked:
        if lines.nodes is None:
            parts = [_mask(forest, b) for b in range(forest.rows)]
        else:
            parts = [_triangle(hi - lo) for lo, hi in pairwise(begins)]
        bias = parts[0] if len(parts) == 1 else np.concatenate(parts)
        bias_begins = np.array([0, *accumulate(p.size for p in parts)], np.int32)
    count = max(len(wanted), _HEAD_ROWS)
    wanted += [wanted[-1] if wanted else 0] * (count - len(wanted))
    inputs = {
        "input_ids": tokens,
        "position_ids": positions,
        "past_lens": np.array(past, np.int32),
        "subsequence_begins": np.array(begins, np.int32),
        "block_indices": np.array(blocks, np.int32),
        "block_indices_begins": np.array(block_begins, np.int32),
        "max_context_len": np.array(longest, np.int32),
        "qq_bias": bias,
        "qq_bias_begins": bias_begins,
        ROWS: np.array(wanted, np.int32),
    }
    return inputs, count


def _mask(forest: Forest, row: int) -> np.ndarray:
    if forest.linear[row]:
        return _triangle(forest.begins[row + 1] - forest.begins[row])
    return forest.mask(row).view(np.uint8).reshape(-1)
