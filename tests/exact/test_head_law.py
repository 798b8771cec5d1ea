"""The exact joint law of a trained head's drafts under every rule, with all tokens and with a reduced vocabulary.

The head is a table, so that all outcomes can be enumerated; total variation at most 1e-12.
"""

from __future__ import annotations

import pytest
from exact.joint import CAUGHT, TOLERANCE, engine_of, gap, toy
from toys_heads import TableLane

from surefoot.backends.table import TableModel
from surefoot.core.params import SamplingParams
from surefoot.drafters.head import HeadDrafter

TWO, THREE = toy(2, seed=3, sharpness=0.9), toy(3, seed=4)
DRAFTS = {2: TableModel.random(2, order=2, seed=8, sharpness=1.0), 3: TableModel.random(3, order=2, seed=9, sharpness=1.6)}
RULES = ["ratio", "block", "traversal", "kseq", "coupled"]


def params(rule, tokens=4) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=1.0, verification=rule)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("depth, width, nodes", [(2, 1, 2), (2, 2, 3), (2, 2, 5)])
def test_all_tokens(rule, depth, width, nodes):
    lane = TableLane(DRAFTS[2])
    assert gap(engine_of(TWO, HeadDrafter(lane, 2, name="head"), depth, width, nodes), params(rule)) <= TOLERANCE
    assert lane.steps


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("depth, width, nodes", [(2, 1, 2), (1, 2, 2), (1, 3, 3)])
@pytest.mark.parametrize("ids", [(0, 2), (1,), (2, 0)])
def test_a_reduced_vocabulary(rule, depth, width, nodes, ids):
    lane = TableLane(DRAFTS[3], ids)
    assert gap(engine_of(THREE, HeadDrafter(lane, 3, name="head"), depth, width, nodes), params(rule, 3)) <= TOLERANCE
    assert lane.steps


class Careless(HeadDrafter):
    """Claims the law with two tokens exchanged."""

    def propose(self, rows, plans):
        trees = super().propose(rows, plans)
        for tree in trees:
            if tree.q is not None:
                tree.q[:, [0, 2]] = tree.q[:, [2, 0]]
        return trees


def test_these_tests_catch_a_wrong_claim():
    lane = TableLane(DRAFTS[3], (0, 2))
    assert gap(engine_of(THREE, Careless(lane, 3, name="head"), 2, 1, 2), params("ratio", 3)) > CAUGHT
