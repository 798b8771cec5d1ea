"""EAGLE heads: unrolled on their own hidden states with the true tokens, each step against the target's law (arXiv 2503.01840).

loss = sum_k decay^k loss(head s_k, head h_(p+1+k)) + feature_weight sum_k decay^k SmoothL1(s_k, h_(p+1+k))

The second term is EAGLE-1's alone, whose hidden states stand for the target's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import BadRequest
from ...heads.eagle import Eagle
from ...heads.eagle3 import Eagle3, default_taps
from ...heads.eagle_files import save_eagle, save_eagle3
from ...heads.eagle_layer import EagleHead, logits
from ...heads.fit import reduced
from ..losses import row_loss, through_head
from ..recipe import Batch, Shape
from .chain import chains, right
from .eagle_start import calibrate, start_eagle, start_eagle3
from .eagle_unroll import unroll


@dataclass(frozen=True, slots=True)
class EagleRecipe:
    """``steps``: unrolled. ``intermediate_size``: of the MLP; 0: as the target's. ``warm``: begin by passing features on."""

    steps: int = 3
    intermediate_size: int = 0
    fc_bias: bool = False
    warm: bool = True
    loss_name: str = "soft_ce"
    decay: float = 0.8
    feature_weight: float = 0.1
    chunk: int = 1024
    """Rows of logits held at once."""

    def __post_init__(self) -> None:
        _check(self.steps, self.intermediate_size, self.loss_name, self.chunk)
        if not self.feature_weight >= 0:
            raise BadRequest(f"feature_weight must be at least 0, not {self.feature_weight}")

    @property
    def kind(self) -> str:
        return "eagle"

    def taps(self, n_layers: int) -> tuple[int, ...]:
        return (n_layers + 1,)

    def build(self, shape: Shape) -> nn.Module:
        return start_eagle(shape, self.intermediate_size, fc_bias=self.fc_bias, warm=self.warm)

    def loss(self, module: nn.Module, shape: Shape, batch: Batch) -> Tensor:
        head = cast(Eagle, module)
        found = unroll(head, batch.tokens, _features(head, shape, batch), self.steps)
        total = _loss(head, found, shape, batch, self.decay, self.loss_name, self.chunk)
        if self.feature_weight == 0:
            return total
        aim = batch.hidden[shape.last]
        for k, hidden in enumerate(found):
            # base p of step k stands for the target's feature at p + 1 + k, which counts where token p + 2 + k is its own
            own = batch.answer[:, 2 + k :]
            if own.any():
                said, meant = hidden[:, : own.shape[1]][own], aim[:, 1 + k : 1 + k + own.shape[1]][own]
                total = total + self.feature_weight * self.decay**k * F.smooth_l1_loss(said, meant)
        return total

    def right(self, module: nn.Module, shape: Shape, batch: Batch) -> Sequence[tuple[int, int]]:
        return _right(cast(Eagle, module), shape, batch, self.steps)

    def save(self, folder: Path, module: nn.Module, shape: Shape, facts: Mapping[str, Any]) -> None:
        save_eagle(folder, cast(Eagle, module), facts=facts)


@dataclass(frozen=True, slots=True)
class Eagle3Recipe:
    """``tied``: logits by the target's own table, which is neither trained nor stored. ``warm``: begin with the layer of the
    target that comes next after the deepest tap, where its files are at hand. ``layout``: of the files."""

    steps: int = 3
    intermediate_size: int = 0
    tied: bool = True
    norm_before_residual: bool = False
    warm: bool = True
    loss_name: str = "soft_ce"
    decay: float = 0.8
    layout: str = "raw"
    chunk: int = 1024

    def __post_init__(self) -> None:
        _check(self.steps, self.intermediate_size, self.loss_name, self.chunk)
        if self.layout not in ("raw", "speculators"):
            raise BadRequest(f"layout is '{self.layout}'; choose raw or speculators")

    @property
    def kind(self) -> str:
        return "eagle3"

    def taps(self, n_layers: int) -> tuple[int, ...]:
        return tuple(sorted({*default_taps(n_layers), n_layers + 1}))

    def build(self, shape: Shape) -> nn.Module:
        return start_eagle3(
            shape, self.intermediate_size, tied=self.tied, norm_before_residual=self.norm_before_residual, warm=self.warm
        )

    def loss(self, module: nn.Module, shape: Shape, batch: Batch) -> Tensor:
        head = cast(Eagle3, module)
        features = _features(head, shape, batch)
        calibrate(head, features, batch.length, self.warm)
        found = unroll(head, batch.tokens, features, self.steps)
        return _loss(head, found, shape, batch, self.decay, self.loss_name, self.chunk)

    def right(self, module: nn.Module, shape: Shape, batch: Batch) -> Sequence[tuple[int, int]]:
        head = cast(Eagle3, module)
        calibrate(head, _features(head, shape, batch), batch.length, self.warm)
        return _right(head, shape, batch, self.steps)

    def save(self, folder: Path, module: nn.Module, shape: Shape, facts: Mapping[str, Any]) -> None:
        save_eagle3(folder, cast(Eagle3, module), layout=self.layout, target=shape.name, facts=facts)


def _check(steps: int, intermediate_size: int, loss: str, chunk: int) -> None:
    row_loss(loss)
    for name, value, least in (("steps", steps, 1), ("intermediate_size", intermediate_size, 0), ("chunk", chunk, 1)):
        if value < least:
            raise BadRequest(f"{name} must be at least {least}, not {value}")


def _features(head: EagleHead, shape: Shape, batch: Batch) -> Tensor:
    """[B, T, D]: the taps side by side."""
    return torch.cat([batch.hidden[tap] for tap in head.taps(shape.n_layers)], -1)


def _loss(head: EagleHead, found: Sequence[Tensor], shape: Shape, batch: Batch, decay: float, loss: str, chunk: int) -> Tensor:
    places = chains(batch, len(found))
    says, bias = head.table()
    rows, row_bias = reduced(shape.ends, shape.draft_ids)
    return through_head(
        [head.ready(hidden.flatten(0, 1)[places.roots]) for hidden in found],
        places.places,
        [says],
        batch.hidden[shape.last].flatten(0, 1)[places.labels],
        rows,
        weights=[decay**k for k in range(len(found))],
        loss=loss,
        bias=bias,
        teacher_bias=row_bias,
        chunk=chunk,
    )


@torch.no_grad()
def _right(head: EagleHead, shape: Shape, batch: Batch, steps: int) -> list[tuple[int, int]]:
    found = unroll(head, batch.tokens, _features(head, shape, batch), max(steps, 5))
    roots = chains(batch, 1).roots
    flat = [hidden.flatten(0, 1)[roots] for hidden in found]
    return right(batch, shape, roots, [lambda at, x=x: logits(head, x[at]) for x in flat])  # type: ignore[misc]
