"""EAGLE-1 and EAGLE-2 (arXiv 2401.15077, 2406.16858): feature-level autoregression with one decoder layer.

The feature is what the target's head reads (post-norm). x = fc([embedding ; feature]); a decoder layer without a norm in front;
its output is the next feature, and the target's own head makes logits of it, of the rows ``draft_ids`` where they are given.
EAGLE-2 is the same head, drafting trees.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.protocols import Ends
from .eagle_layer import EagleLayer, LayerConfig, whole
from .fit import reduced


class Eagle(nn.Module):
    """``scale`` [2H]: factors on what fc reads, which training uses; writers fold them into fc. ``fc_bias``: fc has one."""

    embedding: Tensor
    draft_ids: Tensor | None
    rows: Tensor
    row_bias: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        config: LayerConfig,
        ends: Ends,
        draft_ids: Tensor | None = None,
        *,
        fc_bias: bool = False,
        scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=fc_bias)
        self.layer = EagleLayer(config, norms=False)
        self.register_buffer("embedding", ends.embedding, persistent=False)
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        rows, bias = reduced(ends, draft_ids)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("row_bias", bias, persistent=False)
        self.register_buffer("scale", scale)

    def taps(self, n_layers: int) -> tuple[int, ...]:
        return (n_layers + 1,)

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def enter(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        pair = torch.cat((embedded, feature), -1)
        x = self.fc(pair if self.scale is None else pair * self.scale)
        return x, x

    def ready(self, hidden: Tensor) -> Tensor:
        return hidden

    def table(self) -> tuple[Tensor, Tensor | None]:
        return self.rows, self.row_bias

    def forward(self, tokens: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens [B, T], features [B, T, H], positions [B, T] -> next features [B, T, H], logits [B, T, Vd]; causal."""
        return whole(self, tokens, features, positions)
