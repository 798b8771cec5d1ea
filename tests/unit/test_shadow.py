"""Shadows of rows, noise aside, rows that an engine adopts, and the laws that a row keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from toys import Custom, fixed, run, within
from unit.test_shadow_drafters import request, tell

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.compiled import Compiler
from surefoot.core.engine import Engine
from surefoot.core.law import row_law
from surefoot.core.noise import SplitMix
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Drafter, Need, Plan, Scores
from surefoot.core.request import Row
from surefoot.core.shadow import Aside, shadow
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.cascade import Below, CascadeDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.errors import BadRequest

V = 9
TABLE = TableModel.random(V, 2, seed=5)
MIDDLE = TABLE.mixed(TableModel.random(V, 2, seed=6), 0.3)
BOTTOM = TABLE.mixed(TableModel.random(V, 2, seed=7), 0.5)
TEXT = [1, 2, 3, 4, 1, 2, 3]
PENALTIES = {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2}


# ---- shadows ----


def test_a_shadow_holds_the_tokens_of_a_request_and_drafted_ones() -> None:
    row = request(TEXT, said=3, temperature=0.8, seed=4, stop_token_ids=[8], logprobs=3, echo=True)
    first = shadow(row, [5, 6])
    second = shadow(first, [7])
    assert row.base is row
    assert (row.of, row.drafted) == (None, [])
    for made, drafted in ((first, [5, 6]), (second, [5, 6, 7])):
        assert made.of is made.base is row, "never another shadow"
        assert (made.tokens, made.drafted) == ([*TEXT, *drafted], drafted)
        assert (made.id, made.n_prompt, made.turn, made.params) == (row.id, row.n_prompt, row.turn, row.params)
        assert made.noise is row.noise
        assert made.stop_ids == frozenset({8})
        assert made.logprobs is made.prompt_logprobs is None
        assert made.slot is None
        assert made.output == [*row.output, *drafted]
    assert row.tokens == TEXT
    assert shadow(row).tokens == TEXT
    assert shadow(row).tokens is not row.tokens


def test_a_shadow_has_a_state_of_its_own() -> None:
    x = np.linspace(-1.0, 1.0, V)
    row = request(TEXT, said=3, vocab=V, **PENALTIES)
    before = row.state.shape(x)
    first = shadow(row, [5, 6])
    second, third = shadow(first, [5]), shadow(first, [7])
    for made in (first, second, third, shadow(row)):
        whole = request(made.tokens, said=len(made.output), vocab=V, **PENALTIES)
        np.testing.assert_array_equal(made.state.shape(x), whole.state.shape(x))
    assert not np.array_equal(first.state.shape(x), second.state.shape(x))
    np.testing.assert_array_equal(row.state.shape(x), before)


class Picky:
    """A processor that cannot go past token 7."""

    def __init__(self, seen: Sequence[int] = ()) -> None:
        self.seen = list(seen)

    def __call__(self, tokens, logits):
        return logits

    def fork(self):
        return Picky(self.seen)

    def advance(self, token: int) -> None:
        if token == 7:
            raise ValueError("seven")
        self.seen.append(token)


def test_a_path_that_the_options_refuse_has_no_shadow() -> None:
    processor = Picky()
    row = request(TEXT, said=3, logits_processors=[processor])
    assert shadow(row, [5, 6]).drafted == [5, 6]
    with pytest.raises(BadRequest, match="seven"):
        shadow(row, [5, 7])
    assert row.state.fork()._parts[0]._given.seen == row.output


def test_a_request_whose_options_break_on_the_way_gets_no_cascaded_draft_and_ends_as_in_plain_decoding() -> None:
    logits = TABLE.logits.clone()
    logits[:, 7] += 2.0
    target = TableModel(logits, 2)
    options = {"max_tokens": 30, "logits_processors": [Picky()]}
    engine = cascaded(target)
    [found] = run(engine, (TEXT, options))
    [wanted] = run(Engine(target), (TEXT, options))
    assert (found.token_ids, found.finish_reason, found.error) == (wanted.token_ids, wanted.finish_reason, wanted.error)
    assert wanted.finish_reason == "error"
    engine.close()


# ---- noise ----


def cascade(levels: int = 1) -> list[Drafter]:
    """The middle over a model, or over another cascade; behind it all that it is made of."""
    below = [ModelDrafter(BOTTOM, V, source=1, name="bottom")] if levels == 1 else cascade(levels - 1)
    model = TableModel((MIDDLE if levels == 1 else TABLE.mixed(MIDDLE, 0.5)).logits, 2)
    inner = Engine(model, [Below(each) for each in below], FixedController(below[0].name, 3), reuse=False)
    return [CascadeDrafter(inner, V, name=f"cascade-{levels}", source=10 + levels), *below]


def cascaded(target: TableModel, levels: int = 1) -> Engine:
    drafters = cascade(levels)
    return Engine(target, drafters, FixedController(drafters[0].name, 5))


class Spy:
    """Counts what is drawn under each key; a race takes all the numbers of a place."""

    def __init__(self, seed: int) -> None:
        self.inner, self.races, self.tests = SplitMix(seed), Counter(), Counter()

    def categorical(self, weights, position, lane, turn=0, ids=None):
        self.races[position, lane, turn] += 1
        return self.inner.categorical(weights, position, lane, turn, ids)

    def accept(self, probability, position, lane, turn=0, index=0):
        self.tests[position, lane, turn, index] += 1
        return self.inner.accept(probability, position, lane, turn, index)

    def check(self) -> int:
        assert {key: n for key, n in (self.races + self.tests).items() if n > 1} == {}
        assert self.races.keys().isdisjoint(key[:3] for key in self.tests)
        return len(self.races) + len(self.tests)


@pytest.mark.parametrize("verification", ["auto", "ratio", "block", "traversal"])
@pytest.mark.parametrize("levels", [1, 2])
def test_no_random_number_is_used_twice(verification: str, levels: int) -> None:
    spy = Spy(3)
    engine = cascaded(TABLE, levels)
    row = engine.add(TEXT, SamplingParams(temperature=1.0, max_tokens=60, verification=verification), noise=spy)
    while not row.done:
        engine.step()
    assert 0 < row.stats.accepted_tokens < row.stats.draft_tokens
    assert spy.check() > 150
    engine.close()


def test_drafts_behind_several_shadows_of_a_request_are_drawn_apart() -> None:
    spy, drafter = Spy(3), cascade()[0]
    row = request(TEXT, said=3, temperature=1.0)
    row.noise = spy
    trees = drafter.propose([shadow(row, [t]) for t in range(V)], [Plan(depth=5, nodes=5)] * V)
    assert [len(tree) for tree in trees] == [6] * V
    assert spy.check() > 5 * V
    assert drafter.engine.target.open_slots == 1
    drafter.forget([row])
    assert drafter.engine.target.open_slots == 0


def test_noise_aside_is_others_in_every_pass_and_lane() -> None:
    plain = SplitMix(5)
    weights = np.full(50, 0.02)
    draws = {
        tuple(noise.categorical(weights, position, lane, turn) for position in range(30))
        for noise in (plain, Aside(plain, 0), Aside(plain, 1), Aside(Aside(plain, 1), 1))
        for lane in range(4)
        for turn in range(3)
    }
    assert len(draws) == 4 * 4 * 3
    tests = {
        tuple(noise.accept(0.5, position, 1, 0, index) for position in range(60))
        for noise in (plain, Aside(plain, 0), Aside(plain, 1))
        for index in range(2)
    }
    assert len(tests) == 6


# ---- rows that an engine adopts ----


class Watched(TableModel):
    """Keeps the sizes of the rows of each pass."""

    def __init__(self, **options: int) -> None:
        super().__init__(TABLE.logits, 2, **options)
        self.passes: list[list[int]] = []

    def score(self, slots: Sequence, forest: Forest, need: Need) -> Scores:
        self.passes.append(list(forest.sizes))
        return super().score(slots, forest, need)


def adopted(row: Row, more: int) -> Row:
    """A shadow that may get so many tokens."""
    made = shadow(row)
    made.limit = len(made.output) + more
    return made


def plain(tokens: Sequence[int], n: int, **options) -> list[int]:
    return list(Engine(TABLE).generate(tokens, max_tokens=n, **options).token_ids)


def right(row: Row, plan: Plan) -> DraftTree:
    """A drafter that says what the target will, and then something else."""
    tokens = plain(row.tokens, min(plan.depth, plan.nodes))
    tokens[2:3] = [(tokens[2] + 1) % V] if len(tokens) > 2 else []
    return within(plan, [row.tokens[-1], *tokens], range(-1, len(tokens)))


@pytest.mark.parametrize("chunk", [256, 3])
@pytest.mark.parametrize("k", [0, 3])
def test_an_adopted_row_drafts_behind_what_it_still_has_to_read(k: int, chunk: int) -> None:
    row, target = request(TEXT, said=3), Watched()
    engine = fixed(target, Custom(right), k, chunk=chunk)
    made = adopted(shadow(row, [5, 6]), 8)
    engine.adopt(made)
    engine.step()
    if chunk == 256:
        assert target.passes == [[9 + k]], "one pass for what was said, what was drafted, and the draft"
        assert made.drafted == [5, 6, *plain([*TEXT, 5, 6], 3 if k else 1)]
        assert made.stats.draft_tokens == k
    while not made.done:
        engine.step()
    assert made.tokens == [*TEXT, 5, 6, *plain([*TEXT, 5, 6], 8)]
    assert (made.finish_reason, row.tokens) == ("length", TEXT)
    engine.close()
    assert target.open_slots == 0


@pytest.mark.parametrize("width, nodes", [(1, 3), (2, 6)])
def test_pending_tokens_and_a_tree_in_one_pass(width: int, nodes: int) -> None:
    """The same tokens as without a draft, whatever is drafted below the pending ones; a row beside is further along."""
    target = Watched()
    engine = fixed(target, ModelDrafter(BOTTOM, V), 3, width, nodes)
    other = engine.add([3, 3, 4], SamplingParams(max_tokens=25))
    for _ in range(3):
        engine.step()
    rows = [adopted(shadow(request(TEXT, id=9 + i, said=3), path), 12) for i, path in enumerate(([5], [5, 6, 7, 8]))]
    for row in rows:
        engine.adopt(row)
    before = len(target.passes)
    engine.step()
    assert len(target.passes[before]) == 3
    while not all(row.done for row in (other, *rows)):
        engine.step()
    assert other.output == plain([3, 3, 4], 25)
    for row, path in zip(rows, ([5], [5, 6, 7, 8]), strict=True):
        assert row.tokens == [*TEXT, *path, *plain([*TEXT, *path], 12)]
    engine.close()
    assert target.open_slots == 0


def test_a_draft_below_pending_tokens_fits_a_pass() -> None:
    target = Watched(max_nodes=10)
    engine = fixed(target, Custom(right), 6)
    made = adopted(shadow(request(TEXT, said=3), [5]), 20)
    engine.adopt(made)
    engine.step()
    assert target.passes == [[10]], "eight to read leave room for two"
    engine.close()


def test_what_a_shadow_reads_again_is_decoding_not_prefill() -> None:
    ticks = iter(range(10_000))
    engine = fixed(Watched(), Custom(right), 3, clock=lambda: float(next(ticks)))
    made = adopted(shadow(request(TEXT, said=3), [5]), 4)
    engine.adopt(made)
    engine.step()
    assert made.stats.prompt_seconds == 0 < made.stats.decode_seconds
    engine.close()


def test_a_row_succeeds_another_with_what_its_cache_has_in_common() -> None:
    row, target = request(TEXT, said=3), Watched()
    engine = Engine(target, reuse=False)
    old = adopted(row, 20)
    engine.adopt(old)
    while len(old.tokens) < 12:
        engine.step()
    assert old.cached == 11
    for told, cached in (([*old.tokens[7:10], (old.tokens[10] + 1) % V], 10), ([4, 4], 11)):
        tell(row, told)
        new = adopted(shadow(row, [6]), 20)
        engine.succeed(old, new)
        assert engine.rows == [new]
        assert old.slot is None
        assert new.cached == cached
        assert target.open_slots == 1
        engine.step()
        engine.step()
        assert new.drafted == [6, *plain([*row.tokens, 6], 2)]
        old = new
    again = adopted(shadow(row, old.drafted), 20)
    engine.succeed(old, again)
    assert again.cached == len(again.tokens) - 1, "the last token is pending"
    shorter = adopted(row, 20)
    engine.succeed(again, shorter)
    assert shorter.cached == len(row.tokens) - 1
    engine.step()
    assert shorter.drafted == plain(row.tokens, 1)
    engine.abort(shorter)
    engine.close()
    assert target.open_slots == 0


def test_a_step_of_some_rows_leaves_the_others_where_they_are() -> None:
    engine = Engine(Watched())
    first, second, third = (engine.add(TEXT[i:], SamplingParams(max_tokens=6)) for i in range(3))
    assert engine.step([second]) == [second]
    assert [len(row.output) for row in (first, second, third)] == [0, 1, 0]
    assert first.slot is not None, "rows are admitted all the same"
    assert engine.step([]) == []
    assert engine.step([third, first]) == [first, third]
    while not second.done:
        engine.step([second])
    assert [len(row.output) for row in (first, second, third)] == [1, 6, 1]
    while not (first.done and third.done):
        engine.step()
    for i, row in enumerate((first, second, third)):
        assert row.output == plain(TEXT[i:], 6)
    engine.close()


def test_an_adopted_row_has_to_fit() -> None:
    engine = Engine(Watched())
    made = adopted(request(TEXT, said=3), 1 << 21)
    with pytest.raises(BadRequest, match="lower max_tokens"):
        engine.adopt(made)
    assert engine.rows == []


# ---- laws ----


@pytest.mark.parametrize(
    "options",
    [
        {},
        PENALTIES,
        {"temperature": 0.7, "top_k": 4, "seed": 3},
        {"temperature": 1.1, "top_p": 0.8, "seed": 3, "verification": "ratio", **PENALTIES},
        {"temperature": 0.9, "seed": 3, "logit_bias": {2: -50.0}},
    ],
    ids=lambda options: "-".join(options) or "greedy",
)
@pytest.mark.parametrize("drafter", [None, "ngram", "model"])
def test_laws_are_those_that_each_token_was_taken_from(options: dict, drafter: str | None) -> None:
    made = {None: [], "ngram": [NgramDrafter()], "model": [ModelDrafter(BOTTOM, V)]}[drafter]
    engine = Engine(TABLE, made, FixedController(drafter, 3) if drafter else None)
    row = engine.add(TEXT, SamplingParams.build({"max_tokens": 25, **options}))
    row.laws = []
    while not row.done:
        engine.step()
    assert len(row.laws) == len(row.output) == 25
    assert drafter is None or row.stats.accepted_tokens > 0
    seen = list(TEXT)
    state = Compiler(V, None, None).state(row.params, seen, ())
    shape = SamplingParams(temperature=1.0) if row.params.temperature == 0 else row.params
    for law, token in zip(row.laws, row.output, strict=True):
        x = TABLE.next_logits(seen).numpy()
        x = x if state is None else state.shape(x)
        np.testing.assert_array_equal(law, row_law(x, shape))
        if row.params.temperature == 0:
            np.testing.assert_allclose(law, np.exp(x) / np.exp(x).sum(), rtol=1e-12)
        assert law[token] > 0
        seen.append(token)
        if state is not None:
            state.advance(token)
    engine.close()


def test_laws_end_where_the_output_ends() -> None:
    said = plain(TEXT, 12)
    stop = next(i for i in range(2, 12) if said[i] not in said[:i] and i % 3 != 0)
    engine = fixed(TABLE, Custom(lambda row, plan: within(plan, [row.tokens[-1], *plain(row.tokens, 2)], [-1, 0, 1])), 2)
    row = engine.add(TEXT, SamplingParams(max_tokens=25, stop_token_ids=(said[stop],)))
    row.laws = []
    while not row.done:
        engine.step()
    assert len(row.laws) == len(row.output) == stop + 1
    assert row.finish_reason == "stop"
    engine.close()
