"""The latency model of SSR against a game that is played token by token, its closed forms, and its limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from surefoot.theory import foreseen, ssr
from surefoot.theory.ssr import Setting


def flat(m: int) -> float:
    return 1.0


def rising(m: int) -> float:
    return 1.0 + 0.03 * (m - 1)


def said(
    rng: np.random.Generator, n: int, a: float, r: float, k: int, cost, *, more: int, suffix: bool = True
) -> tuple[float, int]:
    """Cost of an answer of ``n + more`` tokens of which a draft covers n, and its drafted tokens that were kept."""
    at, spent, kept, lost = 0, 0.0, 0, 0
    while at < n + more:
        if lost or at >= n:
            at, spent, lost = at + 1, spent + cost(1), max(0, lost - 1)
            continue
        q = min(k, n - at, n + more - at - 1 if more else n - at)
        run = 0
        while run < q and rng.random() < a:
            run += 1
        spent, kept, at = spent + cost(q + 1), kept + run, at + run
        # the pass gives one more, which agrees with the draft or not; behind the answer's end there is none
        if at < n + more:
            differs = run < q or (at < n and rng.random() >= a)
            at += 1
            if differs:
                lost = 10**9 if not suffix else int(r) - 1
    return spent, kept


@pytest.mark.parametrize("a", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("r, k, more", [(1, 4, 0), (3, 2, 5), (6, 7, 20), (2, 1, 0)])
def test_the_cost_of_reading_is_that_of_a_game(a: float, r: int, k: int, more: int) -> None:
    rng = np.random.default_rng(1)
    n = 40
    v = np.concatenate([[0.0], [rising(m) for m in range(1, 30)]])
    played = np.array([said(rng, n, a, r, k, rising, more=more) for _ in range(1500)])
    cost, kept = foreseen.read(a, r, k, n, v, more=more > 0)
    error = 5 * played.std(0) / math.sqrt(len(played)) + 1e-9
    assert cost + more * 1.0 == pytest.approx(played[:, 0].mean(), abs=error[0])
    assert kept == pytest.approx(played[:, 1].mean(), abs=error[1])


def test_without_recovery_only_the_prefix_counts() -> None:
    rng = np.random.default_rng(2)
    v = np.concatenate([[0.0], [rising(m) for m in range(1, 30)]])
    played = np.array([said(rng, 50, 0.93, 1, 5, rising, more=10, suffix=False) for _ in range(4000)])
    cost, kept = foreseen.read(0.93, math.inf, 5, 50, v, more=True)
    first, prefix, whole = foreseen.intact(0.93, 5, 50, v, 1)
    error = 5 * played.std(0) / math.sqrt(len(played))
    assert cost + 10 == pytest.approx(played[:, 0].mean(), abs=error[0])
    assert kept == pytest.approx(played[:, 1].mean(), abs=error[1])
    assert kept == pytest.approx(prefix)
    assert whole == pytest.approx(0.93**50)
    assert first < cost


@pytest.mark.parametrize("a, r, k", [(0.0, 1, 3), (0.7, 1, 4), (0.9, 5, 8), (1.0, 2, 6), (0.8, 2.5, 3)])
def test_a_long_answer_costs_one_over_the_rate_a_token(a: float, r: float, k: int) -> None:
    v = np.concatenate([[0.0], [rising(m) for m in range(1, 30)]])
    few, many = (foreseen.read(a, r, k, n, v, more=True)[0] for n in (700, 2100))
    assert (many - few) / 1400 == pytest.approx(1 / foreseen.rate(a, r, k, rising), rel=1e-3)


def test_overlap_and_agreement_are_inverse() -> None:
    for share in (0.0, 0.3, 0.8, 1.0):
        for r in (1.0, 3.0, 12.0):
            assert foreseen.overlap(foreseen.agreement(share, r), r) == pytest.approx(share)
    assert foreseen.agreement(0.6) == pytest.approx(0.6)
    rng = np.random.default_rng(3)
    a, n, hits, lost = foreseen.agreement(0.7, 4.0), 200_000, 0, 0
    for _ in range(n):
        if lost:
            lost -= 1
        elif rng.random() < a:
            hits += 1
        else:
            lost = 3
    assert hits / n == pytest.approx(0.7, abs=0.01)


def test_the_best_chain_is_the_best() -> None:
    for a in (0.0, 0.3, 0.8, 1.0):
        k = foreseen.best_chain(a, 2.0, rising)
        rates = [foreseen.rate(a, 2.0, j, rising) for j in range(foreseen.LONGEST + 1)]
        assert rates[k] == max(rates)
    assert foreseen.best_chain(0.0, 1.0, rising) == 0
    assert foreseen.best_chain(1.0, 1.0, rising) == foreseen.LONGEST


def test_a_perfect_draft_that_is_ready_saves_all_but_its_passes() -> None:
    found = ssr.latency(Setting(200, 100, 1.0, 50, chain=9), flat)
    assert found.without == found.plain == 300
    assert found.drafted == (100.0,)
    assert (found.verify, found.continuation, found.exposed, found.hidden) == pytest.approx((10, 0, 0, 100))
    assert found.total == pytest.approx(210)
    assert found.gain == pytest.approx(0.3)
    assert (found.prefix, found.accepted) == (pytest.approx(90), pytest.approx(90))


def test_what_a_fork_adds_is_two_rows_for_as_long_as_it_runs() -> None:
    own = Setting(200, 60, 0.0, 100, draft=40, chain=0, force=3)
    found = ssr.latency(own, rising)
    # the first pass reads the forced tokens and the one before them
    assert found.exposed == pytest.approx((rising(5) - 1) + 39 * (rising(2) - 1))
    assert found.total == pytest.approx(260 + found.exposed)
    assert ssr.latency(replace(own, budget=200), rising).exposed == 0
    cut = ssr.latency(replace(own, budget=190, force=1), rising)
    assert cut.drafted == (9.0,)  # what the last pass of the thought drafts is not read any more
    assert cut.exposed == pytest.approx((rising(3) - 1) + 9 * (rising(2) - 1))
    wide = ssr.latency(replace(own, width=2, force=1), rising)
    assert wide.exposed == pytest.approx(40 * (rising(4) - rising(2)))


def test_other_drafters_make_forks_dearer_and_savings_smaller() -> None:
    own = Setting(300, 200, 0.8, 50, draft=200)
    alone, helped = (ssr.latency(replace(own, tokens=t), rising) for t in (1.0, 2.0))
    assert helped.without == alone.without / 2 == helped.plain / 2
    assert helped.gain < alone.gain
    assert helped.gain_over_plain > alone.gain_over_plain


def test_a_late_draft_covers_the_beginning_only() -> None:
    early, late = (ssr.latency(Setting(300, 200, 1.0, b, chain=9), flat) for b in (50, 250))
    assert early.drafted == (200.0,)
    assert late.drafted == (49.0,)
    assert late.verify == pytest.approx(5)
    assert late.continuation == pytest.approx(150)  # the last chain gave one more


def test_further_drafts_read_those_before_them() -> None:
    def curve(share: float) -> float:
        return share

    one = Setting(400, 100, curve, 100, draft=100, chain=9)
    two = replace(one, interval=150, drafts=3)
    first, both = ssr.latency(one, flat), ssr.latency(two, flat)
    assert len(both.drafted) == 2  # the third is due when the thought has ended
    assert both.drafted[1] == 100.0
    assert both.gain > first.gain  # 0.625 against 0.25 of the answer
    same = replace(two, overlap=1.0)
    again = ssr.latency(same, rising)
    # the second draft reads the first: ten passes of chains where the first took a hundred single ones
    chains = 11 * (rising(11) - 1)
    assert again.exposed == pytest.approx((rising(3) - 1) + 99 * (rising(2) - 1) + (rising(3) - 1) + chains, rel=0.15)
    assert sum(again.drafted) == 200


def test_the_best_budget_is_no_worse_than_others() -> None:
    def curve(share: float) -> float:
        return 0.1 + 0.8 * share

    own = Setting(400, 200, curve, 0, draft=200)
    best, gain = ssr.best_budget(own, rising)
    assert gain >= max(ssr.latency(replace(own, budget=b), rising).gain for b in range(0, 400, 25)) - 1e-9
    assert 100 < best < 300  # late enough to foresee, early enough to be ready
    constant, _ = ssr.best_budget(replace(own, overlap=0.6), rising)
    assert constant <= 200  # later than that, the draft would not be ready
    spread, over = ssr.best_budget(own, rising, [100, 400, 700])
    assert over == pytest.approx(ssr.over_thoughts(replace(own, budget=spread), [100, 400, 700], rising))


def test_thoughts_of_several_lengths() -> None:
    own = Setting(1, 100, 0.8, 100)
    each = [ssr.latency(replace(own, thought=n), rising) for n in (50, 300)]
    wanted = 1 - (3 * each[0].total + each[1].total) / (3 * each[0].without + each[1].without)
    assert ssr.over_thoughts(own, [50, 300], rising, [3, 1]) == pytest.approx(wanted)
    assert each[0].gain == 0
    with pytest.raises(ValueError, match="weight"):
        ssr.over_thoughts(own, [50, 300], rising, [1])


def test_break_even_is_where_nothing_is_gained() -> None:
    own = Setting(300, 150, 0.5, 50, chain=6)
    at = ssr.break_even(own, rising)
    assert at is not None
    assert 0 < at < 0.5
    assert ssr.latency(replace(own, overlap=at), rising).gain == pytest.approx(0, abs=1e-6)
    assert ssr.break_even(own, lambda m: float(m)) is None  # tokens of a pass are not cheaper than passes
    assert ssr.break_even(replace(own, budget=400), flat) == 0.0


def test_the_published_gain_needs_most_of_an_answer() -> None:
    """24.1 % with thoughts twice as long as answers is 0.82 of the answer; prefixes alone would not give it."""
    own = Setting(1000, 500, 0.82, 500, chain=16)
    gain, prefix = (ssr.latency(replace(own, suffix=s), lambda m: 1 + 0.02 * (m - 1)).gain for s in (True, False))
    assert gain == pytest.approx(0.241, abs=0.005)
    assert prefix < 0.02


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"overlap": 1.2}, "overlap"),
        ({"overlap": lambda share: 2 * share}, "overlap"),
        ({"answer": 0}, "answer"),
        ({"recovery": 0.5}, "recovery"),
        ({"tokens": 0.9}, "tokens"),
        ({"drafts": 2}, "interval"),
        ({"interval": 0}, "interval"),
        ({"chain": -1}, "chain"),
    ],
)
def test_bad_numbers(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Setting(**{"thought": 100, "answer": 100, "overlap": 0.5, "budget": 10, **changes})
