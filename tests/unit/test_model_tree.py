"""Trees of a draft model: which nodes they keep, what a pass costs, and that nothing of it reaches output or cache."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from toys import fixed, run

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.noise import DRAFT, SplitMix
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan
from surefoot.core.request import Row
from surefoot.core.tree import depths
from surefoot.drafters.draft_shape import below
from surefoot.drafters.model import ModelDrafter
from surefoot.errors import BackendError

VOCAB = 11
TARGET = TableModel.random(VOCAB, 2, seed=21, sharpness=1.5)
OTHER = TableModel.random(VOCAB, 2, seed=22, sharpness=1.5)
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 1, 2, 3, 4]]
LENGTHS = (1, 2, 3, 5, 8, 16)


def draft_model(weight: float = 0.3, **traits) -> TableModel:
    model = TARGET.mixed(OTHER, weight)
    model.traits = replace(model.traits, **traits)
    return model


BACKENDS = {"masked": {}, "forked": {"steady": True}, "no trees": {"tree": False}, "padded": {"min_width": 3}}


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS)
def draft(request) -> TableModel:
    return draft_model(**request.param)


def row_of(prompt=(1, 2, 3), **options) -> Row:
    return Row(0, list(prompt), SamplingParams(**{"temperature": 0.0} | options), limit=100, noise=SplitMix(5))


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("width, spare", [(2, 1), (3, 4), (8, 12)])
def test_output_is_that_of_plain_decoding(draft, k, width, spare) -> None:
    engine = fixed(TARGET, ModelDrafter(draft, VOCAB, chunk=3), k, width, k + spare)
    for options in ({}, {"temperature": 0.9, "seed": 3}, {"temperature": 1.0, "seed": 4, "top_k": 4, "frequency_penalty": 0.3}):
        wanted = [Engine(TARGET).generate(p, max_tokens=25, **options).token_ids for p in PROMPTS]
        found = run(engine, *((p, {"max_tokens": 25, **options}) for p in PROMPTS))
        assert [c.token_ids for c in found] == wanted
        assert sum(c.stats.accepted_tokens for c in found) > 0
    assert draft.open_slots == 0


def test_ragged_rows_forks_and_aborts(draft) -> None:
    engine = fixed(TARGET, ModelDrafter(draft, VOCAB), 3, 3, 6)
    first = engine.add([1, 2, 3], SamplingParams(max_tokens=30))
    second = engine.add([4], SamplingParams(max_tokens=5, temperature=1.0, seed=2))
    third = engine.add([9] * 40, SamplingParams(max_tokens=30))
    for _ in range(4):
        engine.step()
    other = engine.fork(first, [7], SamplingParams(max_tokens=10))
    engine.abort(third)
    while not (first.done and second.done and other.done):
        engine.step()
    assert tuple(first.output) == Engine(TARGET).generate([1, 2, 3], max_tokens=30).token_ids
    assert tuple(second.output) == Engine(TARGET).generate([4], max_tokens=5, temperature=1.0, seed=2).token_ids
    assert tuple(other.output) == Engine(TARGET).generate(other.tokens[: other.n_prompt], max_tokens=10).token_ids
    engine.close()
    assert draft.open_slots == 0


class Turns(FixedController):
    """Chain, tree, nothing, in turn: the cache lacks the last token after one of them and holds it after another."""

    def plan(self, rows):
        shapes = [Plan("model", 3, 1, 3), Plan("model", 3, 3, 7), Plan()]
        return [shapes[(row.id + len(row.tokens)) % 3] for row in rows]


def test_chains_and_trees_in_turn(draft) -> None:
    engine = Engine(TARGET, [ModelDrafter(draft, VOCAB)], Turns("model"))
    found = run(engine, *((p, {"max_tokens": 40}) for p in PROMPTS))
    assert [c.token_ids for c in found] == [Engine(TARGET).generate(p, max_tokens=40).token_ids for p in PROMPTS]


@pytest.mark.parametrize("depth, nodes", [(1, 3), (2, 4), (3, 9), (4, 30)])
def test_a_likely_tree_keeps_the_likeliest_paths(draft, depth, nodes) -> None:
    """With every child looked at: the best of all paths, by brute force."""
    row = row_of()
    [tree] = ModelDrafter(draft, VOCAB).propose([row], [Plan("model", depth, 1000, nodes)])
    chance = {}
    for n in range(1, min(depth, 3) + 1):
        for path in product(range(VOCAB), repeat=n):
            value = 1.0
            for i, token in enumerate(path):
                value *= float(torch.softmax(draft.next_logits([*row.tokens, *path[:i]]), 0)[token])
            chance[path] = value
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        paths.append((*paths[parent], token))
    assert len(tree) == nodes + 1
    if depth < 4:
        best = sorted(chance, key=lambda path: -chance[path])[:nodes]
        assert set(paths[1:]) == set(best)
    assert tree.q is None
    assert tree.source.tolist() == [0] + [1] * nodes


def test_width_limits_what_is_expanded_and_each_level_is_one_pass(draft) -> None:
    passes = []
    score = draft.score
    draft.score = lambda *a: passes.append(0) or score(*a)
    rows = [row_of(), Row(1, [5, 6], SamplingParams(), limit=9, noise=SplitMix(1))]
    trees = ModelDrafter(draft, VOCAB).propose(rows, [Plan("model", 4, 2, 12)] * 2)
    assert len(passes) <= 4
    for tree in trees:
        parents = tree.parents.tolist()
        level = depths(parents)
        inner = set(parents) - {-1}
        assert max(level) == 4
        assert max(parents.count(p) for p in inner) <= 2
        assert all(sum(level[p] == d for p in inner) <= 2 for d in range(1, 4))


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "seed": 1}])
def test_the_floor_leaves_unlikely_nodes_out(draft, options) -> None:
    sizes = [
        len(ModelDrafter(draft, VOCAB).propose([row_of(**options)], [Plan("model", 4, 4, 20, floor=floor)])[0])
        for floor in (0.0, 0.2, 1.1)
    ]
    assert sizes[0] > sizes[1] >= sizes[2] == 1


def test_drafting_leaves_the_cache_as_it_was(draft) -> None:
    drafter = ModelDrafter(draft, VOCAB)
    row = row_of()
    for options in (Plan("model", 3, 3, 8), Plan("model", 3, 1, 3), Plan("model", 3, 3, 8)):
        [tree] = drafter.propose([row], [options])
        [again] = drafter.propose([row], [options])  # asked twice for one place: the same answer
        assert tree.tokens.tolist() == again.tokens.tolist()
        assert tree.parents.tolist() == again.parents.tolist()
        [slot] = drafter._cache._slots.values()
        assert slot.tokens == row.tokens[: slot.length]
        assert slot.length >= len(row.tokens) - 1
        assert draft.open_slots == 1
        row.commit([4], [0])
    drafter.forget([row])
    assert draft.open_slots == 0


class Spy:
    """Keys of a row's draws."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, int, int]] = []
        self._inner = SplitMix(5)

    def categorical(self, weights, position, lane, turn=0, ids=None):
        self.keys.append((position, lane, turn))
        return self._inner.categorical(weights, position, lane, turn, ids)

    def accept(self, *args, **more):
        return self._inner.accept(*args, **more)


def test_no_two_draws_of_a_request_share_their_noise(draft) -> None:
    """Siblings drawn with one race, or cousins at one position, would not be independent of each other."""
    spy = Spy()
    engine = fixed(TARGET, ModelDrafter(draft, VOCAB), 3, 3, 9)
    row = engine.add([1, 2], SamplingParams(max_tokens=40, temperature=1.0, verification="traversal"), noise=spy)
    while not row.done:
        engine.step()
    drawn = [key for key in spy.keys if key[1] == DRAFT]
    assert len(drawn) > 60
    assert len(set(drawn)) == len(drawn)


def test_siblings_of_a_seeded_row_follow_the_targets_own_race() -> None:
    """Its noise, on the draft's law: the winner first, then the winner without it."""
    drafter = ModelDrafter(draft_model(), VOCAB)
    row = row_of(temperature=1.0, seed=5)
    [tree] = drafter.propose([row], [Plan("model", 1, 3, 3)])
    law = torch.softmax(draft_model().next_logits(row.tokens), 0).numpy()
    wanted = []
    for _ in range(3):
        wanted.append(row.noise.categorical(law, 3, 0))
        law[wanted[-1]] = 0.0
    assert tree.tokens.tolist()[1:] == wanted
    assert tree.q is None


def test_a_drawn_tree_reports_the_law_of_each_node_with_children(draft) -> None:
    row = row_of(temperature=0.8)
    [tree] = ModelDrafter(draft, VOCAB).propose([row], [Plan("model", 3, 3, 10)])
    assert len(tree) == 11
    assert len(set(tree.parents.tolist())) < 11
    tree.check(VOCAB, 64)
    paths: list[list[int]] = [[]]
    for token, parent in zip(tree.tokens.tolist()[1:], tree.parents.tolist()[1:], strict=True):
        paths.append([*paths[parent], token])
    for node, q in tree.law_rows().items():
        wanted = torch.softmax(draft.next_logits([*row.tokens, *paths[node]]) / 0.8, 0)
        assert torch.allclose(q, wanted, atol=1e-12)


def test_a_law_of_few_tokens_gives_few_siblings(draft) -> None:
    row = row_of(temperature=1.0, top_k=2)
    [tree] = ModelDrafter(draft, VOCAB).propose([row], [Plan("model", 2, 5, 12)])
    parents = tree.parents.tolist()
    assert max(parents.count(p) for p in set(parents)) == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_more_nodes_accept_more(temperature) -> None:
    def tokens_a_pass(width: int, nodes: int) -> float:
        engine = fixed(TARGET, ModelDrafter(draft_model(0.45), VOCAB), 3, width, nodes)
        requests = [([s % VOCAB, s // VOCAB], {"max_tokens": 9, "temperature": temperature}) for s in range(VOCAB**2)]
        found = run(engine, *requests)
        return sum(len(c.token_ids) for c in found) / sum(c.stats.passes for c in found)

    assert tokens_a_pass(4, 16) > tokens_a_pass(1, 3) + 0.1


class Tight(TableModel):
    """A cache that takes one fork at a time beside its rows."""

    refused = 0

    def fork(self, slot, length=None):
        if self.open_slots >= 3:
            self.refused += 1
            raise BackendError("the cache is full; raise kv_tokens")
        return super().fork(slot, length)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_a_branch_has_no_room_its_node_stays_a_leaf(temperature) -> None:
    tight = Tight(TARGET.mixed(OTHER, 0.3).logits, 2)
    tight.traits = replace(tight.traits, steady=True)
    engine = fixed(TARGET, ModelDrafter(tight, VOCAB), 4, 3, 12)
    found = engine.generate([1, 2, 3], max_tokens=30, temperature=temperature, seed=1)
    assert found.token_ids == Engine(TARGET).generate([1, 2, 3], max_tokens=30, temperature=temperature, seed=1).token_ids
    assert tight.refused > 0
    assert tight.open_slots == 0
    assert found.stats.accepted_tokens > 0


def test_a_context_that_ends_ends_the_trees() -> None:
    short = TableModel(TARGET.logits, 2, max_context=12)
    engine = fixed(TARGET, ModelDrafter(short, VOCAB), 4, 3, 12)
    with pytest.warns(RuntimeWarning, match="context holds 12 tokens"):
        found = engine.generate([1, 2, 3], max_tokens=30)
    assert found.token_ids == Engine(TARGET).generate([1, 2, 3], max_tokens=30).token_ids


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize(
    "nodes, depth, width, siblings", [(0, 3, 2, 2), (1, 3, 2, 1), (7, 2, 2, 1), (9, 3, 3, 2), (4, 0, 3, 2)]
)
def test_a_budget_is_divided_within_what_both_sides_hold(chance, nodes, depth, width, siblings) -> None:
    given = below(chance, nodes, depth, width, siblings)
    room = sum(width**level for level in range(1, depth + 1))
    assert 0 <= given <= min(nodes, room)
    assert below(1.0, nodes, depth, width, siblings) == min(nodes, room)
    assert given >= below(0.5 * chance, nodes, depth, width, siblings), "a likelier token gets no fewer"
    if siblings == 0:
        assert given == min(nodes, room)


def test_a_name_and_number_of_its_own() -> None:
    drafter = ModelDrafter(draft_model(), VOCAB, name="quantized", source=7)
    engine = fixed(TARGET, drafter, 3, 2, 5)
    assert set(engine.generate([1, 2, 3], max_tokens=20).sources) == {"target", "quantized"}
