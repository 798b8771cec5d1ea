"""The exact joint law of a draft model's trees under every rule; total variation at most 1e-12.

Point trees under ``coupled``, trees drawn without replacement under the rules that use q, both on masked passes and on forks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact.joint import CAUGHT, TOLERANCE, engine_of, gap, toy

from surefoot.backends.table import TableModel
from surefoot.core.params import SamplingParams
from surefoot.core.tree import DraftTree
from surefoot.drafters import model_tree
from surefoot.drafters.model import ModelDrafter

TWO = toy(2, seed=3, sharpness=0.9)
THREE = toy(3, seed=4)
DRAFTS = {2: TableModel.random(2, order=2, seed=8, sharpness=1.0), 3: TableModel.random(3, order=2, seed=9, sharpness=1.6)}
FRESH = ["ratio", "block", "traversal", "kseq"]


def params(rule, tokens=4, **options) -> SamplingParams:
    return SamplingParams(**{"max_tokens": tokens, "temperature": 1.0, "verification": rule} | options)


def forked(draft: TableModel) -> TableModel:
    """The same on a backend that is asked for chains on forks."""
    other = TableModel(draft.logits, draft.order)
    other.traits = replace(other.traits, steady=True)
    return other


class Seen(ModelDrafter):
    """Keeps the shapes of its drafts."""

    def propose(self, rows, plans):
        trees = super().propose(rows, plans)
        self.shapes = getattr(self, "shapes", set()) | {tuple(tree.parents.tolist()) for tree in trees}
        for tree in trees:
            assert (tree.q is not None) == (len(tree) > 1 and rows[0].params.verification != "coupled")
        return trees


@pytest.mark.parametrize("rule", [*FRESH, "coupled"])
@pytest.mark.parametrize("depth, width, nodes", [(1, 2, 2), (2, 2, 3), (2, 2, 5)])
@pytest.mark.parametrize("passes", [lambda draft: draft, forked], ids=["masked", "forked"])
def test_trees_of_two_tokens(rule, depth, width, nodes, passes):
    draft = passes(DRAFTS[2])
    drafter = Seen(draft, 2)
    assert gap(engine_of(TWO, drafter, depth, width, nodes), params(rule)) <= TOLERANCE
    assert any(len(set(shape)) < len(shape) for shape in drafter.shapes), "no tree among the drafts"
    assert max(map(len, drafter.shapes)) <= nodes + 1
    assert draft.open_slots == 0


@pytest.mark.parametrize(
    "rule, depth, width, nodes",
    [("ratio", 1, 3, 3), ("traversal", 1, 3, 3), ("coupled", 1, 3, 3), ("ratio", 2, 3, 3), ("traversal", 2, 3, 4)],
)
def test_trees_of_three_tokens(rule, depth, width, nodes):
    drafter = Seen(DRAFTS[3], 3)
    assert gap(engine_of(THREE, drafter, depth, width, nodes), params(rule)) <= TOLERANCE
    assert any(shape.count(0) > 1 for shape in drafter.shapes)


@pytest.mark.parametrize("rule", ["ratio", "traversal"])
@pytest.mark.parametrize("nodes", [3, 5])
def test_deeper_trees_whose_shape_follows_the_tokens(rule, nodes):
    drafter = Seen(DRAFTS[2], 2)
    assert gap(engine_of(TWO, drafter, 3, 2, nodes), params(rule, tokens=5)) <= TOLERANCE
    assert len([shape for shape in drafter.shapes if len(shape) == nodes + 1]) > 1, "every tree had the same shape"


@pytest.mark.parametrize("rule", ["ratio", "traversal", "coupled"])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.6},
        {"top_k": 2},
        {"top_p": 0.7},
        {"repetition_penalty": 1.7},
        {"logit_bias": {1: 0.8}},
        {"frequency_penalty": 0.9},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_shape_every_node(rule, options):
    drafter = ModelDrafter(DRAFTS[2], 2)
    if "_penalty" not in next(iter(options)) and "logit_bias" not in options:
        assert gap(engine_of(TWO, drafter, 2, 2, 3), params(rule, **options)) <= TOLERANCE
        return
    # laws that depend on the path: plain decoding by enumeration is the reference
    from exact.joint import distance, observed

    engine = engine_of(TWO, drafter, 2, 2, 3)
    request = params(rule, **options)
    assert distance(observed(engine, request, 4), observed(engine_of(TWO), request, 4)) <= TOLERANCE


def test_a_floor_cuts_before_the_draw():
    from surefoot.control.fixed import FixedController
    from surefoot.core.engine import Engine

    class Floor(FixedController):
        def plan(self, rows):
            return [replace(plan, floor=0.3) for plan in super().plan(rows)]

    drafter = Seen(DRAFTS[2], 2)
    engine = Engine(TWO, [drafter], Floor("model", 2, 2, 5), reuse=False)
    assert gap(engine, params("traversal")) <= TOLERANCE
    assert max(map(len, drafter.shapes)) < 6, "nothing was cut"


class Pruned(model_tree.DrawnTree):
    """Drops the last sibling because of its own value."""

    def tree(self, source):
        found = super().tree(source)
        last = int(found.tokens[-1])
        if found.parents.tolist() == [-1, 0, 0] and float(found.q[0, last]) < 0.4:
            return DraftTree(found.tokens[:2], found.parents[:2], found.q, found.source[:2])
        return found


class Sorted(model_tree.DrawnTree):
    """Reports siblings by value, not in the order drawn."""

    def tree(self, source):
        found = super().tree(source)
        tokens, parents = found.tokens.tolist(), found.parents.tolist()
        if parents == [-1, 0, 0] and tokens[1] > tokens[2]:
            return DraftTree(torch.tensor([tokens[0], tokens[2], tokens[1]]), found.parents, found.q, found.source)
        return found


@pytest.mark.parametrize("wrong, plan", [(Pruned, (1, 2, 2)), (Sorted, (1, 2, 2))])
def test_these_tests_catch_a_wrong_tree(monkeypatch, wrong, plan):
    monkeypatch.setattr(model_tree, "DrawnTree", wrong)
    assert gap(engine_of(THREE, ModelDrafter(DRAFTS[3], 3), *plan), params("traversal")) > CAUGHT
