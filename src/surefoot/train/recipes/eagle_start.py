"""New EAGLE heads, of the target's sizes and, warm, with a sensible first opinion.

What fc reads is scaled to unit variance, so one learning rate fits all of it. A warm EAGLE head passes the feature on, so it
says at first what the target said one token before. A warm EAGLE-3 head passes the deepest tap on to a copy of the target's
next layer, with the target's final norm behind it.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import torch
from torch import Tensor

from ...errors import SurefootError
from ...heads.attention import AttentionConfig
from ...heads.eagle import Eagle
from ...heads.eagle3 import Eagle3, default_taps
from ...heads.eagle_layer import LayerConfig
from ..layers import Layers, read_layers
from ..recipe import Shape

_SMALL = 1e-3


def start_eagle(shape: Shape, intermediate_size: int, *, fc_bias: bool, warm: bool) -> Eagle:
    size = shape.hidden_size
    config = _config(shape, _target(shape, -1), intermediate_size, reads=1)
    embedding = shape.ends.embedding
    wide = torch.randn(256, size, generator=torch.Generator().manual_seed(0)).to(embedding.device)
    feature = float(shape.ends.norm(wide).std())
    scale = torch.cat((torch.full((size,), 1 / float(embedding.std())), torch.full((size,), 1 / feature)))
    module = Eagle(config, shape.ends, _ids(shape), fc_bias=fc_bias, scale=scale)
    if warm:
        with torch.no_grad():
            module.fc.weight[:, :size].mul_(feature * 0.1)
            module.fc.weight[:, size:] = feature * torch.eye(size)
            module.layer.self_attn.o_proj.weight.zero_()
            module.layer.mlp.down_proj.weight.zero_()
    return module.to(embedding.device)


def start_eagle3(shape: Shape, intermediate_size: int, *, tied: bool, norm_before_residual: bool, warm: bool) -> Eagle3:
    size, deepest = shape.hidden_size, default_taps(shape.n_layers)[-1]
    target = _target(shape, deepest)
    config = _config(shape, target, intermediate_size, reads=2)
    scale = torch.zeros(3 * size)  # until a batch was seen: see calibrate
    module = Eagle3(config, shape.ends, _ids(shape), tied=tied, norm_before_residual=norm_before_residual, scale=scale)
    with torch.no_grad():
        if module.lm_head is not None and warm:
            module.lm_head.weight.copy_(shape.ends.head if module.draft_ids is None else shape.ends.head[module.draft_ids])
        if warm and target is not None:
            _copy(module, target, size)
    return module.to(shape.ends.embedding.device)


@torch.no_grad()
def calibrate(module: Eagle3, features: Tensor, length: Tensor, warm: bool) -> None:
    """Set the scale of a new head by the first features [B, T, 3H] that it sees."""
    scale = module.scale
    if scale is None or bool(scale.any()):
        return
    real = torch.arange(features.shape[1], device=features.device) < length[:, None]
    spread = features[real].square().mean(0).sqrt().clamp(min=1e-6)
    scale.copy_(1 / spread)
    if warm:
        size = module.fc.out_features
        deepest = spread[-size:]
        module.fc.weight.mul_(0.1)
        # the residual's length does not matter behind a norm, its direction does
        module.fc.weight[:, -size:] = torch.diag(deepest / deepest.square().mean().sqrt())


def _copy(module: Eagle3, target: Layers, size: int) -> None:
    found, own = target.tensors, module.layer
    own.hidden_norm.weight.copy_(found["layers.0.input_layernorm.weight"])
    own.post_attention_layernorm.weight.copy_(found["layers.0.post_attention_layernorm.weight"])
    module.norm.weight.copy_(found["norm.weight"])
    for name in ("q_proj", "k_proj", "v_proj"):
        part = getattr(own.self_attn, name)
        part.weight[:, :size].mul_(_SMALL)
        part.weight[:, size:] = found[f"layers.0.self_attn.{name}.weight"]
        if part.bias is not None:
            part.bias.copy_(found[f"layers.0.self_attn.{name}.bias"])
    own.self_attn.o_proj.weight.copy_(found["layers.0.self_attn.o_proj.weight"])
    if own.self_attn.o_proj.bias is not None:
        own.self_attn.o_proj.bias.copy_(found["layers.0.self_attn.o_proj.bias"])
    if own.mlp.gate_proj.weight.shape == found["layers.0.mlp.gate_proj.weight"].shape:
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(own.mlp, name).weight.copy_(found[f"layers.0.mlp.{name}.weight"])


def _target(shape: Shape, layer: int) -> Layers | None:
    """A layer of the target; None where its files are not at hand, or of another kind."""
    if shape.folder is None:
        return None
    try:
        return read_layers(shape.folder, (layer,))
    except SurefootError:
        return None


def _config(shape: Shape, target: Layers | None, intermediate_size: int, reads: int) -> LayerConfig:
    size = shape.hidden_size
    if target is not None and target.config.attention.hidden_size == size:
        attention = replace(target.config.attention, read_size=reads * size)
        own = target.config
        return LayerConfig(attention, intermediate_size or own.intermediate_size, own.eps)
    d = gcd(size, 64)
    heads = size // d
    inner = intermediate_size or -(-8 * size // 3 // 32) * 32
    return LayerConfig(AttentionConfig(size, heads, heads, d, reads * size), inner)


def _ids(shape: Shape) -> Tensor | None:
    return None if len(shape.draft_ids) == shape.vocab_size else shape.draft_ids
