"""A sequential head (:mod:`surefoot.heads.hydra`) as a lane: a state is one vector, and a step reads one token into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
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
        self._start: Function = lambda hidden: (module.start(hidden),)
        self._step: Function = module
        if compile is not None:
            one = ends.embedding[:1].clone()
            self._start = compile(module.start, [one.repeat(1, len(layers))], [[0]])
            self._step = compile(module, [one, one.clone()], [[0], [0]])

    def root(self, row: Row) -> State | None:
        found = self._features.last(row)
        return None if found is None else (found, True)

    @torch.no_grad()
    def step(self, states: Sequence[State], tokens: Sequence[int]) -> tuple[list[State], Tensor]:
        fresh = [i for i, (_, new) in enumerate(states) if new]
        before = [x for x, _ in states]
        if fresh:
            [started] = self._start(_together([before[i] for i in fresh]))
            for at, i in enumerate(fresh):
                before[i] = started[at : at + 1]
        ids = integers(tokens).to(self._embedding.device)
        after, logits = self._step(_together(before), F.embedding(ids, self._embedding))
        if not self._owned:  # buffers of a compiled function
            after, logits = after.clone(), logits.clone()
        return [(x, False) for x in after.split(1)], logits

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        self._features.observe(rows, forest, scores, verdicts)

    def forget(self, rows: Sequence[Row]) -> None:
        self._features.forget(rows)


def _together(vectors: Sequence[Tensor]) -> Tensor:
    return vectors[0] if len(vectors) == 1 else torch.cat(list(vectors))
