"""Random numbers are functions of their key, independent between keys, and in proportion to the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare, kstest

from surefoot.core.noise import ACCEPT, DRAFT, RESIDUAL, TARGET, Enumerate, Philox, enumerate_law

WEIGHTS = torch.tensor([0.1, 0.0, 0.4, 0.25, 0.25], dtype=torch.float64)
N = 6000


def test_the_same_key_gives_the_same_draw_in_any_order():
    keys = [(position, lane, turn) for position in range(5) for lane in range(4) for turn in range(3)]
    first = {k: Philox(7).categorical(WEIGHTS, *k) for k in keys}
    noise = Philox(7)
    assert {k: noise.categorical(WEIGHTS, *k) for k in reversed(keys)} == first
    assert all(noise.accept(0.5, *k) == Philox(7).accept(0.5, *k) for k in keys)


def test_draws_are_pinned():
    """A change here changes the output of every seed: say so in the changelog."""
    noise = Philox(123)
    assert [noise.categorical(WEIGHTS, position, TARGET) for position in range(12)] == PINNED


PINNED = [2, 2, 0, 2, 4, 4, 3, 2, 3, 4, 4, 3]


def test_draws_follow_the_weights():
    noise = Philox(1)
    seen = np.bincount([noise.categorical(WEIGHTS, i, TARGET) for i in range(N)], minlength=5)
    assert seen[1] == 0
    keep = WEIGHTS.numpy() > 0
    assert chisquare(seen[keep], N * WEIGHTS.numpy()[keep]).pvalue > 1e-4


def test_weights_need_not_be_normalised():
    a, b = Philox(5), Philox(5)
    assert all(a.categorical(WEIGHTS, i, TARGET) == b.categorical(17 * WEIGHTS, i, TARGET) for i in range(100))


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.9, 1.0])
def test_acceptance_has_its_probability(probability):
    noise = Philox(2)
    hits = sum(noise.accept(probability, i, ACCEPT) for i in range(N))
    if probability in (0.0, 1.0):
        assert hits == N * probability
    else:
        assert chisquare([hits, N - hits], [N * probability, N * (1 - probability)]).pvalue > 1e-4


def test_acceptance_numbers_are_uniform():
    """Found by bisection from outside: the number behind a decision is the threshold where it flips."""
    noise = Philox(3)
    numbers = []
    for i in range(400):
        lo, hi = 0.0, 1.0
        for _ in range(20):
            middle = (lo + hi) / 2
            lo, hi = (lo, middle) if noise.accept(middle, i, ACCEPT, 1, 2) else (middle, hi)
        numbers.append(lo)
    assert kstest(numbers, "uniform").pvalue > 1e-4


UNIFORM = torch.full((4,), 0.25)
PAIRS = {
    "lanes target and draft": (lambda n, i: n.categorical(UNIFORM, i, TARGET), lambda n, i: n.categorical(UNIFORM, i, DRAFT)),
    "lanes target and residual": (
        lambda n, i: n.categorical(UNIFORM, i, TARGET),
        lambda n, i: n.categorical(UNIFORM, i, RESIDUAL),
    ),
    "lanes draft and residual": (
        lambda n, i: n.categorical(UNIFORM, i, DRAFT),
        lambda n, i: n.categorical(UNIFORM, i, RESIDUAL),
    ),
    "lanes draft and accept": (lambda n, i: n.categorical(UNIFORM, i, DRAFT, 3), lambda n, i: int(n.accept(0.5, i, ACCEPT, 3))),
    "lanes accept and residual": (lambda n, i: int(n.accept(0.5, i, ACCEPT)), lambda n, i: n.categorical(UNIFORM, i, RESIDUAL)),
    "positions": (lambda n, i: n.categorical(UNIFORM, i, TARGET), lambda n, i: n.categorical(UNIFORM, i + 1, TARGET)),
    "turns": (lambda n, i: n.categorical(UNIFORM, 5, DRAFT, i), lambda n, i: n.categorical(UNIFORM, 5, DRAFT, i + 1)),
    "position and turn": (lambda n, i: n.categorical(UNIFORM, i, TARGET, 1), lambda n, i: n.categorical(UNIFORM, 1, TARGET, i)),
    "siblings": (lambda n, i: int(n.accept(0.5, i, ACCEPT, 0, 0)), lambda n, i: int(n.accept(0.5, i, ACCEPT, 0, 1))),
    "seeds": (lambda n, i: n.categorical(UNIFORM, i, TARGET), lambda n, i: Philox(n.seed + 1).categorical(UNIFORM, i, TARGET)),
    "negative seed": (
        lambda n, i: n.categorical(UNIFORM, i, TARGET),
        lambda n, i: Philox(-n.seed).categorical(UNIFORM, i, TARGET),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_different_keys_are_independent(pair):
    one, other = PAIRS[pair]
    noise = Philox(11)
    a, b = ([f(noise, i) for i in range(2, 3000)] for f in (one, other))
    table = np.zeros((max(a) + 1, max(b) + 1))
    np.add.at(table, (a, b), 1)
    assert chi2_contingency(table).pvalue > 1e-5


def test_the_same_lane_couples_draft_and_target():
    """Two laws that differ a little agree far more often with common noise than with independent noise."""
    q = torch.tensor([0.15, 0.05, 0.35, 0.2, 0.25], dtype=torch.float64)
    noise = Philox(4)
    common = np.mean([noise.categorical(WEIGHTS, i, TARGET) == noise.categorical(q, i, TARGET) for i in range(2000)])
    apart = np.mean([noise.categorical(WEIGHTS, i, TARGET) == noise.categorical(q, i, DRAFT) for i in range(2000)])
    assert common > 0.8 > 0.4 > apart


def test_without_a_seed_every_source_is_new():
    assert len({Philox().seed for _ in range(20)}) == 20


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 + 1, 2**200])
def test_seeds_of_any_size(seed):
    assert 0 <= Philox(seed).categorical(WEIGHTS, 0, TARGET) < 5


def test_large_seeds_differ_from_their_lower_half():
    draws = [[Philox(s).categorical(WEIGHTS, i, TARGET) for i in range(30)] for s in (1, 2**64 + 1)]
    assert draws[0] != draws[1]


def test_enumeration_visits_every_outcome_once_with_its_probability():
    def run(noise):
        first = noise.categorical(torch.tensor([0.5, 0.0, 0.5]), 0, TARGET)
        return (first, noise.accept(0.25, 1, ACCEPT)) if first else (first,)

    assert dict(enumerate_law(run)) == {(0,): 0.5, (2, False): 0.375, (2, True): 0.125}


def test_enumeration_of_certain_decisions_does_not_branch():
    noise = Enumerate([])
    assert noise.accept(1.0, 0, ACCEPT)
    assert not noise.accept(0.0, 0, ACCEPT)
    assert noise.branches == []
    assert noise.probability == 1.0
