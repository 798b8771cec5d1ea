"""A small language model that reads and says tokens with the target's tables: a Llama's layers, trained on the target's text.

The embedding and the head are the target's own (:class:`~surefoot.core.protocols.Ends`) and no parameters; of the head only the
rows of the draft vocabulary are used. There are two ways to run it, which agree: :class:`Distilled` reads whole texts, with
gradient, and :class:`DistilledStep` a few tokens behind what was read before, which the caller keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.protocols import Ends
from .attention import KV, Attention, AttentionConfig
from .eagle_layer import Mlp
from .fit import reduced

HIDDEN = -1e9
"""Added to the score of a place that is not seen; finite, so that a row of padding has no division by zero."""


@dataclass(frozen=True, slots=True)
class DistilledConfig:
    """``layers``: which of the target's layers each was at first. ``context``: most tokens it was made for."""

    intermediate_size: int
    layers: tuple[int, ...]
    attention: AttentionConfig
    eps: float = 1e-5
    context: int = 2048

    @property
    def hidden_size(self) -> int:
        return self.attention.hidden_size


class Layer(nn.Module):
    """Named as in Llama's checkpoints."""

    def __init__(self, config: DistilledConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.eps)
        self.self_attn = Attention(config.attention)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions)[0]
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def step(self, x: Tensor, turn: tuple[Tensor, Tensor], past: KV, mask: Tensor) -> tuple[Tensor, KV]:
        """past: keys and values [B, g, S, d]; mask [B, T, S + T], added to scores. Returns x and the new ones [B, g, T, d]."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), *turn)
        x = x + self.self_attn.o_proj(_look(q, k, v, past, mask))
        return x + self.mlp(self.post_attention_layernorm(x)), (k, v)


class Distilled(nn.Module):
    """``draft_ids`` [Vd] int64: the target's id of each token that it can say; None: all of them."""

    _head: Tensor
    _bias: Tensor | None

    def __init__(self, config: DistilledConfig, ends: Ends, draft_ids: Tensor | None = None) -> None:
        super().__init__()
        self.config, self.draft_ids = config, draft_ids
        self.layers = nn.ModuleList(Layer(config) for _ in config.layers)
        self.norm = nn.RMSNorm(config.hidden_size, config.eps)
        # tables of the target: they stay out of parameters and of the saved state
        self._embedding = ends.embedding
        head, bias = reduced(ends, draft_ids)
        self.register_buffer("_head", head, persistent=False)
        self.register_buffer("_bias", bias, persistent=False)

    @property
    def vocab_size(self) -> int:
        """V, of the target."""
        return self._embedding.shape[0]

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] int64 -> [..., H]."""
        return self._embedding[tokens]

    def says(self, hidden: Tensor) -> Tensor:
        """[..., H] -> logits [..., Vd]."""
        return F.linear(hidden, self._head, self._bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] from the beginning of a text, padded behind -> what the head reads, [B, T, H]."""
        x = self.embed(tokens)
        positions = torch.arange(tokens.shape[1], device=x.device)[None]
        for layer in self.layers:
            x = layer(x, positions)
        out: Tensor = self.norm(x)
        return out


class DistilledStep(nn.Module):
    """A :class:`Distilled` that reads on: B rows, T new tokens, S places of the past, L layers of g key heads of d numbers."""

    def __init__(self, model: Distilled) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, asked: Tensor, *past: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of K of a row's new tokens, and the keys and values of all of them.

        x          [B, T, H] embedded tokens
        positions  [B, T] int64
        mask       [B, T, S + T] float32: 0 where a place is seen, else :data:`HIDDEN`
        asked      [B, K] int64: which of the T are to have logits
        past       keys and values of layer 0, of layer 1, …: 2 L of [B, g, S, d]; finite where a place holds nothing, too
        returns    [B, K, Vd], [B, 2 L, g, T, d]
        """
        layers = cast("list[Layer]", list(self.model.layers))
        turn = layers[0].self_attn.rotation(positions)
        made: list[Tensor] = []
        for i, layer in enumerate(layers):
            x, own = layer.step(x, turn, (past[2 * i], past[2 * i + 1]), mask)
            made += own
        x = x.gather(1, asked[..., None].expand(-1, -1, x.shape[-1]))
        return self.model.says(self.model.norm(x)), torch.stack(made, 1)


def _look(q: Tensor, k: Tensor, v: Tensor, past: KV, mask: Tensor) -> Tensor:
    """q [B, h, T, d], k and v [B, g, T, d] -> [B, T, h * d]. The past is multiplied where it lies: joining it would copy it."""
    b, h, t, d = q.shape
    g, seen = k.shape[1], past[0].shape[2]
    q = q.reshape(b, g, h // g * t, d) * d**-0.5
    scores = torch.cat((q @ past[0].transpose(-1, -2), q @ k.transpose(-1, -2)), -1)
    weights = (scores.reshape(b, g, h // g, t, -1) + mask[:, None, None]).softmax(-1).reshape(b, g, h // g * t, -1)
    out = weights[..., :seen] @ past[1] + weights[..., seen:] @ v
    return out.reshape(b, h, t, d).transpose(1, 2).reshape(b, t, h * d)
