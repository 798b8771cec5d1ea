"""Heads that speak from the stream behind one of the target's first layers (early exit), with the target's own table of logits.

    kangaroo  norm(x + attention(input_layernorm(x)))             Kangaroo's adapter, arXiv 2404.18911
    eesd      norm of a whole decoder layer                       arXiv 2406.03853
    bare      the target's final norm                             LayerSkip, arXiv 2404.16710

x [..., H] is the stream where the target had read token t; the logits are of token t + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.protocols import Ends
from ..errors import BadRequest
from .attention import Attention, AttentionConfig, causal
from .eagle_layer import Mlp
from .fit import reduced

KINDS = ("kangaroo", "eesd", "bare")


@dataclass(frozen=True, slots=True)
class ExitConfig:
    """``exit_layer``: the target's layer whose stream is read; 0: the file does not say. ``attention``: none of a bare exit.

    intermediate_size  of ``eesd``
    """

    kind: str
    exit_layer: int
    attention: AttentionConfig | None = None
    intermediate_size: int = 0
    eps: float = 1e-5
    context: int = 2048

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadRequest(f"there is no exit of kind {self.kind!r}; choose one of {', '.join(KINDS)}")
        if (self.attention is None) != (self.kind == "bare"):
            raise BadRequest(f"an exit of kind {self.kind!r} {'has no' if self.kind == 'bare' else 'needs'} attention")

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.exit_layer,)


class Exit(nn.Module):
    """``draft_ids`` [Vd] int64: the target's id of each token that it can say; None: all of them."""

    draft_ids: Tensor | None
    rows: Tensor
    row_bias: Tensor | None

    def __init__(self, config: ExitConfig, ends: Ends, draft_ids: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        self.hidden_size, self.vocab_size = ends.head.shape[1], ends.head.shape[0]
        self._final: Callable[[Tensor], Tensor] = ends.norm
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        rows, bias = reduced(ends, draft_ids)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("row_bias", bias, persistent=False)
        if config.attention is not None:
            self.input_layernorm = nn.RMSNorm(self.hidden_size, config.eps)
            self.self_attn = Attention(config.attention)
            self.norm = nn.RMSNorm(self.hidden_size, config.eps)
        if config.kind == "eesd":
            self.post_attention_layernorm = nn.RMSNorm(self.hidden_size, config.eps)
            self.mlp = Mlp(self.hidden_size, config.intermediate_size)

    def finish(self, attended: Tensor, stream: Tensor) -> Tensor:
        """Everything behind attention: what its o_proj reads [..., h * d], x [..., H] -> what the table reads [..., H]."""
        x: Tensor = stream + self.self_attn.o_proj(attended)
        if self.config.kind == "eesd":
            x = x + self.mlp(self.post_attention_layernorm(x))
        return self.norm(x)  # type: ignore[no-any-return]

    def ready(self, streams: Tensor, positions: Tensor) -> Tensor:
        """Whole rows: streams [B, T, H] of consecutive tokens, positions [B|1, T] -> what the table reads [B, T, H]."""
        if self.config.attention is None:
            return self.final(streams.flatten(0, -2)).reshape(streams.shape)
        attention = self.self_attn
        q, k, v = attention.project(self.input_layernorm(streams), *attention.rotation(positions))
        mask = causal(streams.shape[1], device=streams.device)
        return self.finish(attention.weigh(q, k, v, mask), streams)

    def final(self, stream: Tensor) -> Tensor:
        """The target's own final norm [n, H] -> [n, H]."""
        with torch.no_grad():
            return self._final(stream)

    def says(self, ready: Tensor) -> Tensor:
        """[..., H] -> logits [..., Vd]."""
        return F.linear(ready, self.rows, self.row_bias)

    def forward(self, streams: Tensor, positions: Tensor) -> Tensor:
        """Streams [B, T, H] and positions [B|1, T] -> logits [B, T, Vd]; causal."""
        return self.says(self.ready(streams, positions))


class ExitFront(nn.Module):
    """Before attention: streams [n, H], turns [n, 1, 2d] (cosine, sine) -> q [n, h, d], keys and values [n, 2g, d]."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, head: Exit) -> None:
        super().__init__()
        attention = head.self_attn
        self.norm, self.d = head.input_layernorm, attention.config.head_dim
        self.heads = attention.config.heads
        self.turned = self.heads + attention.config.kv_heads
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.register_buffer("weight", torch.cat([p.weight.detach() for p in parts]), persistent=False)
        bias = torch.cat([p.bias.detach() for p in parts]) if attention.config.bias else None
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, stream: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        made = F.linear(self.norm(stream), self.weight, self.bias).unflatten(-1, (-1, self.d))
        first, second = made[:, : self.turned].chunk(2, -1)
        turned = made[:, : self.turned] * turn[..., : self.d] + torch.cat((-second, first), -1) * turn[..., self.d :]
        return turned[:, : self.heads], torch.cat((turned[:, self.heads :], made[:, self.turned :]), 1)


class ExitBack(nn.Module):
    """Behind attention: what it found [n, h * d], streams [n, H] -> logits [n, Vd]."""

    def __init__(self, head: Exit) -> None:
        super().__init__()
        self.head = head

    def forward(self, attended: Tensor, stream: Tensor) -> Tensor:
        return self.head.says(self.head.finish(attended, stream))


class ExitTable(nn.Module):
    """What the table reads [n, H] -> logits [n, Vd]."""

    def __init__(self, head: Exit) -> None:
        super().__init__()
        self.head = head

    def forward(self, ready: Tensor) -> Tensor:
        return self.head.says(ready)
