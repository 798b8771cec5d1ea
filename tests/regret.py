"""A text on which drafters are right with known chances, decoded under a controller without an engine: seconds are arithmetic.

Whether a drafter is right at a position is drawn once, so every controller and every fixed arm meets the same text, and the
best arm in hindsight is found by playing them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from surefoot.control.costs import LiveCosts
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Costs, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree

Pieces = Sequence[tuple[int, float]]
"""(tokens, chance of acceptance), one after the other."""


class Text:
    """``drafters``: name -> (pieces, seconds of a drafted token). A pass over m tokens takes 1 + slope (m - 1) seconds."""

    def __init__(
        self, drafters: Mapping[str, tuple[Pieces, float]], *, seed: int = 0, slope: float = 0.06, change: float = 0.0
    ) -> None:
        rng = np.random.default_rng(seed)
        self.slope, self.change = slope, change
        self.price = {name: price for name, (_, price) in drafters.items()}
        self.runs: dict[str, list[int]] = {}
        """At each position, how many drafted tokens in a row would be right."""
        for name, (pieces, _) in drafters.items():
            chance = np.concatenate([np.full(n, alpha) for n, alpha in pieces])
            self.length = len(chance)
            right = rng.random(self.length) < chance
            run = [0] * (self.length + 1)
            for i in range(self.length - 1, -1, -1):
                run[i] = run[i + 1] + 1 if right[i] else 0
            self.runs[name] = run

    def costs(self) -> LiveCosts:
        return LiveCosts(lambda nodes, context: self.score(nodes), change=self.change)

    def score(self, nodes: int) -> float:
        return 1.0 + self.slope * (nodes - 1)

    def fixed(self, name: str | None, k: int) -> float:
        """Seconds with always the same arm."""
        at, passes = 0, 0
        while at < self.length:
            at += 1 + (min(self.runs[name][at], k) if name is not None else 0)
            passes += 1
        return passes * (self.score(k + 1) + (k * self.price[name] if name is not None else 0.0))

    def best(self, most: int = 8) -> tuple[float, str | None, int]:
        """(seconds, drafter, k) of the best fixed arm in hindsight."""
        arms = [(None, 0), *((name, k) for name in self.runs for k in range(1, most + 1))]
        return min((self.fixed(*arm), *arm) for arm in arms)

    def play(self, controller, told=None) -> tuple[float, list[tuple[str | None, int]]]:
        """Seconds, and what was drafted in each round. ``told(costs, drafted)``: the costs that the controller is told."""
        row = Row(0, [0], SamplingParams(), limit=10**9)
        at, seconds, last, drafted = 0, 0.0, 0, []
        while at < self.length:
            [plan] = controller.plan([row])
            name, k = plan.drafter, plan.nodes
            kept = min(self.runs[name][at], k) if name is not None else 0
            nodes = max(k + 1, plan.hold)
            costs = Costs(k * self.price[name] if k else 0.0, self.score(nodes), 0.0, nodes, 0, 10)
            if nodes != last:
                costs = replace(costs, score=costs.score + self.change)
            last = nodes
            seconds += costs.draft + costs.score
            verdict = Verdict(tuple(range(1, kept + 1)), 0)
            tree = DraftTree.chain([0] * (k + 1), source=1)
            controller.learn([row], [tree], [verdict], costs if told is None else told(costs, k))
            at += kept + 1
            drafted.append((name, k))
        return seconds, drafted

    def regret(self, controller, told=None) -> float:
        """Time beyond that of the best fixed arm in hindsight, as a share of it; negative where changing arms paid."""
        return self.play(controller, told)[0] / self.best()[0] - 1.0
