"""Forced tokens as a draft: chains of runs, within the plan, beside another drafter."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import toys

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.constraint import Constraint
from surefoot.core.engine import Engine
from surefoot.core.protocols import Plan
from surefoot.core.tree import DraftTree
from surefoot.drafters.grammar import GrammarDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.errors import BadRequest
from surefoot.loader import Target, assemble

V = 12


class Line:
    """A matcher that allows, place by place, these tokens; forced tokens come in runs that end before ``breaks``."""

    def __init__(self, places: Sequence[set[int]], at: int = 0, breaks: frozenset[int] = frozenset()) -> None:
        self.places, self.at, self.breaks = places, at, breaks

    @property
    def ended(self) -> bool:
        return self.at == len(self.places)

    def allowed(self) -> np.ndarray:
        out = np.zeros(V, bool)
        if 0 <= self.at < len(self.places):
            out[list(self.places[self.at])] = True
        return out

    def advance(self, token: int) -> None:
        self.at = self.at + 1 if self.allowed()[token] else -1

    def fork(self) -> Line:
        return Line(self.places, self.at, self.breaks)

    def forced(self, limit: int) -> list[int]:
        found: list[int] = []
        at = self.at
        while len(found) < limit and 0 <= at < len(self.places) and len(self.places[at]) == 1:
            found += self.places[at]
            at += 1
            if at in self.breaks:
                break
        return found


class Lines:
    def __init__(self, places: Sequence[set[int]], breaks: Sequence[int] = ()) -> None:
        self.start = Line(places, 0, frozenset(breaks))

    def matcher(self, constraint: Constraint) -> Line:
        return self.start.fork()


PLACES = [{1, 2}, {3}, {4}, {5}, {6, 7, 8}, {9}, {1, 2, 3}, {0}]
OPTIONS = {"structured_outputs": {"regex": "x"}, "max_tokens": 20}


def engine(target: TableModel, drafters: list, k: int | None, **options) -> Engine:
    controller = None if k is None else FixedController(drafters[0].name, k)
    return Engine(target, drafters, controller, grammars=Lines(PLACES, **options))


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("more", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_output_is_that_of_plain_decoding_and_all_that_is_forced_is_kept(k: int, more: dict) -> None:
    target = TableModel.random(V, order=1, seed=2)
    plain = engine(target, [], None).generate([3, 5], **OPTIONS, **more)
    drafter = GrammarDrafter()
    found = engine(target, [drafter], k, breaks=[2]).generate([3, 5], **OPTIONS, **more)
    assert found.token_ids == plain.token_ids
    assert len(plain.token_ids) == len(PLACES)
    assert (found.finish_reason, plain.finish_reason) == ("stop", "stop")
    counts = found.stats.by_source["grammar"]
    assert counts.draft_tokens == counts.accepted_tokens > 0
    if k >= 3:  # the runs 3 | 4 5 make one chain
        assert found.sources[1:4] == ("grammar",) * 3


def row(state: object, last: int = 7) -> SimpleNamespace:
    return SimpleNamespace(tokens=[last], state=state)


class Runs:
    """A state that forces these runs, one after another."""

    def __init__(self, runs: Sequence[Sequence[int]]) -> None:
        self.runs, self.forks, self.seen = runs, 0, []

    def fork(self) -> Runs:
        self.forks += 1
        other = Runs(self.runs)
        other.seen = list(self.seen)
        return other

    def advance(self, token: int) -> None:
        self.seen.append(token)

    def forced(self, limit: int) -> list[int]:
        said = len(self.seen)
        for run in self.runs:
            if said == 0:
                return list(run[:limit])
            said -= len(run)
        return []


@pytest.mark.parametrize(
    "plan, wanted",
    [
        (Plan("grammar", 9, 1, 9), [1, 2, 3, 4]),
        (Plan("grammar", 3, 1, 9), [1, 2, 3]),
        (Plan("grammar", 9, 2, 2), [1, 2]),
        (Plan("grammar", 1, 4, 9), [1]),
        (Plan("grammar", 0, 1, 0), []),
    ],
)
def test_runs_are_chained_within_the_plan(plan: Plan, wanted: list[int]) -> None:
    state = Runs([[1, 2], [3], [4]])
    (tree,) = GrammarDrafter(source=4).propose([row(state)], [plan])
    assert tree.tokens.tolist() == [7, *wanted]
    assert tree.parents.tolist() == list(range(-1, len(wanted)))
    assert tree.source.tolist() == [0] + [4] * len(wanted)
    assert tree.q is None
    assert state.seen == []  # the row's own state stays where it is
    assert state.forks <= 1


def test_the_inner_drafter_has_the_rows_where_nothing_is_forced() -> None:
    asked: list[list[int]] = []

    def one(r, plan: Plan) -> DraftTree:
        return DraftTree.chain([r.tokens[-1], 11], source=1)

    inner = toys.Custom(one)
    propose = inner.propose
    inner.propose = lambda rows, plans: asked.append([r.tokens[-1] for r in rows]) or propose(rows, plans)
    drafter = GrammarDrafter(inner)
    rows = [row(None, 1), row(Runs([[5, 6]]), 2), row(Runs([]), 3)]
    plans = [Plan("grammar", 2, 1, 2)] * 3
    trees = drafter.propose(rows, plans)
    assert [tree.tokens.tolist() for tree in trees] == [[1, 11], [2, 5, 6], [3, 11]]
    assert [tree.source.tolist()[1] for tree in trees] == [1, 9, 1]
    assert asked == [[1, 3]]
    drafter.propose(rows[1:2], plans[:1])
    assert asked == [[1, 3]]  # nothing is asked where all rows are forced
    drafter.propose(rows[:1], plans[:1])
    assert asked[1:] == [[1]]
    drafter.forget(rows)
    assert inner.forgotten == []  # the engine tells it


def test_alone_it_has_nothing_to_say_without_a_grammar() -> None:
    target = toys.counter(V)
    found = toys.fixed(target, GrammarDrafter(), 4).generate([1], max_tokens=6)
    assert found.token_ids == (2, 3, 4, 5, 6, 7)
    assert found.stats.drafts == 0


def test_together_with_suffix_both_are_counted_and_both_forget() -> None:
    target = TableModel.random(V, order=1, seed=4, sharpness=3.0)
    suffix = SuffixDrafter()
    running = engine(target, [GrammarDrafter(suffix), suffix], 4)
    for options in (OPTIONS, {"max_tokens": 40}):
        plain = engine(target, [], None).generate([3, 5, 3, 5], **options)
        found = running.generate([3, 5, 3, 5], **options)
        assert found.token_ids == plain.token_ids
        assert set(found.stats.by_source) <= {"grammar", "suffix"}
    assert found.stats.by_source["suffix"].accepted_tokens > 0
    assert suffix.stats()["rows"] == 0


def test_a_processor_that_fails_on_the_way_ends_no_draft() -> None:
    class Failing(Runs):
        def fork(self) -> Failing:
            return Failing(self.runs)

        def advance(self, token: int) -> None:
            raise BadRequest("logits_processors: broken")

    (tree,) = GrammarDrafter().propose([row(Failing([[1, 2], [3]]))], [Plan("grammar", 8, 1, 8)])
    assert tree.tokens.tolist() == [7, 1, 2]


def test_what_load_makes() -> None:
    target = Target(TableModel.random(V), SimpleNamespace(eos_ids=(), vocab_size=V), SimpleNamespace(cost=None), None)
    names = {
        "auto": ["suffix", "lookahead", "hybrid", "grammar"],
        "grammar": ["grammar"], "suffix": ["suffix"], "ngram": ["ngram"], "none": [],
    }  # fmt: skip
    for name, wanted in names.items():
        made = assemble(target, name, **({} if name == "none" else {"controller": "fixed"}))
        assert list(made.drafters) == wanted
        if wanted:
            plan = made.controller.plan([SimpleNamespace(id=0)])[0]
            assert plan.drafter == wanted[-1]
    auto = assemble(target, "auto:min_match=2", controller="fixed")
    assert auto.drafters["grammar"].inner is auto.drafters["hybrid"]
    with pytest.raises(BadRequest, match="'grammar' takes no option 'inner'"):
        assemble(target, "grammar:inner=suffix", controller="fixed")
