"""A clock that only work moves: targets and drafters with known prices, so that speed is arithmetic, not luck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.control.goodput import GoodputController
from surefoot.core.cost import CostModel
from surefoot.core.engine import Engine
from surefoot.core.stats import Stats
from surefoot.drafters.script import ScriptDrafter

VOCAB = 40
TOKENS = 400


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Priced(TableModel):
    """Counts: after token t comes t + 1. A pass over m tokens takes ``price(m)`` seconds."""

    def __init__(self, clock: Clock, price: Callable[[int], float]) -> None:
        logits = torch.zeros(VOCAB + 1, VOCAB, dtype=torch.float64)
        for t in range(VOCAB + 1):
            logits[t, (t + 1) % VOCAB] = 30.0
        super().__init__(logits, max_context=4096)
        self._clock, self._price = clock, price

    def score(self, slots: Any, forest: Any, need: Any) -> Any:
        self._clock.now += self._price(forest.nodes)
        return super().score(slots, forest, need)


class Script:
    """A scripted drafter that takes ``price`` seconds a drafted token. ``offered``: tokens it proposed, by pass."""

    def __init__(self, clock: Clock, price: float, accuracy: float) -> None:
        self._clock, self._price = clock, price
        self._script = ScriptDrafter(
            lambda row: [(row.tokens[row.n_prompt - 1] + 1 + i) % VOCAB for i in range(2000)], VOCAB, accuracy=accuracy
        )
        self.name, self.source, self.needs = self._script.name, self._script.source, self._script.needs
        self.observe, self.forget = self._script.observe, self._script.forget
        self.offered: list[int] = []

    def propose(self, rows: Any, plans: Any) -> Any:
        trees = self._script.propose(rows, plans)
        self.offered += [len(tree) - 1 for tree in trees]
        self._clock.now += self._price * sum(len(tree) - 1 for tree in trees)
        return trees


def decode(
    price: Callable[[int], float], draft: float, accuracy: float, k: int | CostModel, tokens: int = TOKENS, most: int = 16
) -> Stats:
    """Counts and times of one request. ``k``: a draft length, or the cost curve by which the controller chooses."""
    clock = Clock()
    if isinstance(k, CostModel):
        controller: Any = GoodputController("script", k, max_draft=most)
    else:
        controller = FixedController("script", k)
    engine = Engine(Priced(clock, price), [Script(clock, draft, accuracy)], controller, clock=clock)
    return engine.generate([VOCAB - 1, 0], max_tokens=tokens).stats


def rate(stats: Stats, tokens: int = TOKENS) -> float:
    """Tokens a second, the one that the prompt's own pass gave left out."""
    return (tokens - 1) / stats.decode_seconds
