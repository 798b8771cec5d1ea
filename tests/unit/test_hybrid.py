"""Several sources in one draft: merging, marks, plans, prices, what is learned from which node, and plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import counter, run

from surefoot.backends.openvino.branches import work as computed
from surefoot.backends.table import TableModel
from surefoot.control.costs import LiveCosts
from surefoot.control.fixed import FixedController
from surefoot.control.marginal import MarginalController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Need, Plan, Scores, Verdict
from surefoot.core.tree import DraftTree, Forest, children_of, depths
from surefoot.drafters.calibration import OTHER, SILENT, depth_class
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.proposed import Proposed
from surefoot.drafters.recycle import RecycleDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.errors import BadRequest

VOCAB = 40


@dataclass(eq=False)
class Line:
    """As much of a row as the drafter reads."""

    tokens: list[int]
    id: int = 0
    n_prompt: int = 1

    @property
    def base(self) -> Line:
        return self


class _Walk:
    def __init__(self, of: Says, token: int) -> None:
        self.of, self.token = of, token

    def candidates(self, width: int) -> list[tuple[int, int]]:
        self.of.widths.append(width)
        return self.of.book.get(self.token, [])[:width]

    def after(self, token: int) -> _Walk:
        return _Walk(self.of, token)


class Says:
    """A source that says what a book has after the last token. Log-odds of its levels: 3, 1, -1, -3."""

    needs = Need()
    levels = (0.95, 0.7, 0.3, 0.05)

    def __init__(self, source: int, book: dict[int, list[tuple[int, int]]], other: float = -0.5, silent: float = 0.0) -> None:
        self.name, self.source, self.book = f"says-{source}", source, book
        self.weights = (3.0, 1.0, -1.0, -3.0, other, silent)
        self.widths: list[int] = []

    def walk(self, row: Line) -> _Walk:
        return _Walk(self, row.tokens[-1])


def hybrid(*books: dict[int, list[tuple[int, int]]], **options: bool) -> HybridDrafter:
    return HybridDrafter([Says(i, book) for i, book in enumerate(books, 1)], **options)


def ask(made: HybridDrafter, tokens: list[int], plan: Plan, row_id: int = 0) -> DraftTree:
    (tree,) = made.propose([Line(tokens, row_id)], [plan])
    tree.check(1 << 20, 1 + max(plan.nodes, 0))
    assert tree.q is None
    assert tree.tokens[0] == tokens[-1]
    assert max(depths(tree.parents.tolist())) <= plan.depth
    assert max(map(len, children_of(tree.parents.tolist()))) <= max(plan.width, 0)
    return tree


def chain(k: int, **options) -> Plan:
    return Plan(depth=k, nodes=k, **options)


def tell(made: HybridDrafter, tokens: list[int], path: Sequence[int], token: int, row_id: int = 0) -> None:
    """The pass said so."""
    empty = Forest.pack([DraftTree.chain(tokens[-1:])])
    made.observe([Line(tokens, row_id)], empty, Scores(None), [Verdict(tuple(path), token)])  # type: ignore[arg-type]


# ---- merging


def test_equal_tokens_are_one_candidate_and_the_surest_source_marks_it() -> None:
    made = hybrid({0: [(5, 1), (6, 2)]}, {0: [(5, 0), (7, 0)]})
    tree = ask(made, [0], Plan(depth=1, nodes=9, width=9))
    assert sorted(tree.tokens.tolist()[1:]) == [5, 6, 7]
    by_token = dict(zip(tree.tokens.tolist(), tree.source.tolist()))
    assert by_token == {0: 0, 5: 2, 6: 1, 7: 2}
    (places, _) = made._drafts[0]
    assert places[0] == {5: (1, 0, 1), 6: (2, OTHER, 1), 7: (OTHER, 0, 1)}


def test_silence_is_not_disagreement() -> None:
    made = hybrid({0: [(5, 1)]}, {1: [(5, 1)]}, {0: [(6, 0)], 1: [(5, 2)]})
    ask(made, [0], chain(1))
    assert made._drafts[0][0][0] == {5: (1, SILENT, OTHER, 1), 6: (OTHER, SILENT, 0, 1)}
    ask(made, [1], chain(1))
    assert made._drafts[0][0][0] == {5: (SILENT, 1, 2, 1)}


def test_of_equally_sure_sources_the_first_marks_and_of_equal_tokens_the_least_is_drafted() -> None:
    assert ask(hybrid({0: [(5, 1)]}, {0: [(5, 1)]}), [0], chain(1)).source.tolist() == [0, 1]
    tree = ask(hybrid({0: [(7, 1), (4, 1)]}, {}), [0], chain(1))
    assert tree.tokens.tolist() == [0, 4]


def test_agreement_outweighs_a_surer_voice() -> None:
    two = {0: [(5, 1)]}
    assert ask(hybrid({0: [(6, 1)]}, two, two), [0], chain(1)).tokens.tolist() == [0, 5]


def test_a_chain_looks_at_a_few_candidates_and_a_tree_at_its_width() -> None:
    made = hybrid({0: [(1, 0)], 1: [(2, 0)]})
    ask(made, [0], chain(2))
    ask(made, [0], Plan(depth=1, nodes=2, width=7))
    assert made._sources[0].widths == [3, 3, 7, 7]


def test_a_chain_follows_the_best_candidate_and_carries_depth_classes() -> None:
    book = {0: [(1, 0)], 1: [(2, 1)], 2: [(3, 3)]}
    made = hybrid(book)
    tree = ask(made, [0], chain(3))
    assert tree.tokens.tolist() == [0, 1, 2, 3]
    assert tree.parents.tolist() == [-1, 0, 1, 2]
    places, tokens = made._drafts[0]
    assert tokens == [0, 1, 2, 3]
    chances = [made.calibration.chance(place[x]) for place, x in zip(places, (1, 2, 3))]
    assert [place[x][-1] for place, x in zip(places, (1, 2, 3))] == [
        1, depth_class(chances[0]), depth_class(chances[0] * chances[1]),
    ]  # fmt: skip


# ---- plans

books = st.dictionaries(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4, unique_by=lambda c: c[0]),
    max_size=6,
)
plans = st.builds(
    Plan,
    depth=st.integers(0, 5),
    nodes=st.integers(0, 9),
    width=st.integers(0, 4),
    floor=st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0]),
    free=st.integers(0, 4),
)


class Cut:
    """Keeps at most n, and remembers what it was told."""

    def __init__(self, n: int = 1 << 20) -> None:
        self.n = n
        self.reach: list[float] = []
        self.work: list[int] = []

    def __call__(self, reach: Sequence[float], work: Sequence[int]) -> int:
        self.reach, self.work = list(reach), list(work)
        return min(self.n, len(reach))


def planned(plan: Plan, cut: Cut) -> Plan:
    return Plan(depth=plan.depth, nodes=plan.nodes, width=plan.width, floor=plan.floor, free=plan.free, cut=cut)


@settings(max_examples=200, deadline=None)
@given(books, books, plans, st.booleans(), st.integers(0, 9))
def test_drafts_keep_to_their_plans(one: dict, two: dict, plan: Plan, paths: bool, n: int) -> None:
    cut = Cut()
    made = hybrid(one, two, paths=paths)
    tree = ask(made, [0], planned(plan, cut))
    assert len(cut.reach) == len(cut.work) == len(tree) - 1
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    reach = [1.0, *cut.reach]
    places = made._drafts[0][0] if 0 in made._drafts else []
    for node in range(1, len(tree)):
        kind = places[parents[node]][tokens[node]]
        assert reach[node] == pytest.approx(reach[parents[node]] * made.calibration.chance(kind))
        price = cut.work[node - 1]
        assert reach[node] >= plan.floor * price - 1e-12 or sum(cut.work[:node]) <= plan.free
    if plan.width > 1:
        assert cut.reach == sorted(cut.reach, reverse=True), "the likeliest first"
    if paths:
        for size in range(1, len(tree) + 1):
            part = DraftTree(tree.tokens[:size], tree.parents[:size], None, tree.source[:size])
            assert computed(Forest.pack([part])) == 1 + sum(cut.work[: size - 1])
    else:
        assert set(cut.work) <= {1}
    shorter = ask(made, [0], planned(plan, Cut(n)))
    kept = min(n, len(tree) - 1) + 1
    assert shorter.tokens.tolist() == tokens[:kept]
    assert shorter.parents.tolist() == parents[:kept]
    assert shorter.source.tolist() == tree.source.tolist()[:kept]
    again = ask(made, [0], planned(plan, Cut()))
    assert (again.tokens.tolist(), again.parents.tolist()) == (tokens, parents), "looking changes nothing"


@settings(max_examples=80, deadline=None)
@given(books, books, st.integers(1, 4), st.integers(1, 8), st.integers(2, 4))
def test_a_tree_holds_the_nodes_of_largest_reach(one: dict, two: dict, depth: int, nodes: int, width: int) -> None:
    """Against all paths spelled out."""
    made = hybrid(one, two)
    cut = Cut()
    tree = ask(made, [0], Plan(depth=depth, nodes=nodes, width=width, cut=cut))
    every: list[float] = []
    front = [(made._look(tuple(s.walk(Line([0])) for s in made._sources), Line([0]), Plan("hybrid", 8, width, 8), 1, 1.0), 1.0)]
    for _ in range(depth):
        following = []
        for place, reach in front:
            best = sorted(((made.calibration.chance(kind), -x) for x, kind in place.kinds.items()), reverse=True)
            for chance, negative in best[:width]:
                every.append(reach * chance)
                walks = tuple(walk.after(-negative) for walk in place.walks)
                now = reach * chance
                following.append((made._look(walks, Line([0]), Plan("hybrid", 8, width, 8), depth_class(now), now), now))
        front = following
    assert cut.reach == pytest.approx(sorted(every, reverse=True)[:nodes])
    assert len(tree) == 1 + min(nodes, len(every))


def test_branches_that_are_not_worth_their_ancestors_are_left_out() -> None:
    """0 -> 1 (or, hardly, 9) -> 2 (or 8) -> 3 (or 7)."""
    book = {0: [(1, 0), (9, 2)], 1: [(2, 0), (8, 2)], 2: [(3, 0), (7, 2)]}
    plan = Plan(depth=3, nodes=9, width=2, floor=0.1)
    free = ask(hybrid(book), [0], plan)
    dear = ask(hybrid(book, paths=True), [0], plan)
    assert {7, 8, 9} <= set(free.tokens.tolist())
    assert {1, 2, 3} <= set(dear.tokens.tolist())
    assert 7 not in dear.tokens.tolist(), "a chance of a third, for four tokens"
    assert 9 in dear.tokens.tolist(), "as many, for two"


def test_free_nodes_need_no_chance() -> None:
    book = {0: [(1, 3)], 1: [(2, 3)], 2: [(3, 3)], 3: [(4, 3)]}
    for width in (1, 2):
        sizes = [len(ask(hybrid(book), [0], Plan(depth=9, nodes=9, width=width, floor=0.5, free=free))) for free in (0, 1, 3)]
        assert sizes == [1, 2, 4]


@pytest.mark.parametrize("plan", [Plan(), Plan(depth=2), Plan(nodes=2), Plan(depth=2, nodes=2, width=0)])
def test_a_plan_of_zero_asks_nobody(plan: Plan) -> None:
    made = hybrid({0: [(1, 0)]})
    assert len(ask(made, [0], plan)) == 1
    assert made._sources[0].widths == []
    tell(made, [0, 1], (), 1)
    assert made._drafts == {}


def test_several_rows_do_not_mix() -> None:
    made = hybrid({0: [(1, 0)], 5: [(6, 0)], 6: [(7, 0)]})
    trees = made.propose([Line([0], 0), Line([5], 1), Line([9], 2)], [chain(2), chain(2), chain(2)])
    assert [tree.tokens.tolist() for tree in trees] == [[0, 1], [5, 6, 7], [9]]
    assert {row: tokens for row, (_, tokens) in made._drafts.items()} == {0: [0, 1], 1: [5, 6, 7], 2: [9]}


# ---- learning


class Heard:
    """Stands for the calibration: a list of (kind, right)."""

    def __init__(self, made: HybridDrafter) -> None:
        self.said: list[tuple[tuple[int, ...], bool, float]] = []
        self.chance, self.alone = made.calibration.chance, made.calibration.alone
        made.calibration = self  # type: ignore[assignment]

    def learn(self, kind: tuple[int, ...], right: bool, lean: float = 0.0) -> float:
        self.said.append((kind, right, lean))
        return float(right) - 0.5


LADDER = {0: [(1, 0), (9, 2)], 1: [(2, 0), (8, 2)], 2: [(3, 0)], 3: [(4, 0)], 9: [(5, 1)]}


@pytest.mark.parametrize(
    "path, token, taught",
    [
        ((), 9, [(0, 1, False), (0, 9, True)]),
        ((), 30, [(0, 1, False), (0, 9, False)]),
        ((1,), 8, [(0, 1, True), (0, 9, False), (1, 2, False), (1, 8, True)]),
        ((1, 2), 3, [(0, 1, True), (0, 9, False), (1, 2, True), (1, 8, False)]),
    ],
)
def test_every_candidate_at_a_node_that_was_reached_teaches(path, token, taught) -> None:
    """Drafted or not; those behind a refused token do not. The last drafted token of a full chain was not looked behind."""
    made = hybrid(LADDER)
    heard = Heard(made)
    ask(made, [0], chain(2))
    places, _ = made._drafts[0]
    tell(made, [0], path, token)
    assert heard.said == [(places[node][x], right, 0.0) for node, x, right in taught]
    assert made._drafts == {}
    tell(made, [0], path, token)
    assert len(heard.said) == len(taught), "a draft teaches once"


def test_a_tree_teaches_along_its_own_path() -> None:
    made = hybrid(LADDER)
    heard = Heard(made)
    tree = ask(made, [0], Plan(depth=2, nodes=5, width=2))
    places, tokens = made._drafts[0]
    nine = tokens.index(9)
    assert tree.parents[nine] == 0
    tell(made, [0], (nine,), 5)
    assert [(kind, right) for kind, right, _ in heard.said] == [
        (places[0][1], False), (places[0][9], True), (places[nine][5], True),
    ]  # fmt: skip


def test_a_draft_that_was_cut_to_nothing_still_teaches() -> None:
    made = hybrid(LADDER)
    heard = Heard(made)
    tree = ask(made, [0], chain(3, cut=Cut(0)))
    assert len(tree) == 1
    tell(made, [0], (), 1)
    assert [right for _, right, _ in heard.said] == [True, False]
    assert made._refused == {0}


def test_prefill_and_failure_teach_nothing() -> None:
    made = hybrid(LADDER)
    heard = Heard(made)
    ask(made, [0], chain(2))
    made.observe([Line([0])], Forest.pack([DraftTree.chain([0])]), Scores(None), [None])  # type: ignore[arg-type]
    assert heard.said == []
    assert made._drafts == {}


def test_after_a_refusal_the_first_token_is_of_another_class() -> None:
    made = hybrid(LADDER)
    for path, token, kind in (((1, 2), 3, 1), ((1,), 7, 0), ((1, 2), 3, 1), ((), 9, 0)):
        ask(made, [0], chain(2))
        tell(made, [0], path, token)
        ask(made, [0], chain(2))
        assert made._drafts[0][0][0][1][-1] == kind
        ask(made, [0], chain(2), row_id=7)
        assert made._drafts[7][0][0][1][-1] == 1, "the other row has not been refused"


def test_a_row_leans_to_what_it_has_seen_and_forgets_with_its_end() -> None:
    made = hybrid(LADDER)
    before = made._leans.get(0, 0.0)
    for _ in range(5):
        ask(made, [0], chain(2))
        tell(made, [0], (), 30)
    assert made._leans[0] < before
    low = made._leans[0]
    for _ in range(30):
        ask(made, [0], chain(2))
        tell(made, [0], (1, 2), 3)
    assert made._leans[0] > low
    assert 1 not in made._leans
    ask(made, [0], chain(2), row_id=1)
    made.forget([Line([0], 0), Line([0], 1), Line([0], 2)])
    assert made._leans == made._drafts == {}
    assert made._refused == set()


def test_what_is_learned_changes_what_is_drafted() -> None:
    made = hybrid({0: [(1, 0)]}, {0: [(2, 1)]})
    assert ask(made, [0], chain(1)).tokens.tolist() == [0, 1]
    for _ in range(60):
        ask(made, [0], chain(1))
        tell(made, [0], (), 2)
    tree = ask(made, [0], chain(1), row_id=5)
    assert (tree.tokens.tolist(), tree.source.tolist()) == ([0, 2], [0, 2])


@pytest.mark.parametrize("numbers", [(), (1, 1), (2, 1, 2)])
def test_sources_need_numbers_of_their_own(numbers: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match="number of its own"):
        HybridDrafter([Says(n, {}) for n in numbers])


# ---- whole drafts as a source


class Whole:
    """A drafter that proposes the tree it was given."""

    name, source, needs = "whole", 4, Need(hidden=(1,))

    def __init__(self, tokens: list[int], parents: list[int]) -> None:
        self.tokens, self.parents = tokens, parents
        self.plans: list[Plan] = []

    def propose(self, rows, plans):
        self.plans += plans
        n = len(self.tokens)
        source = np.array([0] + [4] * (n - 1), np.int16)
        import torch

        tree = DraftTree(torch.tensor(self.tokens), torch.tensor(self.parents), None, torch.from_numpy(source))
        return [tree for _ in rows]


def test_a_proposed_tree_is_asked_node_by_node() -> None:
    part = Proposed(Whole([0, 1, 2, 3, 4], [-1, 0, 0, 2, 2]), depth=3)  # type: ignore[arg-type]
    assert (part.name, part.source, part.needs) == ("whole", 4, Need(hidden=(1,)))
    assert len(part.weights) == len(part.levels) + 2
    row = Line([0])
    part.prepare([row], [Plan(depth=5, nodes=9, width=2, floor=0.4, cut=Cut())])
    (asked,) = part.inner.plans
    assert (asked.depth, asked.nodes, asked.width, asked.floor, asked.cut) == (3, 9, 2, 0.0, None)
    walk = part.walk(row)
    first = walk.candidates(3)
    assert [x for x, _ in first] == [1, 2]
    assert part.levels[first[0][1]] > part.levels[first[1][1]]
    second = walk.after(2).candidates(3)
    assert [x for x, _ in second] == [3, 4]
    assert second[0][1] != first[0][1], "depth tells"
    assert walk.candidates(1) == first[:1]
    assert walk.after(1).candidates(3) == walk.after(9).candidates(3) == walk.after(9).after(1).candidates(3) == []
    assert part.walk(row).candidates(3) == [], "a tree is for one pass"
    part.prepare([row], [chain(5)])
    assert (part.inner.plans[-1].depth, part.inner.plans[-1].nodes) == (3, 3)


def test_hybrid_asks_whole_drafters_once_for_all_rows_and_passes_on_their_needs() -> None:
    whole = Whole([0, 1, 2], [-1, 0, 1])
    made = HybridDrafter([Says(1, {0: [(1, 1)]}), Proposed(whole)])  # type: ignore[arg-type]
    assert made.needs == Need(hidden=(1,))
    trees = made.propose([Line([0], 0), Line([0], 1)], [chain(4), Plan()])
    assert [tree.tokens.tolist() for tree in trees] == [[0, 1, 2], [0]]
    assert [plan.nodes for plan in whole.plans] == [4, 0]
    assert trees[0].source.tolist() == [0, 4, 4]


@pytest.mark.parametrize("depth", [0, -1, 65, 2.5, True])
def test_the_depth_of_a_part_is_checked(depth: object) -> None:
    with pytest.raises(BadRequest, match="whole: depth="):
        Proposed(Whole([0], [-1]), depth=depth)  # type: ignore[arg-type]


# ---- in an engine

PROMPTS: list[list[int]] = [[3, 4, 5, 3, 4], [0, 1], [38, 39], [7]]
TARGETS = {"counter": lambda: counter(certainty=4.0), "table": lambda: TableModel.random(VOCAB, 1, 5, 2.0, min_width=2)}


def everything(kind: str, vocab: int = VOCAB, target: TableModel | None = None) -> list:
    """The drafters of an engine, hybrid the last."""
    parts = [SuffixDrafter(source=1), RecycleDrafter(vocab, source=2)]
    sources: list = [*parts]
    if kind == "model":
        assert target is not None
        draft = target.mixed(TableModel.random(vocab, target.order, 9, 2.0), 0.3)
        parts.append(ModelDrafter(draft, vocab, source=3))
        sources.append(Proposed(parts[-1]))
    return [*parts, HybridDrafter(sources, paths=kind == "paths", source=8)]


def fixed_engine(target: TableModel, kind: str, k: int, width: int, **options) -> Engine:

    return Engine(
        target, everything(kind, target.traits.vocab_size, target), FixedController("hybrid", k, width, 3 * k), **options
    )


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 7}])
@pytest.mark.parametrize("kind, toy", [("parts", "counter"), ("paths", "table"), ("model", "table")])
def test_tokens_equal_plain_decoding(kind: str, toy: str, k: int, width: int, options: dict) -> None:
    target = TARGETS[toy]()
    requests = [(prompt, {"max_tokens": 32 + 5 * i, **options}) for i, prompt in enumerate(PROMPTS)]
    plain = [run(Engine(target), request)[0].token_ids for request in requests]
    engine = fixed_engine(target, kind, k, width, chunk=3)
    batch = run(engine, *requests)
    assert [one.token_ids for one in batch] == plain
    assert [run(engine, request)[0].token_ids for request in requests] == plain
    assert sum(one.stats.accepted_tokens for one in batch) > 0
    made = engine.drafters["hybrid"]
    assert made._drafts == made._leans == {} == engine.drafters["suffix"]._rows  # type: ignore[attr-defined]


def marginal_engine(target: TableModel, kind: str, sizes: Sequence[int] = (), **options) -> Engine:
    costs = LiveCosts(lambda nodes, context: 1.0 + 0.05 * nodes, change=0.4 if sizes else 0.0)
    controller = MarginalController(
        "hybrid", costs, sizes=sizes, switch=0.1, min_width=target.traits.min_width, margin=0.0, **options
    )
    return Engine(target, everything(kind, target.traits.vocab_size, target), controller, chunk=3)


@pytest.mark.parametrize("sizes", [(), (3, 8)])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 7}])
@pytest.mark.parametrize("kind, toy", [("parts", "counter"), ("paths", "counter"), ("model", "table")])
def test_tokens_equal_plain_decoding_under_marginal(kind: str, toy: str, sizes, width: int, options: dict) -> None:
    target = TARGETS[toy]()
    requests = [(prompt, {"max_tokens": 32 + 5 * i, **options}) for i, prompt in enumerate(PROMPTS)]
    plain = [run(Engine(target), request)[0].token_ids for request in requests]
    engine = marginal_engine(target, kind, sizes, width=width)
    batch = run(engine, *requests)
    assert [one.token_ids for one in batch] == plain
    alone = [run(engine, request)[0] for request in requests]
    assert [one.token_ids for one in alone] == plain
    assert sum(one.stats.accepted_tokens for one in alone) > 0


@pytest.mark.parametrize("kind", ["parts", "paths", "model"])
def test_forks_answers_of_one_request_and_a_row_that_is_cancelled(kind: str) -> None:
    target = TableModel.random(12, 2, 4, 2.0)
    params = SamplingParams.build({"max_tokens": 10, "temperature": 1.0, "seed": 3, "n": 3})
    found = []
    for engine in (Engine(target), fixed_engine(target, kind, 4, 2), marginal_engine(target, kind)):
        gone = engine.add([0, 1, 2], SamplingParams.build({"max_tokens": 50}))
        rows = engine.submit([3, 4, 5], params)
        for _ in range(2):
            engine.step()
        engine.abort(gone)
        while not all(row.done for row in rows):
            engine.step()
        fork = engine.fork(rows[0], [1, 2], SamplingParams(max_tokens=9))
        while not fork.done:
            engine.step()
        found.append([row.output for row in (*rows, fork)])
        engine.close()
    assert found[0] == found[1] == found[2]


def test_the_parts_are_credited_by_name() -> None:
    target = counter(certainty=30.0)
    engine = fixed_engine(target, "parts", 4, 1)
    first = run(engine, ([0, 1, 2], {"max_tokens": 90}))[0].stats
    assert set(first.by_source) <= {"suffix", "recycle"}
