"""The rules on hand-made trees; their laws are checked by enumeration in tests/exact."""

from __future__ import annotations

import pytest
import torch
from toys import tree

from surefoot.core.noise import ACCEPT, RESIDUAL, TARGET, SplitMix
from surefoot.core.tree import DraftTree
from surefoot.core.verify import RULES, choose_rule, coupled, greedy, ratio, residual, verify, without
from surefoot.errors import BadDraft


class Told:
    """Noise that says what it is told, and remembers what it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def categorical(self, weights, position, lane, turn=0):
        self.asked.append((position, lane, turn, weights.tolist()))
        return self.answers.pop(0)

    def accept(self, probability, position, lane, turn=0, index=0):
        self.asked.append((position, lane, turn, index, round(probability, 6)))
        return self.answers.pop(0)


def one_hot(*tokens, vocab=4):
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocab).double()


def test_plain_decoding_is_a_tree_of_one_node():
    only = DraftTree.chain([2])
    assert greedy(only, [3]).token == 3
    assert coupled(only, torch.full((1, 4), 0.25), Told(1), 9).token == 1
    assert ratio(only, torch.full((1, 4), 0.25), Told(1), 9, 5) == coupled(only, torch.full((1, 4), 0.25), Told(1), 9)


@pytest.mark.parametrize(
    "best, path, token",
    [([1, 2, 3, 0], (1, 2, 3), 0), ([1, 2, 0, 0], (1, 2), 0), ([1, 3, 3, 3], (1,), 3), ([0, 2, 3, 0], (), 0)],
)
def test_greedy_keeps_the_longest_right_beginning(best, path, token):
    verdict = greedy(DraftTree.chain([0, 1, 2, 3]), best)
    assert (verdict.path, verdict.token) == (path, token)


def test_a_right_token_after_a_wrong_one_does_not_count():
    assert greedy(DraftTree.chain([0, 1, 2, 3]), [2, 2, 3, 1]).path == ()


def test_greedy_follows_the_argmax_child_even_if_the_other_branch_is_longer():
    """Children of each node: the argmax and the second best; the long branch hangs under the second best."""
    t = tree([0, 1, 2, 3, 3, 3], [-1, 0, 0, 2, 3, 4])
    verdict = greedy(t, [1, 2, 3, 3, 3, 3])
    assert (verdict.path, verdict.token) == ((1,), 2)


def test_coupled_asks_once_a_position_on_the_target_lane():
    noise = Told(1, 2, 0)
    verdict = coupled(DraftTree.chain([3, 1, 2, 3]), torch.full((4, 4), 0.25), noise, 20)
    assert (verdict.path, verdict.token) == ((1, 2), 0)
    assert [a[:3] for a in noise.asked] == [(20, TARGET, 0), (21, TARGET, 0), (22, TARGET, 0)]


def test_ratio_asks_for_each_sibling_and_then_for_the_residual():
    q = torch.tensor([[0.5, 0.25, 0.25, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 3, dtype=torch.float64)
    noise = Told(False, False, 3)
    verdict = ratio(tree([0, 0, 2], [-1, 0, 0], q), p, noise, 7, 4)
    assert (verdict.path, verdict.token) == ((), 3)
    first, second, last = noise.asked
    assert first == (7, ACCEPT, 4, 0, 0.2)
    # after the refusal: p is norm((p - q)+) = (0, 0, .05, .4)/.45, q is (0, .5, .5, 0)
    assert second == (7, ACCEPT, 4, 1, round(0.05 / 0.45 / 0.5, 6))
    assert last[:3] == (7, RESIDUAL, 4)
    assert last[3] == pytest.approx([0, 0, 0, 1])


def test_ratio_accepts_with_the_ratio_and_goes_on_from_the_child():
    q = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 1.0, 0]], dtype=torch.float64)
    p = torch.tensor([[0.25, 0.75, 0, 0], [0, 0, 0.5, 0.5], [1.0, 0, 0, 0]], dtype=torch.float64)
    noise = Told(True, True, 0)
    verdict = ratio(DraftTree.chain([3, 0, 2], q), p, noise, 5, 1)
    assert (verdict.path, verdict.token) == ((1, 2), 0)
    assert noise.asked[0] == (5, ACCEPT, 1, 0, 0.5)
    assert noise.asked[1] == (6, ACCEPT, 1, 0, 0.5)
    assert noise.asked[2][:3] == (7, RESIDUAL, 1)
    assert noise.asked[2][3] == [1, 0, 0, 0]


def test_ratio_takes_q_in_any_float_type():
    q = torch.tensor([[0.5, 0.5, 0, 0]], dtype=torch.float32)
    p = torch.tensor([[0.5, 0.5, 0, 0]] * 2, dtype=torch.float64)
    assert ratio(DraftTree.chain([3, 0], q), p, Told(True, 1), 0, 0).path == (1,)


def test_a_drafted_token_of_claimed_probability_zero_is_refused_loudly():
    q = torch.tensor([[0.0, 1.0]])
    with pytest.raises(BadDraft, match="token 0 was drafted although its q is 0"):
        ratio(DraftTree.chain([1, 0], q), torch.full((2, 2), 0.5), SplitMix(1), 0, 0)
    twice = tree([0, 1, 1], [-1, 0, 0], torch.tensor([[0.5, 0.5]]))
    with pytest.raises(BadDraft, match="token 1 was drafted although its q is 0"):
        ratio(twice, torch.tensor([[1.0, 0.0]] * 3), Told(False, False), 0, 0)


def test_residual_and_rest():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
    assert residual(p, q).tolist() == [1.0, 0.0, 0.0]
    assert residual(p, p).tolist() == p.tolist()
    assert without(q, 1).tolist() == pytest.approx([0.5, 0.0, 0.5])
    assert without(torch.tensor([0.0, 1.0]), 1).tolist() == [0.0, 0.0]
    assert q.tolist() == pytest.approx([0.2, 0.6, 0.2])


def test_a_one_hot_law_makes_every_rule_greedy():
    chain = DraftTree.chain([0, 1, 2, 3])
    p = one_hot(1, 2, 0, 1)
    for rule in ("greedy", "coupled", "ratio"):
        verdict = verify(chain, p, SplitMix(3), rule, 4, 1)
        assert (verdict.path, verdict.token) == ((1, 2), 0)
    with_q = DraftTree(chain.tokens, chain.parents, one_hot(1, 2, 3, 0), chain.source)
    assert verify(with_q, p, SplitMix(3), "ratio", 4, 1) == verify(chain, p, SplitMix(3), "greedy", 4, 1)


@pytest.mark.parametrize(
    "rule, greedy_law, seeded, has_q, chosen",
    [
        ("auto", True, False, True, "greedy"),
        ("ratio", True, True, True, "greedy"),
        ("auto", False, True, True, "coupled"),
        ("auto", False, True, False, "coupled"),
        ("auto", False, False, True, "ratio"),
        ("auto", False, False, False, "coupled"),
        ("coupled", False, False, True, "coupled"),
        ("ratio", False, True, False, "ratio"),
    ],
)
def test_which_rule_auto_is(rule, greedy_law, seeded, has_q, chosen):
    assert choose_rule(rule, greedy_law, seeded, has_q) == chosen
    assert chosen in RULES
