"""Random numbers are functions of their key, independent between keys, and in proportion to the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare, kstest

from surefoot.core.noise import ACCEPT, DRAFT, RESIDUAL, TARGET, Enumerate, SplitMix, enumerate_law, exponentials, race

WEIGHTS = torch.tensor([0.1, 0.0, 0.4, 0.25, 0.25], dtype=torch.float64)
N = 6000


def test_the_same_key_gives_the_same_draw_in_any_order():
    keys = [(position, lane, turn) for position in range(5) for lane in range(4) for turn in range(3)]
    first = {k: SplitMix(7).categorical(WEIGHTS, *k) for k in keys}
    noise = SplitMix(7)
    assert {k: noise.categorical(WEIGHTS, *k) for k in reversed(keys)} == first
    assert all(noise.accept(0.5, *k) == SplitMix(7).accept(0.5, *k) for k in keys)


def test_draws_are_pinned():
    """A change here changes the output of every seed: say so in the changelog."""
    noise = SplitMix(123)
    assert [noise.categorical(WEIGHTS, position, TARGET) for position in range(12)] == PINNED


PINNED = [2, 2, 2, 2, 4, 2, 0, 2, 2, 3, 3, 4]


def test_draws_follow_the_weights():
    noise = SplitMix(1)
    seen = np.bincount([noise.categorical(WEIGHTS, i, TARGET) for i in range(N)], minlength=5)
    assert seen[1] == 0
    keep = WEIGHTS.numpy() > 0
    assert chisquare(seen[keep], N * WEIGHTS.numpy()[keep]).pvalue > 1e-4


def test_weights_need_not_be_normalised():
    a, b = SplitMix(5), SplitMix(5)
    assert all(a.categorical(WEIGHTS, i, TARGET) == b.categorical(17 * WEIGHTS, i, TARGET) for i in range(100))


def test_weights_may_come_as_arrays_and_in_single_precision():
    for w in (WEIGHTS.numpy(), WEIGHTS.float(), WEIGHTS.float().numpy()):
        assert all(SplitMix(5).categorical(w, i, TARGET) == SplitMix(5).categorical(WEIGHTS, i, TARGET) for i in range(100))


def test_the_numbers_of_a_race_are_exponential():
    """Over the places of one race, and over the races of one place, neighbours uncorrelated."""
    places = exponentials(12345, np.arange(20_000))
    starts = np.array([exponentials(s, np.array([7]))[0] for s in np.random.default_rng(1).integers(0, 2**63, 4000).tolist()])
    for numbers in (places, starts, exponentials(2**64 - 1, np.arange(20_000))):
        assert numbers.min() > 0.0
        assert np.isfinite(numbers).all()
        assert kstest(numbers, "expon").pvalue > 1e-4
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 4 / np.sqrt(len(numbers))
    assert abs(np.corrcoef(places, exponentials(12346, np.arange(20_000)))[0, 1]) < 4 / np.sqrt(20_000)


def test_a_tokens_number_does_not_depend_on_which_others_run(rng):
    whole = exponentials(99, np.arange(5000))
    for _ in range(20):
        some = np.sort(rng.choice(5000, 50, replace=False))
        assert (exponentials(99, some) == whole[some]).all()
    assert (exponentials(99, np.arange(5000)[::-1]) == whole[::-1]).all()


def test_a_filter_that_keeps_the_winner_keeps_the_draw(rng):
    """So a seed says the same with and without a filter that did not matter, given that all weights are of one order."""
    w = rng.uniform(0.1, 1.0, 300)
    for position in range(60):
        winner = SplitMix(3).categorical(w, position, TARGET)
        kept = np.sort(np.append(rng.choice(np.delete(np.arange(300), winner), 20, replace=False), winner))
        assert SplitMix(3).categorical(w[kept], position, TARGET, ids=kept) == winner
        cut = np.zeros(300)
        cut[kept] = w[kept]
        assert SplitMix(3).categorical(cut, position, TARGET) == winner


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tokens_of_little_weight_win_as_often_as_they_should(dtype):
    """Two heavy tokens and a thousand light ones, which together outweigh them; half of the light ones weigh double."""
    w = np.zeros(1500, dtype)
    w[[3, 700]] = 1.0, 0.5
    light = np.setdiff1d(np.arange(1200), [3, 700])
    w[light] = np.where(light % 2, 0.0008, 0.0004)
    groups = np.zeros(1500, int)
    groups[light] = 2 + light % 2
    groups[light[light >= 900]] += 2
    groups[700] = 1
    groups[1200:] = 6
    rng = np.random.default_rng(8)
    drawn = [groups[race(w, int(start))] for start in rng.integers(0, 2**63, 12_000)]
    seen = np.bincount(drawn, minlength=7)
    expected = np.array([w[groups == g].sum(dtype=np.float64) for g in range(7)])
    assert seen[6] == 0, "tokens of no weight"
    assert chisquare(seen[:6], 12_000 * expected[:6] / expected.sum()).pvalue > 1e-4


def test_light_tokens_that_are_named_win_under_their_names():
    ids = np.array([4, 9, 11, 30])
    w = np.array([1.0, 0.0005, 0.0, 0.0005])
    drawn = {race(w, start, ids) for start in range(0, 2**40, 2**28)}
    assert drawn == {4, 9, 30}


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.9, 1.0])
def test_acceptance_has_its_probability(probability):
    noise = SplitMix(2)
    hits = sum(noise.accept(probability, i, ACCEPT) for i in range(N))
    if probability in (0.0, 1.0):
        assert hits == N * probability
    else:
        assert chisquare([hits, N - hits], [N * probability, N * (1 - probability)]).pvalue > 1e-4


def test_acceptance_numbers_are_uniform():
    """Found by bisection from outside: the number behind a decision is the threshold where it flips."""
    noise = SplitMix(3)
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
    "seeds": (
        lambda n, i: n.categorical(UNIFORM, i, TARGET),
        lambda n, i: SplitMix(n.seed + 1).categorical(UNIFORM, i, TARGET),
    ),
    "negative seed": (
        lambda n, i: n.categorical(UNIFORM, i, TARGET),
        lambda n, i: SplitMix(-n.seed).categorical(UNIFORM, i, TARGET),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_different_keys_are_independent(pair):
    one, other = PAIRS[pair]
    noise = SplitMix(11)
    a, b = ([f(noise, i) for i in range(2, 3000)] for f in (one, other))
    table = np.zeros((max(a) + 1, max(b) + 1))
    np.add.at(table, (a, b), 1)
    assert chi2_contingency(table).pvalue > 1e-5


def test_the_same_lane_couples_draft_and_target():
    """Two laws that differ a little agree far more often with common noise than with independent noise."""
    q = torch.tensor([0.15, 0.05, 0.35, 0.2, 0.25], dtype=torch.float64)
    noise = SplitMix(4)
    common = np.mean([noise.categorical(WEIGHTS, i, TARGET) == noise.categorical(q, i, TARGET) for i in range(2000)])
    apart = np.mean([noise.categorical(WEIGHTS, i, TARGET) == noise.categorical(q, i, DRAFT) for i in range(2000)])
    assert common > 0.8 > 0.4 > apart


def test_without_a_seed_every_source_is_new():
    assert len({SplitMix().seed for _ in range(20)}) == 20


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 + 1, 2**200])
def test_seeds_of_any_size(seed):
    assert 0 <= SplitMix(seed).categorical(WEIGHTS, 0, TARGET) < 5


def test_large_seeds_differ_from_their_lower_half():
    draws = [[SplitMix(s).categorical(WEIGHTS, i, TARGET) for i in range(30)] for s in (1, 2**64 + 1)]
    assert draws[0] != draws[1]


def test_enumeration_visits_every_outcome_once_with_its_probability():
    def run(noise):
        first = noise.categorical(torch.tensor([0.5, 0.0, 0.5]), 0, TARGET)
        return (first, noise.accept(0.25, 1, ACCEPT)) if first else (first,)

    assert dict(enumerate_law(run)) == {(0,): 0.5, (2, False): 0.375, (2, True): 0.125}


def test_enumeration_gives_named_tokens_by_their_names():
    def run(noise):
        return noise.categorical(np.array([0.5, 0.0, 1.5]), 0, TARGET, 0, np.array([7, 8, 9]))

    assert dict(enumerate_law(run)) == {7: 0.25, 9: 0.75}


def test_enumeration_of_certain_decisions_does_not_branch():
    noise = Enumerate([])
    assert noise.accept(1.0, 0, ACCEPT)
    assert not noise.accept(0.0, 0, ACCEPT)
    assert noise.branches == []
    assert noise.probability == 1.0
