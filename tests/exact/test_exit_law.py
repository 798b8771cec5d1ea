"""The exact joint law of early-exit drafts under every rule, with all tokens and with a reduced vocabulary."""

from __future__ import annotations

import pytest
import torch
from exact.joint import CAUGHT, TOLERANCE, engine_of, gap, toy
from toys_exit import exit_head, exit_target

from surefoot.control.confidence import ConfidenceController
from surefoot.control.costs import LiveCosts
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.tree import DraftTree
from surefoot.drafters.early_exit import ExitLane
from surefoot.drafters.head import HeadDrafter
from surefoot.heads.exit import KINDS

TARGETS = {2: exit_target(2, toy(2, seed=3, sharpness=0.9)), 3: exit_target(3, toy(3, seed=4))}
RULES = ["ratio", "block", "traversal", "kseq", "coupled"]


def params(rule, tokens=4) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=1.0, verification=rule)


class Lane(ExitLane):
    """Logits in float64, so that the law that is claimed adds up to 1 within the tolerance."""

    def step(self, states, tokens):
        after, logits = super().step(states, tokens)
        return after, logits.double()


def drafter(vocab, kind, ids=None):
    target = TARGETS[vocab]
    lane = Lane(exit_head(target, kind, None if ids is None else torch.tensor(ids)), target)
    return target, HeadDrafter(lane, vocab, name="early_exit")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("depth, width, nodes", [(2, 1, 2), (2, 2, 3)])
def test_all_tokens(rule, kind, depth, width, nodes):
    target, exit_ = drafter(2, kind)
    target.ran.clear()
    assert gap(engine_of(target, exit_, depth, width, nodes), params(rule)) <= TOLERANCE
    assert any(len(chain) == 2 for chains in target.ran for chain in chains)


@pytest.mark.parametrize("rule", ["ratio", "block", "coupled"])
@pytest.mark.parametrize("ids", [(0, 2), (1,)])
def test_a_reduced_vocabulary(rule, ids):
    target, exit_ = drafter(3, "kangaroo", ids)
    assert gap(engine_of(target, exit_, 2), params(rule, 3)) <= TOLERANCE


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("threshold", [0.55, 0.8])
def test_stopping_behind_an_unsure_token(rule, threshold):
    target, exit_ = drafter(2, "kangaroo")
    costs = LiveCosts(lambda nodes, context: 1.0)
    control = ConfidenceController("early_exit", costs, max_draft=3, threshold=threshold)
    assert gap(Engine(target, [exit_], control, reuse=False), params(rule)) <= TOLERANCE


def test_dropping_the_unsure_token_would_be_caught():
    """What the rule must not do: the token that was drawn decides whether it is verified."""
    target, exit_ = drafter(2, "kangaroo")
    whole = exit_.propose

    def propose(rows, plans):
        trees = whole(rows, plans)
        return [t if t.tokens.tolist()[1:] != [1] else DraftTree.chain(t.tokens[:1].tolist()) for t in trees]

    exit_.propose = propose
    assert gap(engine_of(target, exit_, 1), params("ratio")) > CAUGHT
