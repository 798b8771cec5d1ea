"""Grouped-query attention with rotary embeddings, as one layer of a Llama has it; for heads that read a sequence.

Keys and values are passed in and returned, so the caller keeps them, or not. k is stored with its rotation. With B rows, T new
places, S places seen before, h heads, g key heads, d numbers a head:

    attention = Attention(AttentionConfig.of(config))            # config: a LlamaConfig as a dict
    out, (k, v) = attention(x, positions)                        # x [B, T, R], positions [B, T]; causal; k, v [B, g, T, d]
    out, (k, v) = attention(x, positions, past, mask)            # past: (k, v) [B, g, S, d]; mask [B|1, 1, T, S + T] bool

Without a mask a place sees all of the past, and of the new ones those up to itself. That is right for training (rows padded
behind: a real place never sees padding) and for one row of decoding; where the rows of a batch have seen different numbers of
places, pad ``past`` to the longest and give ``causal(T, S, seen)``. The k, v returned are those of the new places alone.
Callers with another scheme use the parts: ``rotation`` (positions -> cos, sin), ``project`` (x -> q, k, v) and ``weigh``
(q, k, v -> what ``o_proj`` reads).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import Unsupported

KV = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """``read_size``: width of what q, k and v are made of; 0: ``hidden_size``. ``rope``: how positions are scaled."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    read_size: int = 0
    bias: bool = False
    out_bias: bool = False
    theta: float = 10000.0
    rope: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(config: Mapping[str, Any], read_size: int = 0) -> AttentionConfig:
        """From a config with Llama's names, of any age: ``rope_theta`` and ``rope_scaling``, or ``rope_parameters``."""
        size, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        # yarn and llama3 count from the context before it was stretched
        rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings", 2048))
        bias = bool(config.get("attention_bias", False))
        return AttentionConfig(
            size,
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or size // heads),
            read_size,
            bias,
            bool(config.get("attention_out_bias", bias)),
            float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rope,
        )


def frequencies(config: AttentionConfig) -> tuple[Tensor, float]:
    """[d / 2] angle a position, and the factor on cosine and sine. Raises :class:`Unsupported` for unknown scaling."""
    plain = config.theta ** (-torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    rope = config.rope
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if kind in ("default", "dynamic"):  # dynamic is plain within the context that the head was trained on
        return plain.float(), 1.0
    if kind not in ("linear", "llama3", "yarn"):
        raise Unsupported(f"rotary scaling '{kind}' is not known; known are default, linear, dynamic, llama3 and yarn")
    factor = float(rope.get("factor", 1.0))
    if kind == "linear":
        return (plain / factor).float(), 1.0
    context = float(rope["original_max_position_embeddings"])
    if kind == "llama3":
        low, high = float(rope.get("low_freq_factor", 1.0)), float(rope.get("high_freq_factor", 4.0))
        turns = context * plain / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return (plain * kept + plain / factor * (1 - kept)).float(), 1.0

    def place(turns: float) -> float:
        """Which pair of numbers makes so many turns over the context."""
        return config.head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    first = max(math.floor(place(float(rope.get("beta_fast") or 32.0))), 0)
    last = min(math.ceil(place(float(rope.get("beta_slow") or 1.0))), config.head_dim - 1)
    steps = torch.arange(config.head_dim // 2, dtype=torch.float64)
    stretched = ((steps - first) / max(last - first, 1e-3)).clamp(0, 1)
    scale = rope.get("attention_factor") or (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return (plain / factor * stretched + plain * (1 - stretched)).float(), float(scale)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., d] turned by angles whose cosine and sine have x's shape, or spread to it."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def causal(new: int, past: int = 0, seen: Tensor | None = None, device: torch.device | None = None) -> Tensor:
    """[B|1, 1, T, S + T] bool, True where a place is seen. ``seen`` [B]: how many of the past ones the row really has."""
    mask = torch.ones(new, past + new, dtype=torch.bool, device=device).tril(past)[None, None]
    if seen is None:
        return mask
    real = torch.arange(past + new, device=seen.device) < seen[:, None]
    real[:, past:] = True
    return mask & real[:, None, None]


class Attention(nn.Module):
    """Projections named as in public checkpoints."""

    angles: Tensor

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        if config.heads % config.kv_heads or config.head_dim % 2:
            raise Unsupported(
                f"{config.heads} heads over {config.kv_heads} key heads of {config.head_dim} numbers do not go together; "
                "check num_attention_heads, num_key_value_heads and head_dim in config.json"
            )
        self.config = config
        read, width, narrow = config.read_size or config.hidden_size, config.heads, config.kv_heads
        self.q_proj = nn.Linear(read, width * config.head_dim, bias=config.bias)
        self.k_proj = nn.Linear(read, narrow * config.head_dim, bias=config.bias)
        self.v_proj = nn.Linear(read, narrow * config.head_dim, bias=config.bias)
        self.o_proj = nn.Linear(width * config.head_dim, config.hidden_size, bias=config.out_bias)
        angles, self.factor = frequencies(config)
        self.register_buffer("angles", angles, persistent=False)

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [..., d] of positions [...]."""
        turned = positions[..., None].to(torch.float32) * self.angles
        turned = torch.cat((turned, turned), -1)
        return turned.cos() * self.factor, turned.sin() * self.factor

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, R] -> q [B, h, T, d], k and v [B, g, T, d]; cos and sin [B|1, T, d]."""
        d = self.config.head_dim
        q, k, v = (p(x).unflatten(-1, (-1, d)).transpose(-3, -2) for p in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, h * d]; mask [B|1, 1, T, S] bool, or None where everything is seen."""
        out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=self.config.heads != self.config.kv_heads)
        return out.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, positions: Tensor, past: KV | None = None, mask: Tensor | None = None) -> tuple[Tensor, KV]:
        new = x.shape[1]
        q, k, v = self.project(x, *self.rotation(positions))
        own = (k, v)
        seen = 0 if past is None else past[0].shape[2]
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        if mask is None and new > 1:
            mask = causal(new, seen, device=x.device)
        return self.o_proj(self.weigh(q, k, v, mask)), own
