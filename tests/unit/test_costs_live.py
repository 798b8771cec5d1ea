"""Costs that are learned while decoding: corrected towards what passes took, deaf to what tells about the machine only."""

from __future__ import annotations

import random

import pytest

from surefoot.control.costs import LiveCosts
from surefoot.core.cost import CostModel
from surefoot.core.protocols import Costs
from surefoot.errors import BadRequest


def seed(nodes: int, context: int) -> float:
    return 1.0 + 0.1 * nodes


def step(nodes: int, score: float, *, draft: float = 0.0, prefill: int = 0, context: int = 100) -> Costs:
    return Costs(draft, score, 0.0, nodes, prefill, context)


def feed(costs: LiveCosts, truth, passes: int, sizes=(2, 4, 8), context=lambda i: 100, noise: float = 0.0) -> None:
    """Bursts of three passes of a size, each taking what ``truth`` says."""
    rng = random.Random(0)
    for i in range(passes):
        nodes, n = sizes[i // 3 % len(sizes)], context(i)
        costs.learn(step(nodes, truth(nodes, n) * (1.0 + rng.gauss(0.0, noise)), context=n), {})


def test_before_anything_is_learned_the_seed_speaks():
    costs = LiveCosts(seed, change=0.3)
    assert [costs.score(n, 50) for n in (1, 2, 9)] == pytest.approx([seed(n, 50) for n in (1, 2, 9)])
    assert costs.change == 0.3
    assert costs.draft("model") == 0.0


@pytest.mark.parametrize(
    "truth",
    [
        lambda n, c: 2.0 * seed(n, c),  # the machine runs at half speed
        lambda n, c: seed(n, c) + 0.5,  # a fixed part that nobody measured
        lambda n, c: 1.0 + 0.3 * n,  # each node is dearer
        lambda n, c: seed(n, c) + 0.001 * c,  # attention over a long context
    ],
)
def test_what_passes_take_is_learned(truth):
    costs = LiveCosts(seed)
    feed(costs, truth, 400, context=lambda i: 100 + 2 * i, noise=0.03)
    for nodes in (2, 4, 8):
        assert costs.score(nodes, 890) == pytest.approx(truth(nodes, 890), rel=0.05)


def test_one_size_alone_moves_the_level_not_the_slope():
    costs = LiveCosts(seed)
    feed(costs, lambda n, c: 2.0 * seed(n, c), 200, sizes=(2,))
    assert costs.score(2, 100) == pytest.approx(2.0 * seed(2, 0), rel=0.02)
    assert costs.score(10, 100) == pytest.approx(2.0 * seed(10, 0), rel=0.15)


def test_what_is_past_fades():
    costs = LiveCosts(seed)
    feed(costs, lambda n, c: 1.8 * seed(n, c), 300)
    feed(costs, seed, 300)
    assert costs.score(4, 100) == pytest.approx(seed(4, 0), rel=0.03)


def test_prefill_and_the_first_pass_of_another_size_teach_nothing_of_passes():
    costs = LiveCosts(seed)
    for i in range(100):
        costs.learn(step(2 + i % 2, 9.0), {})  # never the same size twice
        costs.learn(step(64, 50.0, prefill=60), {})
        costs.learn(step(64, 50.0, prefill=60), {})
    assert costs.score(2, 100) == pytest.approx(seed(2, 0))


def test_a_pass_after_prefill_of_the_same_size_is_no_change():
    costs = LiveCosts(seed)
    costs.learn(step(2, 1.0, prefill=1), {})
    before = costs.score(2, 100)
    costs.learn(step(2, 2.0), {})
    assert costs.score(2, 100) > before


def test_a_hiccup_hardly_moves_the_curve_but_a_slow_machine_does():
    costs = LiveCosts(seed)
    feed(costs, seed, 100)
    costs.learn(step(8, 1.8), {})
    costs.learn(step(8, 50 * 1.8), {})
    assert costs.score(8, 100) < 1.1 * seed(8, 0)
    feed(costs, lambda n, c: 4.0 * seed(n, c), 150)
    assert costs.score(8, 100) == pytest.approx(4.0 * seed(8, 0), rel=0.1)


def test_never_falling_in_nodes_and_never_under_a_tenth_of_the_least():
    costs = LiveCosts(lambda n, c: 2.0 - 0.1 * n if n < 5 else 1.0 + 0.1 * n)  # not even the seed rises
    feed(costs, lambda n, c: 1.0 / n, 300, sizes=(1, 2, 4, 8, 16))
    found = [costs.score(n, 100) for n in range(1, 40)]
    assert found == sorted(found)
    assert min(found) >= 0.19
    cheap = LiveCosts(seed)
    feed(cheap, lambda n, c: 1e-6, 2000)
    assert cheap.score(1, 100) >= 0.1 * seed(1, 0)
    assert costs.score(0, 100) == costs.score(1, 100)


def test_a_measured_curve_is_a_seed():
    curve = CostModel((2, 4, 16), (1.0, 1.2, 2.0), 200, 0.0001, 0.25)
    costs = LiveCosts(curve, change=curve.change)
    assert costs.score(9, 700) == pytest.approx(curve(9, 700))


def test_draft_costs_are_learned_by_drafter_even_in_a_pass_of_another_size():
    costs = LiveCosts(seed)
    for i in range(40):
        costs.learn(step(2 + i, 1.0, draft=0.4), {"a": 4})
        costs.learn(step(2 + i, 1.0, draft=0.6), {"b": 2, "a": 0})
    assert costs.draft("a") == pytest.approx(0.1)
    assert costs.draft("b") == pytest.approx(0.3)
    costs.learn(step(3, 1.0, draft=0.7), {"a": 4, "b": 1})  # shared: each as it is known
    assert costs.draft("a") == pytest.approx(0.1)
    assert costs.draft("b") == pytest.approx(0.3)


@pytest.mark.parametrize("opening, each", [(1.2, 0.6), (0.0, 0.5), (0.9, 0.05)])
def test_what_a_first_call_costs_and_what_a_token_costs_are_told_apart(opening, each):
    costs = LiveCosts(seed)
    costs.learn(step(2, 1.0, draft=opening + each), {"x": 1})
    assert costs.opening("x") == costs.draft("x") == pytest.approx((opening + each) / 2)
    rng = random.Random(3)
    for _ in range(800):
        n = rng.randint(1, 5)
        costs.learn(step(2, 1.0, draft=opening + n * each), {"x": n})
    assert costs.opening("x") == pytest.approx(opening, abs=0.05)
    assert costs.draft("x") == pytest.approx(each, abs=0.02)


def test_drafts_of_one_length_only_are_charged_right_for_it():
    costs = LiveCosts(seed)
    for took in (0.8, *[0.5] * 60):
        costs.learn(step(2, 1.0, draft=took), {"x": 3})
    assert costs.opening("x") + 3 * costs.draft("x") == pytest.approx(0.5)


def test_drafts_that_were_dear_once_are_not_held_dear():
    costs = LiveCosts(seed)
    costs.learn(step(2, 1.0, draft=30.0), {"model": 1})  # it read a prompt
    for _ in range(25):
        costs.learn(step(2, 1.0, draft=0.1), {"model": 1})
    assert costs.draft("model") < 0.15
    costs.learn(step(2, 1.0, draft=30.0), {"model": 1})
    assert costs.draft("model") < 0.2


def test_figures_that_are_none_are_left_out():
    costs = LiveCosts(seed)
    for bad in (float("nan"), float("inf"), -1.0):
        for _ in range(3):
            costs.learn(step(2, bad), {"a": 1})
            costs.learn(step(2, 1.0, draft=bad), {"a": 1})
    assert costs.score(2, 100) == pytest.approx(seed(2, 0))
    assert costs.draft("a") == 0.0


@pytest.mark.parametrize("options", [{"change": -1.0}, {"fade": 0.0}, {"fade": 1.5}, {"change": float("nan")}])
def test_refuses_bad_options(options):
    with pytest.raises(BadRequest, match="change"):
        LiveCosts(seed, **options)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_refuses_a_curve_without_positive_seconds(value):
    with pytest.raises(BadRequest, match="positive seconds"):
        LiveCosts(lambda n, c: value)
