"""Trees against chains: the same drafter at equal node budgets, and with the shape's size left to a controller.

What a pass over a tree needs (``needed``: nodes, or the tokens of all its paths where the target computes path by path), what
it computed (``computed``: with the padding that keeps passes of one size), and what the measured cost curve says of ``needed``
(``predicted_speedup``: were changes of size free, and drafting too) tell why one of them loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paired import PLAIN, Runs, engine, summary

from surefoot.control.costs import LiveCosts
from surefoot.control.fixed import FixedController
from surefoot.control.goodput import GoodputController
from surefoot.control.marginal import MarginalController
from surefoot.core.cost import CostModel, sizes
from surefoot.core.engine import Engine
from surefoot.core.protocols import Controller, Costs, Plan, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree, depths

SHAPES = {
    "chain of 4": (4, 1),
    "tree of 4, width 2": (4, 2),
    "tree of 4, width 3": (4, 3),
    "chain of 8": (8, 1),
    "tree of 8, width 2": (8, 2),
    "tree of 8, width 3": (8, 3),
    "chain by cost": (0, 1),
    "tree by cost, width 3": (0, 3),
}
"""Nodes (0: goodput says, of hybrid marginal; no breaker) and children a node. A tree is as deep as its nodes reach."""


def marginal(loaded: Any, cost: CostModel, width: int) -> tuple[MarginalController, LiveCosts]:
    """For ``hybrid``, as the loader makes it, but with so many children a node."""
    traits = loaded.model.traits
    costs = _live(loaded, cost)
    kept = sizes(cost, traits) if traits.steady else ()
    own = MarginalController("hybrid", costs, sizes=kept, switch=cost.switch, min_width=traits.min_width, width=width)
    return own, costs


def _live(loaded: Any, cost: CostModel) -> LiveCosts:
    return LiveCosts(cost, change=cost.change if loaded.model.traits.steady else 0.0)


class Counted:
    """Any controller, and what the passes that it planned needed and computed; ``cost`` is the curve that values them."""

    def __init__(self, inner: Controller, cost: CostModel, min_width: int, paths: bool) -> None:
        self.inner, self._cost, self._least, self._paths = inner, cost, min_width, paths
        self.clear()

    def clear(self) -> None:
        """Drop the counts; what was learned stays."""
        self.passes = self.nodes = self.needed = self.computed = 0
        self.predicted = self.plain = 0.0

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        return self.inner.plan(rows)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        self.inner.learn(rows, trees, verdicts, costs)
        if costs.prefill:
            return
        [tree], [verdict] = trees, verdicts  # one request at a time
        needed = needs(tree.parents.tolist(), self._least, self._paths)
        self.passes += 1
        self.nodes += len(tree) - 1
        self.needed += needed
        self.computed += costs.nodes
        self.predicted += self._cost(needed, costs.context)
        self.plain += (1 + len(verdict.path)) * self._cost(self._least, costs.context)

    def forget(self, rows: Sequence[Row]) -> None:
        self.inner.forget(rows)


def needs(parents: Sequence[int], least: int, paths: bool) -> int:
    """Tokens of a pass over a tree. ``paths``: it is computed path by path, each padded to ``least``."""
    inner, depth = set(parents), depths(parents)
    lengths = [max(depth[node] + 1, least) for node in range(len(parents)) if node not in inner]
    return sum(lengths) if paths and len(lengths) > 1 else max(len(parents), least)


class Contest:
    """The engines of a run, and their counts over all repeats. ``drafters``: name -> how the loader calls it."""

    def __init__(self, loaded: Any, cost: CostModel, drafters: dict[str, str]) -> None:
        self._loaded, self._cost, self._drafters = loaded, cost, drafters
        self._counted: dict[str, list[Counted]] = {}

    def build(self) -> dict[str, Engine]:
        traits = self._loaded.model.traits
        found = {PLAIN: engine(self._loaded, "none")}
        for drafter, spec in self._drafters.items():
            for shape, (nodes, width) in SHAPES.items():
                own = Counted(self._steer(drafter, nodes, width), self._cost, traits.min_width, traits.paths)
                name = f"{drafter}, {shape}"
                self._counted.setdefault(name, []).append(own)
                found[name] = engine(self._loaded, spec, controller=own)
        return found

    def warmed(self) -> None:
        for made in self._counted.values():
            made[-1].clear()

    def _steer(self, drafter: str, nodes: int, width: int) -> Controller:
        if nodes:
            return FixedController(drafter, nodes, width, nodes)
        if drafter == "hybrid":
            return marginal(self._loaded, self._cost, width)[0]
        least = self._loaded.model.traits.min_width
        return GoodputController(drafter, _live(self._loaded, self._cost), width=width, min_width=least)

    def report(self, runs: Runs, tasks: dict[str, list[int]]) -> dict[str, Any]:
        """By drafter and shape: all prompts together, the speed-up of each task, and the counts a pass."""
        rows: dict[str, Any] = {}
        for name, made in self._counted.items():
            passes = max(1, sum(own.passes for own in made))
            rows[name] = summary(runs, name, [i for chosen in tasks.values() for i in chosen]) | {
                "speedup_by_task": {task: summary(runs, name, chosen)["speedup"] for task, chosen in tasks.items()},
                "drafted_nodes_a_pass": sum(own.nodes for own in made) / passes,
                "needed_a_pass": sum(own.needed for own in made) / passes,
                "computed_a_pass": sum(own.computed for own in made) / passes,
                "predicted_speedup": sum(own.plain for own in made) / (sum(own.predicted for own in made) or 1.0),
            }
        print("| drafter, shape | nodes a pass | needed | computed | tau | by the curve | speed-up | answers that differ |")
        print("|---|---|---|---|---|---|---|---|")
        for name, r in rows.items():
            print(
                f"| {name} | {r['drafted_nodes_a_pass']:.2f} | {r['needed_a_pass']:.2f} | {r['computed_a_pass']:.2f} | "
                f"{r['tau']:.2f} | {r['predicted_speedup']:.2f}x | {r['speedup']:.2f}x | "
                f"{r['answers_that_differ']} of {r['answers']} |"
            )
        return {"rows": rows}
