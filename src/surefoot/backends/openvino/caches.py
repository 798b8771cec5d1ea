"""From the cache inputs of the compiled graphs to a block pool, attached to each of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import Unsupported
from .hardware import available_memory
from .pool import BlockPool, Shape
from .runner import CACHE, Runner

_DTYPE: dict[str, np.dtype] = {"bf16": np.dtype(np.uint16), "f16": np.dtype(np.uint16), "f32": np.dtype(np.float32)}
_MOST_BYTES = 4 << 30
_LEAST_TOKENS = 256


def make_pool(runners: Sequence[Runner], tokens: int | None) -> BlockPool:
    """One pool over the caches of all graphs. Without ``tokens``: what half of the free memory holds, at most 4 GiB."""
    found: dict[str, tuple[Shape, str]] = {}
    for runner in runners:
        found.update(runner.caches())
    kinds = sorted({kind for _, kind in found.values()})
    blocks = sorted({shape[1] for shape, _ in found.values()})
    if len(kinds) != 1 or len(blocks) != 1 or kinds[0] not in _DTYPE:
        raise Unsupported(f"the KV cache mixes element types or block sizes ({kinds}, {blocks}); use backend=torch")
    dtype = _DTYPE[kinds[0]]
    layers = sorted({int(name.rsplit(".", 1)[1]) for name in found})
    order = [f"{side}{layer}" for layer in layers for side in CACHE]
    shapes = [found[name][0] for name in order]
    if tokens is None:
        a_token = sum(heads * size for heads, _, size in shapes) * dtype.itemsize
        tokens = max(_LEAST_TOKENS, min(_MOST_BYTES, available_memory() // 2) // a_token)
    pool = BlockPool(shapes, dtype, tokens)
    for runner in runners:
        runner.attach(pool, order)
    return pool
