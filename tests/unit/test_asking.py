"""When a dear source of ``hybrid`` is asked: where what it settles is worth more than its time."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from surefoot.core.protocols import Plan, Verdict
from surefoot.drafters.asking import UNKNOWN, Asking, best
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.head_source import HeadSource
from surefoot.drafters.hybrid import HybridDrafter


class Steps:
    def __init__(self, first: float, later: float) -> None:
        self.took = later, first

    def seconds(self, first: bool) -> float:
        return self.took[first]


def test_it_is_asked_from_the_doubt_on_at_which_it_earns_its_time():
    asking = Asking(Steps(0.002, 0.001), None)
    rate = 100.0  # 0.2 tokens in a first step, 0.1 in a later one; it settles 0.4 of a doubt
    assert asking.worth == pytest.approx(0.4)
    assert asking.pays(0.51, True, rate, 1.0)
    assert not asking.pays(0.49, True, rate, 1.0)
    assert asking.pays(0.26, False, rate, 1.0)
    assert not asking.pays(0.24, False, rate, 1.0)


def test_one_that_is_often_right_is_asked_earlier_and_one_that_never_is_hardly_ever():
    for share, low, high in ((0.9, 0.7, 1.0), (0.1, 0.08, 0.25), (0.0, 0.0, 0.08)):
        asking, rng = Asking(Steps(0.001, 0.001), None), random.Random(2)
        for _ in range(600):
            doubt = rng.random()
            asking.learn(doubt, int(rng.random() < share * doubt))
        assert low < asking.worth < high


def test_what_it_spoils_counts_against_it():
    asking = Asking(Steps(0.001, 0.001), None)
    for i in range(200):
        asking.learn(0.5, 1 if i % 2 else -1)
    assert asking.worth < 0.1


def test_where_it_does_not_pay_it_is_asked_seldom_so_that_this_stays_known():
    asking = Asking(Steps(1.0, 1.0), None)
    asked = [asking.pays(0.9, True, 100.0, 1.0) for _ in range(640)]
    assert [i for i, own in enumerate(asked) if own][:6] == [3, 4, 5, 13, 14, 15]
    assert sum(asked[128:]) < 0.03 * 512
    assert not any(asking.pays(0.9, False, 100.0, 1.0) for _ in range(640))
    assert not any(asking.pays(UNKNOWN / 2, True, 100.0, 1.0) for _ in range(640))


def test_before_its_time_is_known_it_is_asked():
    assert Asking(Steps(0.0, 0.0), None).pays(0.01, True, 100.0, 1.0)


def test_a_given_doubt_is_taken_at_its_word():
    asking = Asking(Steps(9.0, 9.0), 0.3)
    assert asking.pays(0.3, True, 100.0, 1.0)
    assert not asking.pays(0.29, True, 100.0, 1.0)
    assert not asking.pays(0.5, True, 100.0, 2.0), "rows that share a pass ask less"
    assert asking.pays(1.0, True, 100.0, 9.0)


def test_where_nobody_says_what_a_second_is_worth():
    asking = Asking(Steps(9.0, 9.0), None)
    assert asking.pays(UNKNOWN, False, 0.0, 1.0)
    assert not asking.pays(0.9 * UNKNOWN, True, 0.0, 1.0)


def test_the_best_is_the_one_that_a_chain_takes():
    assert best([]) == (0.0, None)
    assert best([(0.2, -9), (0.5, -7), (0.5, -3)]) == (0.5, 3)


class Lane:
    """Says token + 1, surely; each step takes ``took`` of a clock."""

    needs = SimpleNamespace(hidden=())
    draft_ids = None
    depth = 8

    def __init__(self, took: float) -> None:
        self.took, self.now, self.steps = took, 0.0, 0

    def root(self, row):
        return ()

    def step(self, states, tokens):
        import torch

        self.now += self.took
        self.steps += 1
        logits = torch.full((len(tokens), 50), -4.0)
        for i, token in enumerate(tokens):
            logits[i, (token + 1) % 50] = 4.0
        return [(*state, token) for state, token in zip(states, tokens, strict=True)], logits

    def observe(self, rows, forest, scores, verdicts): ...

    def forget(self, rows): ...


@pytest.mark.parametrize("took, low, high", [(1e-4, 150, 200), (1.0, 1, 30)])
def test_hybrid_learns_what_a_head_costs_and_asks_by_it(took, low, high):
    """A quick head is asked all the time, a slow one given up."""
    lane = Lane(took)
    head = HeadSource(HeadDrafter(lane, 50, name="hydra", source=2), clock=lambda: lane.now)
    made = HybridDrafter([head])
    row = SimpleNamespace(id=1, tokens=[0, 1], n_prompt=2, done=False, output=[])
    row.base = row
    asked = 0
    for _ in range(200):
        before = lane.steps
        made.propose([row], [Plan("hybrid", 1, 1, 1, rate=100.0)])
        asked += lane.steps > before
        row.tokens.append((row.tokens[-1] * 7 + 3) % 50 if row.tokens[-1] % 5 == 4 else (row.tokens[-1] + 1) % 50)
        made.observe([row], None, None, [Verdict((), row.tokens[-1])])
        head.inner.observe([row], None, None, [None])
    assert low <= asked <= high
