"""Medusa heads: all words from one activation, each head against the target's law at its own place.

loss = sum_k decay^k loss(head_k h_t, head h_(t+1+k))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...errors import BadRequest
from ...heads.fit import reduced
from ...heads.medusa import Medusa, MedusaConfig
from ...heads.medusa_files import save_medusa
from ..losses import row_loss, through_head
from ..recipe import Batch, Shape
from .chain import chains, right


@dataclass(frozen=True, slots=True)
class MedusaRecipe:
    """``own``: tables of their own for the heads, in place of the target's; they are learned too."""

    heads: int = 4
    layers: int = 1
    own: bool = False
    loss_name: str = "soft_ce"
    decay: float = 0.8
    chunk: int = 1024
    """Rows of logits held at once."""

    def __post_init__(self) -> None:
        row_loss(self.loss_name)
        for name in ("heads", "layers", "chunk"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def kind(self) -> str:
        return "medusa"

    def taps(self, n_layers: int) -> tuple[int, ...]:
        return (n_layers + 1,)

    def build(self, shape: Shape) -> nn.Module:
        config = MedusaConfig(shape.hidden_size, shape.vocab_size, self.heads, self.layers, self.own)
        return Medusa(config, shape.ends, shape.draft_ids)

    def loss(self, module: nn.Module, shape: Shape, batch: Batch) -> Tensor:
        medusa = cast(Medusa, module)
        found = chains(batch, self.heads)
        hidden = batch.hidden[shape.last].flatten(0, 1)
        features = medusa.features(hidden[found.roots]).unbind(1)
        head, bias = reduced(shape.ends, shape.draft_ids)
        return through_head(
            features,
            found.places,
            [head] if medusa.tables is None else medusa.tables.unbind(0),
            hidden[found.labels],
            head,
            weights=[self.decay**k for k in range(self.heads)],
            loss=self.loss_name,
            bias=bias if medusa.tables is None else None,
            teacher_bias=bias,
            chunk=self.chunk,
        )

    @torch.no_grad()
    def right(self, module: nn.Module, shape: Shape, batch: Batch) -> Sequence[tuple[int, int]]:
        medusa = cast(Medusa, module)
        found = chains(batch, 1)
        features = medusa.features(batch.hidden[shape.last].flatten(0, 1)[found.roots])

        def word(k: int, at: Tensor) -> Tensor:
            if medusa.tables is not None:
                return features[at, k] @ medusa.tables[k].T
            return nn.functional.linear(features[at, k], medusa.head, medusa.head_bias)

        return right(batch, shape, found.roots, [lambda at, k=k: word(k, at) for k in range(self.heads)])  # type: ignore[misc]

    def save(self, folder: Path, module: nn.Module, shape: Shape, facts: Mapping[str, Any]) -> None:
        save_medusa(folder, cast(Medusa, module), facts=facts)
