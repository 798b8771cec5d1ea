"""What a model will take in memory, from headers alone.

KV of a token = layers x (key + value) x KV heads x head size x bytes of a number; logits of a pass = (k + 1) x vocabulary
x 4 bytes; weights = parameters x bytes of a number, since both backends hold the dense form that their kernels read.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported

if TYPE_CHECKING:
    from ..models import Capabilities

OVERHEAD = 512 << 20
"""Libraries and the buffers of a prompt's pass: measured with a model of 135 M parameters, a guess for others."""
_BYTES = {"bf16": 2, "bfloat16": 2, "float16": 2, "f32": 4, "fast": 4, "float32": 4}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes; ``None`` where the headers do not tell."""

    backend: str
    numbers: str
    """Element type of KV and arithmetic."""
    weights: int | None
    kv_per_token: int | None
    kv_tokens: int
    kv: int | None
    draft: int
    logits: int | None

    @property
    def total(self) -> int | None:
        """Of the model; :data:`OVERHEAD` comes on top, once."""
        return None if self.weights is None or self.kv is None else self.weights + self.kv + (self.logits or 0)


def plan(path: Path, can: Capabilities, backend: str, precision: str, kv_tokens: int | None, draft: int) -> MemoryPlan:
    """The plan for a model on one of the backends that run it."""
    if can.backends and backend not in ("auto", *can.backends):
        raise Unsupported(f"{path.name} does not run on backend {backend}; choose {' or '.join(can.backends)}")
    where = backend if backend != "auto" else (can.backends or ("openvino",))[0]
    numbers = _numbers(where, precision)
    per_token = kv_values(path, can)
    a_token = None if per_token is None else per_token * _BYTES[numbers]
    tokens = kv_tokens or can.context or 2048
    return MemoryPlan(
        backend=where,
        numbers=numbers,
        weights=can.size if can.parameters is None else can.parameters * _BYTES[numbers],
        kv_per_token=a_token,
        kv_tokens=tokens,
        kv=None if a_token is None else a_token * tokens,
        draft=draft,
        logits=None if can.vocab_size is None else 4 * (draft + 1) * can.vocab_size,
    )


def _numbers(backend: str, precision: str) -> str:
    if backend == "torch":
        return "float32" if precision == "auto" else precision
    from ..backends.openvino.hardware import resolve, shared_core

    return resolve(shared_core(), precision)


def kv_values(path: Path, can: Capabilities) -> int | None:
    """Numbers that one token adds to the cache, over all layers."""
    if can.format == "gguf":
        from ..models.gguf_header import read_header

        header = read_header(path)
        heads, layers = header.hyper("attention.head_count"), header.hyper("block_count")
        kv_heads = header.hyper("attention.head_count_kv", heads)
        if not heads or not layers:
            return None
        size = (header.hyper("embedding_length") or 0) // (heads[0] if isinstance(heads, list) else heads)
        both = header.hyper("attention.key_length", size) + header.hyper("attention.value_length", size)
        return int(both * (sum(kv_heads) if isinstance(kv_heads, list) else kv_heads * layers))
    if can.format == "openvino":
        return _state_values(path / "openvino_model.xml")
    from ..models.describe import read_json, text_config

    return _config_values(text_config(read_json(path / "config.json")))


def _config_values(config: dict[str, Any]) -> int | None:
    def first(*names: str) -> int | None:
        return next((int(config[n]) for n in names if isinstance(config.get(n), int)), None)

    heads, layers = first("num_attention_heads", "n_head", "n_heads"), first("num_hidden_layers", "n_layer", "n_layers")
    hidden = first("hidden_size", "n_embd", "d_model", "dim")
    kv_heads = 1 if config.get("multi_query") else first("num_key_value_heads", "num_kv_heads") or heads
    if not heads or not layers or not hidden or not kv_heads:
        return None
    return 2 * layers * kv_heads * (first("head_dim") or hidden // heads)


def _state_values(xml: Path) -> int | None:
    """Sizes of the graph's key and value states, [batch, heads, tokens, head size]."""
    total = 0
    for _, node in ElementTree.iterparse(xml):
        if node.tag == "layer":
            if node.get("type") == "ReadValue" and (data := node.find("data")) is not None:
                shape = [int(n) for n in (data.get("variable_shape") or "").split(",") if n.strip().isdigit()]
                total += prod(shape) if len(shape) == 2 else 0
            node.clear()
    return total or None


def available() -> int:
    """Bytes that can be had without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


def amount(size: int | None) -> str:
    """Bytes for people."""
    if size is None:
        return "unknown"
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
