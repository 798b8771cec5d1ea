"""What the torch backend must know of a transformers model, from its config and signature, or why it refuses it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import Unsupported

UNBOUNDED = 1 << 20
INDEXED_MASKS = {
    "bloom": "its ALiBi bias is built from a 2-D mask",
    "mpt": "its ALiBi bias is built from a 2-D mask",
    "gpt_neo": "its local attention counts cache columns, not positions",
}


@dataclass(frozen=True, slots=True)
class Family:
    """``windows``: attention kind -> width of its sliding window, ``None`` for full attention."""

    layers: int
    hidden_size: int
    max_context: int
    windows: dict[str, int | None]
    keyed: bool
    """Whether the model takes one mask for each attention kind, or a single one."""
    cache_argument: str
    keeps_logits: bool
    blocks: nn.ModuleList | None
    """The decoder layers, where the structure shows them: their inputs and outputs are the residual stream."""
    decoder: nn.Module | None
    """The model without its head, where the structure shows it."""


def _text_config(config: Any) -> Any:
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def refuse(config: Any, stateful: bool = False) -> None:
    """Raise :class:`Unsupported` for a config whose models cannot score trees exactly."""
    text = _text_config(config)
    kind = getattr(text, "model_type", "model")
    why = INDEXED_MASKS.get(kind)
    others = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if getattr(config, "is_encoder_decoder", False):
        why = "it is an encoder-decoder model"
    elif stateful or others & {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba"}:
        why = "its recurrent state cannot be rolled back to an accepted prefix"
    elif others:
        why = f"it has layers of type {', '.join(sorted(others))}"
    elif getattr(text, "alibi", False):
        why = "its ALiBi bias is built from a 2-D mask"
    elif getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        why = "its attention is not causal"
    if why is not None:
        raise Unsupported(f"the torch backend cannot run '{kind}': {why}; choose a causal attention-only model")


def _max_context(text: Any) -> int:
    """Positions of the config; long-context rope variants only up to where their frequencies start to change."""
    limit: int = getattr(text, "max_position_embeddings", None) or UNBOUNDED
    rope = getattr(text, "rope_parameters", None) or {}
    for part in (rope, *(v for v in rope.values() if isinstance(v, dict))):
        if part.get("rope_type") == "longrope":
            original = part.get("original_max_position_embeddings")
            limit = min(limit, original or getattr(text, "original_max_position_embeddings", None) or limit)
    return limit


def _decoder(model: nn.Module) -> nn.Module | None:
    inner = getattr(model, "get_decoder", None)
    found = inner() if callable(inner) else None
    return found if isinstance(found, nn.Module) and found is not model else None


def _blocks(model: nn.Module, layers: int) -> nn.ModuleList | None:
    found = (m for m in (_decoder(model) or model).modules() if isinstance(m, nn.ModuleList) and len(m) == layers)
    return next(found, None)


def describe(model: nn.Module) -> Family:
    config: Any = model.config
    refuse(config, stateful=bool(getattr(model, "_is_stateful", False)))
    text = _text_config(config)
    accepted = inspect.signature(model.forward).parameters
    cache_argument = next((name for name in ("cache", "past_key_values") if name in accepted), None)
    if cache_argument is None or "position_ids" not in accepted:
        raise Unsupported(
            f"the torch backend cannot run '{text.model_type}': its forward pass takes no position_ids and cache; "
            "choose a causal attention-only model"
        )
    types = getattr(text, "layer_types", None)
    window = getattr(text, "sliding_window", None)
    if types is not None:
        windows = {t: window if t == "sliding_attention" else None for t in sorted(set(types))}
    else:
        windows = {"": window}
    layers = int(text.num_hidden_layers)
    return Family(
        layers=layers,
        hidden_size=int(text.hidden_size),
        max_context=_max_context(text),
        windows=windows,
        keyed=types is not None,
        cache_argument=cache_argument,
        keeps_logits="logits_to_keep" in accepted,
        blocks=_blocks(model, layers),
        decoder=_decoder(model),
    )


def masked_attention(model: Any) -> None:
    """Put the model on an attention implementation that honours an explicit 4-D mask (sdpa, or eager)."""
    if getattr(model.config, "_attn_implementation", None) in ("sdpa", "eager"):
        return
    try:
        model.set_attn_implementation("sdpa")
    except (ValueError, ImportError, AttributeError):
        model.set_attn_implementation("eager")
