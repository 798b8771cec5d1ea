"""Hydra-style head: unrolled on its own state with the true tokens, each step against the target's law.

loss = sum_k decay^k loss(head s_k, head h_(t+1+k)),  s_0 from h_t and token t + 1
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
from ...heads.hydra import Hydra, HydraConfig, unit_scale
from ...heads.hydra_files import save_hydra
from ..losses import row_loss, through_head
from ..recipe import Batch, Shape
from .chain import chains, right


@dataclass(frozen=True, slots=True)
class HydraRecipe:
    """``taps``: activations side by side that the head starts from; none: what the target's head reads. ``steps``: unrolled."""

    steps: int = 4
    blocks: int = 2
    inner: int = 1152
    taps_read: tuple[int, ...] | int = ()
    loss_name: str = "soft_ce"
    decay: float = 0.8
    depth: int = 8
    """Most tokens that the trained head drafts."""
    chunk: int = 1024
    """Rows of logits held at once."""

    def __post_init__(self) -> None:
        row_loss(self.loss_name)
        for name in ("steps", "inner", "depth", "chunk"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.blocks < 0:
            raise BadRequest(f"blocks must be at least 0, not {self.blocks}")

    @property
    def kind(self) -> str:
        return "hydra"

    def taps(self, n_layers: int) -> tuple[int, ...]:
        read = (self.taps_read,) if isinstance(self.taps_read, int) else tuple(self.taps_read)
        for tap in read:
            if not 0 <= tap <= n_layers + 1:
                raise BadRequest(
                    f"taps_read: {tap} is no tap of a target of {n_layers} layers; they go from 0 to {n_layers + 1}"
                )
        return read or (n_layers + 1,)

    def build(self, shape: Shape) -> nn.Module:
        config = HydraConfig(
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            taps=self.taps(shape.n_layers),
            blocks=self.blocks,
            inner=self.inner,
            scale=unit_scale(shape.ends),
            depth=self.depth,
        )
        return Hydra(config, shape.ends, shape.draft_ids)

    def loss(self, module: nn.Module, shape: Shape, batch: Batch) -> Tensor:
        hydra = cast(Hydra, module)
        found = chains(batch, self.steps)
        tokens = batch.tokens.flatten()
        # past the window's end any token will do: such words have no label
        read = [tokens[(found.roots + 1 + k).clamp(max=len(tokens) - 1)] for k in range(self.steps)]
        states = hydra.unroll(self._start(shape, batch, found.roots), read)
        head, bias = reduced(shape.ends, shape.draft_ids)
        return through_head(
            states,
            found.places,
            [head],
            batch.hidden[shape.last].flatten(0, 1)[found.labels],
            head,
            weights=[self.decay**k for k in range(self.steps)],
            loss=self.loss_name,
            bias=bias,
            teacher_bias=bias,
            chunk=self.chunk,
        )

    @torch.no_grad()
    def right(self, module: nn.Module, shape: Shape, batch: Batch) -> Sequence[tuple[int, int]]:
        hydra = cast(Hydra, module)
        found = chains(batch, 1)
        tokens = batch.tokens.flatten()
        n = min(max(self.steps, 6), self.depth)
        read = [tokens[(found.roots + 1 + k).clamp(max=len(tokens) - 1)] for k in range(n)]
        states = hydra.unroll(self._start(shape, batch, found.roots), read)
        return right(batch, shape, found.roots, [lambda at, s=s: hydra.logits(s[at]) for s in states])  # type: ignore[misc]

    def _start(self, shape: Shape, batch: Batch, roots: Tensor) -> Tensor:
        return torch.cat([batch.hidden[tap].flatten(0, 1)[roots] for tap in self.taps(shape.n_layers)], -1)

    def save(self, folder: Path, module: nn.Module, shape: Shape, facts: Mapping[str, Any]) -> None:
        save_hydra(folder, cast(Hydra, module), facts=facts)
