"""The exact joint law with a draft model of another tokenizer, both ways, under every rule.

The target's tokens are a, b, ab; the draft's b, ba, a and, in the larger toy, more that the target lacks. Total variation at
most 1e-12.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact.joint import CAUGHT, TOLERANCE, engine_of, gap, toy
from toys import ToyCodec

from surefoot.backends.table import TableModel
from surefoot.core.params import SamplingParams
from surefoot.drafters.bridge import INTERSECTION, UNIVERSAL, Bridge
from surefoot.drafters.cross import CrossDrafter
from surefoot.drafters.intersection import Intersection
from surefoot.text.spelling import Spelling

RULES = ["coupled", "ratio", "block", "traversal", "kseq"]
TARGET = toy(3, seed=4)
OURS = Spelling(ToyCodec(["a", "b", "ab"]))
SMALL = ["b", "ba", "a"]
LARGE = ["bb", "b", "aa", "a", "aba"]


def drafter(way: str, pieces=SMALL, alike: bool = False, order: int = 2, seed: int = 9) -> CrossDrafter:
    theirs = Spelling(ToyCodec(pieces))
    model = TableModel.random(len(pieces), order, seed, 0.9)
    return CrossDrafter(model, Bridge.of(OURS, theirs, way, way, alike), 3)


def params(rule: str, tokens: int = 4, **options) -> SamplingParams:
    return SamplingParams(**{"max_tokens": tokens, "temperature": 1.0, "verification": rule} | options)


@pytest.fixture(params=RULES)
def rule(request) -> str:
    return request.param


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("way", [INTERSECTION, UNIVERSAL])
@pytest.mark.parametrize("pieces", [SMALL, LARGE], ids=["small", "large"])
def test_the_law_is_the_targets(rule, way, k, pieces):
    made = drafter(way, pieces)
    engine = engine_of(TARGET, made, k)
    assert gap(engine, params(rule)) <= TOLERANCE
    assert made.draft.nodes_scored > 0
    assert made.draft.open_slots == 0


@pytest.mark.parametrize("alike", [False, True], ids=["by-text", "by-token"])
def test_contexts_of_both_kinds(rule, alike):
    assert gap(engine_of(TARGET, drafter(INTERSECTION, LARGE, alike), 2), params(rule)) <= TOLERANCE


@pytest.mark.parametrize("options", [{"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.7, "temperature": 1.4}, {"min_p": 0.5}])
@pytest.mark.parametrize("way", [INTERSECTION, UNIVERSAL])
def test_filtered_laws(rule, way, options):
    """A filter sees the restricted law: its best tokens are the best of the intersection."""
    assert gap(engine_of(TARGET, drafter(way, LARGE), 2), params(rule, **options)) <= TOLERANCE


@pytest.mark.parametrize("floor", [0.3, 0.6])
def test_drafts_that_end_after_an_unlikely_token(rule, floor):
    made = drafter(INTERSECTION, LARGE)
    propose = made.propose
    made.propose = lambda rows, plans: propose(rows, [replace(plan, floor=floor) for plan in plans])
    assert gap(engine_of(TARGET, made, 2), params(rule)) <= TOLERANCE


def test_beside_other_rows(rule):
    beside = [((1, 0, 1, 2, 0, 0, 1), SamplingParams(max_tokens=5)), ((2,), params(rule, tokens=2, seed=7))]
    assert gap(engine_of(TARGET, drafter(INTERSECTION, LARGE), 2, chunk=2), params(rule), beside=beside) <= TOLERANCE


def test_both_ways_report_what_they_drew_from():
    """Under a rule that uses q, drafts of the intersection have it, on the target's vocabulary; drafts of text are points."""
    seen = []
    for way in (INTERSECTION, UNIVERSAL):
        made = drafter(way, LARGE)
        propose = made.propose

        def spy(rows, plans, propose=propose):
            trees = propose(rows, plans)
            seen.extend((way, tree.q) for tree in trees if len(tree) > 1)
            return trees

        made.propose = spy
        engine_of(TARGET, made, 2).generate((0,), max_tokens=30, temperature=1.0, verification="ratio")
    assert {way for way, _ in seen} == {INTERSECTION, UNIVERSAL}
    for way, q in seen:
        if way == UNIVERSAL:
            assert q is None
        else:
            assert torch.allclose(q.sum(-1), torch.ones(len(q), dtype=q.dtype))
            assert float(q[:, 2].max()) == 0.0, "ab is none of the draft's tokens"


@pytest.mark.parametrize("rule", ["ratio", "block", "traversal"])
def test_a_law_that_is_not_renormalised_is_caught(monkeypatch, rule):
    """The reported q must be the law of the intersection: with the draft's own probabilities the output's law is another."""
    choose = Intersection._choose

    def claims_less(self, x):
        token = choose(self, x)
        if self._laws:
            self._laws[-1] = self._laws[-1] * 0.6
        return token

    monkeypatch.setattr(Intersection, "_choose", claims_less)
    assert gap(engine_of(TARGET, drafter(INTERSECTION, LARGE), 2), params(rule)) > CAUGHT
