"""The exact joint law under hybrid drafts and recycled ones: chains and trees, cut by reach, under every rule for points.

What drafters and controllers learned before is the same in each branch of the enumeration: each starts from a copy.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from exact.joint import CAUGHT, PROMPT, TOLERANCE, Law, distance, expected, toy

from surefoot.backends.table import TableModel
from surefoot.control.costs import LiveCosts
from surefoot.control.fixed import FixedController
from surefoot.control.marginal import MarginalController
from surefoot.core.engine import Engine
from surefoot.core.noise import Noise, enumerate_law
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Controller, Drafter
from surefoot.core.tree import DraftTree
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.proposed import Proposed
from surefoot.drafters.recycle import RecycleDrafter
from surefoot.drafters.suffix import SuffixDrafter

TARGET = toy(3, seed=4)
DRAFT = TableModel.random(3, order=2, seed=9, sharpness=1.6)
RULES = ("coupled", "ratio", "traversal")


class Seen(HybridDrafter):
    """Keeps the shapes of its drafts."""

    shapes: set[tuple[int, ...]]

    def propose(self, rows, plans):
        trees = super().propose(rows, plans)
        self.shapes |= {tuple(tree.parents.tolist()) for tree in trees}
        assert all(tree.q is None for tree in trees)
        return trees


def drafters(kind: str) -> list[Drafter]:
    parts: list = [SuffixDrafter(source=1), RecycleDrafter(3, source=2, nodes=9)]
    sources = [*parts]
    if kind == "model":
        parts.append(ModelDrafter(DRAFT, 3, source=3))
        sources = [parts[0], Proposed(parts[-1], depth=3)]
    made = Seen(sources, paths=kind == "paths")
    made.shapes = set()
    return [*parts, made]


def marginal(width: int, sizes: Sequence[int] = ()) -> MarginalController:
    costs = LiveCosts(lambda nodes, context: 1.0 + 0.02 * nodes)
    return MarginalController("hybrid", costs, sizes=sizes, switch=0.05, max_draft=3, width=width, margin=0.0)


CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "chain": lambda: FixedController("hybrid", 3),
    "tree": lambda: FixedController("hybrid", 2, 2, 4),
    "marginal-chain": lambda: marginal(1),
    "marginal-sizes": lambda: marginal(1, (2, 4)),
    "marginal-tree": lambda: marginal(2),
}


def taught(parts: list[Drafter], controller: Controller) -> tuple[list[Drafter], Controller]:
    """After some requests on the same target, so that there is something to say."""
    engine = Engine(TARGET, parts, controller, reuse=False)
    for seed in range(6):
        engine.generate([seed % 3, 1], max_tokens=14, temperature=1.0, seed=seed)
    return parts, controller


def observed(start: tuple[list[Drafter], Controller], params: SamplingParams, beside: bool = False) -> tuple[Law, set, int]:
    """The law of the output; shapes that were drafted; most tokens that one pass kept."""
    shapes: set[tuple[int, ...]] = set()
    longest = 0

    def once(noise: Noise) -> tuple[int, ...]:
        nonlocal longest
        parts, controller = copy.deepcopy(start)
        engine = Engine(TARGET, parts, controller, reuse=False)
        others = [engine.add([2, 1, 0], SamplingParams(max_tokens=9, temperature=1.0, seed=5))] if beside else []
        row = engine.add(PROMPT, params, noise=noise)
        while not row.done:
            before = len(row.output)
            engine.step()
            longest = max(longest, len(row.output) - before)
        for other in others:
            engine.abort(other)
        shapes.update(parts[-1].shapes)  # type: ignore[attr-defined]
        return tuple(row.output)

    law: Law = defaultdict(float)
    for tokens, mass in enumerate_law(once):
        law[tokens] += mass
    return dict(law), shapes, longest


def request(rule: str, tokens: int = 4, **options) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=1.0, verification=rule, **options)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("plan", CONTROLLERS)
@pytest.mark.parametrize("kind", ["parts", "paths", "model"])
def test_the_joint_law(kind: str, plan: str, rule: str) -> None:
    start = taught(drafters(kind), CONTROLLERS[plan]())
    start[0][-1].shapes.clear()  # type: ignore[attr-defined]
    params = request(rule, 3 if kind == "model" and "tree" in plan else 4)
    law, shapes, longest = observed(start, params)
    assert abs(sum(law.values()) - 1.0) <= TOLERANCE
    assert distance(law, expected(TARGET, params, params.max_tokens or 0)) <= TOLERANCE
    assert max(map(len, shapes)) > 1, "nothing was drafted"
    assert longest > 1, "nothing was ever accepted"
    if plan == "tree":
        assert any(shape.count(0) > 1 for shape in shapes), "no tree among the drafts"


@pytest.mark.parametrize("rule", RULES)
def test_beside_another_row_that_teaches_the_same_drafters(rule: str) -> None:
    params = request(rule)
    law, _, longest = observed(taught(drafters("parts"), CONTROLLERS["tree"]()), params, beside=True)
    assert distance(law, expected(TARGET, params, 4)) <= TOLERANCE
    assert longest > 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.7}], ids=["top_k", "top_p"])
def test_laws_that_options_shape(rule: str, options: dict) -> None:
    params = request(rule, **options)
    law, _, longest = observed(taught(drafters("parts"), CONTROLLERS["tree"]()), params)
    assert distance(law, expected(TARGET, params, 4)) <= TOLERANCE
    assert longest > 1


class Claims(Seen):
    """Says that its drafts were drawn from a law that they were not drawn from."""

    def propose(self, rows, plans):
        def claim(tree: DraftTree) -> DraftTree:
            return replace(tree, q=torch.full((len(tree), 3), 1 / 3, dtype=torch.float64)) if len(tree) > 1 else tree

        return [claim(tree) for tree in super().propose(rows, plans)]


def test_these_tests_catch_a_claim_that_is_wrong() -> None:
    parts = drafters("parts")
    wrong = Claims(parts[:-1])  # type: ignore[arg-type]
    wrong.shapes = set()
    params = request("ratio", 3)
    law, _, _ = observed(taught([*parts[:-1], wrong], CONTROLLERS["chain"]()), params)
    assert distance(law, expected(TARGET, params, 3)) > CAUGHT
