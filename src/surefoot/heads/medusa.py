"""Medusa heads (arXiv 2401.10774): each guesses one further token from the same activation of the target.

    y = x + SiLU(W_ij x + b_ij) for the layers j of head i,  logits_i = head_i y

``x`` is what the target's head reads at token t; head i (from 0) guesses token t + 2 + i. The heads of a file may have tables
of their own or say tokens with the target's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.protocols import Ends
from .fit import reduced


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """``own``: the heads have tables of their own. ``vocab_size``: the target's."""

    hidden_size: int
    vocab_size: int
    heads: int
    layers: int = 1
    own: bool = False


class Medusa(nn.Module):
    """``draft_ids`` [Vd]: the tokens that the heads say; None: all.

    The layers of all heads lie side by side, so that one product makes the first layer of all: heads share their input.
    """

    weight: nn.Parameter
    """[heads, layers, H, H]"""
    bias: nn.Parameter
    """[heads, layers, H]"""
    tables: nn.Parameter | None
    """[heads, Vd, H]"""
    draft_ids: Tensor | None
    head: Tensor
    head_bias: Tensor | None

    def __init__(self, config: MedusaConfig, ends: Ends, draft_ids: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        n, width = config.heads, config.hidden_size
        # zero: an untrained head says what the target says
        self.weight = nn.Parameter(torch.zeros(n, config.layers, width, width))
        self.bias = nn.Parameter(torch.zeros(n, config.layers, width))
        head, head_bias = reduced(ends, draft_ids)
        self.tables = nn.Parameter(head.expand(n, -1, -1).clone()) if config.own else None
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self.register_buffer("head", None if config.own else head, persistent=False)
        self.register_buffer("head_bias", None if config.own else head_bias, persistent=False)

    def taps(self, n_layers: int) -> tuple[int, ...]:
        """The activations that it reads, of a target with so many layers."""
        return (n_layers + 1,)

    def features(self, hidden: Tensor) -> Tensor:
        """What the target's head reads [n, H] -> what each Medusa head says its token with [n, heads, H]."""
        n, width = self.config.heads, self.config.hidden_size
        first = F.linear(hidden, self.weight[:, 0].reshape(n * width, width), self.bias[:, 0].reshape(n * width))
        x = hidden[:, None] + F.silu(first).view(-1, n, width)
        for layer in range(1, self.config.layers):
            x = x + F.silu(torch.einsum("nhi,hoi->nho", x, self.weight[:, layer]) + self.bias[:, layer])
        return x

    def logits(self, features: Tensor) -> Tensor:
        """[n, heads, H] -> [n, heads, Vd]."""
        if self.tables is not None:
            return torch.einsum("nhi,hvi->nhv", features, self.tables)
        return F.linear(features, self.head, self.head_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[n, H] -> logits [n, heads, Vd]."""
        return self.logits(self.features(hidden))
