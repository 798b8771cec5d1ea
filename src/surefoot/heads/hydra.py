"""A sequential head without attention, after Hydra (arXiv 2402.05109): a state that reads one token a step.

    s_0     = W_in [rms(h_1) ; ... ; rms(h_k)]     h: the target's activations (taps) at the last token it has read
    x       = W [s ; c e(token)] + b
    x      += W_2 SiLU(W_1 norm(x))                for each block
    s'      = norm(x),  logits = head s'           head: rows of the target's own

``e`` is the target's embedding and c a scale that gives it unit variance. There is no cache, so drafts may branch freely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.protocols import Ends
from .fit import reduced

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class HydraConfig:
    """``taps``: as :attr:`surefoot.core.protocols.Traits.hidden`. ``inner``: width of the blocks. ``depth``: most steps."""

    hidden_size: int
    vocab_size: int
    taps: tuple[int, ...]
    blocks: int = 2
    inner: int = 1152
    scale: float = 1.0
    """Of the embeddings."""
    depth: int = 8


def unit_scale(ends: Ends) -> float:
    """The scale that gives the target's embeddings unit variance."""
    return 1.0 / max(float(ends.embedding.std()), 1e-6)


class Block(nn.Module):
    """x + W_2 SiLU(W_1 norm(x)); adds nothing at first."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=EPS)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(F.silu(self.up(self.norm(x))))
        return out


class Start(nn.Module):
    """Taps side by side [n, k H] -> the state [n, H] in front of the next token; at first the last tap."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.width = width
        self.linear = nn.Linear(taps * width, width, bias=False)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[:, -width:] = 2 * torch.eye(width)

    def forward(self, hidden: Tensor) -> Tensor:
        each = F.rms_norm(hidden.unflatten(-1, (-1, self.width)), (self.width,), eps=EPS)
        out: Tensor = self.linear(each.flatten(-2))
        return out


class Hydra(nn.Module):
    """``draft_ids`` [Vd]: the tokens that the head says; None: all."""

    draft_ids: Tensor | None
    head: Tensor
    head_bias: Tensor | None
    embedding: Tensor

    def __init__(self, config: HydraConfig, ends: Ends, draft_ids: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.start = Start(width, len(config.taps))
        self.fc = nn.Linear(2 * width, width)
        self.blocks = nn.ModuleList(Block(width, config.inner) for _ in range(config.blocks))
        self.norm = nn.RMSNorm(width, eps=EPS)
        nn.init.constant_(self.norm.weight, 2.0)  # about the size of what a model's head reads: training starts better
        head, bias = reduced(ends, draft_ids)
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self.register_buffer("head", head, persistent=False)
        self.register_buffer("head_bias", bias, persistent=False)
        self.register_buffer("embedding", ends.embedding, persistent=False)

    def taps(self, n_layers: int) -> tuple[int, ...]:
        """The activations that it reads, side by side."""
        return self.config.taps

    def read(self, state: Tensor, tokens: Tensor) -> Tensor:
        """States [n, H] behind these tokens [n]."""
        return self.advance(state, F.embedding(tokens, self.embedding))

    def advance(self, state: Tensor, embedded: Tensor) -> Tensor:
        """The same by the tokens' embeddings [n, H], unscaled."""
        x = self.fc(torch.cat([state, embedded * self.config.scale], -1))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out

    def logits(self, state: Tensor) -> Tensor:
        """[n, H] -> [n, Vd]."""
        return F.linear(state, self.head, self.head_bias)

    def forward(self, state: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """One step: states [n, H] behind the tokens with these embeddings, and logits [n, Vd]."""
        after = self.advance(state, embedded)
        return after, self.logits(after)

    def unroll(self, hidden: Tensor, tokens: Sequence[Tensor]) -> list[Tensor]:
        """Taps [n, k H] and tokens [n] read one after the other -> the state after each."""
        state: Tensor = self.start(hidden)
        states = []
        for each in tokens:
            state = self.read(state, each)
            states.append(state)
        return states
