"""Medusa heads as a lane: what comes after d drafted tokens is head d's guess, whatever those tokens were.

All heads are computed at a row's first step, in one product for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.protocols import Ends, Need, Scores, Verdict
from ..core.tree import Forest
from ..heads.medusa import Medusa
from .features import Features
from .lane import Compile, Function

if TYPE_CHECKING:
    from ..core.request import Row


@dataclass(slots=True)
class _Guess:
    """``hidden`` [1, H] of a row; its ``logits`` [heads, Vd] once they were asked for."""

    hidden: Tensor
    logits: Tensor | None = None


State = tuple[_Guess, int]
"""A row's guesses, and how many tokens were read since."""


class MedusaLane:
    """``layer``: the tap of what the target's head reads. ``compile``: makes the heads quick; None: plain torch."""

    def __init__(self, module: Medusa, ends: Ends, *, layer: int, compile: Compile | None = None) -> None:
        self.needs = Need((layer,))
        self.draft_ids = module.draft_ids
        self.depth = module.config.heads
        self._features = Features((layer,), last_only=True)
        self._owned = compile is None
        self._run: Function = lambda hidden: (module(hidden),)
        if compile is not None:
            self._run = compile(module, [ends.head[:1].clone()], [[0]])

    def root(self, row: Row) -> State | None:
        found = self._features.last(row)
        return None if found is None else (_Guess(found), 0)

    @torch.no_grad()
    def step(self, states: Sequence[State], tokens: Sequence[int]) -> tuple[list[State], Tensor]:
        asked = list({id(guess): guess for guess, _ in states if guess.logits is None}.values())
        if asked:
            [logits] = self._run(asked[0].hidden if len(asked) == 1 else torch.cat([guess.hidden for guess in asked]))
            for guess, own in zip(asked, logits if self._owned else logits.clone(), strict=True):
                guess.logits = own
        found = [guess.logits[depth] for guess, depth in states if guess.logits is not None]
        return [(guess, depth + 1) for guess, depth in states], found[0][None] if len(found) == 1 else torch.stack(found)

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        self._features.observe(rows, forest, scores, verdicts)

    def forget(self, rows: Sequence[Row]) -> None:
        self._features.forget(rows)
