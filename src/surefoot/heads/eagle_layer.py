"""What the heads of the EAGLE family share: sizes, the decoder layer, and what lane and recipe ask of such a head.

A pair is a feature of the target where it had read token t, and the embedding of token t + 1; its position is t. A head makes
the next feature of it, and logits of token t + 2. Where the target's own feature is not known yet, the head's takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import BadRequest, Unsupported
from .attention import Attention, AttentionConfig, causal


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """``record``: the config as the file has it, with keys that are not read here."""

    attention: AttentionConfig
    intermediate_size: int
    eps: float = 1e-5
    record: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(config: Mapping[str, Any], reads: int = 1) -> LayerConfig:
        """From a config with Llama's names. ``reads``: how many hidden sizes wide the input of attention is."""
        missing = [k for k in ("hidden_size", "num_attention_heads", "intermediate_size") if k not in config]
        if missing:
            raise BadRequest(f"config.json of the head lacks {', '.join(missing)}; take the one that was published with it")
        if str(config.get("hidden_act", "silu")) != "silu":
            raise Unsupported(f"hidden_act '{config['hidden_act']}' of the head is not known; known is silu")
        attention = AttentionConfig.of(config, reads * int(config["hidden_size"]))
        return LayerConfig(attention, int(config["intermediate_size"]), float(config.get("rms_norm_eps", 1e-5)), dict(config))

    @property
    def hidden_size(self) -> int:
        return self.attention.hidden_size


class Mlp(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class EagleLayer(nn.Module):
    """A decoder layer whose attention is the caller's. ``norms``: it has norms of its own in front (EAGLE-3)."""

    def __init__(self, config: LayerConfig, norms: bool) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = Attention(config.attention)
        self.mlp = Mlp(size, config.intermediate_size)
        self.post_attention_layernorm = nn.RMSNorm(size, config.eps)
        if norms:
            self.input_layernorm = nn.RMSNorm(size, config.eps)
            self.hidden_norm = nn.RMSNorm(size, config.eps)

    def finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        """Everything behind attention: what its o_proj reads [..., h * d], residual [..., H] -> [..., H]."""
        x: Tensor = residual + self.self_attn.o_proj(attended)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class EagleHead(Protocol):
    """What lane and recipe ask of a head of this family."""

    layer: EagleLayer
    embedding: Tensor
    """[V, H]: the target's."""
    draft_ids: Tensor | None
    """[Vd] int64, or None: the head says all V."""

    def taps(self, n_layers: int) -> tuple[int, ...]:
        """The activations that make a feature, side by side [..., D]."""
        ...

    def fuse(self, features: Tensor) -> Tensor:
        """The target's activations [..., D] -> what stands in a pair [..., H]."""
        ...

    def enter(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """A pair, [..., H] each -> what attention reads [..., R], and the residual [..., H]."""
        ...

    def ready(self, hidden: Tensor) -> Tensor:
        """Output of the layer, which is the next feature [..., H] -> what the table of logits reads [..., H]."""
        ...

    def table(self) -> tuple[Tensor, Tensor | None]:
        """Rows [Vd, H] and bias [Vd]: logits are ``ready(hidden) @ rows.T + bias``."""
        ...


def whole(head: EagleHead, tokens: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of whole rows at once: next tokens [B, T], activations [B, T, D], positions [B, T] -> hidden [B, T, H] and
    logits [B, T, Vd]; a pair sees itself and those before it."""
    attention = head.layer.self_attn
    x, residual = head.enter(F.embedding(tokens, head.embedding), head.fuse(features))
    q, k, v = attention.project(x, *attention.rotation(positions))
    hidden = head.layer.finish(attention.weigh(q, k, v, causal(tokens.shape[1], device=x.device)), residual)
    return hidden, logits(head, hidden)


def logits(head: EagleHead, hidden: Tensor) -> Tensor:
    """[..., H] -> [..., Vd]."""
    rows, bias = head.table()
    return F.linear(head.ready(hidden), rows, bias)
