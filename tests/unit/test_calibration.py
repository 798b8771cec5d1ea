"""Chances learned online: they come to the true rates, tell sources that agree from sources that differ, and stay numbers."""

from __future__ import annotations

import math
import random

import pytest

from surefoot.drafters.calibration import DEPTHS, OTHER, SILENT, Calibration, depth_class

FLAT = (0.0, 0.0, 0.0, -0.5, 0.0)
"""Three levels, and what is believed of others and of silence."""


def test_at_first_it_believes_what_the_sources_say() -> None:
    made = Calibration([(1.0, -1.0, -0.5, 0.2), (0.7, -0.3, 0.1)])

    def odds(kind: tuple[int, ...], lean: float = 0.0) -> float:
        return -math.log(1 / made.chance(kind, lean) - 1)

    for depth in range(DEPTHS):
        base = odds((0, SILENT, depth)) - 1.0 - 0.1
        for kind, z in (((0, 0, depth), 1.7), ((1, OTHER, depth), -1.3), ((OTHER, 0, depth), 0.2), ((SILENT, 0, depth), 0.9)):
            assert odds(kind) == pytest.approx(z + base)
    assert odds((0, 0, 1), 0.5) == pytest.approx(odds((0, 0, 1)) + 0.5)
    assert [made.alone(0, 0), made.alone(0, 1), made.alone(1, 0)] == [1.0, -1.0, 0.7]


def simulate(made: Calibration, rate, kinds, n: int = 6000, seed: int = 0) -> dict:
    """Chances at the end, averaged over the last third; ``rate``: kind -> true chance."""
    rng = random.Random(seed)
    sums: dict = {kind: [] for kind in kinds}
    for i in range(n):
        kind = rng.choice(kinds)
        if i > 2 * n // 3:
            sums[kind].append(made.chance(kind))
        made.learn(kind, rng.random() < rate(kind))
    return {kind: sum(own) / len(own) for kind, own in sums.items()}


def test_chances_come_to_the_true_rates() -> None:
    rates = {(0, SILENT, 1): 0.9, (1, SILENT, 1): 0.5, (2, SILENT, 1): 0.08}
    found = simulate(Calibration([FLAT, FLAT]), rates.__getitem__, list(rates))
    for kind, rate in rates.items():
        assert found[kind] == pytest.approx(rate, abs=0.06)


def test_agreement_is_told_from_disagreement() -> None:
    """A token that both name is nearly always right; one that the other source contradicts seldom."""
    rates = {(0, 0, 1): 0.95, (0, OTHER, 1): 0.15, (OTHER, 0, 1): 0.4, (0, SILENT, 1): 0.6}
    found = simulate(Calibration([FLAT, FLAT]), rates.__getitem__, list(rates), 12_000)
    order = sorted(rates, key=rates.__getitem__)
    assert sorted(found, key=found.__getitem__) == order
    assert found[0, 0, 1] > 0.8
    assert found[0, OTHER, 1] < 0.3


def test_depth_classes_are_learned_apart() -> None:
    rates = {(0, SILENT, 0): 0.3, (0, SILENT, 1): 0.7, (0, SILENT, 2): 0.2, (0, SILENT, DEPTHS - 1): 0.9}
    found = simulate(Calibration([FLAT, FLAT]), rates.__getitem__, list(rates))
    for kind, rate in rates.items():
        assert found[kind] == pytest.approx(rate, abs=0.1)


def test_depth_classes_rise_with_the_reach_of_the_parent() -> None:
    classes = [depth_class(reach / 100) for reach in range(101)]
    assert classes == sorted(classes)
    assert set(classes) == set(range(2, DEPTHS)), "the first two are those of the first token"


def test_the_first_outcomes_weigh_most_and_the_last_still_count() -> None:
    made = Calibration([FLAT])
    before = made.chance((0, 1))
    made.learn((0, 1), True)
    first = made.chance((0, 1)) - before
    assert first > 0.05
    for i in range(3000):
        made.learn((0, 1), i % 2 == 0)
    before = made.chance((0, 1))
    made.learn((0, 1), True)
    assert 0 < made.chance((0, 1)) - before < first / 4
    for _ in range(400):
        made.learn((0, 1), False)
    assert made.chance((0, 1)) < 0.1, "it follows a change"


def test_learning_says_by_how_much_it_was_off_and_touches_its_own_weights_only() -> None:
    made = Calibration([FLAT, FLAT])
    untouched = [made.alone(0, 1), made.alone(1, 0), made.alone(1, SILENT)]
    chance = made.chance((0, OTHER, 1), 0.3)
    assert made.learn((0, OTHER, 1), True, 0.3) == pytest.approx(1 - chance)
    chance = made.chance((0, OTHER, 1), -0.3)
    assert made.learn((0, OTHER, 1), False, -0.3) == pytest.approx(-chance)
    assert [made.alone(0, 1), made.alone(1, 0), made.alone(1, SILENT)] == untouched
    assert made.alone(1, OTHER) != FLAT[3]


@pytest.mark.parametrize("right", [True, False])
def test_always_right_or_wrong_stays_a_number(right: bool) -> None:
    made = Calibration([FLAT, FLAT, FLAT])
    for _ in range(20_000):
        made.learn((0, 1, OTHER, 1), right)
    assert 0.0 < made.chance((0, 1, OTHER, 1)) < 1.0
    assert (made.chance((0, 1, OTHER, 1)) > 0.98) == right
