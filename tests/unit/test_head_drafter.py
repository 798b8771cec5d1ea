"""Drafting with a lane: the same trees as a draft model that says the same; and the activations that lanes are given."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import Custom, fixed, random_trees, run
from toys_heads import TableLane

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Need, Plan
from surefoot.drafters.features import Features, kept
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.model import ModelDrafter

V = 9
TARGET = TableModel.random(V, 2, seed=5)
DRAFT = TARGET.mixed(TableModel.random(V, 2, seed=6), 0.4)
PROMPTS = ([1, 2, 3], [4], [5, 5, 6, 7, 8, 0, 1])
OPTIONS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.9, "seed": 3, "verification": "ratio"},
    {"temperature": 1.2, "top_k": 3, "seed": 1, "verification": "traversal"},
    {"temperature": 0.0, "repetition_penalty": 1.8},
    {"temperature": 0.8, "seed": 2, "frequency_penalty": 1.0, "verification": "ratio"},
    {"temperature": 0.0, "logit_bias": {2: -50.0, 3: 4.0}},
]


class Kept:
    """Keeps what a drafter proposed, by position."""

    def __init__(self, inner) -> None:
        self.inner, self.trees = inner, {}
        self.name, self.source, self.needs = inner.name, inner.source, inner.needs

    def propose(self, rows, plans):
        trees = self.inner.propose(rows, plans)
        for row, tree in zip(rows, trees, strict=True):
            self.trees[row.n_prompt, len(row.tokens), row.turn] = tree
        return trees

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()))
@pytest.mark.parametrize("plan", [(1, 1, 1), (4, 1, 4), (3, 2, 5), (3, 3, 9)])
def test_drafts_are_those_of_a_model_that_says_the_same(options, plan):
    k, width, nodes = plan
    drafters = [Kept(HeadDrafter(TableLane(DRAFT), V, name="model", source=1)), Kept(ModelDrafter(DRAFT, V))]
    requests = [(p, {"max_tokens": 15, **options}) for p in PROMPTS]
    outputs = [[c.token_ids for c in run(fixed(TARGET, d, k, width, nodes), *requests)] for d in drafters]
    assert outputs[0] == outputs[1]
    ours, theirs = (d.trees for d in drafters)
    assert ours.keys() == theirs.keys()
    for key, tree in ours.items():
        other = theirs[key]
        assert torch.equal(tree.tokens, other.tokens)
        assert torch.equal(tree.parents, other.parents)
        assert torch.equal(tree.source, other.source)
        assert (tree.q is None) == (other.q is None)
        assert tree.q is None or torch.equal(tree.q, other.q)
    assert any(len(tree) > 1 for tree in ours.values())


@pytest.mark.parametrize("options", OPTIONS[:4])
@pytest.mark.parametrize("width", [1, 2])
def test_a_reduced_vocabulary_is_all_that_is_drafted(options, width):
    ids = (1, 4, 6, 7)
    drafter = Kept(HeadDrafter(TableLane(DRAFT, ids), V, name="head"))
    requests = [(p, {"max_tokens": 15, **options}) for p in PROMPTS]
    found = run(fixed(TARGET, drafter, 3, width, 5 if width > 1 else 3), *requests)
    drafted = [t for tree in drafter.trees.values() for t in tree.tokens[1:].tolist()]
    assert set(drafted) == set(ids)
    if options.get("verification") is None:
        assert [c.token_ids for c in found] == [c.token_ids for c in run(Engine(TARGET), *requests)]
    for tree in drafter.trees.values():
        if tree.q is not None:
            assert float(tree.q[:, ids].sum(1).min()) == pytest.approx(1.0)


def greedy_rows(prompts=PROMPTS):
    """Rows that have said their first token."""
    engine = Engine(TARGET)
    rows = [engine.add(p, SamplingParams(max_tokens=20, temperature=0.0)) for p in prompts]
    engine.step()
    return rows


def test_unknown_ids_are_never_drafted():
    rows, plans = greedy_rows(), [Plan("h", 3, 2, 5)] * 3

    def drafted(ids=None, **options):
        trees = HeadDrafter(TableLane(DRAFT, ids), V, name="h", **options).propose(rows, plans)
        return {t for tree in trees for t in tree.tokens[1:].tolist()}

    most = max(drafted())
    assert max(drafted(known=most)) < most
    assert drafted((1, 3, 8)) == {1, 3, 8}
    assert drafted((1, 3, 8), known=8) == {1, 3}


def test_one_step_a_level_for_all_rows():
    lane = TableLane(DRAFT)
    drafter = HeadDrafter(lane, V, name="h", source=7)
    rows = greedy_rows()
    plans = [Plan("h", 3, 1, 3), Plan("h", 1, 1, 1), Plan("h", 2, 2, 4)]
    trees = drafter.propose(rows, plans)
    assert lane.steps == [3, 3, 1]
    assert [len(t) for t in trees] == [4, 2, 5]
    assert {s for t in trees for s in t.source[1:].tolist()} == {7}
    assert [int(t.tokens[0]) for t in trees] == [row.tokens[-1] for row in rows]


def test_the_plan_and_the_lane_bound_a_draft():
    rows = greedy_rows()

    def sizes(plan, depth=9):
        drafter = HeadDrafter(TableLane(DRAFT, depth=depth), V, name="h")
        return [len(t) - 1 for t in drafter.propose(rows, [plan] * 3)]

    assert sizes(Plan("h", 5, 1, 5)) == [5, 5, 5]
    assert sizes(Plan("h", 5, 1, 5), depth=2) == [2, 2, 2]
    assert sizes(Plan("h", 5, 1, 2)) == [2, 2, 2]
    for nothing in (Plan("h", 0, 1, 4), Plan("h", 4, 1, 0), Plan("h", 4, 0, 4)):
        assert sizes(nothing) == [0, 0, 0]
    assert sizes(Plan("h", 5, 1, 5, stop=lambda law, token, depth: depth == 2)) == [2, 2, 2]
    assert max(sizes(Plan("h", 4, 2, 8, floor=0.9999))) < 8


def test_a_row_that_the_lane_does_not_know_is_not_drafted():
    lane = TableLane(DRAFT)
    rows = greedy_rows()
    lane.deaf = {rows[1].id}
    trees = HeadDrafter(lane, V, name="h").propose(rows, [Plan("h", 2, 1, 2)] * 3)
    assert [len(t) for t in trees] == [3, 1, 3]
    assert lane.steps == [2, 2]


def test_options_that_leave_no_token_end_the_draft():
    """All that the head can say is forbidden: the row goes on without a draft."""
    lane = TableLane(DRAFT, (1, 4))
    drafter = Kept(HeadDrafter(lane, V, name="head"))
    options = {"max_tokens": 8, "temperature": 0.0, "allowed_token_ids": [0, 2, 3]}
    [found] = run(fixed(TARGET, drafter, 3), (PROMPTS[0], options))
    [plain] = run(Engine(TARGET), (PROMPTS[0], options))
    assert found.token_ids == plain.token_ids
    assert {len(tree) for tree in drafter.trees.values()} == {1}


def test_the_lane_is_told_of_passes_and_of_ends():
    lane = TableLane(DRAFT)
    engine = fixed(TARGET, HeadDrafter(lane, V, name="head"), 2)
    run(engine, *[(p, {"max_tokens": 6, "temperature": 0.0}) for p in PROMPTS])
    assert lane.observed
    assert sorted(lane.forgotten) == [0, 1, 2]


# ------------------------------------------------------------------------------------------------------------- features


class Gatherer(Custom):
    """Random trees; checks what Features gathers against what the table says of each row's own tokens."""

    needs = Need((1,))

    def __init__(self, last_only: bool) -> None:
        super().__init__(random_trees(V, 1))
        self.features = Features((1, 1), last_only=last_only)
        self.last_only = last_only
        self.reached: dict[int, int] = {}
        self.starts: list[tuple[int, int]] = []

    def propose(self, rows, plans):
        for row in rows:
            last = self.features.last(row)
            assert last is not None
            assert torch.equal(last, wanted(row, len(row.tokens) - 2)[None])
            if not self.last_only and row.id % 2:
                start, found = self.features.take(row)
                self.starts.append((row.id, start))
                assert row.id not in self.reached or start == self.reached[row.id]
                self.reached[row.id] = start + len(found)
                assert self.reached[row.id] == len(row.tokens) - 1
                for i, one in enumerate(found):
                    assert torch.equal(one, wanted(row, start + i))
                assert self.features.take(row) is None
                assert self.features.last(row) is None
        return super().propose(rows, plans)

    def observe(self, rows, forest, scores, verdicts):
        self.features.observe(rows, forest, scores, verdicts)
        for layer in scores.hidden.values():
            layer.zero_()  # the next pass may overwrite it

    def forget(self, rows):
        self.features.forget(rows)


def wanted(row, position):
    one = TARGET.next_logits(row.tokens[: position + 1]).float()
    return torch.cat([one, one])


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("min_width", [1, 4])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "seeded"])
def test_features_are_those_of_the_rows_own_tokens(last_only, min_width, options):
    target = TableModel(TARGET.logits, 2, min_width=min_width)
    gatherer = Gatherer(last_only)
    engine = fixed(target, gatherer, 3, 2, 6, chunk=5, max_rows=4)
    prompts = [*PROMPTS, [3, 3], list(range(9)) * 4, [*list(range(9)) * 3, 1]]
    rows = [engine.add(p, SamplingParams.build({"max_tokens": 9 + i, **options})) for i, p in enumerate(prompts)]
    for _ in range(3):
        engine.step()
    rows.append(engine.fork(rows[0], [7, 7]))
    engine.abort(rows[1])
    while not all(row.done for row in rows):
        engine.step()
    assert not gatherer.features._rows, "ended rows are forgotten"
    if not last_only:
        assert len(gatherer.starts) > 10


def test_a_shared_prefix_shows_as_a_gap():
    gatherer = Gatherer(last_only=False)
    engine = fixed(TARGET, gatherer, 2, reuse=True)
    prompt = list(range(9)) * 4
    for _ in range(2):
        run(engine, (prompt, {"max_tokens": 4, "temperature": 0.0}))
    starts = dict(reversed([(row, start) for row, start in gatherer.starts]))
    assert starts[1] > 16, "the second request forked the first one's cache"


def test_features_that_are_not_of_the_last_token_are_not_given():
    engine = Engine(TARGET)
    row = engine.add(PROMPTS[0], SamplingParams(max_tokens=9, temperature=0.0))
    features = Features((1,))

    class Once(Custom):
        needs = Need((1,))

        def observe(self, rows, forest, scores, verdicts):
            if len(row.tokens) == row.n_prompt + 1:
                features.observe(rows, forest, scores, verdicts)

    engine = fixed(TARGET, Once(random_trees(V, 2)), 1)
    row = engine.add(PROMPTS[0], SamplingParams(max_tokens=9, temperature=0.0))
    engine.step()
    assert features.last(row).shape == (1, V)
    engine.step()
    assert features.last(row) is None
    features.forget([row, replace_id(row)])
    assert features.take(row) is None


def replace_id(row):
    """Another row, of which nothing is known."""
    engine = Engine(TARGET)
    engine.add([1])
    return engine.add([1])


def test_kept_nodes():
    from surefoot.core.protocols import Verdict
    from surefoot.core.tree import DraftTree, Forest

    trees = [DraftTree.chain([1, 2, 3]), DraftTree.chain([4]), DraftTree.chain([5, 6])]
    forest = Forest.pack(trees, [[], [7, 8], []], [True, True, False], min_width=4)
    assert kept(forest, 0, Verdict((1,), 9)) == [0, 1]
    assert kept(forest, 0, Verdict((), 9)) == [0]
    assert kept(forest, 1, Verdict((), 9)) == [0, 1, 2]
    assert kept(forest, 2, None) == [0, 1]
    assert kept(Forest.pack(trees[:1], [[7]]), 0, Verdict((1,), 9)) == [0, 1, 2]


@pytest.mark.parametrize("ids", [None, (1, 4, 6, 7), (8, 7, 2)])
@pytest.mark.parametrize("known", [None, 8])
def test_a_plain_chain_is_drafted_as_one_whose_law_is_asked_for(ids, known):
    """Words from ``known`` on are no tokens: a head that names them is not taken at its word."""
    made = HeadDrafter(TableLane(DRAFT, ids), V, name="head", known=known)
    engine = Engine(TARGET, [made])
    told: list[int] = []

    def never(law, token, depth):
        told.append(token)
        return False

    for prompt in PROMPTS:
        row = engine.add(prompt, SamplingParams(max_tokens=2, temperature=0.0))
        plan = Plan("head", 4, 1, 4)
        [quick] = made.propose([row], [plan])
        made.observe([row], None, None, [None])
        [slow] = made.propose([row], [replace(plan, stop=never)])
        made.observe([row], None, None, [None])
        assert quick.tokens.tolist() == slow.tokens.tolist()
        assert len(quick) == 5
        assert quick.q is None
        assert max(quick.tokens[1:].tolist()) < (known or V)
        engine.abort(row)
    assert told
