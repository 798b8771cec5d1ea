"""The exact joint law under dynamic cascades: chains and trees, parts that are right and wrong, under every rule for points.

What drafters and controllers learned before is the same in each branch of the enumeration, as is the time that a clock tells.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
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
from surefoot.drafters.dytc import DytcDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter

TARGET = toy(3, seed=4)
NEAR = TARGET.mixed(TableModel.random(3, order=2, seed=9, sharpness=1.6), 0.3)
FAR = TableModel.random(3, order=2, seed=10, sharpness=1.6)
RULES = ("coupled", "ratio", "block", "traversal")


class Ticks:
    """Every look at the clock takes a millisecond."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


class Seen(DytcDrafter):
    """Keeps shapes and sources of its drafts."""

    shapes: set[tuple[int, ...]]
    sources: set[int]

    def propose(self, rows, plans):
        trees = super().propose(rows, plans)
        self.shapes |= {tuple(tree.parents.tolist()) for tree in trees}
        self.sources |= {source for tree in trees for source in tree.source.tolist()[1:]}
        assert all(tree.q is None for tree in trees)
        return trees


def drafters(of: type[Seen] = Seen, low: type = SuffixDrafter, **options) -> list[Drafter]:
    parts = [ModelDrafter(NEAR, 3, source=1, name="near"), ModelDrafter(FAR, 3, source=2, name="far")]
    bottom = low(source=3)
    made = of(parts, bottom, clock=Ticks(), costs=[0.02, 0.02], source=4, **options)
    made.shapes, made.sources = set(), set()
    return [*parts, bottom, made]


CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "chain": lambda: FixedController("dytc", 3),
    "tree": lambda: FixedController("dytc", 2, 2, 4),
    "marginal": lambda: MarginalController(
        "dytc", LiveCosts(lambda nodes, context: 1.0 + 0.02 * nodes), sizes=(2, 4), switch=0.05, max_draft=3, margin=0.0
    ),
}


def taught(parts: list[Drafter], controller: Controller) -> tuple[list[Drafter], Controller]:
    """After some requests on the same target, so that there is something to say."""
    engine = Engine(TARGET, parts, controller, reuse=False)
    for seed in range(6):
        engine.generate([seed % 3, 1], max_tokens=14, temperature=1.0, seed=seed)
    parts[-1].shapes.clear()  # type: ignore[attr-defined]
    parts[-1].sources.clear()  # type: ignore[attr-defined]
    return parts, controller


def observed(start: tuple[list[Drafter], Controller], params: SamplingParams, beside: bool = False) -> tuple[Law, Seen, int]:
    """The law of the output; a drafter that holds what was drafted; most tokens that one pass kept."""
    longest = 0
    seen = start[0][-1]
    assert isinstance(seen, Seen)

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
        seen.shapes |= parts[-1].shapes  # type: ignore[attr-defined]
        seen.sources |= parts[-1].sources  # type: ignore[attr-defined]
        return tuple(row.output)

    law: Law = defaultdict(float)
    for tokens, mass in enumerate_law(once):
        law[tokens] += mass
    return dict(law), seen, longest


def request(rule: str, tokens: int = 4, **options) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=1.0, verification=rule, **options)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("plan", CONTROLLERS)
@pytest.mark.parametrize("kind", ["estimated", "asked", "ngram"])
def test_the_joint_law(kind: str, plan: str, rule: str) -> None:
    options = {"estimated": {}, "asked": {"stop": False}, "ngram": {"stop": False, "low": NgramDrafter, "k_max": 1}}[kind]
    params = request(rule, 4 if plan == "chain" and kind == "estimated" else 3)
    law, seen, longest = observed(taught(drafters(**options), CONTROLLERS[plan]()), params)
    assert abs(sum(law.values()) - 1.0) <= TOLERANCE
    assert distance(law, expected(TARGET, params, params.max_tokens or 0)) <= TOLERANCE
    assert max(map(len, seen.shapes)) > 1, "nothing was drafted"
    assert longest > 1, "nothing was ever accepted"
    if kind != "estimated":
        assert seen.sources & {1, 2}, "no part was asked"
    if plan == "tree":
        assert any(shape.count(0) > 1 for shape in seen.shapes), "no tree among the drafts"


@pytest.mark.parametrize("rule", ["coupled", "traversal"])
def test_beside_another_row_that_teaches_the_same_drafters(rule: str) -> None:
    params = request(rule, 3)
    law, _, longest = observed(taught(drafters(stop=False), CONTROLLERS["chain"]()), params, beside=True)
    assert distance(law, expected(TARGET, params, 3)) <= TOLERANCE
    assert longest > 1


@pytest.mark.parametrize("rule", ["auto", "ratio"])
@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.7}], ids=["top_k", "top_p"])
def test_laws_that_options_shape(rule: str, options: dict) -> None:
    params = request(rule, **options)
    law, _, longest = observed(taught(drafters(stop=False), CONTROLLERS["chain"]()), params)
    assert distance(law, expected(TARGET, params, 4)) <= TOLERANCE
    assert longest > 1


class Claims(Seen):
    """Says that its drafts were drawn from a law that they were not drawn from."""

    def propose(self, rows, plans):
        def claim(tree: DraftTree) -> DraftTree:
            return replace(tree, q=torch.full((len(tree), 3), 1 / 3, dtype=torch.float64)) if len(tree) > 1 else tree

        return [claim(tree) for tree in super().propose(rows, plans)]


def test_these_tests_catch_a_claim_that_is_wrong() -> None:
    params = request("ratio", 3)
    law, _, _ = observed(taught(drafters(Claims, stop=False), CONTROLLERS["chain"]()), params)
    assert distance(law, expected(TARGET, params, 3)) > CAUGHT
