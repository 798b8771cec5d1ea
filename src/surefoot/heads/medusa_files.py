"""Medusa heads on disk, in the four layouts that are in use.

    medusa1  {i}.{j}.linear.{weight,bias}, {i}.{layers}.weight          heads alone, tables of their own
    medusa2  medusa_head.{i}.{j}.linear.*, medusa_head.{i}.{layers}.weight   among the tensors of the whole model
    tied     {i}.{j}.linear.*                                           tokens by the target's head
    vllm     blocks.{i}.layers.{j}.weight[, bias], lm_heads.{i}.weight, token_map

Heads and layers are counted from the tensors: configs say other numbers. ``draft_ids`` (``token_map`` in vllm) are the tokens
that the heads can say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.protocols import Ends
from ..errors import BadRequest, VocabMismatch
from .files import Checkpoint, write
from .fit import check_fit
from .medusa import Medusa, MedusaConfig

LAYOUTS = ("tied", "medusa1", "medusa2", "vllm")
INSIDE = "medusa_head."
"""Where the heads are among the tensors of a whole model."""
LAYER = re.compile(
    r"^(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.weight$|^(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.weight$"
)
"""Weight of layer j of head i."""


def load_medusa(checkpoint: Checkpoint, ends: Ends) -> Medusa:
    """Any of the layouts. Raises where the heads were made for another target."""
    found = [m for name in checkpoint.tensors if (m := LAYER.match(name))]
    places = sorted((int(m[1] or m[3] or 0), int(m[2] or m[4] or 0)) for m in found)
    heads = 1 + max((i for i, _ in places), default=-1)
    layers = 1 + max((j for _, j in places), default=-1)
    if not places or places != [(i, j) for i in range(heads) for j in range(layers)]:
        raise BadRequest(f"{checkpoint.path}: layers of Medusa heads are missing or differ between heads; found {places}")
    if found[0][3] is not None:
        return _vllm(checkpoint, ends, heads, layers)
    prefix = INSIDE if found[0][0].startswith(INSIDE) else ""
    own = f"{prefix}0.{layers}.weight" in checkpoint.tensors
    tables = [checkpoint.take(f"{prefix}{i}.{layers}.weight") for i in range(heads)] if own else None
    where = [[f"{prefix}{i}.{j}.linear" for j in range(layers)] for i in range(heads)]
    return _fill(checkpoint, ends, where, tables, checkpoint.draft_ids(ends.head.shape[0]))


def _vllm(checkpoint: Checkpoint, ends: Ends, heads: int, layers: int) -> Medusa:
    tensors = {name.removeprefix("medusa_heads."): tensor for name, tensor in checkpoint.tensors.items()}
    vocab = ends.head.shape[0]
    if "token_map" in tensors and checkpoint.integer("truncated_vocab_size", vocab) < vocab:
        tensors["draft_ids"] = tensors["token_map"].to(torch.int64)
    plain = replace(checkpoint, tensors=tensors)
    draft_ids = plain.draft_ids(vocab)
    shared = bool(checkpoint.config.get("original_lm_head"))
    tables = None
    if "lm_heads.0.weight" in tensors:
        tables = [plain.take(f"lm_heads.{0 if shared else i}.weight") for i in range(heads)]
        if draft_ids is not None:
            check_fit(checkpoint.path, ends, vocab=max(vocab if len(t) == len(draft_ids) else len(t) for t in tables))
            tables = [t if len(t) == len(draft_ids) else t[draft_ids] for t in tables]
    where = [[f"blocks.{i}.layers.{j}" for j in range(layers)] for i in range(heads)]
    return _fill(plain, ends, where, tables, draft_ids)


def _fill(
    checkpoint: Checkpoint, ends: Ends, where: list[list[str]], tables: list[Tensor] | None, draft_ids: Tensor | None
) -> Medusa:
    """``where[i][j]``: name of layer j of head i."""
    vocab, width = ends.head.shape
    said = checkpoint.integer("vocab_size", vocab)
    check_fit(checkpoint.path, ends, hidden=checkpoint.take(f"{where[0][0]}.weight").shape[-1], vocab=said)
    expected = vocab if draft_ids is None else len(draft_ids)
    for table in tables or ():
        if len(table) != expected:
            raise VocabMismatch(
                f"{checkpoint.path}: the heads say {len(table)} tokens, "
                + (f"the target {vocab}" if draft_ids is None else f"'draft_ids' names {expected}")
                + "; give heads trained for this target"
            )
        if table.ndim != 2 or table.shape[1] != width:
            raise BadRequest(f"{checkpoint.path}: a head has shape {tuple(table.shape)}, expected {(expected, width)}")
    config = MedusaConfig(width, vocab, len(where), len(where[0]), own=tables is not None)
    module = Medusa(config, ends, draft_ids)
    with torch.no_grad():
        for i, names in enumerate(where):
            for j, name in enumerate(names):
                module.weight[i, j] = checkpoint.take(f"{name}.weight", (width, width))
                if f"{name}.bias" in checkpoint.tensors:
                    module.bias[i, j] = checkpoint.take(f"{name}.bias", (width,))
        if tables is not None:
            assert module.tables is not None
            module.tables.copy_(torch.stack(tables))
    return module.to(ends.head.device).eval()


def save_medusa(
    folder: Path,
    module: Medusa,
    *,
    layout: str | None = None,
    facts: Mapping[str, Any] | None = None,
    base: Mapping[str, Tensor] | None = None,
    shards: int = 1,
) -> None:
    """``layout``: default ``tied``, or ``medusa1`` for heads with tables of their own. ``base``: for ``medusa2``, the model's.

    ``facts`` go into the config under ``surefoot``.
    """
    config = module.config
    layout = layout or ("medusa1" if config.own else "tied")
    if layout not in LAYOUTS:
        raise BadRequest(f"unknown layout {layout!r}; choose one of {', '.join(LAYOUTS)}")
    if config.own == (layout == "tied"):
        raise BadRequest(f"layout {layout!r} is for heads {'without' if layout == 'tied' else 'with'} tables of their own")
    tensors = dict(base or {})
    prefix = INSIDE if layout == "medusa2" else ""
    for i in range(config.heads):
        for j in range(config.layers):
            name = f"blocks.{i}.layers.{j}" if layout == "vllm" else f"{prefix}{i}.{j}.linear"
            tensors |= {f"{name}.weight": module.weight[i, j], f"{name}.bias": module.bias[i, j]}
        if module.tables is not None:
            tensors[f"lm_heads.{i}.weight" if layout == "vllm" else f"{prefix}{i}.{config.layers}.weight"] = module.tables[i]
    said: dict[str, Any] = {"model_type": "medusa", "hidden_size": config.hidden_size, "vocab_size": config.vocab_size}
    if module.draft_ids is not None:
        tensors["token_map" if layout == "vllm" else "draft_ids"] = module.draft_ids
    if layout == "vllm":
        size = config.vocab_size if module.draft_ids is None else len(module.draft_ids)
        said |= {"num_heads": config.heads, "num_hidden_layers": config.layers, "truncated_vocab_size": size}
    else:
        said |= {"medusa_num_heads": config.heads, "medusa_num_layers": config.layers}
        said["version"] = "2" if layout == "tied" else "1"
    if facts:
        said["surefoot"] = dict(facts)
    name = "medusa_lm_head.safetensors" if layout in ("medusa1", "tied") else "model.safetensors"
    write(folder, said, tensors, name=name, shards=shards)
