"""Early-exit heads on disk: Kangaroo's public layout, and our own.

Kangaroo  ``self_attn.{q,k,v,o}_proj.weight``, ``input_layernorm.weight``, ``norm.weight``, with or without a prefix such as
          ``layers.0.``; config of a Llama with ``num_hidden_layers`` 1, which does not name the exit layer
ours      the same tensors (a whole layer's of ``eesd``, none of ``bare``) and ``draft_ids`` [Vd] int64 where the vocabulary is
          reduced; ``model_type`` ``surefoot-exit``, ``exit_kind`` and ``exit_layer`` in the config

The table of logits is the target's own and not written; one in a file is left unread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.protocols import Ends
from ..errors import BadRequest, Unsupported, VocabMismatch
from .attention import AttentionConfig
from .exit import KINDS, Exit, ExitConfig
from .files import Checkpoint, write
from .fit import check_fit

KIND = "surefoot-exit"
LAYOUTS = ("own", "kangaroo")
_NAME = re.compile(
    r"^(?:.*\.)??(self_attn\.[qkvo]_proj\.(?:weight|bias)|(?:input|post_attention)_layernorm\.weight|norm\.weight|"
    r"mlp\.(?:gate|up|down)_proj\.weight)$"
)
_UNREAD = ("draft_ids", "rotary_emb.inv_freq", "lm_head.weight", "head_model.weight", "embed_tokens.weight")
_NUMBER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def load_exit(checkpoint: Checkpoint, ends: Ends) -> Exit:
    """In evaluation mode, on the device of the target's tables."""
    config, where = checkpoint.config, checkpoint.path / "config.json"
    own = config.get("model_type") == KIND
    tensors = _plain(checkpoint)
    kind = config.get("exit_kind") if own else ("eesd" if "mlp.gate_proj.weight" in tensors else "kangaroo")
    if kind not in KINDS:
        raise BadRequest(f"{where}: 'exit_kind' must be one of {', '.join(KINDS)}, got {kind!r}")
    if not own and "self_attn.q_proj.weight" not in tensors:
        raise Unsupported(f"{checkpoint.path}: is a {config.get('model_type')!r}, not an early-exit head; load it as such")
    if not own and checkpoint.integer("num_hidden_layers", 1) != 1:
        raise Unsupported(f"{where}: the head has {config['num_hidden_layers']} layers; early-exit heads of one layer are read")
    vocab, ids = ends.head.shape[0], checkpoint.draft_ids(ends.head.shape[0])
    check_fit(
        checkpoint.path, ends, hidden=checkpoint.integer("hidden_size", least=1), vocab=checkpoint.integer("vocab_size", vocab)
    )
    if own and (0 if ids is None else len(ids)) != checkpoint.integer("draft_vocab_size", 0):
        raise VocabMismatch(
            f"{checkpoint.path}: 'draft_vocab_size' and the tensor 'draft_ids' disagree; the file is incomplete"
        )
    module = Exit(_config(checkpoint, str(kind), tensors), ends, ids)
    state = module.state_dict()
    if extra := sorted(set(tensors) - set(state)):
        raise Unsupported(
            f"{checkpoint.path}: tensor {extra[0]!r} has no place in an exit of kind {kind!r}; it is of another format"
        )
    found = Checkpoint(checkpoint.path, config, tensors)
    module.load_state_dict({name: found.take(name, tuple(x.shape)) for name, x in state.items()})
    return module.to(ends.embedding.device).eval()


def save_exit(folder: Path, module: Exit, facts: Mapping[str, Any] | None = None, *, layout: str = "own") -> None:
    """``facts`` go into the config under ``surefoot``. ``layout``: own, or kangaroo, which knows no reduced vocabulary."""
    if layout not in LAYOUTS:
        raise BadRequest(f"layout is {layout!r}; choose one of {', '.join(LAYOUTS)}")
    own, attention = module.config, module.config.attention
    if layout == "kangaroo" and (own.kind != "kangaroo" or module.draft_ids is not None):
        raise BadRequest("Kangaroo's layout holds exits of kind 'kangaroo' that say all tokens; use layout='own'")
    config: dict[str, Any] = {
        "hidden_size": module.hidden_size,
        "vocab_size": module.vocab_size,
        "exit_layer": own.exit_layer,
    }
    if attention is not None:
        config |= {
            "hidden_act": "silu",
            "num_hidden_layers": 1,
            "num_attention_heads": attention.heads,
            "num_key_value_heads": attention.kv_heads,
            "head_dim": attention.head_dim,
            "attention_bias": attention.bias,
            "attention_out_bias": attention.out_bias,
            "rms_norm_eps": own.eps,
            "rope_theta": attention.theta,
            "rope_scaling": _scaling(attention.rope),
            "max_position_embeddings": own.context,
        }
    tensors: dict[str, Tensor] = dict(module.state_dict())
    if layout == "kangaroo":
        config |= {"model_type": "llama", "architectures": ["AdapterModel"], "intermediate_size": 4 * module.hidden_size}
        tensors = {name if name.startswith("norm.") else f"layers.0.{name}": x for name, x in tensors.items()}
    else:
        ids = module.draft_ids
        config |= {"model_type": KIND, "exit_kind": own.kind, "draft_vocab_size": 0 if ids is None else len(ids)}
        if own.intermediate_size:
            config["intermediate_size"] = own.intermediate_size
        if ids is not None:
            tensors["draft_ids"] = ids
    write(folder, config | ({"surefoot": dict(facts)} if facts else {}), tensors)


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
    return {k: v for k, v in rope.items() if k != "rope_theta"} if scaled else None


def _plain(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The head's tensors without their prefix."""
    found: dict[str, Tensor] = {}
    for name, tensor in checkpoint.tensors.items():
        if name == "draft_ids" or name.endswith(_UNREAD):
            continue
        number, match = _NUMBER.search(name), _NAME.match(name)
        if number is not None and int(number[1]) > 0:
            raise Unsupported(f"{checkpoint.path}: has tensors of several layers; early-exit heads of one layer are read")
        plain = name if match is None else match[1]
        if plain in found:
            raise BadRequest(f"{checkpoint.path}: has {plain!r} twice, under different prefixes; keep the head's own")
        found[plain] = tensor
    return found


def _config(checkpoint: Checkpoint, kind: str, tensors: Mapping[str, Tensor]) -> ExitConfig:
    said = checkpoint.config
    layer = checkpoint.integer("exit_layer", 0)
    if kind == "bare":
        return ExitConfig(kind, layer)
    checkpoint.integer("num_attention_heads", least=1)
    if str(said.get("hidden_act", "silu")) != "silu":
        raise Unsupported(f"hidden_act {said['hidden_act']!r} of the head is not known; known is 'silu'")
    # whether attention has biases is seen in the file: configs do not always say
    attention = replace(
        AttentionConfig.of(said), bias="self_attn.q_proj.bias" in tensors, out_bias="self_attn.o_proj.bias" in tensors
    )
    inner = checkpoint.integer("intermediate_size", least=1) if kind == "eesd" else 0
    context = checkpoint.integer("max_position_embeddings", 2048, least=1)
    return ExitConfig(kind, layer, attention, inner, float(said.get("rms_norm_eps", 1e-5)), context)
