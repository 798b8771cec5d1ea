"""L45 to L55: sampled output follows the target's law, whatever was drafted, and seeds do what they promise.

Laws are compared by exact enumeration of all random outcomes where that is possible, and by many draws where a row asks for it.
The expected laws come from :mod:`exact.reference`, which does not share code with the package.
"""

from __future__ import annotations

import math

import pytest
import torch
from behaviour.grid import LENGTHS, engine_of, every_draft, finish, plain, same, speculate, words
from exact.joint import CAUGHT, PROMPT, TOLERANCE, distance, draft_law, observed, q_chain, q_tree, toy
from exact.joint import engine_of as exact_engine
from exact.reference import World, softmax
from scipy.stats import chisquare
from toys import Custom, fixed, tree, within

import surefoot.core.verify as verify_module
from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.noise import DRAFT, SplitMix
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Verdict
from surefoot.core.tree import DraftTree
from surefoot.core.verify import verify
from surefoot.drafters.model import ModelDrafter

RULES = pytest.mark.parametrize("rule", ["coupled", "ratio"])
FIVE = toy(5, seed=21, sharpness=0.9)
FIVE_DRAFT = TableModel.random(5, order=1, seed=22, sharpness=0.9)
REJECT = 1e-4
WIDE = TableModel.random(12, order=2, seed=5, sharpness=1.2)
WIDE_DRAFT = WIDE.mixed(TableModel.random(12, order=2, seed=6, sharpness=1.2), 0.4)


def gap(target, drafter, plan, options) -> float:
    """Total variation between the engine's joint law and the reference's."""
    seen = observed(exact_engine(target, drafter, *plan), SamplingParams.build(options), options["max_tokens"])
    assert abs(sum(seen.values()) - 1.0) <= TOLERANCE
    return distance(seen, World(target).joint(PROMPT, options))


def argmax_claiming_softmax(row, plan):
    """The fault of L45: the draft's best token, reported as if it had been drawn from the draft's law."""
    tokens, laws = [row.tokens[-1]], []
    for _ in range(plan.depth):
        q = draft_law(FIVE_DRAFT, row, tokens[1:])
        tokens.append(int(q.argmax()))
        laws.append(q)
    return DraftTree.chain(tokens, torch.stack(laws), 1)


def best(row, plan, one_hot=False):
    """The draft's best tokens: as points, or with the one-hot law that they were "drawn" from."""
    made = argmax_claiming_softmax(row, plan)
    laws = torch.eye(5, dtype=torch.float64)[made.tokens[1:]] if one_hot else None
    return DraftTree.chain(made.tokens.tolist(), laws, 1)


PROPOSALS = {
    "drawn": q_chain(FIVE_DRAFT),
    "points": best,
    "one-hot": lambda row, plan: best(row, plan, one_hot=True),
}


@RULES
@pytest.mark.parametrize("proposal", PROPOSALS)
def test_L45_one_drafted_token_recovers_the_law(proposal, rule):
    options = {"max_tokens": 3, "temperature": 1.0, "verification": rule}
    assert gap(FIVE, Custom(PROPOSALS[proposal]), (1,), options) <= TOLERANCE


def test_L45_an_argmax_draft_that_claims_a_softmax_is_seen():
    options = {"max_tokens": 3, "temperature": 1.0, "verification": "ratio"}
    assert gap(FIVE, Custom(argmax_claiming_softmax), (1,), options) > CAUGHT


def emitted(rule: str, draws: int, draft=None) -> list[int]:
    """First tokens of many one-step verifications; p and q are fixed, each draw has a seed of its own."""
    p = torch.tensor([[0.4, 0.25, 0.2, 0.1, 0.05]] * 2, dtype=torch.float64)
    q = torch.tensor([[0.1, 0.3, 0.1, 0.2, 0.3]], dtype=torch.float64)
    out = [0] * 5
    for seed in range(draws):
        noise = SplitMix(seed)
        token = noise.categorical(q[0], 1, DRAFT, 1) if draft is None else draft
        verdict = verify(DraftTree.chain([0, token], q if draft is None else None, 1), p, noise, rule, 1, 1)
        out[token if verdict.path else verdict.token] += 1
    return out


@RULES
@pytest.mark.parametrize("draft", [None, 1], ids=["drawn", "deterministic"])
def test_L45_many_draws_with_real_noise(draft, rule):
    n = 6_000
    counts = emitted(rule, n, draft)
    assert chisquare(counts, [n * v for v in (0.4, 0.25, 0.2, 0.1, 0.05)]).pvalue > REJECT


THREE = toy(3, seed=31, sharpness=0.8)
THREE_DRAFT = TableModel.random(3, order=2, seed=32, sharpness=0.8)


@RULES
@pytest.mark.parametrize("k", [1, 2, 3])
def test_L46_three_positions_have_the_product_law(rule, k):
    options = {"max_tokens": 4, "temperature": 1.0, "verification": rule}
    assert gap(THREE, Custom(q_chain(THREE_DRAFT)), (k,), options) <= TOLERANCE


def test_L46_zeroing_only_the_refused_token_is_seen(monkeypatch):
    def wrong(p, q):
        rest = p.clone()
        rest[int((q - p).argmax())] = 0.0
        return rest / rest.sum()

    monkeypatch.setattr(verify_module, "residual", wrong)
    options = {"max_tokens": 4, "temperature": 1.0, "verification": "ratio"}
    assert gap(THREE, Custom(q_chain(THREE_DRAFT)), (2,), options) > CAUGHT


FOUR = toy(4, seed=41, sharpness=0.9)
FOUR_DRAFT = TableModel.random(4, order=1, seed=42, sharpness=0.9)


def top(width: int, draft: TableModel = FOUR_DRAFT):
    """The likeliest tokens under one node, as points."""

    def one(row, plan):
        order = draft_law(draft, row, ()).argsort(descending=True).tolist()
        return within(plan, [row.tokens[-1], *order[:width]], [-1, *[0] * width])

    return one


def with_replacement(row, plan):
    """Siblings drawn independently: equal ones are one node, and all are points."""
    q = draft_law(FOUR_DRAFT, row, ())
    drawn = [row.noise.categorical(q, len(row.tokens), DRAFT, row.turn + 1000 * i) for i in range(3)]
    distinct = list(dict.fromkeys(drawn))
    return within(plan, [row.tokens[-1], *distinct], [-1, *[0] * len(distinct)])


SIBLINGS = {"deterministic": top(4), "without": q_tree(FOUR_DRAFT), "with": with_replacement}


@RULES
@pytest.mark.parametrize("siblings", SIBLINGS)
def test_L47_siblings_however_drawn_leave_the_law(siblings, rule):
    options = {"max_tokens": 3, "temperature": 1.0, "verification": rule}
    assert gap(FOUR, Custom(SIBLINGS[siblings]), (1, 4, 4), options) <= TOLERANCE


@pytest.mark.parametrize("order", ["sorted", "top"])
def test_L47_siblings_that_were_not_drawn_as_claimed_are_seen(order):
    options = {"max_tokens": 3, "temperature": 1.0, "verification": "ratio"}
    assert gap(FOUR, Custom(q_tree(FOUR_DRAFT, order=order)), (1, 2, 2), options) > CAUGHT


SIX = toy(6, seed=51, sharpness=1.1)
SIX_DRAFT = TableModel.random(6, order=1, seed=52, sharpness=1.1)


def top_tree(row, plan):
    """Two of the likeliest, and two below each of them."""
    first = draft_law(SIX_DRAFT, row, ()).argsort(descending=True).tolist()[:2]
    below = [draft_law(SIX_DRAFT, row, (x,)).argsort(descending=True).tolist()[:2] for x in first]
    return within(plan, [row.tokens[-1], *first, *below[0], *below[1]], [-1, 0, 0, 1, 1, 2, 2])


@RULES
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_L48_point_trees_of_depth_two(temperature, rule):
    options = {"max_tokens": 4, "temperature": temperature, "top_p": 0.8, "verification": rule}
    assert gap(SIX, Custom(top_tree), (2, 2, 6), options) <= TOLERANCE


@pytest.mark.parametrize("temperature, top_p", [(0.3, 0.8), (1.0, 0.6), (1.5, 0.6)])
def test_L48_drawn_trees_of_depth_two(temperature, top_p):
    """Under ratio only: coupled does not look at the law of a proposal. A smaller nucleus where all outcomes are too many."""
    options = {"max_tokens": 4, "temperature": temperature, "top_p": top_p, "verification": "ratio"}
    assert gap(SIX, Custom(q_tree(SIX_DRAFT)), (2, 2, 3), options) <= TOLERANCE


@RULES
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_L49_the_temperature_reaches_the_verifier(temperature, rule):
    options = {"max_tokens": 4, "temperature": temperature, "verification": rule}
    assert gap(THREE, ModelDrafter(THREE_DRAFT, 3), (2,), options) <= TOLERANCE
    assert distance(World(THREE).joint(PROMPT, options), World(THREE).joint(PROMPT, options | {"temperature": 1.0})) > 0.05


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_L49_many_seeds_follow_the_softmax(temperature):
    """The second token of many seeded requests, drafted right, wrong and not at all."""
    n, engine = 1000, fixed(THREE, ModelDrafter(THREE_DRAFT, 3), 2, reuse=False)
    rows = [
        engine.add([0], SamplingParams(max_tokens=3, temperature=temperature, seed=seed)) for seed in range(n)
    ]  # after 0 the toy says 1, surely
    while not all(row.done for row in rows):
        engine.step()
    counts = [sum(row.output[1] == token for row in rows) for token in range(3)]
    wanted = softmax([float(v) / temperature for v in THREE.next_logits([0, 1])])
    assert chisquare(counts, [n * v for v in wanted]).pvalue > REJECT


@every_draft
def test_L49_the_same_seed_gives_the_same_output(kind, k):
    options = {"max_tokens": 24, "temperature": 0.5, "seed": 9}
    wanted = plain(WIDE, [1, 2, 3], options)
    engine = engine_of(WIDE, kind, k)
    for _ in range(2):
        same(finish(engine, [1, 2, 3], options), wanted)


def test_L49_text_follows_the_seed_too():
    codec = words(12)
    options = {"max_tokens": 16, "temperature": 0.5, "seed": 1}
    wanted = plain(WIDE, [1], options, codec)
    assert wanted.text
    same(speculate(WIDE, [1], options, "mixed", 5, codec), wanted)


FILTERS = {
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.35},
    "typical_p": {"typical_p": 0.5},
    "together": {"top_k": 5, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.9},
}


def inside(prompt, output, options) -> bool:
    world = World(WIDE)
    return all(world.probabilities(prompt, output[:i], options)[t] > 0 for i, t in enumerate(output))


@every_draft
@pytest.mark.parametrize("name", FILTERS)
def test_L50_nothing_outside_the_filters(name, kind, k):
    """The drafts are right, wrong or both, so the tokens are drafted ones, corrections and bonus tokens."""
    options = {"max_tokens": 32, "temperature": 1.5, "seed": 3} | FILTERS[name]
    found = speculate(WIDE, [1, 2], options, kind, k)
    same(found, plain(WIDE, [1, 2], options))
    assert inside([1, 2], found.token_ids, options)


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("name", FILTERS)
def test_L50_a_draft_law_without_filters_brings_nothing_in(name, k):
    """The draft proposes from its whole, unfiltered law: tokens outside the target's support must be refused."""

    def unfiltered(row, plan):
        tokens, laws = [row.tokens[-1]], []
        for i in range(plan.depth):
            q = WIDE_DRAFT.next_logits([*row.tokens, *tokens[1:]]).div(1.5).softmax(0)
            tokens.append(row.noise.categorical(q, len(row.tokens) + i, DRAFT, row.turn))
            laws.append(q)
        return DraftTree.chain(tokens, torch.stack(laws), 1)

    options = {"max_tokens": 24, "temperature": 1.5, "verification": "ratio"} | FILTERS[name]
    drafter = Custom(unfiltered)
    engine = fixed(WIDE, drafter, k)
    for seed in range(4):
        found = finish(engine, [1, 2], options | {"seed": seed})
        assert inside([1, 2], found.token_ids, options)
        assert 0 <= found.stats.accepted_tokens < found.stats.draft_tokens


def near_equal() -> TableModel:
    """Three tokens of nearly equal probability after every token, and one that is hopeless."""
    return TableModel(torch.tensor([[1.0, 1.02, 0.98, -40.0]] * 5, dtype=torch.float64), 1)


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_L51_sampling_is_not_argmax(k, rule):
    target = near_equal()
    draft = TableModel(torch.tensor([[0.0, 2.0, 1.0, 0.5]] * 5), 1)
    engine = fixed(target, ModelDrafter(draft, 4), k, reuse=False)
    options = {"temperature": 1.0, "max_tokens": 5, "verification": rule, "logprobs": 4}
    rows = [engine.add([0], SamplingParams.build(options | {"seed": seed})) for seed in range(300)]
    while not all(row.done for row in rows):
        engine.step()
    wanted = softmax([1.0, 1.02, 0.98, -40.0])
    for place in range(1, 5):
        counts = [sum(row.output[place] == token for row in rows) for token in range(3)]
        assert min(counts) > 0
        assert chisquare(counts, [300 * v / sum(wanted[:3]) for v in wanted[:3]]).pvalue > REJECT
    for row in rows:
        for token, told in zip(row.output, row.logprobs):
            assert told.logprob == pytest.approx(math.log(wanted[token]), abs=1e-9)
            assert told.asked == pytest.approx(told.logprob, abs=1e-9)


def test_L52_a_mismatch_emits_the_very_token_that_was_drawn():
    """Accept only a drawn token: exact, since what is emitted on a mismatch is that draw, with every draft and without one."""
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]] * 2, dtype=torch.float64)
    for rule in ("coupled", "ratio"):
        for seed in range(60):
            alone = verify(DraftTree.chain([0]), p, SplitMix(seed), rule, 7, 1).token
            for draft in range(4):
                verdict = verify(DraftTree.chain([0, draft], source=1), p, SplitMix(seed), rule, 7, 1)
                assert (draft if verdict.path else verdict.token) == alone
                assert bool(verdict.path) == (draft == alone)


def test_L52_drawing_anew_from_a_residual_would_be_seen(monkeypatch):
    """The biased variant: accept the draft if a draw from p equals it, else draw again, from (p - q)+."""

    def wrong(made, p, noise, position, turn):
        token = noise.categorical(p[0], position, 0, turn)
        if len(made) == 1:
            return Verdict((), token)
        if token == int(made.tokens[1]):
            return Verdict((1,), noise.categorical(p[1], position + 1, 0, turn))
        return Verdict((), noise.categorical(verify_module.residual(p[0], made.q[0]), position, 2, turn))

    monkeypatch.setattr(verify_module, "ratio", wrong)
    options = {"max_tokens": 3, "temperature": 1.0, "verification": "ratio"}
    assert gap(FIVE, Custom(q_chain(FIVE_DRAFT)), (1,), options) > CAUGHT


@RULES
def test_L52_both_rules_are_exact_for_the_same_proposals(rule):
    options = {"max_tokens": 4, "temperature": 1.0, "verification": rule}
    assert gap(THREE, ModelDrafter(THREE_DRAFT, 3), (2,), options) <= TOLERANCE


@every_draft
def test_L53_a_seed_holds_alone_and_beside_others(kind, k):
    """T = 2, as in the report; the neighbours come, go and have seeds of their own."""
    options = {"max_tokens": 20, "temperature": 2.0, "seed": 42}
    wanted = plain(WIDE, [3, 1], options)
    engine = engine_of(WIDE, kind, k)
    same(finish(engine, [3, 1], options), wanted)
    others = [
        engine.add([3, 1], SamplingParams(max_tokens=4, temperature=2.0, seed=7)),
        engine.add([5] * 9, SamplingParams(max_tokens=30, temperature=0.0)),
        engine.add([3, 1, 4], SamplingParams(max_tokens=11, temperature=1.0)),
    ]
    same(finish(engine, [3, 1], options), wanted)
    for other in others:
        engine.abort(other)
    assert finish(engine, [3, 1], options | {"seed": 43}).token_ids != wanted.token_ids


def test_L53_the_ratio_rule_repeats_with_its_seed():
    """Under ratio a seed fixes the output for one drafter and one plan."""
    options = {"max_tokens": 20, "temperature": 2.0, "verification": "ratio", "seed": 42}
    engine = fixed(WIDE, ModelDrafter(WIDE_DRAFT, 12), 3)
    first = finish(engine, [3, 1], options)
    engine.add([4, 4, 4], SamplingParams(max_tokens=30, temperature=1.0))
    assert finish(engine, [3, 1], options).token_ids == first.token_ids
    assert finish(engine, [3, 1], options | {"seed": 43}).token_ids != first.token_ids


@pytest.mark.parametrize("kind", ["oracle", "wrong", "self"])
def test_L54_requests_without_a_seed_differ(kind):
    engine = fixed(WIDE, ModelDrafter(WIDE, 12), 3) if kind == "self" else Engine(WIDE)
    if kind == "wrong":
        engine = fixed(
            WIDE, Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], 0, 0, 0][: plan.depth + 1], source=1)), 3
        )
    found = {finish(engine, [1], {"max_tokens": 8, "temperature": 1.0}).token_ids for _ in range(20)}
    assert len(found) > 15


@every_draft
def test_L54_choices_of_one_request_differ(kind, k):
    options = {"max_tokens": 16, "temperature": 1.0, "n": 3, "seed": 5}
    found = speculate(WIDE, [2, 2], options, kind, k)
    same(found, plain(WIDE, [2, 2], options))
    assert len({choice.token_ids for choice in found.choices}) == 3
    for i, choice in enumerate(found.choices):
        alone = plain(WIDE, [2, 2], options | {"n": 1, "seed": 5 + i})
        assert (choice.index, choice.token_ids) == (i, alone.token_ids)


def test_L54_choices_without_a_seed_differ():
    engine = fixed(WIDE, ModelDrafter(WIDE_DRAFT, 12), 3)
    found = finish(engine, [2, 2], {"max_tokens": 16, "temperature": 1.0, "n": 2})
    assert found.choices[0].token_ids != found.choices[1].token_ids


@pytest.mark.parametrize("rule", ["auto", "greedy", "coupled", "ratio"])
@pytest.mark.parametrize("with_q", [True, False], ids=["q", "points"])
@pytest.mark.parametrize("k", LENGTHS)
def test_L55_greedy_takes_the_argmax_whatever_q_says(k, with_q, rule):
    """p = {a: .3, b: .5}, the draft says a with .2: accepting where p >= q would let a through."""
    a, b = 0, 1
    target = TableModel(torch.tensor([[0.3, 0.5, 0.1, 0.1]] * 5, dtype=torch.float64).log(), 1)
    q = torch.tensor([[0.2, 0.3, 0.25, 0.25]], dtype=torch.float64)

    def one(row, plan):
        n = plan.depth
        return DraftTree.chain([row.tokens[-1], *[a] * n], q.repeat(n, 1) if with_q else None, 1)

    found = speculate(target, [2], {"max_tokens": 9, "verification": rule}, Custom(one), k)
    assert found.token_ids == (b,) * 9


@pytest.mark.parametrize("rule", ["auto", "ratio"])
def test_L55_siblings_in_greedy_mode(rule):
    """The argmax may be any of the siblings; a longer branch below another one must not win."""
    target = TableModel(torch.tensor([[0.3, 0.5, 0.1, 0.1]] * 5, dtype=torch.float64).log(), 1)
    made = Custom(
        lambda row, plan: (
            tree([row.tokens[-1], 0, 1, 1, 1], [-1, 0, 0, 1, 3]) if plan.depth >= 3 else DraftTree.chain(row.tokens[-1:])
        )
    )
    found = finish(fixed(target, made, 3, 2, 4), [2], {"max_tokens": 9, "verification": rule})
    assert found.token_ids == (1,) * 9
