"""A sequential head (:mod:`surefoot.heads.hydra`) as a lane: a state is one vector, and a step reads one token into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.protocols import Ends, Need, Scores, Verdict
from ..core.tree import Forest, integers
from ..errors import BadRequest
from ..heads.hydra import Hydra
from .features import Features
from .lane import Compile, Function

if TYPE_CHECKING:
    from ..core.request import Row

State = tuple[Tensor, bool]
"""[1, H] behind a token that was read; or the row's taps [1, k H], and True: nothing was read yet."""


class HydraLane:
    """``layer``: the taps that the head reads, in its order. ``compile``: makes the steps quick; None: plain torch."""

    def __init__(self, module: Hydra, ends: Ends, *, layer: int | Sequence[int], compile: Compile | None = None) -> None:
        layers = (layer,) if isinstance(layer, int) else tuple(layer)
        if len(layers) != len(module.config.taps):
            raise BadRequest(f"the head reads {len(module.config.taps)} taps, not {len(layers)}; give its own")
        self.needs = Need(tuple(sorted(set(layers))))
        self.draft_ids = module.draft_ids
        self.depth = module.config.depth
        self._features = Features(layers, last_only=True)
        self._embedding = ends.embedding
        self._owned = compile is None
        self._width = ends.embedding.shape[1]
        one = ends.embedding[:1].clone()
        self._none = one.new_zeros(1, len(layers) * self._width), torch.zeros_like(one)
        both = _Both(module)
        self._run: Function = both
        if compile is not None:
            self._run = compile(both, [one.repeat(1, len(layers)), one, one[:, :1].clone(), one.clone()], [[0]] * 4)

    def root(self, row: Row) -> State | None:
        found = self._features.last(row)
        return None if found is None else (found, True)

    @torch.no_grad()
    def step(self, states: Sequence[State], tokens: Sequence[int]) -> tuple[list[State], Tensor]:
        embedded = F.embedding(integers(tokens).to(self._embedding.device), self._embedding)
        taps, before = self._none
        fresh = [new for _, new in states]
        if len(states) > 1:
            taps, before = taps.repeat(len(states), 1), before.repeat(len(states), 1)
            for i, (x, new) in enumerate(states):
                (taps if new else before)[i] = x[0]
        elif fresh[0]:
            taps = states[0][0]
        else:
            before = states[0][0]
        after, logits = self._run(taps, before, before.new_tensor(fresh)[:, None], embedded)
        if not self._owned:  # buffers of a compiled function
            after, logits = after.clone(), logits.clone()
        return [(x, False) for x in after.split(1)], logits

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        self._features.observe(rows, forest, scores, verdicts)

    def forget(self, rows: Sequence[Row]) -> None:
        self._features.forget(rows)


class _Both(nn.Module):
    """Any step, the first or a later one, in one function: two would hold the same weights twice, and chill each other's."""

    def __init__(self, module: Hydra) -> None:
        super().__init__()
        self.module = module

    def forward(self, taps: Tensor, before: Tensor, fresh: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """``taps`` [n, k H] where ``fresh`` [n, 1] is 1, ``before`` [n, H] where it is 0."""
        found: tuple[Tensor, Tensor] = self.module(fresh * self.module.start(taps) + (1.0 - fresh) * before, embedded)
        return found
