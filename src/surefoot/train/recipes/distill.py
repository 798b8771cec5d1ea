"""A small model of some of the target's layers, trained as a whole to say what the target says at every token of its own text.

loss = mean over answer tokens of loss(head h_t, target's law at t); embedding and head are the target's and stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...errors import BadRequest
from ...heads.distilled import Distilled
from ...heads.distilled_files import save_distilled
from ...heads.fit import reduced
from ..layers import read_layers
from ..losses import row_loss, through_head
from ..recipe import Batch, Shape
from .chain import along


@dataclass(frozen=True, slots=True)
class DistillRecipe:
    """``layers``: which of the target's are copied, as numbers or as in ``0,14,-1``; negative ones count from the end."""

    layers: Sequence[int] | str = (0, -1)
    loss_name: str = "soft_ce"
    words: int = 5
    """Draft positions that acceptance is told for."""
    chunk: int = 1024
    """Rows of logits held at once."""

    def __post_init__(self) -> None:
        row_loss(self.loss_name)
        _numbers(self.layers)
        for name in ("words", "chunk"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def kind(self) -> str:
        return "distilled"

    def taps(self, n_layers: int) -> tuple[int, ...]:
        return (n_layers + 1,)

    def build(self, shape: Shape) -> nn.Module:
        if shape.folder is None:
            raise BadRequest("the target's own files are needed to copy its layers; give a transformers folder or a GGUF file")
        found = read_layers(shape.folder, _numbers(self.layers))
        if found.config.hidden_size != shape.hidden_size:
            raise BadRequest(
                f"{shape.folder} has layers of hidden size {found.config.hidden_size}, the target {shape.hidden_size}; "
                "give the target's own files"
            )
        whole = len(shape.draft_ids) == shape.vocab_size
        module = Distilled(found.config, shape.ends, None if whole else shape.draft_ids)
        module.load_state_dict(dict(found.tensors))
        return module.to(shape.ends.embedding.device)

    def loss(self, module: nn.Module, shape: Shape, batch: Batch) -> Tensor:
        own = _own(batch)
        said = module(batch.tokens)[:, :-1][own]
        rows, bias = reduced(shape.ends, shape.draft_ids)
        teacher = batch.hidden[shape.last][:, :-1][own]
        places = torch.arange(len(said), device=said.device)
        return through_head(
            [said],
            [places],
            [rows],
            teacher,
            rows,
            weights=[1.0],
            loss=self.loss_name,
            bias=bias,
            teacher_bias=bias,
            chunk=self.chunk,
        )

    @torch.no_grad()
    def right(self, module: nn.Module, shape: Shape, batch: Batch) -> Sequence[tuple[int, int]]:
        """One reading of the text tells all positions: what the model says behind true tokens is what it would draft."""
        model = cast(Distilled, module)
        own = _own(batch)
        hidden = model(batch.tokens)[:, :-1][own]
        ids = shape.draft_ids.to(hidden.device)
        said = torch.cat([ids[model.says(part).argmax(-1)] for part in hidden.split(self.chunk)]) if len(hidden) else ids[:0]
        return along(batch, own, said, self.words)

    def save(self, folder: Path, module: nn.Module, shape: Shape, facts: Mapping[str, Any]) -> None:
        save_distilled(folder, cast(Distilled, module), facts)


def _own(batch: Batch) -> Tensor:
    """[B, T - 1] bool: the token behind this one is to be learned."""
    return batch.answer[:, 1:]


def _numbers(layers: Sequence[int] | str) -> tuple[int, ...]:
    try:
        given = layers.replace("/", ",").split(",") if isinstance(layers, str) else layers
        return tuple(int(layer) for layer in given)
    except (TypeError, ValueError):
        raise BadRequest(f"layers must be numbers such as 0,14,-1, got {layers!r}") from None
