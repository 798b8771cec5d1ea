"""Dynamic tree cascade: estimates by hand, choices against brute force, stops, probes, switches, equality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from toys import Truth, counter, run

from surefoot.backends.table import TableModel
from surefoot.control.costs import LiveCosts
from surefoot.control.fixed import FixedController
from surefoot.control.marginal import MarginalController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Need, Plan, Scores, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree, Forest, children_of, depths
from surefoot.drafters.dytc import DytcDrafter
from surefoot.drafters.dytc_bottom import Asked, lowest
from surefoot.drafters.dytc_choice import Chooser, Options
from surefoot.drafters.dytc_estimates import Account, CallCost, Pace, Part, Rate, likely
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.errors import BadRequest
from surefoot.theory.cascade import best_dytc, dytc

VOCAB = 40
PASS = 1.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Says:
    """Says ``step`` more than the last token, in ``fixed + slope k`` seconds, and ``reading`` for each token that it missed."""

    def __init__(self, source: int, clock: Clock, step: int = 1, fixed: float = 0.0, slope: float = 0.1, **options) -> None:
        self.name, self.source, self.clock, self.step = f"says-{source}", source, clock, step
        self.fixed, self.slope, self.reading = fixed, slope, options.get("reading", 0.0)
        self.needs = Need() if self.reading else Need((1,))
        self.sure, self.silent = options.get("sure", 0.8), options.get("silent", False)
        self.calls: list[tuple[int, int, int]] = []
        """Drafts, tokens of each, and how far behind the row's tokens the first stands."""
        self.seen: dict[int, int] = {}

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        self.calls.append((len(rows), max(plan.depth for plan in plans), len(rows[0].drafted)))
        trees = []
        for row, plan in zip(rows, plans, strict=True):
            assert plan.width == 1
            assert plan.nodes == plan.depth
            self.clock.now += self.reading * (len(row.base.tokens) - self.seen.get(row.id, 0))
            self.seen[row.id] = len(row.base.tokens)
            tokens = [row.tokens[-1]]
            for i in range(0 if self.silent else plan.depth):
                tokens.append((tokens[-1] + self.step) % VOCAB)
                law = np.full(VOCAB, (1.0 - self.sure) / (VOCAB - 1))
                law[tokens[-1]] = self.sure
                assert plan.stop is not None
                assert not plan.stop(law, tokens[-1], i + 1)
            trees.append(DraftTree.chain(tokens, None, self.source))
        self.clock.now += self.fixed + self.slope * max(plan.depth for plan in plans)
        return trees

    def observe(self, *args) -> None: ...

    def forget(self, rows) -> None: ...


class Low:
    """A bottom that says what a book has after the last token. Log-odds of its levels: 3, 0, -3."""

    name, source, needs = "low", 9, Need()
    levels = (0.95, 0.5, 0.05)
    weights = (3.0, 0.0, -3.0, -0.5, 0.0)

    def __init__(self, book: dict[int, list[tuple[int, int]]] | None = None) -> None:
        self.book = {} if book is None else book

    def walk(self, row: Row) -> _Walk:
        return _Walk(self, row.tokens[-1])

    def propose(self, rows, plans): ...

    def observe(self, *args) -> None: ...

    def forget(self, rows) -> None: ...


@dataclass
class _Walk:
    of: Low
    token: int

    def candidates(self, width: int) -> list[tuple[int, int]]:
        return self.of.book.get(self.token, [])[:width]

    def after(self, token: int) -> _Walk:
        return _Walk(self.of, token)


RIGHT = {t: [((t + 1) % VOCAB, 0)] for t in range(VOCAB)}
"""A bottom that is sure, and right where the text counts up."""


class Bench:
    """A cascade on one row whose text counts up; passes last a second."""

    def __init__(self, parts: Sequence[Says], low: Low | None = None, clock: Clock | None = None, **options) -> None:
        self.clock = clock if clock is not None else Clock()
        for part in parts:
            part.clock = self.clock
        self.parts = parts
        self.made = DytcDrafter(parts, low if low is not None else Low(), clock=self.clock, **options)
        self.row = Row(0, [0, 1, 2], SamplingParams(temperature=0), limit=10**6)

    def ask(self, plan: Plan) -> DraftTree:
        (tree,) = self.made.propose([self.row], [plan])
        tree.check(VOCAB, 1 + plan.nodes)
        assert tree.q is None
        assert max(depths(tree.parents.tolist())) <= plan.depth
        assert max(map(len, children_of(tree.parents.tolist()))) <= plan.width
        return tree

    def step(self, plan: Plan) -> DraftTree:
        tree = self.ask(plan)
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        path: list[int] = []
        said = [(self.row.tokens[-1] + 1) % VOCAB]
        node = 0
        while (found := [i for i in range(len(tokens)) if parents[i] == node and tokens[i] == said[-1]]):  # fmt: skip
            path, node = [*path, found[0]], found[0]
            said.append((said[-1] + 1) % VOCAB)
        self.row.tokens += said
        self.clock.now += PASS
        forest = Forest.pack([tree])
        self.made.observe([self.row], forest, Scores(None), [Verdict(tuple(path), said[-1])])  # type: ignore[arg-type]
        return tree

    def steps(self, n: int, plan: Plan) -> None:
        for _ in range(n):
            self.step(plan)


def chain(k: int, **options) -> Plan:
    return Plan("dytc", k, 1, k, **options)


# ---- estimates


def test_acceptance_by_hand() -> None:
    rate = Rate(0.5, decay=0.7, window=4, warm_up=4)
    for right in (True, True, False):
        rate.verified(right)
    assert not rate.warm
    assert rate.value == pytest.approx((5 * 0.5 + 2) / (5 + 3))
    rate.verified(True)
    warmed = (5 * 0.5 + 3) / (5 + 4)
    assert rate.warm
    assert rate.value == pytest.approx(warmed)
    for right in (False, False, True):
        rate.verified(right)
    assert rate.value == pytest.approx(warmed), "the window is not full"
    rate.verified(False)
    assert rate.value == pytest.approx(0.7 * warmed + 0.3 * 0.25)


def test_tokens_that_the_target_did_not_reach_count_by_their_calibrated_probability() -> None:
    rate = Rate(0.5, window=2, warm_up=0)
    for _ in range(400):
        rate.verified(True, 0.5)
        rate.verified(False, 0.5)
    halved = rate.value
    assert halved == pytest.approx(0.5)
    rate.unverified(0.9)  # probabilities have been right as often as they said
    rate.verified(True)
    rate.verified(True)
    assert rate.value == pytest.approx(0.7 * halved + 0.3 * (2 + 0.25 * 0.9) / 2.25, abs=5e-3)
    for _ in range(400):
        rate.verified(False, 0.9)  # they are worth nothing now
    low = rate.value
    rate.unverified(0.9)
    rate.verified(False)
    rate.verified(False)
    assert rate.value == pytest.approx(0.7 * low, abs=2e-3)
    rate.value = 0.4
    rate.unverified()
    rate.verified(False)
    rate.verified(False)
    assert rate.value == pytest.approx(0.7 * 0.4 + 0.3 * 0.25 * 0.4 / 2.25)


def test_the_cost_of_calls_is_a_line() -> None:
    cost = CallCost()
    cost.learn(50.0, 1)
    assert not cost.known, "the first call meets a cold machine"
    for i in range(60):
        k = 1 + i % 4
        cost.learn(2.0 + 0.5 * k, k)
    assert cost.seconds(1) == pytest.approx(2.5, rel=1e-2)
    assert cost.seconds(4) == pytest.approx(4.0, rel=1e-2)
    for _ in range(60):
        cost.learn(2.0 + 0.5 * 2 * (1 + 0.2 * 2), 2, 3)
    assert cost.seconds(2, 3) == pytest.approx(3.4, rel=3e-2)


def test_one_slow_call_is_no_price_and_several_are() -> None:
    cost = CallCost()
    for _ in range(30):
        cost.learn(1.0, 2)
    cost.learn(100.0, 2)
    assert cost.seconds(2) < 1.2
    for _ in range(40):
        cost.learn(3.0, 2)
    assert cost.seconds(2) == pytest.approx(3.0, rel=0.05)


def test_what_was_missed_of_a_row_is_a_price_of_its_own() -> None:
    cost = CallCost()
    for _ in range(20):
        cost.learn(1.0, 1)
    cost.learn(1.0 + 0.02 * 500, 1, missed=500)
    assert cost.unread == pytest.approx(0.02)
    assert cost.seconds(1) == pytest.approx(1.0)


def test_pace_is_tokens_in_the_time_of_a_pass() -> None:
    pace = Pace()
    assert (pace.unit, pace.speed) == (0.0, 1.0)
    for _ in range(10):
        pace.add(3, 2.5, 2.0)
    assert pace.unit == pytest.approx(2.0)
    assert pace.speed == pytest.approx(3 / 2.5 * 2.0)
    pace.add(3, 900.0, 900.0)
    assert pace.unit < 4.0, "a pause is no price"


# ---- choices


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("low", [0.0, 0.4])
def test_the_paper_s_objective(alpha: float, low: float) -> None:
    part = Part(Says(1, Clock()), 0, Rate(alpha), 0.1)
    made = Chooser([part], Options(stop=False, estimates=False, k_max=6), Pace(), Account())
    made.begin(low, 0.01)
    assert {c.k: c.worth for c in made._choices} == pytest.approx({k: dytc(alpha, k, 0.1, low, 0.01) for k in range(1, 7)})
    assert likely(alpha, 4) == pytest.approx(alpha + alpha**2 + alpha**3 + alpha**4)
    assert likely(1.0, 3) == 3.0


def settled(number: int, alpha: float, fixed: float, slope: float) -> Part:
    part = Part(Says(number + 1, Clock()), number, Rate(alpha), 0.1)
    part.rate.seen, part.rate.value = 100, alpha
    for i in range(200):
        part.cost.learn(fixed + slope * (1 + i % 4), 1 + i % 4)
    return part


class Place:
    """As much of a draft and a leaf as a choice looks at."""

    def __init__(self, reach: float = 1.0, plan: Plan | None = None) -> None:
        self.plan, self.reach, self.width, self.depth = plan or chain(8), reach, 1, 0
        self.row, self.choose = Row(0, [1], SamplingParams(), limit=9), None
        self.room, self.parent = 8, None

    def paid(self, k: int) -> int:
        return k

    def gained(self, node: Place, total: float, chance: float, k: int) -> float:
        return node.reach * max(0.0, total - likely(chance, k + 1))


PARTS = [(0.45, 0.02, 0.08), (0.7, 0.1, 0.25), (0.9, 0.6, 0.3)]


def chooser(**options) -> Chooser:
    pace = Pace()
    pace.add(2, 1.25, 1.0)
    found = Chooser([settled(i, *each) for i, each in enumerate(PARTS)], Options(**options), pace, Account())
    found.begin(0.3, 0.001)
    return found


def test_t_s_picks_as_the_theory_does() -> None:
    ask = chooser(objective="t_s", t_min=0.0)(Place(), Place(), 0.0)
    assert ask is not None
    lines = [max((dytc(a, k, (f + s * k) / k, 0.3, 0.001), -k) for k in (1, 2, 3, 4)) for a, f, s in PARTS]
    best = max(range(3), key=lambda i: lines[i])
    assert (ask.part.number, ask.k) == (best, -lines[best][1])
    flat = Part(Says(1, Clock()), 0, Rate(0.8), 0.07)
    alone = Chooser([flat], Options(objective="t_s", t_min=0.0, estimates=False), Pace(), Account())
    flat.learns = False
    alone.begin(0.3, 0.2)
    ask = alone(Place(), Place(), 0.0)
    assert ask is not None
    assert ask.k == best_dytc(0.8, 0.07, 0.3, 0.2, 4)[1] > 1


@pytest.mark.parametrize("reach", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_value_picks_as_brute_force_does(reach: float, chance: float, floor: float) -> None:
    plan = chain(8, floor=floor)
    ask = chooser()(Place(plan=plan), Place(reach, plan), chance)
    speed = 2 / 1.25
    values = {}
    for i, (a, fixed, slope) in enumerate(PARTS):
        for k in (1, 2, 3, 4):
            more = sum(a**n for n in range(1, k + 1)) + a**k * 0.3 - sum(chance**n for n in range(1, k + 2))
            values[i, k] = reach * max(0.0, more) - floor * k - speed * (fixed + slope * k)
    best = max(values, key=lambda key: values[key])
    if values[best] <= 1e-9:
        assert ask is None
    else:
        assert ask is not None
        assert values[ask.part.number, ask.k] == pytest.approx(values[best], abs=2e-2)


def test_the_stop_rule_ends_a_branch() -> None:
    assert chooser()(Place(), Place(0.01), 0.0) is None
    assert chooser(t_min=3.0)(Place(), Place(0.9), 0.0) is not None
    assert chooser(t_min=6.0)(Place(), Place(0.9), 0.0) is None
    assert chooser(t_min=3.0)(Place(), Place(0.4), 0.0) is None
    assert chooser(stop=False)(Place(), Place(0.01), 0.99) is not None


# ---- what is drafted


def test_a_part_drafts_where_the_bottom_is_silent_and_the_bottom_where_it_is_sure() -> None:
    low = Low({t: RIGHT[t] for t in range(VOCAB) if t % 10 < 5})
    bench = Bench([Says(1, Clock(), slope=0.05)], low)
    bench.steps(40, chain(6))
    bench.row.tokens = [0, 12]
    tree = bench.ask(chain(6))
    assert tree.tokens.tolist()[1:] == [13, 14, 15, 16, 17, 18]
    assert tree.source.tolist()[1:4] == [9, 9, 9], "13, 14 and 15 are in the book"
    assert set(tree.source.tolist()[4:]) == {1}
    assert bench.parts[0].calls[-1][2] >= 3, "asked behind what the bottom drafted"


def test_sources_mark_levels_and_drafts_keep_to_their_plans() -> None:
    two = {t: [((t + 1) % VOCAB, 1), ((t + 7) % VOCAB, 1), ((t + 9) % VOCAB, 2)] for t in range(VOCAB)}
    for plan in (
        chain(1),
        chain(5),
        Plan("dytc", 3, 3, 9),
        Plan("dytc", 2, 2, 3),
        Plan("dytc", 4, 2, 8, floor=0.3, free=3),
        Plan(),
    ):
        bench = Bench([Says(1, Clock()), Says(2, Clock(), 7)], Low(two), stop=False)
        for _ in range(6):
            tree = bench.step(plan)
            assert set(tree.source.tolist()[1:]) <= {1, 2, 9}
        assert len(tree) == 1 + plan.nodes or plan.floor


def test_the_cut_says_how_much_is_verified() -> None:
    bench = Bench([], Low(RIGHT))
    told: list[Sequence[float]] = []

    def cut(reach: Sequence[float], work: Sequence[int]) -> int:
        told.append(list(reach))
        assert list(work) == [1] * len(reach)
        return 2

    assert len(bench.ask(chain(5, cut=cut))) == 3
    assert told[0] == sorted(told[0], reverse=True)
    assert 0.5 < told[0][0] < 1.0


def test_siblings_are_extended_in_one_call() -> None:
    two = {t: [((t + 1) % VOCAB, 1), ((t + 7) % VOCAB, 1)] for t in (2, 3)}
    wide = Bench([Says(1, Clock())], Low(two), stop=False)
    tree = wide.ask(Plan("dytc", 3, 2, 8))
    assert (2, 1, 1) in wide.parts[0].calls, "two drafts behind one drafted token each"
    assert {3, 9} <= {tree.tokens.tolist()[i] for i, p in enumerate(tree.parents.tolist()) if p == 0}
    single = Bench([Says(1, Clock())], Low(two), stop=False, siblings="off")
    single.ask(Plan("dytc", 3, 2, 8))
    assert {call[0] for call in single.parts[0].calls} == {1}


def test_rows_that_want_the_same_part_share_a_call() -> None:
    bench = Bench([Says(1, Clock())], stop=False, k_max=2)
    rows = [Row(i, [i, i + 1], SamplingParams(temperature=0), limit=99) for i in range(3)]
    trees = bench.made.propose(rows, [chain(2)] * 3)
    assert [tree.tokens.tolist()[1:] for tree in trees] == [[i + 2, i + 3] for i in range(3)]
    assert bench.parts[0].calls[0][0] == 3


# ---- learning


def test_useless_parts_leave_the_bottom_alone_but_for_rare_probes() -> None:
    dear, wrong = Says(1, Clock(), slope=0.9), Says(2, Clock(), 11, slope=0.1)
    low = Low({t: [((t + 1) % VOCAB, 1)] for t in range(VOCAB) if t % 3})
    bench = Bench([dear, wrong], low)
    bench.steps(300, chain(4))
    before, spent = len(dear.calls) + len(wrong.calls), bench.made.account.spent
    bench.steps(1500, chain(4))
    later = len(dear.calls) + len(wrong.calls) - before
    assert 0 < later < 60, "asked again, now and then"
    assert bench.made.account.spent - spent < 0.01 * bench.made.account.total
    assert bench.made.parts[1].rate.value < 0.2
    assert bench.made.parts[1].wait > 64
    assert bench.made.parts[0].cost.seconds(1) == pytest.approx(0.9, rel=0.15)


def test_exploring_keeps_to_its_seconds() -> None:
    dear = Says(1, Clock(), slope=0.9)
    bench = Bench([dear])
    bench.steps(400, chain(4))
    account = bench.made.account
    seconds = sum(0.9 * k for _, k, _ in dear.calls)
    assert account.spent == pytest.approx(seconds)
    assert 0 < seconds < account.share * account.total + account.credit + 3 * 0.9


def test_a_part_that_turns_right_is_found_again() -> None:
    part = Says(1, Clock(), 11, slope=0.1)
    bench = Bench([part])
    bench.steps(300, chain(4))
    assert bench.made.parts[0].rate.value < 0.1
    quiet = len(part.calls)
    part.step = 1
    bench.steps(6000, chain(4))
    calls = len(part.calls)
    bench.steps(50, chain(4))
    assert calls > quiet
    assert len(part.calls) - calls >= 50, "asked in every pass"
    assert bench.made.parts[0].rate.value > 0.8


def test_a_part_that_says_nothing_is_a_miss() -> None:
    part = Says(1, Clock(), slope=0.1, silent=True)
    bench = Bench([part])
    bench.steps(400, chain(4))
    assert bench.made.parts[0].rate.value < 0.2
    assert len(part.calls) < 200


def test_a_part_that_must_read_the_row_first_waits_until_it_pays() -> None:
    slow, quick = Says(1, Clock(), slope=0.1, reading=0.2), Says(1, Clock(), slope=0.1, reading=1e-5)
    waits = []
    for part in (slow, quick):
        bench = Bench([part])
        part_of = bench.made.parts[0]
        part_of.rate.seen, part_of.rate.value = 100, 0.95
        for i in range(60):
            part_of.cost.learn(0.1 * (1 + i % 4), 1 + i % 4)
        part_of.cost.unread = part.reading
        bench.made.pace.add(1, 1.0, 1.0)
        bench.row.tokens = list(range(VOCAB)) * 10
        n = 0
        while not part.calls and n < 1000:
            bench.step(chain(4))
            n += 1
        waits.append(n)
        calls = len(part.calls)
        bench.steps(10, chain(4))
        assert len(part.calls) > calls + 5, "once it has read the row it is asked on"
    assert waits[1] == 1
    assert 15 < waits[0] < 120


def test_rows_are_forgotten() -> None:
    bench = Bench([Says(1, Clock())])
    bench.steps(20, chain(4))
    bench.ask(chain(4))
    bench.made.forget([bench.row])
    assert not bench.made._drafts
    assert not bench.made._leans
    assert not bench.made._refused
    assert not bench.made.parts[0]._read


# ---- switches


def test_a_fixed_schedule_asks_the_first_part_once_a_pass() -> None:
    first, second = Says(1, Clock(), 11, slope=3.0), Says(2, Clock())
    bench = Bench([first, second], Low(RIGHT), dynamic="off", k_max=3)
    bench.steps(30, chain(6))
    assert first.calls == [(1, 3, 0)] * 30
    assert not second.calls


def test_without_estimates_nothing_is_learned() -> None:
    bench = Bench([Says(1, Clock(), 11)], estimates=False, alphas=[0.8], costs=[0.1])
    bench.steps(60, chain(4))
    part = bench.made.parts[0]
    assert part.rate.value == 0.8
    assert part.passes(2, 1, 1.0) == pytest.approx(0.2)
    assert len(bench.parts[0].calls) >= 60, "it is still believed in"


def test_without_trees_a_wide_plan_gets_a_chain() -> None:
    two = Low({t: [((t + 1) % VOCAB, 1), ((t + 7) % VOCAB, 1)] for t in range(VOCAB)})
    wide = Plan("dytc", 3, 3, 8)
    assert max(map(len, children_of(Bench([], two).ask(wide).parents.tolist()))) == 2
    assert Bench([], two, tree=False).ask(wide).parents.tolist() == [-1, 0, 1, 2]


def test_without_a_stop_rule_parts_draft_to_the_end() -> None:
    with_it, without = (
        Bench([Says(1, Clock(), slope=0.9)], Low(RIGHT)),
        Bench([Says(1, Clock(), slope=0.9)], Low(RIGHT), stop=False),
    )
    for bench in (with_it, without):
        bench.steps(40, chain(6))
    assert len(without.parts[0].calls) >= 80
    assert len(with_it.parts[0].calls) < 20


@pytest.mark.parametrize(
    "options, told",
    [
        ({"width": 0}, "width=0 must be a whole number from 1"),
        ({"k_max": 2.5}, "k_max=2.5 must be a whole number"),
        ({"window": True}, "window=True"),
        ({"warm_up": -1}, "warm_up=-1 must be a whole number from 0"),
        ({"decay": 1.0}, "decay=1.0 must be a number from 0 up and under 1"),
        ({"decay": "much"}, "decay='much'"),
        ({"t_min": "low"}, "t_min='low' must be 'marginal' or a number"),
        ({"t_min": float("nan")}, "t_min=nan"),
        ({"objective": "best"}, "objective='best' must be 'value' or 't_s'"),
        ({"tree": "maybe"}, "tree='maybe' must be on or off"),
        ({"stop": 1}, "stop=1 must be on or off"),
        ({"trees": True}, "takes no option 'trees'; it takes width"),
        ({"alphas": [0.5, 0.5]}, "alphas=.* give 1 numbers from 0 to 1"),
        ({"costs": [-0.1]}, "costs=.* give 1 numbers"),
    ],
)
def test_bad_options_are_refused(options: dict, told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        DytcDrafter([Says(1, Clock())], Low(), **options)


def test_two_drafters_of_one_number_are_refused() -> None:
    with pytest.raises(BadRequest, match="share a source number"):
        DytcDrafter([Says(9, Clock())], Low())


# ---- the bottom


def test_any_drafter_can_be_the_bottom() -> None:
    assert isinstance(lowest(NgramDrafter()), Asked)
    suffix = SuffixDrafter()
    assert lowest(suffix) is suffix
    asked = Asked(NgramDrafter(), depth=3)
    row = Row(0, [1, 2, 3, 4, 5, 9, 8, 1, 2], SamplingParams(), limit=99)
    place = asked.walk(row)
    said = []
    for _ in range(5):
        ((token, level),) = place.candidates(3)
        said.append((token, level))
        place = place.after(token)
    assert said == [(3, 0), (4, 1), (5, 2), (9, 0), (8, 1)], "asked again at the end of its chain"
    assert asked.walk(row).after(4).candidates(1) == [(5, 0)], "behind what it did not say itself"
    assert asked.walk(row).after(30).candidates(1) == []


# ---- equality


def engine(target: TableModel, kind: str, plan: str, low: type = SuffixDrafter, **options) -> Engine:
    mixed = {"right": (0.0, 0.0), "wrong": (1.0, 1.0), "mixed": (0.3, 0.7)}[kind]
    vocab = target.traits.vocab_size
    others = [target.mixed(TableModel.random(vocab, 2, 40 + i, 2.0), by) for i, by in enumerate(mixed)]
    parts = [ModelDrafter(other, vocab, source=i + 1, name=f"part-{i}") for i, other in enumerate(others)]
    bottom = low(source=3)
    made = DytcDrafter(parts, bottom, source=4, **options)
    controllers = {
        "chain": FixedController("dytc", 5),
        "tree": FixedController("dytc", 3, 3, 10),
        "marginal": MarginalController("dytc", LiveCosts(lambda nodes, context: 1.0 + 0.02 * nodes), max_draft=6),
    }
    return Engine(target, [*parts, bottom, made], controllers[plan])


SWITCHES: dict[str, dict] = {
    "all": {},
    "no stop": {"stop": False},
    "fixed": {"dynamic": False},
    "ngram": {"low": NgramDrafter, "stop": False, "objective": "t_s"},
}


@pytest.mark.parametrize("options", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize("plan", ["chain", "tree", "marginal"])
@pytest.mark.parametrize("kind", ["right", "wrong", "mixed"])
def test_ragged_batches_say_what_plain_decoding_says(kind: str, plan: str, options: dict) -> None:
    target = TableModel.random(12, 2, 3, 2.0)
    made, truth = engine(target, kind, plan, **options), Truth(target, reuse=False)
    requests = [
        ([1, 2, 3], {"max_tokens": 25, "temperature": 0}),
        (list(range(12)) * 3, {"max_tokens": 40, "temperature": 1.0, "seed": 3}),
        ([5], {"max_tokens": 1, "temperature": 0}),
        ([4, 4, 4, 4], {"max_tokens": 30, "temperature": 0.7, "seed": 8, "verification": "coupled", "repetition_penalty": 1.3}),
    ]
    rows = [made.add(prompt, SamplingParams.build(own)) for prompt, own in requests]
    while not all(row.done for row in rows):
        made.step()
    for row in rows:
        assert tuple(row.output) == truth(row)
    if kind == "right" and options.get("stop") is False:
        assert rows[0].stats.mean_acceptance_length > 2.5


def test_it_says_who_drafted_what() -> None:
    target = counter(VOCAB)
    parts = [ModelDrafter(counter(VOCAB), VOCAB, source=1, name="part")]
    low = SuffixDrafter(source=2)
    made = DytcDrafter(parts, low, source=3, stop=False)
    (done,) = run(
        Engine(target, [*parts, low, made], FixedController("dytc", 4)), ([1, 2], {"max_tokens": 20, "temperature": 0})
    )
    assert set(done.sources) == {"target", "part"}


def test_a_draft_behind_a_draft_is_not_taken_for_the_row_s_own() -> None:
    from surefoot.core.shadow import shadow

    bench = Bench([Says(1, Clock())], Low(RIGHT))
    bench.ask(chain(3))
    own = bench.made._drafts[0]
    (tree,) = bench.made.propose([shadow(bench.row, [3, 4])], [replace(chain(3), drafter=None)])
    assert tree.tokens.tolist()[:2] == [4, 5]
    assert bench.made._drafts[0] is own
