"""The exact joint law behind vertical cascades of two and three levels, under every rule; total variation at most 1e-12.

The lighter model's tokens are drawn by an engine of its own, whose drafter points or draws; its law is the claim. What a broken
cascade would claim is caught.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact.joint import CAUGHT, TOLERANCE, gap, toy

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.tree import DraftTree
from surefoot.drafters.cascade import Below, CascadeDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter

TWO, THREE = toy(2, seed=3, sharpness=0.9), toy(3, seed=4)
MIDDLES = {2: TableModel.random(2, 2, seed=8, sharpness=1.0), 3: TableModel.random(3, 2, seed=9, sharpness=1.6)}
LIGHT = {2: TableModel.random(2, 2, seed=18, sharpness=1.0), 3: TableModel.random(3, 2, seed=19, sharpness=1.6)}
RULES = ["ratio", "block", "traversal", "kseq", "coupled", "auto"]


def params(rule, tokens=5, **options) -> SamplingParams:
    return SamplingParams(**{"max_tokens": tokens, "temperature": 1.0, "verification": rule} | options)


def inner(model: TableModel, below, k: int, names=()) -> Engine:
    drafters = [Below(each) for each in (*names, below)]
    return Engine(model, drafters, FixedController(below.name, k), reuse=False)


def cascade(target: TableModel, bottom, k: int = 3, inner_k: int = 1, kind=CascadeDrafter, **options) -> Engine:
    """Target, a lighter model, and ``bottom`` (a drafter of source 1)."""
    vocab = target.traits.vocab_size
    top = kind(inner(MIDDLES[vocab], bottom, inner_k), vocab, source=2, **options)
    return Engine(target, [bottom, top], FixedController("cascade", k), reuse=False)


def three(target: TableModel, k: int = 2, inner_k: int = 1) -> Engine:
    """Target, a lighter model, a lighter one still, and lookup."""
    vocab = target.traits.vocab_size
    lookup = NgramDrafter(source=1)
    low = CascadeDrafter(inner(LIGHT[vocab], lookup, inner_k), vocab, name="low", source=2)
    top = CascadeDrafter(inner(MIDDLES[vocab], low, inner_k, [lookup]), vocab, source=3)
    return Engine(target, [lookup, low, top], FixedController("cascade", k), reuse=False)


BOTTOMS = {"points": lambda vocab: NgramDrafter(source=1), "drawn": lambda vocab: ModelDrafter(LIGHT[vocab], vocab, source=1)}


class Seen(CascadeDrafter):
    """Keeps what it drafted."""

    def propose(self, rows, plans):
        trees = super().propose(rows, plans)
        self.drafts = [*getattr(self, "drafts", []), *trees]
        return trees


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bottom", BOTTOMS)
def test_two_levels(rule, bottom):
    engine = cascade(TWO, BOTTOMS[bottom](2), kind=Seen)
    # under coupling all levels draw at each place, which an enumeration takes for independent
    assert gap(engine, params(rule, tokens=4 if rule == "coupled" and bottom == "drawn" else 5)) <= TOLERANCE
    drafts = engine.drafters["cascade"].drafts
    assert len({len(tree) for tree in drafts}) > 1
    assert any(1 in tree.source.tolist() for tree in drafts), "nothing from below was ever agreed to"
    assert all((tree.q is not None) == (len(tree) > 1 and rule != "coupled") for tree in drafts)
    assert engine.target.open_slots == 0


@pytest.mark.parametrize("rule", ["ratio", "traversal"])
@pytest.mark.parametrize(
    "options", [{"steps": 1}, {"steps": 2}, {"confidence": 0.55}, {"steps": 1, "confidence": 0.4}], ids=str
)
def test_drafts_that_end_for_what_was_drawn(rule, options):
    """One pass of the lighter model brings one token or two, by what was drafted below; little confidence ends a draft."""
    engine = cascade(TWO, NgramDrafter(source=1), k=3, kind=Seen, **options)
    assert gap(engine, params(rule)) <= TOLERANCE
    assert len({len(tree) for tree in engine.drafters["cascade"].drafts}) > 1


@pytest.mark.parametrize("rule", ["ratio", "block", "traversal"])
@pytest.mark.parametrize("bottom", BOTTOMS)
def test_two_levels_of_three_tokens(rule, bottom):
    assert gap(cascade(THREE, BOTTOMS[bottom](3), k=1), params(rule, tokens=3)) <= TOLERANCE


@pytest.mark.parametrize("rule", ["ratio", "block", "traversal", "coupled"])
def test_three_levels(rule):
    engine = three(TWO)
    assert gap(engine, params(rule, tokens=4 if rule == "coupled" else 5)) <= TOLERANCE


def test_three_levels_of_longer_drafts():
    assert gap(three(TWO, k=3, inner_k=2), params("traversal")) <= TOLERANCE


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.7}, {"top_p": 0.8}, {"repetition_penalty": 1.6}, {"min_p": 0.3}, {"logit_bias": {0: 1.0}}],
    ids=str,
)
def test_options_shape_all_levels(options):
    plain = Engine(TWO, reuse=False)
    from exact.joint import distance, observed

    asked = params("traversal", tokens=5, **options)
    engine = cascade(TWO, NgramDrafter(source=1))
    assert distance(observed(engine, asked, 5), observed(plain, asked, 5)) <= TOLERANCE


def broken(change):
    """A cascade whose trees are changed before they are verified."""

    class Broken(CascadeDrafter):
        def propose(self, rows, plans):
            return [change(tree) for tree in super().propose(rows, plans)]

    return Broken


def flat(tree: DraftTree) -> DraftTree:
    """Claims that all tokens were equally likely."""
    return tree if tree.q is None else replace(tree, q=torch.full_like(tree.q, 1.0 / tree.q.shape[-1]))


def shifted(tree: DraftTree) -> DraftTree:
    """Claims each token's law for the token before it."""
    return tree if tree.q is None or len(tree) < 3 else replace(tree, q=tree.q.roll(-1, 0))


def pointed(tree: DraftTree) -> DraftTree:
    """Claims points where tokens were drawn: safe, as points always are."""
    return replace(tree, q=None)


@pytest.mark.parametrize(
    "change, caught", [(flat, True), (shifted, True), (pointed, False)], ids=lambda x: getattr(x, "__name__", x)
)
def test_a_wrong_claim_is_caught(change, caught):
    engine = cascade(TWO, NgramDrafter(source=1), kind=broken(change))
    found = gap(engine, params("ratio"))
    assert found > CAUGHT if caught else found <= TOLERANCE


def test_dropping_a_doubtful_token_is_caught():
    """Ending behind a token is exact; taking it back is not."""

    def without_last(tree: DraftTree) -> DraftTree:
        if tree.q is None or float(tree.q[-1][tree.tokens[-1]]) >= 0.55:
            return tree
        return DraftTree.chain(tree.tokens.tolist()[:-1], tree.q[:-1] if len(tree) > 2 else None, 2)

    assert gap(cascade(TWO, NgramDrafter(source=1), kind=broken(without_last)), params("ratio")) > CAUGHT
