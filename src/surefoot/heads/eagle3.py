"""EAGLE-3 (arXiv 2503.01840): features fused of three taps, and a layer that reads embedding and feature side by side.

g = fc([low ; middle ; high]) where the target has read the token, later the head's own hidden. Attention reads
[input_layernorm(embedding) ; hidden_norm(g)], the residual is g (or its normed form); the output is the next g, and logits of
the draft vocabulary come from a norm and a head of its own, or, tied, from the rows of the target's head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.protocols import Ends
from .eagle_layer import EagleLayer, LayerConfig, whole
from .fit import reduced


class Eagle3(nn.Module):
    """``tied``: logits by the target's rows. ``layers``: the taps, where the file names them. ``scale`` [3H]: factors on what
    fc reads, which training uses; writers fold them into fc."""

    embedding: Tensor
    draft_ids: Tensor | None
    rows: Tensor | None
    row_bias: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        config: LayerConfig,
        ends: Ends,
        draft_ids: Tensor | None = None,
        *,
        tied: bool = False,
        norm_before_residual: bool = False,
        layers: tuple[int, ...] = (),
        scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.norm_before_residual = norm_before_residual
        self.layers = layers
        self.vocab_size = ends.head.shape[0]
        size = config.hidden_size
        self.fc = nn.Linear((len(layers) or 3) * size, size, bias=False)
        self.layer = EagleLayer(config, norms=True)
        self.norm = nn.RMSNorm(size, config.eps)
        said = self.vocab_size if draft_ids is None else len(draft_ids)
        self.lm_head = None if tied else nn.Linear(size, said, bias=False)
        rows, bias = reduced(ends, draft_ids) if tied else (None, None)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("row_bias", bias, persistent=False)
        self.register_buffer("embedding", ends.embedding, persistent=False)
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self.register_buffer("scale", scale)

    def taps(self, n_layers: int) -> tuple[int, ...]:
        return self.layers or default_taps(n_layers)

    def fuse(self, features: Tensor) -> Tensor:
        return self.fc(features if self.scale is None else features * self.scale)  # type: ignore[no-any-return]

    def enter(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.layer.hidden_norm(feature)
        x = torch.cat((self.layer.input_layernorm(embedded), normed), -1)
        return x, normed if self.norm_before_residual else feature

    def ready(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden)  # type: ignore[no-any-return]

    def table(self) -> tuple[Tensor, Tensor | None]:
        if self.lm_head is not None:
            return self.lm_head.weight, None
        assert self.rows is not None
        return self.rows, self.row_bias

    def forward(self, tokens: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens [B, T], activations [B, T, 3H], positions [B, T] -> hidden [B, T, H], logits [B, T, Vd]; causal."""
        return whole(self, tokens, features, positions)


def default_taps(n_layers: int) -> tuple[int, int, int]:
    """Inputs of layers 2, L // 2 and L - 3, within a model that is shallower than the rule expects."""
    return min(2, n_layers), n_layers // 2, max(n_layers - 3, 0)
