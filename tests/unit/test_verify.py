"""The rules on hand-made trees; their laws are checked by enumeration in tests/exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toys import tree

from surefoot.core.kseq import kseq, solve
from surefoot.core.law import Best
from surefoot.core.noise import ACCEPT, RESIDUAL, TARGET, SplitMix
from surefoot.core.params import SamplingParams
from surefoot.core.traversal import traversal
from surefoot.core.tree import DraftTree
from surefoot.core.verify import FRESH, RULES, choose_rule, coupled, greedy, ratio, residual, verify, without
from surefoot.errors import BadDraft, BadRequest


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


@pytest.mark.parametrize("rule", FRESH)
def test_a_drafted_token_of_claimed_probability_zero_is_refused_loudly(rule):
    q, p = torch.tensor([[0.0, 1.0]]), torch.full((3, 2), 0.5)
    with pytest.raises(BadDraft, match="token 0 was drafted although its q is 0"):
        verify(DraftTree.chain([1, 0], q), p, SplitMix(1), rule, 0, 0)
    twice = tree([0, 1, 1], [-1, 0, 0], torch.tensor([[0.5, 0.5]]))
    p = torch.tensor([[0.75, 0.25]] * 3)
    with pytest.raises(BadDraft, match="token 1 was drafted although its q is 0"):
        verify(twice, p, Told(False, False), rule, 0, 0)
    again = replace(tree([0, 1, 0], [-1, 0, 0], torch.tensor([[0.0, 1.0]])), independent=True)
    with pytest.raises(BadDraft, match="token 0 was drafted although its q is 0"):
        verify(again, p, Told(False, False), rule, 0, 0)


class Asked:
    """Laws that remember which nodes they were asked for."""

    def __init__(self, rows, fail=()):
        self.rows, self.fail, self.nodes = rows, fail, []

    def __getitem__(self, node):
        self.nodes.append(node)
        if node in self.fail:
            raise BadRequest("no token is possible")
        return self.rows[node]

    def draw(self, node, noise, position, lane, turn=0):
        return noise.categorical(self[node], position, lane, turn)


def test_traversal_tests_the_deepest_node_first():
    """Masses by hand: 1/2 at node 1, min(1, 1/2 * 0.4 / 0.2) = 1 at node 2, kept after its refusal."""
    q = torch.tensor([[0.8, 0.2, 0], [0.2, 0.4, 0.4]], dtype=torch.float64)
    p = torch.tensor([[0.4, 0.3, 0.3], [0.4, 0.5, 0.1], [0, 0, 1.0]], dtype=torch.float64)
    chain = DraftTree.chain([2, 0, 0], q)
    noise = Told(True, 2)
    assert traversal(chain, p, noise, 7, 3).path == (1, 2)
    assert noise.asked == [(8, ACCEPT, 3, 2, 1.0), (9, RESIDUAL, 3, [0, 0, 1])]
    # drafted 1 instead: mass 1/2 * 0.5 / 0.4; R = (0.2, 0.25, 0.05) - q is 0 everywhere, so node 1 is refused unasked
    noise = Told(False, 1)
    assert traversal(DraftTree.chain([2, 0, 1], q), p, noise, 7, 3).path == ()
    assert [a[:3] for a in noise.asked] == [(8, ACCEPT, 3), (7, RESIDUAL, 3)]
    assert noise.asked[0][3:] == (2, 0.625)
    assert noise.asked[1][3] == pytest.approx([0, 0.1, 0.3])


def test_traversal_asks_each_node_by_its_own_number():
    """A leaf, its sibling's child, the sibling, in this order; the tests of one position must not share a number."""
    q = torch.tensor([[0.5, 0.4, 0.1], [0.5, 0.5, 0]], dtype=torch.float64)
    p = torch.tensor([[0.2, 0.6, 0.2]] + [[0.3, 0.3, 0.4]] * 3, dtype=torch.float64)
    noise = Told(False, False, True, 2)
    verdict = traversal(tree([0, 0, 1, 0], [-1, 0, 0, 2], q), p, noise, 4, 9)
    assert (verdict.path, verdict.token) == ((2,), 2)
    assert noise.asked[:3] == [
        (4, ACCEPT, 9, 1, 0.4),
        (5, ACCEPT, 9, 3, 0.5),  # 5/6 of its parent, times 0.3 / 0.5
        (4, ACCEPT, 9, 2, round(2 / 3, 6)),  # Z = 1/3 is left of 5/6: 1/3 / (1/3 + 1/6)
    ]
    assert noise.asked[3][:3] == (5, RESIDUAL, 9)
    assert noise.asked[3][3] == pytest.approx([0, 0, 1 / 3])


def test_nodes_without_mass_are_never_looked_at():
    """Nor what is below them: each law costs a pass over the vocabulary."""
    q = torch.full((3, 4), 0.25, dtype=torch.float64)
    made = tree([0, 1, 2, 3, 0, 1], [-1, 0, 0, 1, 3, 2], torch.cat([q, q[:1]]))
    p = torch.tensor([[0.5, 0.0, 0.5, 0.0]] + [[0.25] * 4] * 5, dtype=torch.float64)  # node 1 carries token 1
    for rule, most in (("traversal", {0, 2, 5}), ("ratio", {0, 2, 5})):
        asked = Asked(p)
        verify(made, asked, SplitMix(1), rule, 0, 0)
        assert set(asked.nodes) <= most
        assert len(asked.nodes) == len(set(asked.nodes))


def test_the_law_of_a_refused_leaf_is_not_computed():
    q, p = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    for kept, nodes in ((False, [0]), (True, [0, 1])):
        asked = Asked(p)
        traversal(DraftTree.chain([1, 0], q), asked, Told(kept, 1), 0, 0)
        assert asked.nodes == nodes


def test_a_failure_below_a_refused_node_is_not_reached():
    q = torch.full((2, 2), 0.5, dtype=torch.float64)
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    chain = DraftTree.chain([1, 0, 1], q)
    noise = Told(False, 1)
    assert traversal(chain, Asked(p, fail=[1]), noise, 3, 0).path == ()
    assert noise.asked[0] == (3, ACCEPT, 0, 1, 0.5)  # a leaf of mass 1/2, whatever was drafted below it
    with pytest.raises(BadRequest):
        traversal(chain, Asked(p, fail=[1]), Told(True), 3, 0)
    with pytest.raises(BadRequest):
        traversal(chain, Asked(p, fail=[0]), Told(), 3, 0)


@pytest.mark.parametrize(
    "tiny, dtype", [(1e-17, torch.float64), (1.5e-16, torch.float64), (1e-310, torch.float64), (1e-42, torch.float32)]
)
def test_a_residual_near_nothing_leaves_a_mass_of_one_alone(tiny, dtype):
    """p exceeds q in one token, by less than 1 can tell: refused or not, something must be said."""
    q = torch.tensor([[0.5, 0.5, 0.0]], dtype=dtype)
    p = torch.tensor([[0.5, 0.25, tiny], [1.0, 0, 0]], dtype=dtype)
    twice = tree([0, 1, 0], [-1, 0, 0], q)
    assert float(p[0, traversal(twice, p[[0, 1, 1]], Refusing(), 0, 0).token]) > 0
    verdict = traversal(DraftTree.chain([0, 1], q), p, Told(False, 2), 0, 0)
    assert (verdict.path, verdict.token) == ((), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_root_is_never_refused(dtype):
    """A mass of 1 stays 1 to the last bit, whatever is refused: all tokens are drafted here, so one of them is kept."""
    rng = torch.Generator().manual_seed(5)
    for seed in range(300):
        p, q = (torch.softmax(2 * torch.randn(4, 3, generator=rng, dtype=dtype), -1) for _ in "pq")
        noise = SplitMix(seed)
        left = q[0].clone()
        drafted = []
        for _ in range(3):
            drafted.append(noise.categorical(left, 0, 3))
            left[drafted[-1]] = 0.0
        traversal(tree([0, *drafted], [-1, 0, 0, 0], q[:1]), p, Refusing(), 0, 0)


class Refusing:
    """Accepts what is certain, and nothing else."""

    def accept(self, probability, position, lane, turn=0, index=0):
        return probability >= 1.0

    def categorical(self, weights, position, lane, turn=0, ids=None):
        return int(weights.argmax())


@pytest.mark.parametrize("rule", FRESH)
def test_a_draft_with_the_targets_own_law_is_kept_whole(rule):
    law = torch.softmax(torch.randn(9, 50, generator=torch.Generator().manual_seed(0)), -1)
    for seed in range(30):
        noise = SplitMix(seed)
        drafted = [noise.categorical(law[i], i, 3) for i in range(8)]
        verdict = verify(DraftTree.chain([0, *drafted], law[:8]), law, noise, rule, 0, 0)
        assert len(verdict.path) == 8


def test_a_deep_chain():
    n = 400
    q = torch.tensor([[0.5, 0.5]]).repeat(n, 1)
    p = torch.tensor([[0.6, 0.4]]).repeat(n + 1, 1)
    kept = [len(verify(DraftTree.chain([0] * (n + 1), q), p, SplitMix(s), "block", 0, 0).path) for s in range(5)]
    assert kept == [n] * 5


def test_kseq_asks_for_siblings_with_one_and_the_same_rho():
    q = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.8, 0.1, 0.1]] * 3, dtype=torch.float64)
    made = replace(tree([0, 1, 1], [-1, 0, 0], q), independent=True)
    rho = solve(p[0].numpy(), q[0].numpy(), 2)
    noise = Told(False, False, 0)
    verdict = kseq(made, p, noise, 6, 2)
    assert (verdict.path, verdict.token) == ((), 0)
    chance = round(0.1 / (rho * 0.5), 6)
    assert noise.asked[:2] == [(6, ACCEPT, 2, 0, chance), (6, ACCEPT, 2, 1, chance)]
    assert noise.asked[2][:3] == (6, RESIDUAL, 2)
    assert noise.asked[2][3] == pytest.approx([0.8 - rho * 0.5, 0.0, 0.1])
    assert kseq(made, p, Told(False, True, 1), 6, 2).path == (2,)


@pytest.mark.parametrize(
    "p, q, k, rho",
    [
        ([0.5, 0.5], [0.5, 0.5], 3, 1.0),  # beta(1) = 1
        ([1.0, 0.0], [0.5, 0.5], 2, 1.5),  # beta = 1/2 up to rho = 2: 3/4 = rho / 2
        ([1.0, 0.0], [0.1, 0.9], 3, 2.71),  # beta = 0.1: 1 - 0.9^3 = 0.1 rho
        ([0.7, 0.3], [0.5, 0.5], 1, 1.0),
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5], 1, 1.0),
    ],
)
def test_rho(p, q, k, rho):
    assert solve(torch.tensor(p).double().numpy(), torch.tensor(q).double().numpy(), k) == pytest.approx(rho, abs=1e-7)


def test_rho_of_laws_without_common_support():
    p, q = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 1.0]).double()
    assert 1.0 <= solve(p.numpy(), q.numpy(), 4) <= 4.0
    made = replace(tree([0, 1, 1], [-1, 0, 0], q[None]), independent=True)
    noise = Told(False, False, 0)
    assert kseq(made, torch.stack([p] * 3), noise, 0, 0).token == 0
    assert [a[4] for a in noise.asked[:2]] == [0.0, 0.0]


def test_kseq_is_ratio_where_siblings_were_not_drawn_independently():
    rng = torch.Generator().manual_seed(1)
    p, q = (torch.softmax(torch.randn(3, 5, generator=rng), -1) for _ in "pq")
    made = tree([0, 3, 1], [-1, 0, 0], q[:1])
    assert all(verify(made, p, SplitMix(s), "kseq", 0, 0) == verify(made, p, SplitMix(s), "ratio", 0, 0) for s in range(50))
    chain = DraftTree.chain([0, 3, 1], q[:2])
    assert all(verify(chain, p, SplitMix(s), "kseq", 0, 0) == verify(chain, p, SplitMix(s), "ratio", 0, 0) for s in range(50))


class Operations(TorchDispatchMode):
    """Counts torch's operators by name."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__.split(".")[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_that_numpy_cannot_read_are_looked_at_once(dtype):
    logits = torch.zeros(6, 40, dtype=dtype)
    for node, token in enumerate([3, 7, 7, 1, 0, 39]):
        logits[node, token] = 1.0
    logits[2, 20] = 1.0  # a tie: the smaller id wins
    chain = DraftTree.chain([0, 3, 7, 7, 1, 0])
    with Operations() as operations:
        best = Best(logits)
        before = len(operations.seen)
        verdict = greedy(chain, best)
    assert (verdict.path, verdict.token) == ((1, 2, 3, 4, 5), 39)
    assert operations.seen.count("amax") == 1
    assert set(operations.seen[before:]) <= {"_to_copy", "unbind"}  # the tree's own lists, not the logits


def test_logits_that_numpy_can_read_are_looked_at_where_asked():
    class Rows:
        def __init__(self, rows):
            self.rows, self.asked = rows, []

        def __getitem__(self, node):
            self.asked.append(node)
            return self.rows[node]

    logits = torch.zeros(4, 9)
    logits[range(4), [1, 2, 8, 3]] = 1.0
    best = Best(logits)
    best._rows = Rows(best._rows)
    assert greedy(DraftTree.chain([0, 1, 5, 6]), best).path == (1,)
    assert best._rows.asked == [0, 1]


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
    for rule in ("greedy", "coupled", *FRESH):
        verdict = verify(chain, p, SplitMix(3), rule, 4, 1)
        assert (verdict.path, verdict.token) == ((1, 2), 0)
    with_q = DraftTree(chain.tokens, chain.parents, one_hot(1, 2, 3, 0), chain.source)
    for rule in FRESH:
        assert verify(with_q, p, SplitMix(3), rule, 4, 1) == verify(chain, p, SplitMix(3), "greedy", 4, 1)


@pytest.mark.parametrize(
    "rule, greedy_law, seeded, has_q, chosen",
    [
        ("auto", True, False, True, "greedy"),
        ("ratio", True, True, True, "greedy"),
        ("auto", False, True, True, "coupled"),
        ("auto", False, True, False, "coupled"),
        ("auto", False, False, True, "traversal"),
        ("auto", False, False, False, "coupled"),
        ("coupled", False, False, True, "coupled"),
        ("ratio", False, True, False, "ratio"),
        ("block", False, False, True, "block"),
        ("traversal", True, False, True, "greedy"),
        ("traversal", False, True, False, "traversal"),
        ("kseq", False, False, True, "kseq"),
    ],
)
def test_which_rule_auto_is(rule, greedy_law, seeded, has_q, chosen):
    assert choose_rule(rule, greedy_law, seeded, has_q) == chosen
    assert chosen in RULES


def test_names_are_checked_where_they_are_given():
    for rule in RULES:
        assert SamplingParams(verification=rule).verification == rule
    with pytest.raises(BadRequest, match=r"verification='spectr' is not allowed; give one of auto, greedy, .*, kseq"):
        SamplingParams(verification="spectr")
