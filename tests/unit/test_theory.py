"""Every formula against enumeration or brute force (1e-9), and against Monte Carlo (5 standard errors)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from surefoot.theory import acceptance, batch, cascade, gamma, roofline, simulate, speedup, tree_plan
from surefoot.theory.cascade import Level
from surefoot.theory.checks import curve

ALPHAS = (0.0, 0.1, 0.35, 0.6, 0.85, 0.99, 1.0)


def curve_of(m: int) -> float:
    return 1.0 + 0.08 * (m - 1)


def within(samples: np.ndarray, mean: float) -> bool:
    """5 standard errors."""
    return abs(samples.mean() - mean) <= 5 * samples.std() / math.sqrt(len(samples)) + 1e-12


# acceptance


def test_overlap_is_the_chance_of_acceptance_by_enumeration(rng):
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
        accepted = sum(q[x] * min(1.0, p[x] / q[x]) for x in range(6))
        assert acceptance.overlap(p, q) == pytest.approx(accepted, abs=1e-12)
        assert acceptance.total_variation(p, q) == pytest.approx(1 - accepted, abs=1e-12)
    many = rng.dirichlet(np.ones(6), size=(2, 9))
    assert acceptance.alpha(many[0], many[1]) == pytest.approx(np.mean([acceptance.overlap(a, b) for a, b in zip(*many)]))


@pytest.mark.parametrize("alpha", [0.2, 0.6, 0.9])
def test_alpha_is_found_again_in_a_log(alpha, rng):
    lengths = rng.integers(1, 9, 6000)
    hits = np.array([simulate.accepted(rng, np.full(k, alpha), 1)[0] for k in lengths])
    found = acceptance.from_drafts(hits, lengths)
    assert found.low - 0.02 < alpha < found.high + 0.02
    assert abs(found.value - alpha) < 0.03
    naive = hits.sum() / lengths.sum()  # accepted over drafted: what follows a refusal is counted as refused
    assert naive < found.value
    for a in acceptance.by_position(hits, lengths):
        assert a.low - 0.05 <= alpha <= a.high + 0.05


def test_intervals_hold_what_they_promise(rng):
    covered = 0
    for _ in range(400):
        hits = int((rng.random(60) < 0.7).sum())
        found = acceptance.proportion(hits, 60)
        covered += found.low <= 0.7 <= found.high
    assert 0.92 <= covered / 400 <= 0.99
    assert acceptance.proportion(0, 0) == acceptance.Estimate(0.5, 0.0, 1.0, 0)


def test_positions_are_conditional_and_multiply_to_the_reach():
    hits, lengths = [0, 1, 2, 3, 3, 1], [3, 3, 3, 3, 3, 1]
    found = [e.value for e in acceptance.by_position(hits, lengths)]
    assert found == pytest.approx([5 / 6, 3 / 4, 2 / 3])
    assert acceptance.reach(found) == pytest.approx([5 / 6, 5 / 8, 5 / 12])


def test_alpha_from_the_mean_length():
    for alpha in (0.05, 0.4, 0.93):
        tau = float(speedup.expected_tokens(alpha, 5))
        assert acceptance.from_mean_length(tau, 5) == pytest.approx(alpha, abs=1e-9)


# one draft and one target


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("k", [0, 1, 2, 7, 40])
def test_expected_tokens_by_enumeration_and_simulation(alpha, k, rng):
    law = speedup.length_law(alpha, k)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    mean = float((law * np.arange(1, k + 2)).sum())
    assert float(speedup.expected_tokens(alpha, k)) == pytest.approx(mean, abs=1e-9)
    assert within(simulate.chain_tokens(rng, alpha, k, 4000), mean)
    reach = [alpha**i for i in range(1, k + 1)]
    assert speedup.tokens_from_reach(reach)[-1] == pytest.approx(mean, abs=1e-9)


def test_expected_tokens_near_one_keeps_its_digits():
    for gap in (1e-6, 1e-10, 1e-14):
        alpha = 1 - gap
        assert float(speedup.expected_tokens(alpha, 20)) == pytest.approx(math.fsum(alpha**j for j in range(21)), rel=1e-9)


def test_speedups():
    tokens = gamma.tokens_at(0.7, 6)
    by_hand = [tokens[k] / (k * 0.1 + curve_of(k + 1)) for k in range(7)]
    assert speedup.speedup_measured(tokens, 0.1, curve_of) == pytest.approx(by_hand, abs=1e-12)
    seconds = [0.004 * curve_of(m) for m in range(1, 8)]
    assert speedup.speedup_measured(tokens, 0.1, seconds) == pytest.approx(by_hand, abs=1e-12)
    each = speedup.seconds_per_token(tokens, 0.0004, seconds)
    assert 0.004 / each == pytest.approx(by_hand, abs=1e-12)
    assert speedup.speedup(0.7, 6, 0.1) == pytest.approx(tokens[6] / 1.6)
    # operations: tokens through draft and target over tokens kept
    assert speedup.operations_factor(0.7, 6, 0.1) == pytest.approx((6 * 0.1 + 7) / tokens[6])


def test_the_simulated_run_is_as_fast_as_predicted(rng):
    for alpha, k, c in ((0.3, 1, 0.05), (0.7, 4, 0.05), (0.9, 8, 0.02)):
        runs = np.array([simulate.chain_speedup(rng, alpha, k, c, curve_of, 20_000) for _ in range(30)])
        assert runs.mean() == pytest.approx(speedup.speedup_measured(gamma.tokens_at(alpha, k), c, curve_of)[k], rel=0.01)


def test_break_even():
    for alpha in np.linspace(0.05, 0.95, 19):
        for c in np.linspace(0.02, 1.2, 30):
            best = max(float(speedup.speedup(alpha, k, c)) for k in range(1, 200))
            if abs(c - alpha) > 1e-9:
                assert (best > 1.0) == (c < speedup.break_even(alpha))
            assert max(best, 1.0) >= speedup.least_gain(alpha, c) - 1e-12


def test_the_printed_speed_up_of_rounds():
    assert np.all(speedup.speedup_seed_approximation(np.linspace(0, 1, 9)[:, None], np.linspace(0, 1, 9), 4, 0.05) <= 1.0)
    # with the tokens of a round it is right: all rounds verified gives the textbook formula
    tokens = float(speedup.expected_tokens(0.8, 4))
    assert speedup.speedup_of_rounds(1.0, tokens, 4, 0.05) == pytest.approx(float(speedup.speedup(0.8, 4, 0.05)))
    with pytest.raises(ValueError, match="at least one token"):
        speedup.speedup_of_rounds(0.5, 0.8, 4, 0.05)


# the best draft length


def test_the_best_length_is_that_of_brute_force():
    lengths = np.arange(4000)
    for alpha in np.linspace(0.02, 0.99, 40):
        for c in np.geomspace(0.002, 0.95, 40):
            s = speedup.speedup(alpha, lengths, c)
            best = s.max()
            for found in (gamma.optimal_gamma(alpha, c), gamma.lambert_gamma(alpha, c)):
                assert s[found] == pytest.approx(best, abs=1e-9)
            if alpha <= c:
                assert gamma.optimal_gamma(alpha, c) == 0


def test_the_continuous_optimum_is_a_stationary_point():
    for alpha, c in ((0.5, 0.05), (0.8, 0.1), (0.95, 0.01), (0.3, 0.2)):
        x = gamma.continuous_gamma(alpha, c)

        def s(g, alpha=alpha, c=c):
            return (1 - alpha ** (g + 1)) / (1 - alpha) / (1 + g * c)

        assert s(x) >= max(s(x - 0.01), s(x + 0.01))
        assert abs(s(x + 1e-4) - s(x - 1e-4)) < 1e-7


def test_the_printed_closed_form_loses_this_much():
    alphas, costs = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95), (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    losses = [gamma.seed_loss(a, c) for a in alphas for c in costs]
    assert np.mean(losses) == pytest.approx(0.092, abs=0.002)
    assert max(losses) == pytest.approx(0.409, abs=0.002)
    assert round(gamma.gamma_seed_approximation(0.95, 0.01)) == 170
    assert gamma.optimal_gamma(0.95, 0.01) == 40


def test_the_best_length_under_a_measured_curve():
    tokens = gamma.tokens_at(0.6, 12)
    by_hand = max(range(13), key=lambda k: tokens[k] / (0.05 * k + curve_of(k + 1)))
    assert gamma.optimal_gamma_measured(tokens, 0.05, curve_of) == by_hand
    assert gamma.optimal_gamma_measured(gamma.tokens_at(0.02, 8), 0.2, curve_of) == 0


# cascades


def test_phi_is_the_generating_function_of_a_review():
    a, k = 0.6, 4
    law = speedup.length_law(a, k)
    for x in (0.0, 0.3, 0.9, 1.0, 1.2):
        by_law = sum(p * x**n for n, p in enumerate(law, 1))
        printed = 1 + (x - 1) * (1 - (a * x) ** (k + 1)) / (1 - a * x)
        assert float(cascade.phi(x, a, k)) == pytest.approx(by_law, abs=1e-9)
        assert printed == pytest.approx(by_law, abs=1e-9)


LEVELS = (
    [Level(0.7, 6, 0.1)],
    [Level(0.8, 5, 0.1), Level(0.4, 3, 0.001)],
    [Level(0.7, 3, 0.2), Level(0.6, 2, 0.05), Level(0.5, 4, 0.01)],
    [Level(1.0, 3, 0.2), Level(0.6, 2, 0.05)],
)


@pytest.mark.parametrize("levels", LEVELS)
def test_vertical_cascades(levels, rng):
    tokens = cascade.round_tokens(levels)
    assert within(simulate.vertical_tokens(rng, levels, 8000), tokens)
    steps = np.cumprod([level.steps for level in levels])
    cost = 1 + sum(float(n) * level.c for n, level in zip(steps, levels))
    assert cascade.ewif(levels) == pytest.approx(tokens / cost, abs=1e-12)
    if len(levels) == 1:
        assert cascade.ewif(levels) == pytest.approx(float(speedup.speedup(levels[0].alpha, levels[0].steps, levels[0].c)))
    if len(levels) == 2 and levels[0].alpha < 1:
        one, two = levels
        inner = float(cascade.phi(one.alpha, two.alpha, two.steps)) ** one.steps
        printed = (1 - one.alpha * inner) / ((1 - one.alpha) * (1 + one.steps * one.c + one.steps * two.steps * two.c))
        assert cascade.ewif(levels) == pytest.approx(printed, abs=1e-9)


def test_vertical_tokens_by_enumeration():
    """Two levels, by summing over every outcome of every review."""
    one, two = Level(0.7, 2, 0.1), Level(0.5, 2, 0.01)
    review = speedup.length_law(two.alpha, two.steps)
    mean = 0.0
    for counts in itertools.product(range(1, two.steps + 2), repeat=one.steps):
        chance = math.prod(review[n - 1] for n in counts)
        mean += chance * float(speedup.expected_tokens(one.alpha, sum(counts)))
    assert cascade.round_tokens([one, two]) == pytest.approx(mean, abs=1e-9)


def test_a_cascade_can_beat_its_best_level():
    single = max(float(speedup.speedup(0.8, k, 0.1)) for k in range(30))
    best, n, k = cascade.best_vertical(0.8, 0.1, 0.4, 0.001)
    assert single == pytest.approx(2.47, abs=0.005)
    assert (best, n, k) == (pytest.approx(2.827, abs=0.005), 5, 3)


def test_horizontal_cascades(rng):
    a1, k1, a2, k2 = 0.8, 3, 0.5, 4
    printed = (1 - a1 ** (k1 + 1)) / (1 - a1) + a1**k1 * a2 * (1 - a2**k2) / (1 - a2)
    assert cascade.horizontal_tokens([a1, a2], [k1, k2]) == pytest.approx(printed, abs=1e-9)
    assert within(simulate.horizontal_tokens(rng, [a1, a2], [k1, k2], 20_000), printed)
    assert cascade.horizontal_speedup([a1, a2], [k1, k2], [0.1, 0.01]) == pytest.approx(printed / (1 + 0.3 + 0.04))


def test_the_objective_of_the_dynamic_tree_cascade():
    by_hand = [(sum(0.7**j for j in range(1, k + 1)) + 0.7**k * 0.4) / (0.2 * k + 0.01) for k in range(1, 9)]
    assert [cascade.dytc(0.7, k, 0.2, 0.4, 0.01) for k in range(1, 9)] == pytest.approx(by_hand, abs=1e-12)
    assert cascade.best_dytc(0.7, 0.2, 0.4, 0.01, 8) == (pytest.approx(max(by_hand)), 1 + int(np.argmax(by_hand)))


# trees

CHANCES = (0.55, 0.2, 0.1, 0.03)


def every_tree(nodes: int, depth: int, width: int):
    """(parents, ranks) of every tree whose nodes' elder siblings exist."""
    start: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    layer = {start}
    for _ in range(nodes):
        longer = set()
        for parents, ranks in layer:
            depths: list[int] = []
            for parent in parents:
                depths.append(1 if parent < 0 else depths[parent] + 1)
            for parent in range(-1, len(parents)):
                level = 1 if parent < 0 else depths[parent] + 1
                rank = sum(p == parent for p in parents)
                if level <= depth and rank < width:
                    longer.add(((*parents, parent), (*ranks, rank)))
        layer = longer
    return layer


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("nodes", [1, 3, 5, 6])
def test_both_tree_plans_find_the_best_tree_of_all(nodes, depth):
    trees = every_tree(nodes, depth, len(CHANCES))
    if not trees:  # no room for so many nodes
        assert len(tree_plan.greedy(CHANCES, nodes, depth).parents) < nodes
        return
    best = max(tree_plan.value_of(parents, ranks, CHANCES) for parents, ranks in trees)
    for plan in (tree_plan.greedy(CHANCES, nodes, depth), tree_plan.sequoia(CHANCES, nodes, depth)):
        assert plan.tokens == pytest.approx(best, abs=1e-9)
        assert tree_plan.value_of(plan.parents, plan.rank, CHANCES) == pytest.approx(best, abs=1e-9)
        assert plan.depth <= depth
        assert len(plan.parents) == nodes
        assert all(parent < i for i, parent in enumerate(plan.parents))


@pytest.mark.parametrize("nodes, depth", [(20, 4), (40, 8), (64, 5), (3, 64)])
def test_the_two_tree_plans_agree_on_large_trees(nodes, depth, rng):
    one, two = tree_plan.greedy(CHANCES, nodes, depth), tree_plan.sequoia(CHANCES, nodes, depth)
    assert one.tokens == pytest.approx(two.tokens, abs=1e-9)
    assert within(simulate.tree_tokens(rng, one.parents, one.rank, CHANCES, 6000), one.tokens)


def test_a_tree_grows_while_it_pays():
    for slope in (0.01, 0.05, 0.2, 1.5):

        def cost(m, slope=slope):
            return 1 + slope * (m - 1)

        found = tree_plan.greedy(CHANCES, 30, 6, cost, draft=0.01)
        rates = []
        for n in range(31):
            whole = tree_plan.greedy(CHANCES, n, 6)
            rates.append(whole.tokens / (cost(len(whole.parents) + 1) + 0.01 * len(whole.parents)))
        assert found.tokens / (cost(len(found.parents) + 1) + 0.01 * len(found.parents)) == pytest.approx(max(rates), abs=1e-9)
    assert tree_plan.greedy(CHANCES, 30, 6, lambda m: m).parents == ()


def test_the_work_of_a_tree_without_a_mask():
    chain = tree_plan.greedy([0.9], 5, 5)
    assert (chain.depth, chain.work()) == (5, 6)
    fork = tree_plan.Tree((-1, -1, 0), (0, 1, 0), (0.5, 0.2, 0.25))
    assert fork.work() == (1 + 2) + (1 + 1)  # two chains, each with the root


# batches and devices


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_batches(rows, rng):
    alpha, k = 0.7, 4
    samples = np.array([simulate.chain_tokens(rng, alpha, k, rows).min() for _ in range(6000)])
    assert within(samples, batch.synchronous_tokens(alpha, k, rows))
    assert batch.ragged_tokens(alpha, k) >= batch.synchronous_tokens(alpha, k, rows)
    for ragged in (True, False):
        runs = simulate.batch_rounds(rng, alpha, k, rows, 20, 1500, ragged=ragged)
        assert within(runs, batch.rounds_to_finish(alpha, k, rows, 20, ragged=ragged))
    gain = batch.batch_speedup(alpha, k, 0.02, rows, curve_of)
    assert gain == pytest.approx(batch.ragged_tokens(alpha, k) * curve_of(rows) / (k * 0.02 + curve_of(rows * (k + 1))))


def test_rounds_to_finish_by_hand():
    # two tokens at alpha 1/2, one drafted: round one gives 2 with 1/2, else a second round
    assert batch.rounds_to_finish(0.5, 1, 1, 2) == pytest.approx(1.5, abs=1e-9)
    assert batch.rounds_to_finish(0.5, 1, 2, 2) == pytest.approx(1 + (1 - 0.25), abs=1e-9)
    assert batch.rounds_to_finish(0.5, 1, 2, 2, ragged=False) == pytest.approx(1 + (1 - 0.25), abs=1e-9)
    assert batch.rounds_to_finish(0.0, 3, 4, 7) == pytest.approx(7, abs=1e-9)


def test_the_roofline_has_two_sides():
    device, model = roofline.Device(1e11, 1e13, 1e-4), roofline.Model(7e9, 2.0, 5e5)
    ridge = roofline.ridge(device, model)
    assert ridge == pytest.approx(100.0)
    flat = [roofline.pass_seconds(device, model, m) for m in (1, 50, 99)]
    assert max(flat) == min(flat) == pytest.approx(0.14 + 1e-4)
    assert roofline.pass_seconds(device, model, 300) == pytest.approx(3 * 0.14 + 1e-4)
    assert roofline.pass_seconds(device, model, 1, context=1000, rows=4) == pytest.approx((14e9 + 4 * 5e8) / 1e11 + 1e-4)


# bad numbers


@pytest.mark.parametrize(
    "call",
    [
        lambda: speedup.expected_tokens(1.2, 3),
        lambda: speedup.expected_tokens(float("nan"), 3),
        lambda: speedup.expected_tokens(0.5, -1),
        lambda: speedup.expected_tokens(0.5, 2.5),
        lambda: speedup.speedup(0.5, 2, -0.1),
        lambda: gamma.optimal_gamma(0.5, 0.0),
        lambda: gamma.optimal_gamma(0.5, float("inf")),
        lambda: gamma.continuous_gamma(1.0, 0.1),
        lambda: acceptance.overlap([0.5, 0.6], [0.5, 0.5]),
        lambda: acceptance.from_drafts([3], [2]),
        lambda: acceptance.from_drafts([1, 2], [2]),
        lambda: acceptance.proportion(3, 2),
        lambda: acceptance.from_mean_length(7.0, 5),
        lambda: speedup.tokens_from_reach([0.5, 0.6]),
        lambda: curve([1.0, float("nan")], 2),
        lambda: curve([1.0, -2.0], 2),
        lambda: curve([1.0], 2),
        lambda: tree_plan.greedy([0.2, 0.5], 3, 3),
        lambda: tree_plan.sequoia([0.9, 0.5], 3, 3),
        lambda: cascade.ewif([Level(1.5, 2, 0.1)]),
        lambda: cascade.horizontal_tokens([0.5], [1, 2]),
        lambda: roofline.pass_seconds(roofline.Device(0.0, 1.0), roofline.Model(1.0), 1),
    ],
)
def test_bad_numbers_are_refused(call):
    with pytest.raises(ValueError, match=r"\w"):
        call()


def test_a_curve_that_falls_is_clamped():
    assert curve([2.0, 1.8, 2.4, 2.2], 4).tolist() == [0.0, 1.0, 1.0, 1.2, 1.2]
    assert np.all(np.isfinite(speedup.speedup_measured(gamma.tokens_at(0.5, 3), 0.1, [2.0, 1.8, 2.4, 2.2])))
