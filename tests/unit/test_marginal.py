"""Drafts as long as their reach is worth: against trying every length, sizes that are kept to, several rows, rates learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Custom, counter, run, tree

from surefoot.backends.table import TableModel
from surefoot.control import marginal
from surefoot.control.costs import LiveCosts
from surefoot.control.marginal import MarginalController
from surefoot.core.cost import CostModel, sizes
from surefoot.core.engine import Engine
from surefoot.core.measure import measure
from surefoot.core.params import SamplingParams
from surefoot.core.parts import _size
from surefoot.core.protocols import PLAIN, Costs, Plan, Scores, Traits, Verdict
from surefoot.core.tree import DraftTree, Forest
from surefoot.errors import BadRequest


def row(id: int = 0, cached: int = 50) -> SimpleNamespace:
    return SimpleNamespace(id=id, cached=cached, tokens=range(cached + 1))


def control(curve=lambda nodes, context: 1.0 + 0.05 * nodes, **options) -> MarginalController:
    return MarginalController("hybrid", LiveCosts(curve), **{"margin": 0.0} | options)


def learn(
    made: MarginalController, rows, kept: Sequence[int], drafted: Sequence[int], *, prefill: int = 0, nodes: int | None = None
):
    """A pass in which each row drafted a chain and kept so many tokens, the target's own included."""
    trees = [DraftTree.chain(range(n + 1)) for n in drafted]
    verdicts = [Verdict(tuple(range(1, k)), 0) for k in kept]
    size = sum(made.size(n + 1) if n else made._min_width for n in drafted)
    took = made.costs.score(size, 50)
    made.learn(rows, trees, verdicts, Costs(0.0, took, 0.0, size, prefill, 50))


def cut(plan: Plan, reach: Sequence[float], work: Sequence[int] | None = None) -> int:
    assert plan.cut is not None
    return plan.cut(reach, [1] * len(reach) if work is None else work)


# ---- the choice

falling = st.lists(st.floats(0.01, 1.0), max_size=12).map(
    lambda chances: [math.prod(chances[: i + 1]) for i in range(len(chances))]
)
steps = st.lists(st.floats(0.0, 0.4), min_size=40, max_size=40)


@settings(max_examples=200, deadline=None)
@given(
    falling,
    steps,
    st.sampled_from([(), (3, 8), (5, 12), (4,)]),
    st.floats(0.0, 0.5),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), max_size=4),
    st.integers(0, 2),
)
def test_it_keeps_what_is_worth_most(reach, rises, kept_sizes, switch, min_width, past, beside) -> None:
    """Every length is tried by hand: tokens less what the seconds would bring elsewhere."""
    curve = [1.0]
    for rise in rises:
        curve.append(curve[-1] + rise)

    def price(nodes: int, context: int) -> float:
        return curve[min(nodes, len(curve) - 1)]

    made = control(price, sizes=kept_sizes, switch=switch, min_width=min_width)
    rows = [row(i) for i in range(1 + beside)]
    made.plan(rows)
    for kept, drafted in past:
        learn(made, rows, [min(kept, drafted + 1)] * len(rows), [drafted] * len(rows))
    plan = made.plan(rows)[0]
    assert plan.cut is not None
    held = made._rows[0]
    others = sum((made._rows[i].size or min_width) for i in range(1, len(rows)))
    usable = tuple(size for size in kept_sizes if size > min_width)
    rate = sum(made._speed(made._rows[i], made.costs.score(min_width * len(rows), 50)) for i in range(len(rows)))

    def worth(n: int) -> float:
        if n:
            size = next((s for s in usable if n + 1 <= s), max(n + 1, min_width))
        else:
            size = plan.hold or min_width
        moved = bool(usable) and held.size not in (0, size)
        return sum(reach[:n]) - rate * (made.costs.score(others + size, 50) + switch * moved)

    found = cut(plan, reach)
    assert 0 <= found <= len(reach)
    assert worth(found) >= max(worth(n) for n in range(len(reach) + 1)) - 1e-9
    assert found == 0 or worth(found) > worth(found - 1) or worth(found) > worth(0), "no longer than it pays"


def test_branches_that_cost_their_ancestors_again_count_as_what_they_cost() -> None:
    made = control(lambda nodes, context: 1.0 + 0.1 * nodes)
    (plan,) = made.plan([row()])
    assert cut(plan, [0.9, 0.8, 0.5]) == 3
    assert cut(plan, [0.9, 0.8, 0.5], [1, 1, 6]) == 2


def test_nothing_is_worth_it_where_nothing_is_likely_or_passes_are_dear() -> None:
    assert cut(control().plan([row()])[0], [0.01, 0.001]) == 0
    assert cut(control(lambda nodes, context: float(nodes)).plan([row()])[0], [0.7] * 4) == 0
    assert cut(control().plan([row()])[0], []) == 0


def test_a_margin_asks_for_more_than_the_price() -> None:
    """A node that adds 0.05 seconds at about 1.3 tokens a second must bring 0.065; with a margin of 1, twice that."""
    for margin, reach, kept in ((0.0, 0.08, 1), (1.0, 0.08, 0), (1.0, 0.2, 1), (0.5, 0.07, 0)):
        (plan,) = control(margin=margin).plan([row()])
        assert cut(plan, [reach]) == kept, (margin, reach)


def test_a_row_that_drafts_well_values_seconds_higher() -> None:
    slow, quick = control(), control()
    for made, kept in ((slow, 1), (quick, 5)):
        made.plan([row()])
        for _ in range(60):
            learn(made, [row()], [kept], [4])
    tail = [0.9, 0.8, 0.7, 0.1]
    assert cut(slow.plan([row()])[0], tail) == 4
    assert cut(quick.plan([row()])[0], tail) == 3
    state = quick._rows[0].rate
    assert state.tokens / state.seconds == pytest.approx(5 / (1.0 + 0.05 * 5), rel=1e-6)
    plain = quick.costs.score(1, 50)
    assert quick._speed(quick._rows[0], plain) == pytest.approx(4.0, rel=0.25)
    fresh = quick._speed(marginal._State(marginal._Rate()), plain)
    assert slow._speed(marginal._State(marginal._Rate()), plain) < 1.05 < 2.5 < fresh, "a new row starts from all rows' rate"


def test_rates_follow_a_change() -> None:
    made = control()
    made.plan([row()])
    for kept in (5, 1):
        for _ in range(300):
            learn(made, [row()], [kept], [4])
    assert made._speed(made._rows[0], 1.05) == pytest.approx(1 / 1.25, rel=0.1)


def test_passes_with_prefill_do_not_count() -> None:
    made = control()
    made.plan([row()])
    learn(made, [row()], [5], [4], prefill=100)
    assert (made._rows[0].rate.tokens, made._all.tokens) == (0.0, 0.0)
    assert made._rows[0].size == 5, "but the size is what it was"


# ---- sizes


def test_sizes_are_kept_to() -> None:
    made = control(lambda nodes, context: 1.0 + 0.02 * nodes, sizes=(5, 12), switch=0.3, min_width=2, max_draft=30)
    (plan,) = made.plan([row()])
    assert (plan.sizes, plan.hold, plan.free) == ((5, 12), 5, 4)
    assert (plan.depth, plan.nodes) == (11, 11), "no draft beyond the largest size"
    assert [made.size(n) for n in (2, 4, 5, 6, 12, 13)] == [5, 5, 5, 12, 12, 13]
    # up to the size that it holds anyway, nodes are free
    assert cut(plan, [0.5, 0.01, 0.001, 0.0001]) == 4
    assert cut(plan, [0.5, 0.01, 0.001, 0.0001, 0.00001]) == 4, "the next one needs the larger size"
    assert cut(plan, [0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92]) == 8


def test_going_to_another_size_costs() -> None:
    reach = [0.9] * 4 + [0.22] * 2
    made = control(lambda nodes, context: 1.0 + 0.02 * nodes, sizes=(5, 12), switch=0.3, min_width=2)
    made.plan([row()])
    learn(made, [row()], [1], [9])
    assert made._rows[0].size == 12
    assert cut(made.plan([row()])[0], reach) == 6, "at the large size it stays"
    learn(made, [row()], [1], [3])
    assert made._rows[0].size == 5
    assert cut(made.plan([row()])[0], reach) == 4


def test_a_row_that_no_longer_drafts_lets_its_size_go() -> None:
    made = control(sizes=(5, 12), min_width=2)
    for turn in range(12):
        (plan,) = made.plan([row()])
        assert plan.hold == (5 if turn < 8 else 0)
        learn(made, [row()], [1], [0])
        assert made._rows[0].size == (5 if turn < 7 else 2)
    learn(made, [row()], [2], [1])
    assert made.plan([row()])[0].hold == 5, "a draft brings it back"


def test_sizes_that_padding_reaches_anyway_are_none() -> None:
    made = control(sizes=(2, 8), min_width=4)
    assert made.plan([row()])[0].sizes == (8,)
    assert control(sizes=(2,), min_width=4).plan([row()])[0].sizes == ()


def test_without_sizes_padding_is_free() -> None:
    (plan,) = control(min_width=4).plan([row()])
    assert (plan.free, plan.hold, plan.sizes) == (3, 0, ())
    assert cut(plan, [0.001] * 3) == 3
    assert cut(plan, [0.001] * 4) == 3


# ---- several rows


def test_rows_beside_it_make_a_pass_dear_and_seconds_worth_more() -> None:
    """Beyond some nodes each one costs: then a batch drafts less than a row alone."""
    made = control(lambda nodes, context: 1.0 + 0.1 * max(0, nodes - 4))
    reach = [0.8**i for i in range(1, 9)]
    alone = cut(made.plan([row()])[0], reach)
    batch = cut(made.plan([row(i) for i in range(8)])[0], reach)
    assert alone > batch
    flat = control(lambda nodes, context: 1.0)
    assert cut(flat.plan([row(i) for i in range(8)])[0], reach) == 8


def test_rows_of_a_batch_hold_no_size() -> None:
    made = control(sizes=(5, 12), min_width=2)
    assert [plan.hold for plan in made.plan([row(0), row(1)])] == [0, 0]
    learn(made, [row(0), row(1)], [1, 2], [0, 3])
    assert [made._rows[i].size for i in (0, 1)] == [2, 5]


def test_no_rows_or_no_draft_is_plain_decoding() -> None:
    assert control().plan([]) == []
    assert control(max_draft=0).plan([row(), row(1)]) == [PLAIN, PLAIN]


def test_rows_that_end_leave_nothing() -> None:
    made = control()
    made.plan([row(0), row(1)])
    made.forget([row(0), row(7)])
    assert list(made._rows) == [1]
    learn(made, [row(0), row(1)], [1, 1], [0, 0])
    assert list(made._rows) == [1], "a row that is gone is not brought back"


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([1e-9, 1.0, 1e6]),
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1e4), st.floats(0, 1e4)), max_size=12),
    st.sampled_from([(), (5, 12)]),
    st.integers(0, 100_000),
)
def test_it_always_decides(unit: float, past, kept_sizes, cached: int) -> None:
    made = MarginalController(
        "hybrid", LiveCosts(lambda n, c: unit * (1 + 0.01 * n)), sizes=kept_sizes, switch=unit, margin=0.5
    )
    one = row(0, cached)
    for drafted, score, other in past:
        (plan,) = made.plan([one])
        assert all(math.isfinite(x) for x in (plan.floor, plan.free, plan.hold))
        assert 0.0 <= plan.floor <= 1.0
        assert 0 <= cut(plan, [0.9**i for i in range(1, 12)]) <= 11
        verdict = Verdict(tuple(range(1, 1 + drafted // 2)), 0)
        made.learn([one], [DraftTree.chain(range(drafted + 1))], [verdict], Costs(other, score, other, drafted + 1, 0, cached))
        assert math.isfinite(made._all.tokens + made._all.seconds + made._rows[0].rate.seconds)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"max_draft": -1}, "max_draft"),
        ({"width": 0}, "width"),
        ({"min_width": 0}, "min_width"),
        ({"margin": -0.1}, "margin"),
        ({"switch": -1.0}, "switch"),
        ({"margin": float("nan")}, "margin"),
    ],
)
def test_bad_options_are_named(options: dict, says: str) -> None:
    with pytest.raises(BadRequest, match=f"marginal.*{says}"):
        control(**options)


def test_it_takes_one_drafter() -> None:
    with pytest.raises(BadRequest, match="takes one drafter"):
        MarginalController(["a", "b"], LiveCosts(lambda n, c: 1.0))
    assert MarginalController(["a"], LiveCosts(lambda n, c: 1.0)).plan([row()])[0].drafter == "a"


def test_it_reads_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    for name in ("time", "perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(time, name, lambda: pytest.fail("a clock was read"))
    made = control(sizes=(5, 12))
    cut(made.plan([row()])[0], [0.5])
    learn(made, [row()], [2], [3])


# ---- the sizes of passes in the engine

TRAITS = TableModel.random(5).traits


def test_the_least_size_that_holds_a_draft_and_fits() -> None:
    plan = Plan("x", 9, 1, 9, sizes=(5, 12))
    roomy = replace(TRAITS, max_context=100, max_nodes=64)
    assert [_size(row(), n, plan, roomy) for n in (1, 2, 5, 6, 12, 13)] == [0, 5, 5, 12, 12, 0]
    assert _size(row(), 3, Plan("x", 9, 1, 9), roomy) == 0
    assert [_size(row(0, 100 - left), 3, plan, roomy) for left in (12, 5, 4)] == [5, 5, 0], "near the end of the context"
    assert [_size(row(0, 100 - left), 6, plan, roomy) for left in (12, 11)] == [12, 0]
    assert _size(row(), 6, plan, replace(roomy, max_nodes=11)) == 0


class Widths(TableModel):
    """Keeps the nodes of its passes."""

    def score(self, slots, forest: Forest, need) -> Scores:
        self.widths = [*getattr(self, "widths", []), forest.nodes]
        assert all(s.length + forest.begins[i + 1] - forest.begins[i] <= self.traits.max_context for i, s in enumerate(slots))
        return super().score(slots, forest, need)


def test_rows_are_padded_to_the_plans_sizes_up_to_the_end_of_the_context() -> None:
    base = counter(40)
    for options in ({"max_tokens": 20}, {}):
        target = Widths(base.logits, 1, max_context=32)
        said = run(Engine(TableModel(base.logits, 1, max_context=32)), ([0, 1], options))[0].token_ids
        lengths = iter([0, 1, 3, 5, 2, 1, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])

        def one(row, plan):
            n = min(next(lengths), plan.nodes)
            return DraftTree.chain([(row.tokens[-1] + i) % 40 for i in range(n + 1)], source=1)

        class Sized:
            def plan(self, rows):
                return [Plan("custom", 9, 1, 9, hold=3, sizes=(4, 7)) for _ in rows]

            def learn(self, *args): ...

            def forget(self, rows): ...

        engine = Engine(target, [Custom(one)], Sized())
        assert run(engine, ([0, 1], options))[0].token_ids == said
        assert target.widths[:6] == [2, 3, 4, 4, 7, 4]
        assert set(target.widths) <= {1, 2, 3, 4, 7, 10}


def test_the_sizes_of_a_steady_backend() -> None:
    cost = CostModel((2, 4, 6, 8, 16), (1.0, 1.05, 1.07, 1.3, 2.0), 100, 0.0, 0.5)
    traits = replace(TRAITS, min_width=2, max_nodes=64, narrow=0)
    assert sizes(cost, traits) == (6, 15)
    assert sizes(cost, replace(traits, narrow=5)) == (4, 10)
    assert sizes(cost, replace(traits, max_nodes=10)) == (6,)
    assert sizes(cost, replace(traits, max_nodes=5)) == ()
    assert sizes(replace(cost, change=0.0), traits) == ()
    dear = CostModel((2, 4), (1.0, 2.0), 100, 0.0, 0.5)
    assert sizes(dear, traits) == (3, 7), "one token more than the least, whatever it costs"


class Paced(TableModel):
    """Passes cost by a clock: another size than the last one of its pace, ``change``; than the last one, else ``switch``.

    ``late``: the pass after it takes longer instead.
    """

    def __init__(self, change: float, switch: float, narrow: int, late: bool = False) -> None:
        super().__init__(torch.zeros(6, 5), min_width=2)
        self.traits: Traits = replace(self.traits, narrow=narrow, steady=True)
        self.now, self._change, self._switch = 0.0, change, switch
        self._pace: dict[bool, int] = {}
        self._last, self._late, self._owed = 0, late, 0.0

    def clock(self) -> float:
        return self.now

    def score(self, slots, forest, need) -> Scores:
        n = forest.nodes
        wide = self.traits.narrow > 0 and n > self.traits.narrow
        self.now += 1.0 + (0.01 * n if n <= 6 else 0.1 * n)
        if n != self._pace.get(wide):
            self.now += self._change
        elif n != self._last and not self._late:
            self.now += self._switch
        self.now, self._owed = self.now + self._owed, self._switch if self._late and n != self._last else 0.0
        self._pace[wide], self._last = n, n
        return super().score(slots, forest, need)


@pytest.mark.parametrize("switch, late", [(0.0, False), (0.2, False), (0.2, True)])
def test_what_it_costs_to_go_to_and_fro_between_two_sizes_is_measured(switch: float, late: bool) -> None:
    target = Paced(1.0, switch, narrow=6, late=late)
    cost = measure(target, context=20, far=30, clock=target.clock)
    assert cost.change == pytest.approx(1.0, rel=0.15)
    assert len(sizes(cost, target.traits)) == 2
    assert cost.switch == pytest.approx(switch, rel=0.1, abs=0.01)
    assert CostModel.from_dict(cost.to_dict()) == cost


def test_where_there_is_one_pace_going_to_and_fro_is_a_change() -> None:
    target = Paced(1.0, 0.2, narrow=0)
    cost = measure(target, context=20, far=30, clock=target.clock)
    assert cost.switch == cost.change == pytest.approx(1.0)


# ---- in an engine


class Reaching(Custom):
    """A drafter that drafts right, knows it, and honours the cut."""

    def __init__(self) -> None:
        super().__init__(self._draft)

    @staticmethod
    def _draft(row, plan):
        tokens = [(row.tokens[-1] + i) % 40 for i in range(min(plan.depth, plan.nodes) + 1)]
        n = plan.cut([0.95**i for i in range(1, len(tokens))], [1] * (len(tokens) - 1))
        return tree(tokens[: n + 1], list(range(-1, n)))


@pytest.mark.parametrize("kept_sizes", [(), (5, 12)])
def test_it_drafts_where_drafts_are_right(kept_sizes) -> None:
    target = counter(40)
    costs = LiveCosts(lambda nodes, context: 1.0 + 0.05 * nodes)
    made = MarginalController("custom", costs, sizes=kept_sizes, switch=0.1, min_width=1)
    engine = Engine(target, [Reaching()], made)
    said = run(engine, ([0], {"max_tokens": 60}))[0]
    assert said.token_ids == run(Engine(target), ([0], {"max_tokens": 60}))[0].token_ids
    assert said.stats.acceptance_rate == 1.0
    assert said.stats.drafts < 20
    assert made._rows == {}
    rows = [engine.add([i], SamplingParams(max_tokens=20)) for i in range(3)]
    while not all(r.done for r in rows):
        engine.step()
    assert made._rows == {}
