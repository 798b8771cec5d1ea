"""The breaker, and what ``auto`` is worth with it: simulated passes whose price is arithmetic, not luck."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from behaviour.clock import Clock, Priced, Script

from surefoot.control.breaker import Breaker
from surefoot.control.costs import LiveCosts
from surefoot.control.fixed import FixedController
from surefoot.control.goodput import GoodputController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import PLAIN, Costs, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree
from surefoot.errors import BadRequest

Price = Callable[[int], float]
TOKENS = 2000
SHAPES: dict[str, Price] = {
    "proportional": lambda m: float(m),
    "half": lambda m: 0.5 + 0.5 * m,
    "tenth": lambda m: 0.9 + 0.1 * m,
    "flat": lambda m: 1.0,
    "step": lambda m: 1.0 if m < 2 else 2.0,
    "knee": lambda m: 1.0 if m <= 8 else 2.0 + 0.1 * m,
}


def one() -> Row:
    return Row(0, [0], SamplingParams(), limit=10**6)


def seconds(
    controller: Any,
    price: Price,
    draft: float,
    right: Callable[[int], bool],
    *,
    tokens: int = TOKENS,
    floor: int = 1,
    other: float = 0.0,
    noise: float = 0.0,
) -> float:
    """A token's time. ``right(i)``: whether the i-th token is drafted rightly; ``other``: the engine's own time a step."""
    rng, row, spent, at = random.Random(1), one(), 0.0, 0
    while at < tokens:
        [plan] = controller.plan([row])
        k = plan.nodes if plan.drafter else 0
        size = max(k + 1, floor, plan.hold)
        kept = 0
        while kept < k and right(at + kept):
            kept += 1
        score = price(size) * (1.0 + abs(rng.gauss(0.0, noise)))
        spent += score + draft * k + other
        at += kept + 1
        tree = DraftTree.chain([0] * (k + 1), source=1)
        verdict = Verdict(tuple(range(1, kept + 1)), 0)
        controller.learn([row], [tree], [verdict], Costs(draft * k, score, other, size, 0, at))
    return spent / at


def plain(price: Price, **options: Any) -> float:
    return seconds(FixedController(None, 0), price, 0.0, lambda i: False, **options)


def auto(price: Price, floor: int = 1) -> Breaker:
    costs = LiveCosts(lambda n, c: price(n))
    return Breaker(GoodputController("script", costs, min_width=floor), costs, min_width=floor)


def chance(accuracy: float) -> Callable[[int], bool]:
    rng = random.Random(3)
    drawn = [rng.random() < accuracy for _ in range(TOKENS + 50)]
    return lambda i: drawn[i]


WRONG: dict[str, Callable[[int], bool]] = {
    "always wrong": lambda i: False,
    "right, then wrong": lambda i: i < 200,
    "alternating": lambda i: (i // 50) % 2 == 0,
    "alternating, wrong first": lambda i: (i // 50) % 2 == 1,
    "one in three": chance(0.33),
}


@pytest.mark.parametrize("script", WRONG)
@pytest.mark.parametrize("draft", [0.0, 0.2])
@pytest.mark.parametrize("shape", SHAPES)
def test_auto_costs_at_most_three_per_cent_where_drafts_do_not_pay(shape, draft, script):
    price = SHAPES[shape]
    took = seconds(auto(price), price, draft, WRONG[script])
    assert took <= plain(price) / 0.97
    if script == "right, then wrong" and shape == "flat":
        assert took < plain(price)


def opened(doubt: float, right: Callable[[int], bool]) -> tuple[int, float]:
    """How often a breaker around drafts of three opens, and a token's time."""
    price = SHAPES["tenth"]
    breaker = Breaker(FixedController("script", 3), LiveCosts(lambda n, c: price(n)), patience=16, doubt=doubt)
    took = seconds(breaker, price, 0.0, right)
    return breaker.stats()["opened"], took


def test_a_poor_stretch_among_good_ones_is_no_proof():
    """Drafts gain 8 % on average, and their luck varies by as much over some fifty passes."""
    hasty, careful = opened(0.0, chance(0.3)), opened(1.0, chance(0.3))
    assert careful[0] < hasty[0]
    assert careful[1] < hasty[1] < 1.0


def test_what_loses_in_every_pass_is_stopped_as_soon_in_spite_of_doubt():
    hasty, careful = opened(0.0, lambda i: False), opened(1.0, lambda i: False)
    assert careful == hasty
    assert careful[1] < 1.0 / 0.97


@pytest.mark.parametrize("floor", [1, 2])
@pytest.mark.parametrize("draft", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("accuracy", [0.8, 0.9, 1.0])
def test_auto_reaches_the_best_fixed_length_where_drafts_are_good(accuracy, shape, draft, floor):
    price, right = SHAPES[shape], chance(accuracy)
    best = min(seconds(FixedController("script", k), price, draft, right, floor=floor) for k in (0, 1, 2, 3, 5, 8, 16))
    assert seconds(auto(price, floor), price, draft, right, floor=floor) <= best / 0.95


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_auto_keeps_its_promises_on_a_noisy_machine(noise):
    price = SHAPES["tenth"]
    more = {"floor": 2, "other": 0.08, "noise": noise}
    assert seconds(auto(price, 2), price, 0.01, WRONG["always wrong"], **more) <= plain(price, **more) / 0.97
    right = chance(0.8)
    best = min(seconds(FixedController("script", k), price, 0.01, right, **more) for k in (1, 2, 3, 5, 8, 12))
    guarded = auto(price, 2)
    assert seconds(guarded, price, 0.01, right, **more) <= best / 0.95
    assert guarded.stats()["opened"] == 0


# the breaker itself


def guard(k: int = 4, price: Price = SHAPES["tenth"], **options: Any) -> Breaker:
    return Breaker(FixedController("script", k), LiveCosts(lambda n, c: price(n)), **options)


def run(breaker: Breaker, passes: int, right: bool, price: Price = SHAPES["tenth"], row: Row | None = None) -> list[bool]:
    """Whether each of the passes drafted."""
    row, drafted = row or one(), []
    for _ in range(passes):
        [plan] = breaker.plan([row])
        drafted.append(plan.drafter is not None)
        kept = plan.nodes if right else 0
        tree = DraftTree.chain([0] * (plan.nodes + 1), source=1)
        costs = Costs(0.0, price(plan.nodes + 1), 0.0, plan.nodes + 1, 0, 10)
        breaker.learn([row], [tree], [Verdict(tuple(range(1, kept + 1)), 0)], costs)
    return drafted


def test_opens_probes_ever_more_rarely_and_closes_when_drafts_pay_again():
    breaker = guard(patience=8, wait=32, probe=8, longest=128)
    assert run(breaker, 8, right=False) == [True] * 8
    assert breaker.state == "open"
    assert breaker.stats() == {"state": "open", "opened": 1, "probes": 0, "closed": 0, "gain": pytest.approx(1 / 1.4)}
    for wait in (32, 64, 128, 128):
        assert run(breaker, wait, right=False) == [False] * wait
        assert run(breaker, 8, right=False) == [True] * 8
    assert breaker.stats()["probes"] == 4
    assert run(breaker, 128, right=True) == [False] * 128
    assert run(breaker, 300, right=True) == [True] * 300
    assert (breaker.state, breaker.stats()["closed"]) == ("closed", 1)
    assert breaker.gain == pytest.approx(5 / 1.4)
    # what paid is trusted anew: the next wait is the first one
    while breaker.state == "closed":
        run(breaker, 1, right=False)
    assert run(breaker, 33, right=False) == [False] * 32 + [True]


def test_stays_closed_while_drafts_pay():
    breaker = guard()
    assert all(run(breaker, 500, right=True))
    assert breaker.stats() | {"gain": 0} == {"state": "closed", "opened": 0, "probes": 0, "closed": 0, "gain": 0}


def test_fewer_bad_passes_than_its_patience_do_not_open_it():
    breaker = guard(patience=20)
    assert all(run(breaker, 12, right=False))
    assert all(run(breaker, 60, right=True))
    assert breaker.state == "closed"


def test_a_controller_that_plans_plain_decoding_is_left_alone():
    """However slow the machine is: there is nothing to break."""
    breaker = guard(k=0)
    row = one()
    for i in range(100):
        breaker.plan([row])
        breaker.learn([row], [DraftTree.chain([0])], [Verdict((), 0)], Costs(0.0, 1.0 + 0.1 * i, 0.0, 1, 0, 10))
    assert breaker.state == "closed"


def test_the_engines_own_time_is_no_loss():
    """A plain step takes its other time too."""
    price = SHAPES["tenth"]
    breaker = auto(price)
    seconds(breaker, price, 0.0, chance(0.7), other=0.5)
    assert breaker.stats()["opened"] == 0


def test_a_step_is_held_against_a_plain_step_not_against_a_bare_pass():
    """Two tokens in 2.5 s pay where a plain step takes 1 + 1 s."""
    breaker, row = guard(k=1), one()
    for _ in range(100):
        breaker.plan([row])
        tree = DraftTree.chain([0, 0], source=1)
        breaker.learn([row], [tree], [Verdict((1,), 0)], Costs(0.4, 1.1, 1.0, 2, 0, 10))
    assert breaker.state == "closed"
    assert breaker.gain == pytest.approx(2 * 2.0 / 2.5, rel=0.02)


def test_retries_now_and_then_do_not_open_it():
    breaker = auto(SHAPES["proportional"])
    seconds(breaker, SHAPES["proportional"], 0.2, WRONG["always wrong"])
    assert breaker.stats()["opened"] == 0


def test_rows_that_share_a_pass_share_its_gain():
    breaker, rows = guard(), [one(), one()]
    for _ in range(8):
        breaker.plan(rows)
        trees = [DraftTree.chain([0] * 5, source=1)] * 2
        breaker.learn(rows, trees, [Verdict((), 0)] * 2, Costs(0.0, 1.9, 0.0, 10, 0, 10))
    assert breaker.state == "open"
    assert breaker.gain == pytest.approx(1.1 / 1.9, rel=0.02)


def test_one_hiccup_does_not_open_it():
    breaker, row = guard(), one()
    run(breaker, 50, right=True, row=row)
    breaker.plan([row])
    tree = DraftTree.chain([0] * 5, source=1)
    breaker.learn([row], [tree], [Verdict((1, 2, 3, 4), 0)], Costs(0.0, 500.0, 0.0, 5, 0, 10))
    run(breaker, 50, right=True, row=row)
    assert breaker.stats()["opened"] == 0


def test_passes_that_filled_the_cache_and_rows_that_ended_are_not_judged():
    breaker, row = guard(), one()
    for i in range(40):
        breaker.plan([row])
        row.finish_reason = "length" if i % 2 else None
        tree = DraftTree.chain([0] * 5, source=1)
        breaker.learn([row], [tree], [Verdict((), 0)], Costs(0.0, 9.0, 0.0, 5, 0 if i % 2 else 3, 10))
    assert breaker.state == "closed"
    assert breaker.gain == 1.0


class Recorder:
    """Drafts three tokens always and notes what it is told."""

    def __init__(self) -> None:
        self.planned = self.learned = 0
        self.forgotten: list[int] = []

    def plan(self, rows: Any) -> Any:
        self.planned += 1
        return FixedController("script", 3).plan(rows)

    def learn(self, rows: Any, trees: Any, verdicts: Any, costs: Any) -> None:
        assert all(len(tree) == 4 for tree in trees)
        self.learned += 1

    def forget(self, rows: Any) -> None:
        self.forgotten += [row.id for row in rows]


def test_the_inner_controller_hears_of_what_it_planned_and_of_nothing_else():
    price = SHAPES["half"]
    inner = Recorder()
    breaker = Breaker(inner, LiveCosts(lambda n, c: price(n)))
    drafted = run(breaker, 500, right=False, price=price)
    assert inner.planned == inner.learned == sum(drafted) < 100
    breaker.forget([one()])
    assert inner.forgotten == [0]


def test_plain_passes_correct_the_costs_once():
    def truth(nodes: int) -> float:
        return 3.0 * SHAPES["half"](nodes)

    costs = LiveCosts(lambda n, c: SHAPES["half"](n))
    breaker = Breaker(FixedController("script", 3), costs)
    run(breaker, 300, right=False, price=truth)
    assert costs.score(1, 10) == pytest.approx(3.0, rel=0.05)
    assert costs.steps == 300
    shared = LiveCosts(lambda n, c: SHAPES["half"](n))
    run(Breaker(GoodputController("script", shared), shared), 100, right=True, price=truth)
    assert shared.steps == 100


def test_a_wrong_curve_is_seen_through():
    """The seed says that width is free, and it is not: the guarded controller learns it or is stopped, at a small loss."""
    price = SHAPES["proportional"]
    costs = LiveCosts(lambda n, c: 1.0)
    breaker = Breaker(GoodputController("script", costs), costs)
    assert seconds(breaker, price, 0.0, chance(0.5)) <= plain(price) / 0.94


def test_in_the_engine_it_changes_the_speed_only():
    clock, price = Clock(), SHAPES["half"]
    engine = Engine(Priced(clock, price), clock=clock)
    wanted = engine.generate([39, 0], max_tokens=600)
    for k, accuracy in ((6, 0.0), (6, 1.0)):
        clock = Clock()
        breaker = Breaker(FixedController("script", k), LiveCosts(lambda n, c: price(n)))
        guarded = Engine(Priced(clock, price), [Script(clock, 0.0, accuracy)], breaker, clock=clock)
        done = guarded.generate([39, 0], max_tokens=600)
        assert done.token_ids == wanted.token_ids
        if accuracy:
            assert done.stats.decode_seconds < 0.7 * wanted.stats.decode_seconds
            assert breaker.stats()["opened"] == 0
        else:
            assert done.stats.decode_seconds < 1.25 * wanted.stats.decode_seconds
            assert breaker.stats()["opened"] == 1
    assert breaker.plan([]) == []
    assert guard(k=0).plan([one()]) == [PLAIN]


@pytest.mark.parametrize(
    "options", [{"margin": -0.1}, {"margin": 1.0}, {"patience": 0}, {"wait": 0}, {"probe": 0}, {"longest": 8}, {"min_width": 0}]
)
def test_refuses_bad_options(options):
    with pytest.raises(BadRequest, match="breaker takes"):
        guard(**options)
