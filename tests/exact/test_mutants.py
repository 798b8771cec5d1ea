"""Known wrong variants must be caught: each moves the joint law by more than 1e-3.

The mutants of the rules are the shipped functions with one line changed, so that they stay close to what is shipped.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from exact.joint import CAUGHT, TOLERANCE, draft_law, engine_of, gap, q_chain, q_shape, q_tree, toy
from toys import Custom

from surefoot.backends.table import TableModel
from surefoot.core import kseq, settle, traversal, verify
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Verdict
from surefoot.core.tree import DraftTree
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.script import ScriptDrafter

# laws under which a chain's second token often has a mass below 1, and keeps some of it when refused
TARGET = toy(3, seed=7)
DRAFT = TableModel.random(3, order=2, seed=9, sharpness=0.9)
PARAMS = SamplingParams(max_tokens=4, temperature=1.0, verification="ratio")
COUPLED = SamplingParams(max_tokens=4, temperature=1.0, verification="coupled")


FRESH = ["ratio", "block", "traversal", "kseq"]


def by(rule: str) -> SamplingParams:
    return replace(PARAMS, verification=rule)


@pytest.fixture
def mutate(monkeypatch):
    """Replace one piece of one function of ``core.verify``, ``core.traversal`` or ``core.kseq``, wherever it is called."""

    def change(name: str, *pieces: str, **extra) -> None:
        homes = [module for module in (kseq, traversal, verify, settle) if inspect.isfunction(getattr(module, name, None))]
        shipped = getattr(homes[0], name)
        source = textwrap.dedent(inspect.getsource(shipped))
        for old, new in zip(pieces[::2], pieces[1::2], strict=True):
            assert source.count(old) == 1, f"the mutant no longer fits {name}(): bring it up to date"
            source = source.replace(old, new)
        scope = dict(vars(sys.modules[shipped.__module__])) | extra
        exec(source, scope)
        for module in homes:
            monkeypatch.setattr(module, name, scope[name])

    return change


def chains():
    return engine_of(TARGET, Custom(q_chain(DRAFT)), 2)


def trees():
    return engine_of(TARGET, Custom(q_tree(DRAFT)), 2, 2, 3)


def twins():
    """Independent siblings."""
    return engine_of(TARGET, Custom(q_shape(DRAFT, [-1, 0, 0], independent=True)), 1, 2, 2)


@pytest.mark.parametrize("rule", FRESH)
@pytest.mark.parametrize("make", [chains, trees, twins])
def test_the_shipped_rules_pass_the_same_check(make, rule):
    assert gap(make(), by(rule)) <= TOLERANCE


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


@pytest.mark.parametrize("rule", ["ratio", "traversal"])
@pytest.mark.parametrize(
    "old, new",
    [
        pytest.param("rest / mass if float(mass) > 0.0 else rest", "rest", id="not-renormalised"),
        pytest.param("rest[token] = 0.0", "pass", id="not-removed"),
    ],
)
def test_siblings_need_the_law_that_is_left(mutate, rule, old, new):
    mutate("without", old, new)
    assert gap(trees(), by(rule)) > CAUGHT


@pytest.mark.parametrize(
    "rule, old, new",
    [
        ("ratio", "current = residual(current, q)", "current = residual(current, without(q, x))"),
        ("traversal", ".sub_(left)", ".sub_(without(left, x))"),
    ],
)
def test_the_residual_takes_the_law_before_the_draw(mutate, rule, old, new):
    mutate(rule, old, new)
    assert gap(trees(), by(rule)) > CAUGHT


@pytest.mark.parametrize("rule", ["ratio", "traversal"])
def test_independent_siblings_keep_the_whole_law(mutate, rule):
    mutate(rule, "not tree.independent", "x != tokens[child - 1]")
    assert gap(twins(), by(rule)) > CAUGHT


_ACCEPT = "        if path and not noise.accept(mass, here - 1, ACCEPT, turn, node):\n            return None\n"
_BEGIN = "        below, current = children[node], None\n"


@pytest.mark.parametrize("make", [chains, trees])
@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(("(share * current).sub_", "(share / mass * current).sub_"), id="residual-without-mass"),
        pytest.param((".clamp_min_(0.0)", ".abs_()"), id="absolute-residual"),
        pytest.param((", mass = rest, 1.0 / whole, total / whole", " = rest, 1.0 / whole"), id="mass-not-updated"),
        pytest.param(("total / whole", "total"), id="mass-not-normalised"),
        pytest.param(("total + (1.0 - mass)", "total + 1.0"), id="refused-mass-left-out"),
        pytest.param(("current, share, mass = rest, ", "share, mass = "), id="law-not-updated"),
        pytest.param((_ACCEPT, "", _BEGIN, _ACCEPT + _BEGIN), id="accepted-before-the-children"),
        pytest.param(("min(1.0, share *", "min(1.0, share / mass *"), id="child-without-the-mass"),
        pytest.param(("min(1.0, share * float(current[x]) / claimed)", "share * float(current[x])"), id="point-rule"),
        pytest.param(("noise.categorical(current,", "noise.categorical(p[node],"), id="token-from-p"),
        pytest.param(("current = p[node]", "current = p[0]"), id="law-of-another-node"),
        pytest.param(("draw(p, node,", "draw(p, 0,"), id="last-token-from-another-node"),
    ],
)
def test_wrong_traversals(mutate, make, pieces):
    mutate("traversal", *pieces)
    try:
        found = gap(make(), by("traversal"))
    except AssertionError:  # even the root was refused
        found = 1.0
    assert found > CAUGHT


def test_a_child_of_mass_above_one(mutate):
    mutate("traversal", "min(1.0, share * float(current[x]) / claimed)", "share * float(current[x]) / claimed")
    assert gap(chains(), by("traversal")) > CAUGHT


@pytest.mark.parametrize("rule", ["ratio", "traversal"])
def test_siblings_in_another_order_than_drawn(rule):
    listed = traversal.children_of
    with pytest.MonkeyPatch.context() as patch:
        for module in (traversal, verify):
            patch.setattr(module, "children_of", lambda parents: [below[::-1] for below in listed(parents)])
        assert gap(engine_of(TARGET, Custom(q_tree(DRAFT)), 1, 2, 2), by(rule)) > CAUGHT


@pytest.mark.parametrize(
    "name, old, new",
    [
        pytest.param("solve", "return most", "return 1.0", id="rho-is-1"),
        pytest.param("solve", "return most", "return k / 2", id="rho-is-half-of-k"),
        pytest.param("solve", "return most", "return 0.9 * most", id="rho-too-small"),
        pytest.param("solve", "return most", "return float(k)", id="rho-is-k"),
        pytest.param("solve", "below[at] / rho", "below[at]", id="beta-not-divided"),
        pytest.param("solve", "(1.0 - beta) ** k", "(1.0 - beta)", id="one-draft"),
        pytest.param("kseq", "solve(target, q, len(drawn))", "solve(target, q, len(drawn) + 1)", id="one-draft-more"),
        pytest.param("kseq", "target - rho * q", "target - q", id="residual-of-ratio"),
        pytest.param("kseq", "np.maximum(target - rho * q, 0.0)", "np.abs(target - rho * q)", id="absolute-residual"),
        pytest.param("kseq", "np.maximum(target - rho * q, 0.0)", "target", id="no-residual"),
        pytest.param("kseq", "target[x] / (rho * q[x])", "target[x] / q[x]", id="accepted-as-by-ratio"),
        pytest.param("verify", 'rule == "kseq" and tree.independent', 'rule == "kseq"', id="siblings-without-replacement"),
    ],
)
def test_wrong_kseq(mutate, name, old, new):
    mutate(name, old, new)
    make = trees if name == "verify" else twins
    assert gap(make(), by("kseq")) > CAUGHT


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
    mutate("ratio", "draw(p, node,", "draw(p, 0,")
    assert gap(chains(), PARAMS) > CAUGHT


@pytest.mark.parametrize("rule", ["greedy", "coupled", *FRESH])
def test_missing_bonus_token(monkeypatch, rule):
    """Giving up the token after a wholly accepted draft keeps the law but not the speed: an oracle earns k, not k + 1."""
    target = TableModel.random(7, seed=2, sharpness=30.0)
    options = {"max_tokens": 61, "temperature": 0.0 if rule == "greedy" else 1.0, "seed": 1}
    options |= {} if rule == "greedy" else {"verification": rule}
    said = engine_of(target).generate((0, 1), **options).token_ids

    def earned() -> float:
        drafter = ModelDrafter(target, 7) if rule in FRESH else ScriptDrafter(lambda row: said, 7)
        return engine_of(target, drafter, 4).generate((0, 1), **options).stats.mean_acceptance_length

    assert earned() == 5.0
    for name in ("greedy", "coupled", "ratio", "traversal"):
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
    for name in ("coupled", "verify"):  # they look `walk` up in the module
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
