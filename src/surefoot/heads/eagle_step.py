"""The two halves of a step of an EAGLE head, before and behind attention, with their tables side by side.

Attention itself stays outside: keys and values lie where the caller keeps them, and their number changes with every
token, while the halves depend on the number of pairs alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import rotate
from .eagle_layer import EagleHead, EagleLayer


class Front(nn.Module):
    """Pairs [n, H] + [n, H], turns [n, 1, 2d] (cosine, sine) -> q [n, h, d], keys and values [n, 2g, d], residual [n, H]."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, head: EagleHead) -> None:
        super().__init__()
        self.head = head
        attention = head.layer.self_attn
        self.d = attention.config.head_dim
        self.turned = attention.config.heads + attention.config.kv_heads
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.register_buffer("weight", torch.cat([p.weight.detach() for p in parts]), persistent=False)
        bias = torch.cat([p.bias.detach() for p in parts]) if attention.config.bias else None
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, embedded: Tensor, feature: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, residual = self.head.enter(embedded, feature)
        made = F.linear(x, self.weight, self.bias).unflatten(-1, (-1, self.d))
        turned = rotate(made[:, : self.turned], turn[..., : self.d], turn[..., self.d :])
        h = self.head.layer.self_attn.config.heads
        return turned[:, :h], torch.cat((turned[:, h:], made[:, self.turned :]), 1), residual


class Back(nn.Module):
    """What attention found [n, h * d], residual [n, H] -> hidden [n, H], logits [n, Vd]."""

    inner: Tensor
    rows: Tensor
    bias: Tensor | None

    def __init__(self, head: EagleHead) -> None:
        super().__init__()
        self.head = head
        self.layer: EagleLayer = head.layer
        mlp = head.layer.mlp
        self.register_buffer("inner", torch.cat((mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach())), persistent=False)
        rows, bias = head.table()
        self.register_buffer("rows", rows.detach(), persistent=False)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.layer
        x = residual + layer.self_attn.o_proj(attended)
        gate, up = F.linear(layer.post_attention_layernorm(x), self.inner).chunk(2, -1)
        hidden = x + layer.mlp.down_proj(F.silu(gate) * up)
        return hidden, F.linear(self.head.ready(hidden), self.rows, self.bias)
