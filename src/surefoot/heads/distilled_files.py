"""A distilled draft on disk: its layers, final norm and draft vocabulary; embedding and head are the target's.

``config.json`` has the names of a Llama's config, ``model_type`` ``surefoot-distilled``, ``vocab_size`` (the target's),
``draft_vocab_size`` and ``layers``, which of the target's layers each was at first. Tensors: ``layers.{i}.*`` and
``norm.weight`` as in a Llama's checkpoint, and ``draft_ids`` [Vd] int64, absent where all tokens can be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.protocols import Ends
from ..errors import BadRequest, Unsupported
from .attention import AttentionConfig
from .distilled import Distilled, DistilledConfig
from .files import Checkpoint, write
from .fit import check_fit

KIND = "surefoot-distilled"


def load_distilled(checkpoint: Checkpoint, ends: Ends) -> Distilled:
    """In evaluation mode, on the device of the target's tables."""
    config = checkpoint.config
    kind = config.get("model_type")
    if kind != KIND:
        raise Unsupported(
            f"{checkpoint.path}: is a {kind!r}, not a distilled draft ({KIND!r}); load it with the drafter of its kind"
        )
    vocab = checkpoint.integer("vocab_size", least=1)
    check_fit(checkpoint.path, ends, hidden=checkpoint.integer("hidden_size", least=1), vocab=vocab)
    draft_ids = checkpoint.draft_ids(vocab)
    if (0 if draft_ids is None else len(draft_ids)) != checkpoint.integer("draft_vocab_size", 0):
        raise BadRequest(f"{checkpoint.path}: 'draft_vocab_size' and the tensor 'draft_ids' disagree; the file is incomplete")
    module = Distilled(_config(checkpoint), ends, draft_ids)
    state = {name: checkpoint.take(name, tuple(own.shape)) for name, own in module.state_dict().items()}
    if unknown := sorted(set(checkpoint.tensors) - set(state) - {"draft_ids"}):
        raise BadRequest(f"{checkpoint.path}: tensor {unknown[0]!r} is not of a distilled draft of {len(module.layers)} layers")
    module.load_state_dict(state)
    return module.to(ends.embedding.device).eval()


def save_distilled(folder: Path, module: Distilled, facts: Mapping[str, Any] | None = None) -> None:
    """``facts`` go into the config under ``surefoot``."""
    own, attention = module.config, module.config.attention
    tensors: dict[str, Tensor] = dict(module.state_dict())
    if module.draft_ids is not None:
        tensors["draft_ids"] = module.draft_ids.to(torch.int64)
    config: dict[str, Any] = {
        "model_type": KIND,
        "hidden_act": "silu",
        "hidden_size": own.hidden_size,
        "intermediate_size": own.intermediate_size,
        "num_hidden_layers": len(own.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "attention_bias": attention.bias,
        "attention_out_bias": attention.out_bias,
        "rms_norm_eps": own.eps,
        "rope_theta": attention.theta,
        "rope_scaling": dict(attention.rope) or None,
        "max_position_embeddings": own.context,
        "vocab_size": module.vocab_size,
        "draft_vocab_size": 0 if module.draft_ids is None else len(module.draft_ids),
        "layers": list(own.layers),
    }
    write(folder, config | ({"surefoot": dict(facts)} if facts else {}), tensors)


def _config(checkpoint: Checkpoint) -> DistilledConfig:
    config = checkpoint.config
    for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
        checkpoint.integer(name, least=1)
    count = checkpoint.integer("num_hidden_layers", least=1)
    layers = config.get("layers", list(range(count)))
    if not isinstance(layers, list) or len(layers) != count or not all(isinstance(i, int) for i in layers):
        raise BadRequest(f"{checkpoint.path / 'config.json'}: 'layers' must name {count} layers of the target, got {layers!r}")
    attention = AttentionConfig.of(config)
    return DistilledConfig(
        checkpoint.integer("intermediate_size", least=1),
        tuple(layers),
        replace(attention, out_bias=bool(config.get("attention_out_bias", attention.bias))),
        float(config.get("rms_norm_eps", 1e-5)),
        checkpoint.integer("max_position_embeddings", 2048, least=1),
    )
