"""Controllers: fixed, the window's thresholds, and goodput's choice from cost."""

from __future__ import annotations

import itertools
import random

import pytest
from toys import counter

from surefoot.control.costs import LiveCosts
from surefoot.control.fixed import FixedController
from surefoot.control.goodput import GoodputController
from surefoot.control.reach import Reach, allocate, products
from surefoot.control.window import WindowController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Costs, Plan, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree
from surefoot.drafters.script import ScriptDrafter
from surefoot.errors import BadRequest

FREE = Costs(0.0, 1.0, 0.0, 1, 0, 10)


def row(id: int = 0) -> Row:
    return Row(id, [0], SamplingParams(), limit=100)


def teach(controller, r: Row, accepted: int, drafted: int, costs: Costs = FREE) -> None:
    controller.learn([r], [DraftTree.chain([0] * (drafted + 1), source=1)], [Verdict(tuple(range(1, accepted + 1)), 0)], costs)


# fixed


def test_fixed_is_fixed():
    controller = FixedController("ngram", 5, width=2, nodes=9)
    assert controller.plan([row(), row(1)]) == [Plan("ngram", 5, 2, 9)] * 2
    teach(controller, row(), 0, 5)
    assert controller.plan([row()]) == [Plan("ngram", 5, 2, 9)]
    assert FixedController("ngram", 0).plan([row()])[0].drafter is None


@pytest.mark.parametrize("options", [{"num_speculative_tokens": -1}, {"width": 0}, {"nodes": -1}])
def test_fixed_refuses_negative_lengths(options):
    with pytest.raises(BadRequest, match="num_speculative_tokens"):
        FixedController("ngram", **options)


# window


def test_window_starts_with_four_until_there_are_ten_samples():
    controller, r = WindowController("ngram"), row()
    for _ in range(9):
        assert controller.length(r) == 4
        teach(controller, r, 0, 4)
    assert controller.length(r) == 4
    teach(controller, r, 0, 4)
    assert controller.length(r) == 2


@pytest.mark.parametrize(
    "accepted, drafted, length",
    [
        (10, 10, 8),  # rate 1: the most
        (9, 10, 7),  # int(8 * 0.9)
        (81, 100, 6),  # just above: int(8 * 0.81)
        (4, 5, 4),  # exactly 0.8 is not above
        (1, 2, 4),
        (2, 5, 4),  # exactly 0.4 is not below
        (39, 100, 2),
        (0, 3, 2),
    ],
)
def test_window_thresholds(accepted, drafted, length):
    controller, r = WindowController("ngram"), row()
    for _ in range(10):
        teach(controller, r, accepted, drafted)
    assert controller.length(r) == length
    assert controller.plan([r]) == [Plan("ngram", length, 1, length)]


def test_window_forgets_what_is_older_than_twenty_samples():
    controller, r = WindowController("ngram"), row()
    for _ in range(30):
        teach(controller, r, 0, 4)
    for _ in range(19):
        teach(controller, r, 4, 4)
    assert controller.length(r) == 7  # mean 0.95 with one old zero
    teach(controller, r, 4, 4)
    assert controller.length(r) == 8


def test_window_means_rates_not_tokens():
    controller, r = WindowController("ngram", warmup=2), row()
    teach(controller, r, 1, 1)
    teach(controller, r, 0, 8)
    assert controller.length(r) == 4  # mean of 1 and 0, not 1/9


def test_window_keeps_rows_apart_and_forgets_ended_ones():
    controller, good, bad = WindowController("ngram"), row(0), row(1)
    for _ in range(10):
        teach(controller, good, 4, 4)
        teach(controller, bad, 0, 4)
    assert [p.depth for p in controller.plan([good, bad])] == [8, 2]
    controller.forget([good])
    assert [p.depth for p in controller.plan([good, bad])] == [4, 2]


def test_window_ignores_passes_without_a_draft():
    controller, r = WindowController("ngram"), row()
    for _ in range(30):
        teach(controller, r, 0, 0)
    assert controller.length(r) == 4


@pytest.mark.parametrize("lengths", [(8, 5, 4), (3, 2, 4), (8, -1, 4)])
def test_window_refuses_lengths_out_of_order(lengths):
    with pytest.raises(BadRequest, match="min, default, max"):
        WindowController("ngram", *lengths)


# goodput


def linear(slope: float, fixed: float = 1.0):
    return lambda nodes, context: fixed + slope * nodes


def settle(controller, r: Row, accept, passes: int = 200, costs: Costs = FREE) -> list[int]:
    """Depths planned while each pass accepts ``accept(depth)`` tokens."""
    out = []
    for _ in range(passes):
        depth = controller.plan([r])[0].depth
        out.append(depth)
        if depth:
            teach(controller, r, accept(depth), depth, costs)
    return out


def gaps(depths: list[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise(i for i, d in enumerate(depths) if d)]


def test_always_wrong_drafts_go_to_zero_and_are_retried_ever_more_rarely():
    controller = GoodputController("script", linear(2.0, -1.0), max_draft=8)
    depths = settle(controller, row(), lambda depth: 0, passes=3000)
    assert set(depths) == {0, 1}
    assert gaps(depths) == [32, 64, 128, 256, 512, 512, 512, 512]


def test_retries_that_cost_nothing_stay_frequent():
    free = GoodputController("script", lambda n, c: max(2.0, n), max_draft=8, min_width=2)
    # nothing pays here: a second drafted token costs half a pass, the first is free and is drafted always
    assert settle(free, row(), lambda depth: 0, passes=100)[-1] <= 1
    cheap = GoodputController("script", linear(0.02), max_draft=8)
    depths = settle(cheap, row(), lambda depth: 0, passes=1000)
    assert set(gaps(depths[-500:])) == {16}


def test_a_bout_of_drafting_that_pays_makes_retries_frequent_again():
    controller, r = GoodputController("script", linear(0.5), max_draft=8), row()
    settle(controller, r, lambda depth: 0, passes=600)
    assert controller._state(r.id).wait > 100
    depths = settle(controller, r, lambda depth: depth, passes=300)
    depths = settle(controller, r, lambda depth: 0, passes=200)
    idle = depths[depths.index(0) :]
    assert idle[:16] == [0] * 15 + [1]


def test_right_drafts_go_to_the_maximum():
    controller = GoodputController("script", linear(0.1), max_draft=8)
    assert settle(controller, row(), lambda depth: depth)[-50:] == [8] * 50


def test_comes_back_when_drafts_turn_right():
    controller, r = GoodputController("script", linear(0.2), max_draft=8, retry=4), row()
    assert settle(controller, r, lambda depth: 0)[-1] <= 1
    assert settle(controller, r, lambda depth: depth, passes=400)[-1] == 8


def test_padding_is_free_so_it_is_filled():
    controller = GoodputController("script", lambda n, c: 1.0 + 10.0 * max(0, n - 4), max_draft=8, min_width=4)
    assert settle(controller, row(), lambda depth: 1)[-1] == 3


def test_cost_of_drafting_itself_is_learned():
    """A pass is nearly flat in its width, but each drafted token costs a whole pass."""
    costs = Costs(8.0, 1.0, 0.0, 9, 0, 10)
    controller = GoodputController("model", linear(0.001), max_draft=8)
    depths = settle(controller, row(), lambda depth: min(depth, 1), costs=costs)
    assert max(depths[-15:-1]) <= 1


@pytest.mark.parametrize("alpha, slope", [(0.5, 0.05), (0.7, 0.05), (0.7, 0.3), (0.9, 0.1)])
def test_the_plan_maximises_expected_tokens_a_second(alpha, slope):
    controller, cost = GoodputController("script", linear(slope), max_draft=12), linear(slope)
    r = row()
    state = controller._state(r.id)
    state.reach = controller._all = [Reach(12, 1.0)]  # evidence that does not fade
    for i in range(4000):  # depth d is reached with alpha^d: feed the exact shares
        accepted = next((d for d in range(12) if (i * 0.6180339887) % 1.0 >= alpha ** (d + 1)), 12)
        state.asked = 12
        teach(controller, r, accepted, 12)

    def rate(k: int) -> float:
        return sum(alpha**i for i in range(k + 1)) / cost(k + 1, 0)

    best = max(range(13), key=rate)
    chosen = controller.plan([r])[0].depth
    assert rate(chosen) >= 0.99 * rate(best)


def test_neighbours_make_drafts_dearer():
    """With other rows in the pass each further node costs the same but earns for one row only."""
    controller = GoodputController("script", lambda n, c: max(1.0, 0.25 * n), max_draft=8)
    alone = controller.plan([row()])[0].depth
    crowd = controller.plan([row(i) for i in range(8)])[0].depth
    assert alone >= 2 > crowd


def test_ended_rows_are_forgotten():
    controller, r = GoodputController("script", linear(0.2), max_draft=4), row()
    settle(controller, r, lambda depth: 0, passes=40)
    controller.forget([r])
    assert not controller._rows


@pytest.mark.parametrize("options", [{"max_draft": -1}, {"width": 0}, {"retry": 0}, {"change": -1.0}, {"stay": 0.5}])
def test_goodput_refuses_bad_options(options):
    with pytest.raises(BadRequest):
        GoodputController("script", linear(1.0), **options)


def test_goodput_with_nothing_to_draft_is_plain():
    assert GoodputController("script", linear(1.0), max_draft=0).plan([row()])[0].nodes == 0


def test_an_untried_depth_is_like_the_one_above():
    reach = Reach(4, 1.0)
    assert reach.alone(0.5, 2.0) == [0.5] * 4
    for _ in range(100):
        reach.update(1, 2)
    first, second, third, _ = reach.alone(0.5, 2.0)
    assert first > 0.95
    assert second < 0.05
    assert third == second
    believed = reach.chances([0.5] * 4, 4.0)
    assert believed[0] > 0.95
    assert believed[2:] == [0.5, 0.5]


def test_a_silent_drafter_counts_as_a_miss():
    controller, r = GoodputController("script", linear(0.2), max_draft=8), row()
    assert controller.plan([r])[0].depth > 0
    for _ in range(30):
        controller.learn([r], [DraftTree.chain([1])], [Verdict((), 3)], FREE)
        depth = controller.plan([r])[0].depth
    assert depth == 0


def test_where_a_change_is_dear_rows_hold_their_size():
    flat = GoodputController("script", linear(0.05), max_draft=8)
    assert flat.plan([row()])[0].hold == 0
    dear = GoodputController("script", linear(0.05), max_draft=8, change=2.0)
    r = row()
    plan = dear.plan([r])[0]
    assert plan.hold == plan.nodes + 1
    # one miss moves the best length a little: not worth a change
    teach(dear, r, 0, plan.depth)
    assert dear.plan([r])[0].hold == plan.hold


def test_goodput_in_the_engine_stops_drafting_what_is_always_wrong():
    target = counter(40)
    said = Engine(target).generate([0], max_tokens=300).token_ids
    controller = GoodputController("script", linear(0.3), max_draft=8)
    engine = Engine(target, [ScriptDrafter(lambda r: said, 40, accuracy=0.0)], controller)
    done = engine.generate([0], max_tokens=300)
    assert done.token_ids == said
    assert done.stats.draft_tokens < 60
    right = Engine(target, [ScriptDrafter(lambda r: said, 40)], GoodputController("script", linear(0.1), max_draft=8))
    assert right.generate([0], max_tokens=300).stats.mean_acceptance_length > 7


def test_padding_is_not_filled_beyond_the_longest_draft_asked_for():
    controller = GoodputController("script", linear(0.0), max_draft=1, min_width=4)
    assert controller.plan([row()])[0].nodes == 1


def test_a_draft_cut_by_the_budget_is_no_miss():
    controller = GoodputController("script", linear(0.0), max_draft=4)
    r = row()
    asked = controller.plan([r])[0].depth
    before = controller._all[0].alone(0.6, 2.0)
    r.finish_reason = "length"
    teach(controller, r, 1, asked)
    assert controller._all[0].alone(0.6, 2.0) == before


def test_one_retry_that_is_right_is_enough_where_drafts_were_right_before():
    """What was learned of text that is long past has faded."""
    controller, r = GoodputController("script", linear(0.5), max_draft=8), row()
    settle(controller, r, lambda depth: depth, passes=100)
    settle(controller, r, lambda depth: 0, passes=700)
    depths = settle(controller, r, lambda depth: depth, passes=300)
    assert depths.index(8) == depths.index(1) + 1


# goodput over a batch


def best_lengths(reaches, prices, cost, floor: int = 1, opening: float = 0.0) -> float:
    """The best rate there is, by trying all lengths."""

    def rate(lengths) -> float:
        tokens = len(reaches) + sum(sum(r[:k]) for r, k in zip(reaches, lengths))
        drafting = sum(p * k for p, k in zip(prices, lengths)) + (opening if any(lengths) else 0.0)
        return tokens / (cost(sum(max(k + 1, floor) for k in lengths)) + drafting)

    return max(rate(lengths) for lengths in itertools.product(*(range(len(r) + 1) for r in reaches)))


@pytest.mark.parametrize("floor", [1, 2, 4])
@pytest.mark.parametrize("price", ["none", "equal", "own"])
@pytest.mark.parametrize("opening", [0.0, 0.1, 0.6])
def test_a_batch_gets_the_best_lengths_there_are(floor, price, opening):
    rng = random.Random(1)
    for _ in range(60):
        rows, depth = rng.randint(1, 4), rng.randint(1, 4)
        reaches = [products([rng.random() for _ in range(depth)]) for _ in range(rows)]
        prices = {
            "none": [0.0] * rows,
            "equal": [rng.random() * 0.3] * rows,
            "own": [rng.random() * 0.5 for _ in range(rows)],
        }[price]
        slope, knee = rng.random() * 0.5, rng.randint(1, 12)
        curve = lambda n: 1.0 + slope * n + 0.4 * max(0, n - knee)  # noqa: E731
        lengths, rate = allocate(reaches, prices, curve, floor=floor, openings=[opening] * rows)
        tokens = rows + sum(sum(r[:k]) for r, k in zip(reaches, lengths))
        drafting = sum(p * k for p, k in zip(prices, lengths)) + (opening if any(lengths) else 0.0)
        assert rate == pytest.approx(tokens / (curve(sum(max(k + 1, floor) for k in lengths)) + drafting))
        assert rate == pytest.approx(best_lengths(reaches, prices, curve, floor, opening), rel=1e-9)


def test_in_a_batch_the_row_that_accepts_more_drafts_more():
    controller = GoodputController("script", lambda n, c: 1.0 + 0.15 * n, max_draft=8)
    good, bad = row(0), row(1)
    for _ in range(60):
        plans = controller.plan([good, bad])
        trees = [DraftTree.chain([0] * (p.nodes + 1), source=1) for p in plans]
        verdicts = [Verdict(tuple(range(1, plans[0].nodes + 1)), 0), Verdict((), 0)]
        controller.learn([good, bad], trees, verdicts, FREE)
    plans = controller.plan([good, bad])
    assert plans[0].depth >= 6
    assert plans[1].depth <= 1


def test_where_a_change_is_dear_a_batch_holds_its_size():
    controller = GoodputController("script", linear(0.05), max_draft=8, change=30.0)
    rows = [row(0), row(1)]
    first = controller.plan(rows)
    trees = [DraftTree.chain([0] * (p.nodes + 1), source=1) for p in first]
    controller.learn(rows, trees, [Verdict((), 0), Verdict((), 0)], FREE)
    second = controller.plan(rows)
    assert sum(p.hold for p in second) == sum(p.hold for p in first) > 2


# goodput over several drafters


def race(controller, rates: dict[str, float], prices: dict[str, float], passes: int, seed: int = 0) -> list[str | None]:
    """The drafters planned while each accepts with its own chance and costs its own price a token."""
    rng, r, named = random.Random(seed), row(), []
    for _ in range(passes):
        [plan] = controller.plan([r])
        kept = 0
        while plan.drafter and kept < plan.nodes and rng.random() < rates[plan.drafter]:
            kept += 1
        named.append(plan.drafter)
        seconds = prices.get(plan.drafter, 0.0) * plan.nodes
        teach(controller, r, kept, plan.nodes, Costs(seconds, 1.0, 0.0, plan.nodes + 1, 0, 10))
    return named


@pytest.mark.parametrize(
    "rates, prices, best",
    [
        ({"a": 0.3, "b": 0.8}, {}, "b"),
        ({"a": 0.8, "b": 0.3}, {}, "a"),
        ({"a": 0.6, "b": 0.9}, {"b": 1.0}, "a"),  # b is right more often, and costs more than it brings
        ({"a": 0.2, "b": 0.9}, {"b": 0.1}, "b"),
    ],
)
def test_the_drafter_of_the_best_rate_is_chosen_and_the_other_is_tried_now_and_then(rates, prices, best):
    controller = GoodputController(["a", "b"], linear(0.05), max_draft=8)
    named = race(controller, rates, prices, 1500)
    other = {"a": "b", "b": "a"}[best]
    assert named[-1000:].count(best) > 900
    assert 0 < named[-1000:].count(other) < 60


def test_the_drafter_changes_when_the_text_does():
    controller = GoodputController(["a", "b"], linear(0.05), max_draft=8)
    race(controller, {"a": 0.9, "b": 0.1}, {}, 300)
    named = race(controller, {"a": 0.1, "b": 0.9}, {}, 300)  # another request
    assert named[-100:].count("b") > 80


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_goodput_refuses_drafters_that_cannot_be_told_apart(names):
    with pytest.raises(BadRequest, match="different ones"):
        GoodputController(names, linear(0.1))


def test_reading_the_prompt_is_no_price_of_a_token():
    """A draft model reads the whole prompt before its first draft."""
    controller, r = GoodputController("model", linear(0.05), max_draft=4), row()
    plan = controller.plan([r])[0]
    teach(controller, r, 0, plan.nodes, Costs(100.0, 1.0, 0.0, plan.nodes + 1, 0, 10))
    assert controller.costs.draft("model") == 0.0
    plan = controller.plan([r])[0]
    teach(controller, r, 0, plan.nodes, Costs(0.2 * plan.nodes, 1.0, 0.0, plan.nodes + 1, 0, 10))
    assert controller.costs.draft("model") == pytest.approx(0.2)


def test_live_costs_are_corrected_and_plain_curves_are_taken_at_their_word():
    slow = Costs(0.0, 5.0, 0.0, 2, 0, 10)
    live, word = LiveCosts(linear(0.1)), GoodputController("script", linear(0.1))
    controller, r = GoodputController("script", live), row()
    for _ in range(50):
        for c in (controller, word):
            c.plan([r])
            teach(c, r, 0, 1, slow)
    assert live.score(2, 10) == pytest.approx(5.0, rel=0.1)
    assert word.costs.score(2, 10) == pytest.approx(1.2)
