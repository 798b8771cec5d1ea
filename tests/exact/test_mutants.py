"""Known wrong variants must be caught: each moves the joint law by more than 1e-3.

The mutants of the rules are the shipped functions with one line changed, so that they stay close to what is shipped.
"""

from __future__ import annotations

import inspect
import textwrap

import pytest
import torch
from exact.joint import CAUGHT, TOLERANCE, draft_law, engine_of, gap, q_chain, q_tree, toy
from toys import Custom

from surefoot.backends.table import TableModel
from surefoot.core import verify
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Verdict
from surefoot.core.tree import DraftTree
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.script import ScriptDrafter

TARGET = toy(3, seed=4)
DRAFT = TableModel.random(3, order=2, seed=9, sharpness=0.9)
PARAMS = SamplingParams(max_tokens=4, temperature=1.0, verification="ratio")
COUPLED = SamplingParams(max_tokens=4, temperature=1.0, verification="coupled")


@pytest.fixture
def mutate(monkeypatch):
    """Replace one piece of one function of ``core.verify``."""

    def change(name: str, old: str, new: str, **extra) -> None:
        source = textwrap.dedent(inspect.getsource(getattr(verify, name)))
        assert source.count(old) == 1, f"the mutant no longer fits {name}(): bring it up to date"
        scope = dict(vars(verify)) | extra
        exec(source.replace(old, new), scope)
        monkeypatch.setattr(verify, name, scope[name])

    return change


def chains():
    return engine_of(TARGET, Custom(q_chain(DRAFT)), 2)


def trees():
    return engine_of(TARGET, Custom(q_tree(DRAFT)), 2, 2, 3)


@pytest.mark.parametrize("make", [chains, trees])
def test_the_shipped_rules_pass_the_same_check(make):
    assert gap(make(), PARAMS) <= TOLERANCE


@pytest.mark.parametrize("make", [chains, trees])
@pytest.mark.parametrize(
    "name, old, new",
    [
        pytest.param("ratio", "residual(current, q)", "verify_without(current, x)", id="scalar-residual"),
        pytest.param("ratio", "residual(current, q)", "p[node]", id="no-residual"),
        pytest.param("ratio", "float(current[x]) / claimed", "claimed / max(float(current[x]), 1e-9)", id="inverted-ratio"),
        pytest.param("ratio", "min(1.0, float(current[x]) / claimed)", "float(current[x])", id="point-rule-for-drawn-tokens"),
        pytest.param("ratio", "current = p[node]", "current = p[0]", id="law-of-another-node"),
        pytest.param("residual", "(p - q).clamp_min_(0.0)", "(p - q).abs_()", id="absolute-residual"),
    ],
)
def test_wrong_ratio_rules(mutate, make, name, old, new):
    mutate(name, old, new, verify_without=verify.without)
    assert gap(make(), PARAMS) > CAUGHT


@pytest.mark.parametrize(
    "old, new",
    [
        pytest.param("rest / mass if float(mass) > 0.0 else rest", "rest", id="not-renormalised"),
        pytest.param("rest[token] = 0.0", "pass", id="not-removed"),
    ],
)
def test_siblings_need_the_law_that_is_left(mutate, old, new):
    mutate("without", old, new)
    assert gap(trees(), PARAMS) > CAUGHT


def test_first_residual_uses_the_law_before_the_draw(mutate):
    mutate(
        "ratio",
        "current = residual(current, q)\n            q = without(q, x)",
        "q = without(q, x)\n            current = residual(current, q)",
    )
    assert gap(trees(), PARAMS) > CAUGHT


def test_argmax_drafts_that_claim_the_softmax():
    def one(row, plan):
        tokens: list[int] = []
        laws = []
        while len(tokens) < plan.depth:
            q = draft_law(DRAFT, row, tokens)
            tokens.append(int(q.argmax()))
            laws.append(q)
        return DraftTree.chain([row.tokens[-1], *tokens], torch.stack(laws) if laws else None, 1)

    assert gap(engine_of(TARGET, Custom(one), 2), PARAMS) > CAUGHT
    # the same tokens as point proposals are exact
    honest = Custom(lambda row, plan: DraftTree.chain(one(row, plan).tokens.tolist(), source=1))
    assert gap(engine_of(TARGET, honest, 2), PARAMS) <= TOLERANCE


def test_dropping_a_token_for_its_own_low_q():
    assert gap(engine_of(TARGET, Custom(q_chain(DRAFT, drop_below=0.3)), 2), PARAMS) > CAUGHT


def test_top_k_siblings_that_claim_q():
    assert gap(engine_of(TARGET, Custom(q_tree(DRAFT, order="top")), 2, 2, 3), PARAMS) > CAUGHT


def test_siblings_listed_in_another_order_than_drawn():
    assert gap(engine_of(TARGET, Custom(q_tree(DRAFT, order="sorted")), 1, 2, 2), PARAMS) > CAUGHT


def test_q_of_another_temperature():
    def one(row, plan):
        honest = q_chain(DRAFT)(row, plan)
        return DraftTree(
            honest.tokens,
            honest.parents,
            None if honest.q is None else honest.q.sqrt() / honest.q.sqrt().sum(-1, True),
            honest.source,
        )

    assert gap(engine_of(TARGET, Custom(one), 2), PARAMS) > CAUGHT


def test_bonus_token_from_the_wrong_node(mutate):
    """The token after a wholly accepted draft must come from the law at its last node."""
    mutate(
        "ratio",
        "return Verdict(tuple(path), noise.categorical(current",
        "return Verdict(tuple(path), noise.categorical(current if children else p[0]",
    )
    assert gap(chains(), PARAMS) > CAUGHT


@pytest.mark.parametrize("rule", ["greedy", "coupled", "ratio"])
def test_missing_bonus_token(monkeypatch, rule):
    """Giving up the token after a wholly accepted draft keeps the law but not the speed: an oracle earns k, not k + 1."""
    target = TableModel.random(7, seed=2, sharpness=30.0)
    options = {"max_tokens": 61, "temperature": 0.0 if rule == "greedy" else 1.0, "seed": 1}
    options |= {} if rule == "greedy" else {"verification": rule}
    said = engine_of(target).generate((0, 1), **options).token_ids

    def earned() -> float:
        drafter = ModelDrafter(target, 7) if rule == "ratio" else ScriptDrafter(lambda row: said, 7)
        return engine_of(target, drafter, 4).generate((0, 1), **options).stats.mean_acceptance_length

    assert earned() == 5.0
    for name in ("greedy", "coupled", "ratio"):
        rule_as_shipped = getattr(verify, name)

        def short(tree, *rest, shipped=rule_as_shipped) -> Verdict:
            verdict = shipped(tree, *rest)
            if len(verdict.path) < len(tree) - 1 or not verdict.path:
                return verdict
            return Verdict(verdict.path[:-1], int(tree.tokens[verdict.path[-1]]))

        monkeypatch.setattr(verify, name, short)
    monkeypatch.setattr("surefoot.core.settle.greedy", verify.greedy)
    assert earned() <= 4.0


@pytest.mark.parametrize(
    "old, new",
    [
        pytest.param(
            "return Verdict(tuple(path), token)",
            "return Verdict(tuple(path), max(token, tokens[min(1, len(tokens) - 1)]))",
            id="emits-the-draft",
        ),
        pytest.param("tokens[child] == token", "True", id="accepts-anything"),
        pytest.param("choose(node, len(path))", "choose(0, len(path))", id="never-leaves-the-root"),
    ],
)
@pytest.mark.parametrize("params", [PARAMS, COUPLED], ids=["ratio", "coupled"])
def test_wrong_walks(mutate, monkeypatch, params, old, new):
    mutate("walk", old, new)
    for name in ("coupled", "ratio"):  # they look `walk` up in the module
        assert getattr(verify, name).__globals__["walk"] is verify.walk
    drafter = Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], *[2, 0, 1][: plan.depth]], source=1))
    assert gap(engine_of(TARGET, drafter, 2), params) > CAUGHT


@pytest.mark.parametrize("params", [PARAMS, COUPLED], ids=["ratio", "coupled"])
def test_a_cache_that_keeps_refused_tokens(params):
    class Leaky(TableModel):
        def commit(self, slots, paths):
            for slot, path in zip(slots, paths):
                wrong = (
                    list(range(len(path)))
                    if len(path) == len(slot.provisional) or not path
                    else [*path[:-1], len(slot.provisional) - 1]
                )
                super().commit([slot], [wrong])

    leaky = Leaky(TARGET.logits, TARGET.order)
    drafter = Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], *[2, 0, 1][: plan.depth]], source=1))
    assert gap(engine_of(leaky, drafter, 2), params) > CAUGHT


def test_filters_that_the_draft_alone_ignores():
    """q must be the filtered law if the token was drawn from it; drawn unfiltered and claimed filtered is wrong."""
    loose = SamplingParams(max_tokens=4, temperature=1.0, verification="ratio", top_k=2)

    def one(row, plan):
        honest = q_chain(DRAFT)(row, plan)
        if honest.q is None:
            return honest
        claimed = 0.9 * honest.q + 0.1 / 3
        return DraftTree(honest.tokens, honest.parents, claimed, honest.source)

    assert gap(engine_of(TARGET, Custom(one), 2), loose) > CAUGHT
