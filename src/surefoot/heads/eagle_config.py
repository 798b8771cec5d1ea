"""``config.json`` of EAGLE heads: a Llama's, bare or nested in that of speculators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BadRequest, Unsupported
from .eagle_layer import LayerConfig
from .files import Checkpoint

_EXACT: dict[str, float] = {"verifier_accept_k": 1, "accept_tolerance": 0.0}


def layer_record(config: LayerConfig, vocab: int) -> dict[str, Any]:
    """The layer's config as files have it: what was read from one, and the sizes that count."""
    attention = config.attention
    rope = {k: v for k, v in attention.rope.items() if k != "rope_theta"}
    own: dict[str, Any] = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": attention.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "attention_bias": attention.bias,
        "rope_theta": attention.theta,
        "rope_scaling": rope if rope.get("rope_type", rope.get("type", "default")) != "default" else None,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    own.setdefault("max_position_embeddings", attention.rope.get("original_max_position_embeddings", 2048))
    kept = {k: v for k, v in config.record.items() if k in ("max_position_embeddings", "bos_token_id", "eos_token_id")}
    return own | kept


def speculators_record(layer: Mapping[str, Any], target: str) -> dict[str, Any]:
    """A config that speculators and vLLM load."""
    proposal = {"proposal_type": "greedy", "speculative_tokens": 5, **_EXACT}
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculator_model",
        "speculators_model_type": "eagle3",
        "speculators_version": "0.2.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "transformer_layer_config": dict(layer),
    }


def unnested(checkpoint: Checkpoint) -> dict[str, Any]:
    """The layer's config. Refuses a lossy acceptance rule, and a head of several layers."""
    config, path = checkpoint.config, checkpoint.path / "config.json"
    outer = config.get("speculators_config") or {}
    for method in outer.get("proposal_methods") or ():
        for name, exact in _EXACT.items():
            if method.get(name, exact) != exact:
                raise Unsupported(f"{path}: {name} is {method[name]}, which changes what the target says; set it to {exact:g}")
    inner = config.get("transformer_layer_config", config)
    if not isinstance(inner, dict):
        raise BadRequest(f"{path}: 'transformer_layer_config' must be an object, got {inner!r}")
    layers = inner.get("num_hidden_layers", 1)
    if layers != 1:
        raise Unsupported(f"{path}: the head has {layers} layers; EAGLE heads of one layer are read")
    return inner
