"""Schedules of cascades: laws by enumeration, costs by playing every round, the search by trying everything."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from surefoot.theory import arrivals, cascade, schedule, simulate, speedup
from surefoot.theory.cascade import Level
from surefoot.theory.schedule import Drafters

CHAINS = (
    [Level(0.7, 6, 0.1)],
    [Level(0.8, 5, 0.1), Level(0.4, 3, 0.001)],
    [Level(0.7, 3, 0.2), Level(0.6, 2, 0.05), Level(0.5, 4, 0.01)],
    [Level(1.0, 3, 0.2), Level(0.6, 2, 0.05)],
    [Level(0.8, 2, 0.2), Level(1.0, 2, 0.05)],
    [Level(0.6, 2, 0.3), Level(0.0, 3, 0.05)],
)
SET = Drafters((0.9, 0.75, 0.5), (0.4, 0.12, 0.004), {(0, 1): 0.8, (0, 2): 0.55, (1, 2): 0.6})


def steep(m: int) -> float:
    return 2.0 * (1.0 + 0.15 * (m - 1) ** 1.2)  # the unit does not count


def gentle(m: int) -> float:
    return 1.0 + 0.05 * (m - 1)


@pytest.mark.parametrize("levels", CHAINS)
def test_the_law_of_a_draft_is_that_of_what_arrives(levels, rng):
    law = arrivals.draft_law(levels)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert arrivals.kept(law, levels[0].alpha) == pytest.approx(cascade.round_tokens(levels), rel=1e-5)
    assert arrivals.ewif(levels) == pytest.approx(cascade.ewif(levels), rel=1e-5)
    for x in (0.3, 0.9, 1.0):
        by_pgf = float(cascade._arriving(levels)(np.asarray(x)))
        assert float(np.polyval(law[::-1], x)) == pytest.approx(by_pgf, abs=1e-9)
    seen = np.array([simulate._arrive(rng, levels) for _ in range(4000)])
    share = np.bincount(seen, minlength=len(law)) / len(seen)
    assert np.abs(np.cumsum(share - law)).max() < 2.2 / math.sqrt(len(seen))  # Kolmogorov's distance, passed by 1 in 8000


def test_a_review_by_enumeration():
    """Every number that arrives, every first refusal."""
    arriving, a = [0.1, 0.2, 0.0, 0.7], 0.6
    law = np.zeros(5)
    for n, chance in enumerate(arriving):
        for stays in itertools.product((True, False), repeat=n):
            run = next((i for i, kept in enumerate(stays) if not kept), n)
            law[run + 1] += chance * math.prod(a if kept else 1 - a for kept in stays)
    assert arrivals.review_law(arriving, a) == pytest.approx(law, abs=1e-12)


def play(rng, levels, reviews):
    """(tokens that the first level hands up, its cost): every review is made, each pass paid by its width."""
    first, rest = levels[0], levels[1:]
    if not rest:
        return first.steps, first.steps * first.c
    drafted, spent = 0, 0.0
    for _ in range(first.steps):
        arrived, below = play(rng, rest, reviews[1:])
        drafted += 1 + simulate._run(rng, rest[0].alpha, arrived)
        spent += first.c * reviews[0](arrived + 1) / reviews[0](1) + below
    return drafted, spent


@pytest.mark.parametrize("levels", CHAINS[1:4])
def test_the_speedup_is_that_of_played_rounds_where_wide_passes_cost_more(levels, rng):
    reviews = [gentle, steep][: len(levels) - 1]
    tokens, costs = [], []
    for _ in range(6000):
        drafted, spent = play(rng, levels, reviews)
        tokens.append(1 + simulate._run(rng, levels[0].alpha, drafted))
        costs.append(steep(drafted + 1) / steep(1) + spent)
    spread = np.std(costs) / math.sqrt(len(costs))
    assert arrivals.round_cost(levels, steep, reviews) == pytest.approx(np.mean(costs), abs=5 * spread)
    assert arrivals.round_cost(levels, steep, reviews) > arrivals.round_cost(levels, steep) > cascade.round_cost(levels)
    gain = arrivals.ewif(levels, steep, reviews)
    assert gain == pytest.approx(np.mean(tokens) / np.mean(costs), rel=0.04)


def every(members, longest, cost, reviews):
    """All schedules of the set, by the plain formula, one by one."""
    alphas = [SET.alphas[members[0]], *(SET.inner[pair] for pair in itertools.pairwise(members))]
    for steps in itertools.product(range(1, longest + 1), repeat=len(members)):
        most = 0
        for n in reversed(steps):
            most = n * (most + 1) if most else n
        if most <= longest:
            levels = [Level(a, n, SET.costs[i]) for a, n, i in zip(alphas, steps, members)]
            yield steps, arrivals.ewif(levels, cost, [reviews[i] for i in members[:-1]])


@pytest.mark.parametrize("cost, reviews", [(None, (None, None, None)), (gentle, (steep, gentle, None))])
def test_the_search_finds_the_best_of_all_schedules(cost, reviews):
    drafters = Drafters(SET.alphas, SET.costs, SET.inner, reviews)
    found = schedule.vertical(drafters, cost, 12)
    assert {s.members for s in found} == {(0, 1), (0, 2), (1, 2), (0, 1, 2)}
    assert [s.ewif for s in found] == sorted((s.ewif for s in found), reverse=True)
    for own in found:
        steps, gain = max(every(own.members, 12, cost, reviews), key=lambda e: e[1])
        assert own.ewif == pytest.approx(gain, abs=1e-12)
        assert own.steps == steps
        again = schedule.given_vertical(drafters, own.members, steps, cost)
        assert (again.tokens, again.cost) == pytest.approx((own.tokens, own.cost))


def test_only_known_rates_make_a_chain():
    known = Drafters(SET.alphas, SET.costs, {(0, 1): 0.8, (1, 2): 0.6})
    assert {s.members for s in schedule.vertical(known)} == {(0, 1), (1, 2), (0, 1, 2)}
    assert schedule.vertical(Drafters(SET.alphas, SET.costs)) == []


@pytest.mark.parametrize("cost", [None, gentle, steep])
def test_the_best_lengths_of_a_horizontal_cascade(cost):
    found = schedule.horizontal(SET, cost, 9)
    assert {s.members for s in found} == {(0, 1), (0, 2), (1, 2), (0, 1, 2)}
    for own in found:
        tried = []
        for lengths in itertools.product(range(1, 10), repeat=len(own.members)):
            if sum(lengths) <= 9:
                alphas, costs = [SET.alphas[i] for i in own.members], [SET.costs[i] for i in own.members]
                width = 1.0 if cost is None else cost(sum(lengths) + 1) / cost(1)
                tokens = cascade.horizontal_tokens(alphas, lengths)
                tried.append((tokens / (width + np.dot(lengths, costs)), lengths))
        gain, lengths = max(tried)
        assert own.ewif == pytest.approx(gain, abs=1e-12)
        again = schedule.given_horizontal(SET, own.members, own.steps, cost)
        assert again.ewif == pytest.approx(own.ewif, abs=1e-12)
    assert schedule.horizontal(SET, cost, 1) == []


def test_singles_are_the_best_drafts_alone():
    for own, alpha, c in zip(schedule.singles(SET, gentle), SET.alphas, SET.costs):
        gains = [float(speedup.expected_tokens(alpha, k)) / (k * c + gentle(k + 1)) for k in range(schedule.LONGEST + 1)]
        assert (own.ewif, own.steps) == (pytest.approx(max(gains)), (int(np.argmax(gains)),))
    assert schedule.singles(Drafters((0.2,), (0.5,)))[0].steps == (0,)


@pytest.mark.parametrize("cost", [None, gentle])
def test_at_the_break_even_cost_the_best_cascade_is_the_rival(cost):
    bottom = schedule.singles(SET, cost)[2].ewif
    for members in ((0, 2), (1, 2), (0, 1, 2)):
        for rival in (1.0, bottom):
            c = schedule.break_even_c(SET, members, rival, cost=cost)
            costs = list(SET.costs)
            costs[members[0]] = c
            at = {s.members: s.ewif for s in schedule.vertical(Drafters(SET.alphas, tuple(costs), SET.inner), cost)}
            assert at[members] == pytest.approx(rival, abs=1e-9)
            costs[members[0]] = 0.9 * c
            below = {s.members: s.ewif for s in schedule.vertical(Drafters(SET.alphas, tuple(costs), SET.inner), cost)}
            assert below[members] > rival
    given = schedule.break_even_c(SET, (0, 2), bottom, steps=(3, 4), cost=cost)
    same = schedule.given_vertical(Drafters(SET.alphas, (given, 0.12, 0.004), SET.inner), (0, 2), (3, 4), cost)
    assert same.ewif == pytest.approx(bottom)
    assert schedule.break_even_c(SET, (0, 2), bottom, cost=cost) >= given


def test_a_reviewer_that_knows_no_more_than_its_bottom_never_wins():
    useless = Drafters((0.3, 0.5), (0.1, 0.001), {(0, 1): 0.5})
    rival = schedule.singles(useless)[1].ewif
    assert schedule.break_even_c(useless, (0, 1), rival) < 0.0


BAD = [
    lambda: Drafters((1.2,), (0.1,)),
    lambda: Drafters((0.5,), (-0.1,)),
    lambda: Drafters((0.5, 0.4), (0.1,)),
    lambda: Drafters((), ()),
    lambda: Drafters((0.5, 0.4), (0.1, 0.1), {(1, 0): 0.5}),
    lambda: Drafters((0.5, 0.4), (0.1, 0.1), {(0, 1): 1.5}),
    lambda: schedule.given_vertical(SET, (0, 1), (2,)),
    lambda: schedule.given_vertical(SET, (0, 1), (2, 0)),
    lambda: schedule.vertical(SET, None, 0),
    lambda: schedule.break_even_c(SET, (0, 1, 2), longest=2),
    lambda: arrivals.review_law([0.5, 0.5], 1.5),
]


@pytest.mark.parametrize("call", BAD)
def test_bad_numbers_are_refused(call):
    with pytest.raises(ValueError, match=r"must|needs|give|belongs|raise"):
        call()
