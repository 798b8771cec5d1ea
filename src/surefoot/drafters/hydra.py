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
        first = _First(module)
        self._first: Function = first
        self._step: Function = module
        if compile is not None:
            one = ends.embedding[:1].clone()
            self._first = compile(first, [one.repeat(1, len(layers)), one.clone()], [[0], [0]])
            self._step = compile(module, [one, one.clone()], [[0], [0]])

    def root(self, row: Row) -> State | None:
        found = self._features.last(row)
        return None if found is None else (found, True)

    @torch.no_grad()
    def step(self, states: Sequence[State], tokens: Sequence[int]) -> tuple[list[State], Tensor]:
        embedded = F.embedding(integers(tokens).to(self._embedding.device), self._embedding)
        fresh = [i for i, (_, new) in enumerate(states) if new]
        if 0 < len(fresh) < len(states):
            return self._mixed(states, embedded, fresh)
        after, logits = (self._first if fresh else self._step)(_together([x for x, _ in states]), embedded)
        if not self._owned:  # buffers of a compiled function
            after, logits = after.clone(), logits.clone()
        return [(x, False) for x in after.split(1)], logits

    def _mixed(self, states: Sequence[State], embedded: Tensor, fresh: list[int]) -> tuple[list[State], Tensor]:
        """Some at their first step, some further on."""
        found: dict[int, tuple[Tensor, Tensor]] = {}
        others = [i for i in range(len(states)) if i not in fresh]
        for run, chosen in ((self._first, fresh), (self._step, others)):
            after, logits = (x.clone() for x in run(_together([states[i][0] for i in chosen]), embedded[chosen]))
            found |= {i: (after[at : at + 1], logits[at : at + 1]) for at, i in enumerate(chosen)}
        return [(found[i][0], False) for i in range(len(states))], torch.cat([found[i][1] for i in range(len(states))])

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        self._features.observe(rows, forest, scores, verdicts)

    def forget(self, rows: Sequence[Row]) -> None:
        self._features.forget(rows)


class _First(nn.Module):
    """The start and the first step, in one call."""

    def __init__(self, module: Hydra) -> None:
        super().__init__()
        self.module = module

    def forward(self, taps: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.module(self.module.start(taps), embedded)
        return found


def _together(vectors: Sequence[Tensor]) -> Tensor:
    return vectors[0] if len(vectors) == 1 else torch.cat(list(vectors))
