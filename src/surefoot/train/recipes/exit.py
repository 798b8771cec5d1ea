"""Early-exit head: at every token of the target's own text, what it says of the stream at the exit against the target's law.

loss = mean over answer tokens of loss(head s_t, target's law at t), s_t made of the streams up to t, causally

Drafted tokens pass through the target's own layers, so drafting is the same computation further on: one reading of a text tells
the chance of every draft position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...core.protocols import Ends
from ...errors import BadRequest
from ...heads.attention import AttentionConfig
from ...heads.exit import KINDS, Exit, ExitConfig
from ...heads.exit_files import save_exit
from ...heads.fit import reduced
from ..layers import read_layers
from ..losses import row_loss, through_head
from ..recipe import Batch, Shape
from .chain import along


@dataclass(frozen=True, slots=True)
class ExitRecipe:
    """``layer``: after which to exit; 0: a quarter of them. ``head_kind``: kangaroo or eesd. ``copy``: the target's layer, from
    0 (or -1, the last), that ``eesd`` starts from; None: it starts as a bare exit, as ``kangaroo`` does."""

    layer: int = 0
    head_kind: str = "kangaroo"
    copy: int | None = None
    heads: int = 0
    """0: heads of 64 numbers, or of fewer where that does not fit."""
    kv_heads: int = 0
    """0: as many as heads."""
    inner: int = 0
    """Width of the MLP of ``eesd``; 0: 8/3 of the hidden size."""
    loss_name: str = "soft_ce"
    words: int = 6
    """Draft positions that acceptance is told for."""
    chunk: int = 1024
    """Rows of logits held at once."""

    def __post_init__(self) -> None:
        row_loss(self.loss_name)
        if self.head_kind not in KINDS or self.head_kind == "bare":
            raise BadRequest(
                f"head_kind is {self.head_kind!r}; kangaroo and eesd can be trained, a bare exit has nothing to learn"
            )
        if self.copy is not None and self.head_kind != "eesd":
            raise BadRequest("copy takes a whole layer; use it with head_kind='eesd'")
        for name, least in (("layer", 0), ("heads", 0), ("kv_heads", 0), ("inner", 0), ("words", 1), ("chunk", 1)):
            if getattr(self, name) < least:
                raise BadRequest(f"{name} must be at least {least}, not {getattr(self, name)}")

    @property
    def kind(self) -> str:
        return "exit"

    def exit_layer(self, n_layers: int) -> int:
        found = self.layer or max(1, n_layers // 4)
        if not 0 < found < n_layers:
            raise BadRequest(f"layer={found}; the target has {n_layers} layers, so choose 1..{n_layers - 1}")
        return found

    def taps(self, n_layers: int) -> tuple[int, ...]:
        return self.exit_layer(n_layers), n_layers + 1

    def build(self, shape: Shape) -> nn.Module:
        ids = None if len(shape.draft_ids) == shape.vocab_size else shape.draft_ids
        if self.copy is not None:
            return self._copied(shape, ids).to(shape.ends.embedding.device)
        module = Exit(self._config(shape), shape.ends, ids)
        with torch.no_grad():  # at first a bare exit: attention and MLP add nothing, the norm is the target's
            module.self_attn.o_proj.weight.zero_()
            if self.head_kind == "eesd":
                module.mlp.down_proj.weight.zero_()
            module.norm.weight.copy_(_gain(shape.ends))
        return module.to(shape.ends.embedding.device)

    def _config(self, shape: Shape) -> ExitConfig:
        size = shape.hidden_size
        d = size // self.heads if self.heads else next((n for n in (64, 32, 16, 8) if size % n == 0), size)
        heads = self.heads or size // d
        kv_heads = self.kv_heads or heads
        if d * heads != size or d % 2 or heads % kv_heads:
            raise BadRequest(f"heads={heads}, kv_heads={kv_heads} do not divide the hidden size {size} evenly; choose others")
        inner = (self.inner or -(-size * 8 // 3 // 32) * 32) if self.head_kind == "eesd" else 0
        attention = AttentionConfig(size, heads, kv_heads, d)
        return ExitConfig(self.head_kind, self.exit_layer(shape.n_layers), attention, inner)

    def _copied(self, shape: Shape, ids: Tensor | None) -> Exit:
        if shape.folder is None:
            raise BadRequest("the target's own files are needed to copy a layer; give a transformers folder or a GGUF file")
        found = read_layers(shape.folder, (cast(int, self.copy),))
        own = found.config
        if own.hidden_size != shape.hidden_size:
            raise BadRequest(f"{shape.folder} has layers of hidden size {own.hidden_size}, the target {shape.hidden_size}")
        layer = self.exit_layer(shape.n_layers)
        config = ExitConfig("eesd", layer, own.attention, own.intermediate_size, own.eps, own.context)
        module = Exit(config, shape.ends, ids)
        module.load_state_dict({name.removeprefix("layers.0."): tensor for name, tensor in found.tensors.items()})
        return module

    def loss(self, module: nn.Module, shape: Shape, batch: Batch) -> Tensor:
        own = _own(batch)
        said = self._ready(cast(Exit, module), batch)[own]
        rows, bias = reduced(shape.ends, shape.draft_ids)
        return through_head(
            [said],
            [torch.arange(len(said), device=said.device)],
            [rows],
            batch.hidden[shape.last][:, :-1][own],
            rows,
            weights=[1.0],
            loss=self.loss_name,
            bias=bias,
            teacher_bias=bias,
            chunk=self.chunk,
        )

    @torch.no_grad()
    def right(self, module: nn.Module, shape: Shape, batch: Batch) -> Sequence[tuple[int, int]]:
        head, own = cast(Exit, module), _own(batch)
        ready = self._ready(head, batch)[own]
        ids = shape.draft_ids.to(ready.device)
        said = torch.cat([ids[head.says(part).argmax(-1)] for part in ready.split(self.chunk)]) if len(ready) else ids[:0]
        return along(batch, own, said, self.words)

    def _ready(self, head: Exit, batch: Batch) -> Tensor:
        """[B, T - 1, H]."""
        streams = batch.hidden[head.config.exit_layer][:, :-1]
        return head.ready(streams, torch.arange(streams.shape[1], device=streams.device)[None])

    def save(self, folder: Path, module: nn.Module, shape: Shape, facts: Mapping[str, Any]) -> None:
        save_exit(folder, cast(Exit, module), facts)


def _own(batch: Batch) -> Tensor:
    """[B, T - 1] bool: the token behind this one is to be learned."""
    return batch.answer[:, 1:]


def _gain(ends: Ends) -> Tensor:
    """[H] factors of the target's final norm, if that is a root-mean-square norm; else ones."""
    ones = torch.ones(1, ends.head.shape[1], device=ends.head.device)
    with torch.no_grad():
        gain = ends.norm(ones)[0].float()
    return gain if bool(gain.isfinite().all()) and float(gain.abs().mean()) > 1e-3 else ones[0]
