"""The steps that an EAGLE head will make in drafting, made at every place of a batch at once.

A base p is a pair whose feature is the target's. Step 0 reads it as the lane reads committed pairs: all bases up to p. Step k
reads the head's own hidden of step k - 1 with token p + k + 1, at position p + k, and sees the bases up to p and its own chain
of steps 1 .. k, as a draft from p does. Keys and values are held by base, so the chain's are on the diagonal.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...heads.attention import causal
from ...heads.eagle_layer import EagleHead


def unroll(head: EagleHead, tokens: Tensor, features: Tensor, steps: int) -> list[Tensor]:
    """tokens [B, T], activations [B, T, D] -> hidden [B, T, H] of each step.

    Step k at base p says something about token p + k + 2; where the window has no token p + k + 1, it says nothing.
    """
    attention = head.layer.self_attn
    width = tokens.shape[1]
    positions = torch.arange(width, device=tokens.device)
    seen = causal(width, device=tokens.device)[0, 0]
    feature = head.fuse(features)
    found: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for k in range(steps):
        read = F.embedding(tokens.roll(-1 - k, 1), head.embedding)
        x, residual = head.enter(read, feature)
        cos, sin = attention.rotation(positions + k)
        q, key, value = attention.project(x, cos[None], sin[None])
        keys.append(key)
        values.append(value)
        attended = attention.weigh(q, key, value, seen[None, None]) if k == 0 else _chained(q, keys, values, seen)
        feature = head.layer.finish(attended, residual)
        found.append(feature)
    return found


def _chained(q: Tensor, keys: list[Tensor], values: list[Tensor], seen: Tensor) -> Tensor:
    """q [B, h, T, d]; keys and values of step 0 are read as ``seen`` [T, T] says, those of later steps at the same base."""
    g = keys[0].shape[1]
    q = q.unflatten(1, (g, -1)) * q.shape[-1] ** -0.5
    far = (q @ keys[0].transpose(-1, -2).unsqueeze(2)).masked_fill(~seen, -torch.inf)
    near = torch.stack([(q * key.unsqueeze(2)).sum(-1) for key in keys[1:]], -1)
    share = torch.cat((far, near), -1).softmax(-1)
    width = seen.shape[0]
    out = share[..., :width] @ values[0].unsqueeze(2)
    for i, value in enumerate(values[1:]):
        out = out + share[..., width + i, None] * value.unsqueeze(2)
    return out.flatten(1, 2).transpose(1, 2).flatten(2)
