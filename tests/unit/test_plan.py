"""The planner: what it reads, that its numbers are the theory's, what it draws, what it refuses."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from toys import Custom, fixed, random_trees, tree
from toys_cli import error_of, install

from surefoot.backends.table import TableModel
from surefoot.cli import main
from surefoot.core.cost import CostModel
from surefoot.errors import BadRequest, Unsupported
from surefoot.plan import described, plan, read_cost, read_log
from surefoot.plan.figures import band
from surefoot.theory import acceptance, batch, cascade, gamma, roofline, simulate, speedup, tree_plan
from surefoot.theory.cascade import Level

CURVE = (0.030, 0.031, 0.034, 0.038, 0.045, 0.052, 0.060)


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return str(path)


def step(parents: list[int], accepted: list[bool], kept: int | None = None) -> dict[str, Any]:
    """A line of a trace."""
    kept = sum(accepted) + 1 if kept is None else kept
    return {"candidates": [5] * len(parents), "parents": parents, "accepted": accepted, "kept": kept}


# logs


def test_a_real_trace_gives_the_accepted_and_tried_tokens(tmp_path: Path) -> None:
    target = TableModel.random(6, order=1, seed=2, sharpness=1.0)

    def one(row: Any, asked: Any) -> Any:
        rng = np.random.default_rng(len(row.tokens))
        n = min(asked.depth, int(rng.integers(0, 5)))
        return tree([row.tokens[-1], *rng.integers(0, 6, n).tolist()], [-1, *range(n)])

    done = fixed(target, Custom(one), 4).generate([1, 2], max_tokens=300, seed=3, temperature=1.0, trace=True)
    steps = done.stats.trace
    log = read_log(write(tmp_path / "t.jsonl", *(asdict(s) for s in steps)))
    assert sum(log.accepted) == done.stats.accepted_tokens > 20
    assert log.plain == done.stats.passes - done.stats.drafts > 0
    assert len(log.accepted) == done.stats.drafts
    last = steps[-1]
    cut = last.kept == sum(last.accepted)  # the budget ended the answer within the draft
    assert sum(log.lengths) == done.stats.draft_tokens - cut * (len(last.candidates) - last.kept)
    found = plan(log=log, c=0.1).sections[0]
    assert found.rate.estimate == acceptance.from_drafts(log.accepted, log.lengths)
    assert found.rate.positions == tuple(acceptance.by_position(log.accepted, log.lengths))


def test_a_trace_of_trees_counts_depths_and_children(tmp_path: Path) -> None:
    target = TableModel.random(4, order=1, seed=2, sharpness=1.0)
    engine = fixed(target, Custom(random_trees(4, 7)), 3, width=3, nodes=8)
    done = engine.generate([1, 2], max_tokens=200, seed=5, temperature=1.0, trace=True)
    log = read_log(write(tmp_path / "t.jsonl", *(asdict(s) for s in done.stats.trace)))
    assert sum(log.accepted) == done.stats.accepted_tokens > 20
    assert max(log.lengths) <= 3
    assert sum(round(b.value * b.trials) for b in log.branches) == done.stats.accepted_tokens
    assert log.branches[0].trials > log.branches[1].trials > 0


@pytest.mark.parametrize(
    "line, expected",
    [
        (step([0, 1, 2], [True, False, False]), (1, 3)),
        (step([0, 1, 2], [True, True, True]), (3, 3)),
        (step([0, 1, 2], [True, True, False], kept=2), (2, 2)),  # ended within the draft: no refusal was seen
        (step([0, 0, 1], [False, True, False]), (1, 1)),  # the accepted child has no children: nothing tried below it
        (step([0, 0, 2], [False, True, False]), (1, 2)),
        (step([0, 0, 2], [False, False, False]), (0, 1)),
        ({"accepted": 2, "drafted": 6}, (2, 6)),
    ],
)
def test_one_line_is_one_draft(tmp_path: Path, line: dict[str, Any], expected: tuple[int, int]) -> None:
    log = read_log(write(tmp_path / "log", line, step([], [])))
    assert (log.accepted, log.lengths, log.plain) == ((expected[0],), (expected[1],), 1)


def test_children_of_a_tree_are_counted_by_rank(tmp_path: Path) -> None:
    lines = [step([0, 0, 0], [False, True, False]), step([0, 0], [True, False]), step([0], [False])]
    log = read_log(write(tmp_path / "log", *lines))
    assert [(round(b.value * b.trials), b.trials) for b in log.branches] == [(1, 3), (1, 2), (0, 1)]
    cut = read_log(write(tmp_path / "cut", step([0, 0, 2], [False, True, False], kept=1)))  # ended before the last child
    assert [(round(b.value * b.trials), b.trials) for b in cut.branches] == [(0, 1), (1, 1)]


def test_objects_of_generate(tmp_path: Path) -> None:
    even = {"stats": {"drafts": 10, "draft_tokens": 30, "accepted_per_position": [7, 4], "passes": 12}}
    log = read_log(write(tmp_path / "even", json.dumps(even, indent=1)))
    assert (sorted(log.accepted), set(log.lengths), log.plain) == ([0] * 3 + [1] * 3 + [2] * 4, {3}, 2)
    assert log.warnings == ()
    uneven = {"choices": [{"stats": {"drafts": 10, "draft_tokens": 31, "accepted_per_position": [7, 4]}}, even]}
    log = read_log(write(tmp_path / "uneven", uneven, even))
    assert len(log.accepted) == 30
    assert log.lengths.count(1) == 10
    assert sum(log.accepted) == 7 + 11 + 11
    assert "only their first tokens count" in log.warnings[0]
    assert plan(log=log, c=0.2).warnings == log.warnings


BAD_LOGS = {
    "empty": ([""], "it is empty"),
    "nothing drafted": ([step([], [])], "its 1 passes drafted nothing"),
    "no JSON": ([step([0], [True]), "{oops"], "log:2: no JSON"),
    "NaN": (['{"accepted": NaN, "drafted": 3}'], "log:1: no JSON (NaN is not a number)"),
    "a list": (["[1, 2]"], "log:1: no JSON object"),
    "unknown": ([{"tokens": 3}], "log:1: an object of none of the known forms"),
    "more accepted than drafted": ([{"accepted": 3, "drafted": 2}], "log:1: 3 accepted of 2"),
    "negative": ([{"accepted": -1, "drafted": 2}], "log:1: accepted must be a number from 0 up; got -1"),
    "a boolean": ([{"accepted": True, "drafted": 2}], "log:1: accepted must be"),
    "missing": ([{"accepted": 1}], "log:1: drafted is missing"),
    "lists of different lengths": ([{**step([0], [True]), "parents": []}], "log:1: parents and accepted must be lists"),
    "a later parent": ([step([1], [True])], "log:1: parents must be earlier nodes"),
    "numbers for flags": ([step([0], [1])], "log:1: accepted must be true or false"),
    "two siblings": ([step([0, 0], [True, True])], "log:1: two accepted candidates with the same parent"),
    "below a refusal": ([step([0, 1], [False, True])], "log:1: an accepted candidate below one"),
    "no stats": ([{"choices": [{}]}], "log:1: an answer without stats"),
    "rising counts": ([{"stats": {"drafts": 3, "draft_tokens": 9, "accepted_per_position": [1, 2]}}], "counts that do not fit"),
    "too many": ([{"stats": {"drafts": 3, "draft_tokens": 4, "accepted_per_position": [3, 2]}}], "5 accepted of 4"),
}


@pytest.mark.parametrize("name", BAD_LOGS)
def test_bad_logs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines, told = BAD_LOGS[name]
    write(tmp_path / "log", *lines)
    assert told in error_of(capsys, main(["plan", "--log", "log", "--c", "0.1"]))


# theory additions


def test_reach_has_the_interval_of_its_share_where_all_drafts_are_equally_long(rng: np.random.Generator) -> None:
    hits = simulate.accepted(rng, [0.8, 0.6, 0.7, 0.9], 500)
    found = acceptance.reach_by_position(hits, [4] * 500)
    for depth, r in enumerate(found, 1):
        whole = acceptance.proportion(int((hits >= depth).sum()), 500)
        assert (r.value, r.low, r.high) == pytest.approx((whole.value, whole.low, whole.high), abs=1e-12)
    none = acceptance.reach_by_position([0, 0, 0, 0], [3, 3, 3, 3])
    assert [e.value for e in none] == [0.0, 0.0, 0.0]
    assert none[0].high == acceptance.proportion(0, 4).high
    all_kept = acceptance.reach_by_position([2, 2], [2, 2])
    assert all_kept[1] == acceptance.Estimate(1.0, acceptance.proportion(2, 2).low, 1.0, 2)


def test_reach_of_censored_drafts_is_covered(rng: np.random.Generator) -> None:
    covered = 0
    for _ in range(300):
        lengths = rng.integers(1, 5, 200)
        hits = np.minimum(simulate.accepted(rng, [0.8, 0.7, 0.6, 0.5], 200), lengths)
        r = acceptance.reach_by_position(hits, lengths)[2]
        covered += r.low <= 0.8 * 0.7 * 0.6 <= r.high
    assert 0.90 <= covered / 300 <= 0.995


def test_break_even_is_where_the_best_speedup_is_one() -> None:
    tokens = gamma.tokens_at(0.7, 6)
    c = speedup.break_even_measured(tokens, CURVE)
    assert speedup.speedup_measured(tokens, c, CURVE).max() == pytest.approx(1.0, abs=1e-12)
    assert speedup.speedup_measured(tokens, c * 0.99, CURVE)[1:].max() > 1.0
    assert speedup.break_even_measured(tokens, lambda m: 1.0) == pytest.approx(0.7)
    assert speedup.break_even_measured(gamma.tokens_at(0.1, 3), (1, 2, 3, 4)) < 0
    with pytest.raises(ValueError, match="at least one draft length"):
        speedup.break_even_measured([1.0], CURVE)


# numbers


def test_a_chain_at_constant_cost() -> None:
    found = plan(alpha=[0.7, 0.9], c=0.1, max_draft=8)
    for section, alpha in zip(found.sections, (0.7, 0.9)):
        for k, row in enumerate(section.rows):
            assert row == {"k": k, "tokens": pytest.approx(sum(alpha**j for j in range(k + 1))), "speedup": row["speedup"]}
            assert row["speedup"] == pytest.approx(row["tokens"] / (1 + 0.1 * k), abs=1e-12)
        assert section.best["speedup"] == max(row["speedup"] for row in section.rows)
        assert section.facts["gamma_exact"] == gamma.optimal_gamma(alpha, 0.1)
        assert section.facts["gamma_continuous"] == gamma.continuous_gamma(alpha, 0.1)
        assert section.facts["gamma_printed"] == gamma.gamma_seed_approximation(alpha, 0.1)
        assert section.facts["gamma_printed_loss"] == gamma.seed_loss(alpha, 0.1)
        assert section.facts["break_even_c"] == alpha
    assert found.best == found.sections[1].best


def test_a_chain_on_a_measured_curve() -> None:
    found = plan(alpha=0.7, cost=CURVE, draft_seconds=0.003)
    assert found.inputs.most == 6  # the default of 12 is cut to what the curve knows
    [section] = found.sections
    assert found.inputs.cost.c == pytest.approx(0.1)
    for k, row in enumerate(section.rows):
        seconds = k * 0.003 + CURVE[k]
        assert row["speedup"] == pytest.approx(row["tokens"] * CURVE[0] / seconds, abs=1e-12)
        assert row["ms_per_token"] == pytest.approx(1e3 * seconds / row["tokens"], abs=1e-9)
        assert row["speedup_if_flat"] == pytest.approx(row["tokens"] / (1 + 0.1 * k), abs=1e-12)
    assert section.facts["break_even_c"] == speedup.break_even_measured(gamma.tokens_at(0.7, 6), CURVE)
    model = CostModel((1, 4, 8), (0.03, 0.035, 0.05), 200, per_context=1e-5)
    rows = plan(alpha=0.7, cost=model).sections[0].rows
    assert len(rows) == 13
    assert rows[5]["speedup"] == pytest.approx(rows[5]["tokens"] * 0.03 / model(6), abs=1e-12)
    assert plan(alpha=0.7, cost=lambda m: 2.0).sections[0].rows[3]["speedup"] == pytest.approx(rows[3]["tokens"])


def test_a_log_uses_the_rate_of_each_position_that_was_tried_enough(tmp_path: Path) -> None:
    lines = [{"accepted": 3, "drafted": 3}] * 20 + [{"accepted": 1, "drafted": 3}] * 30 + [{"accepted": 0, "drafted": 3}] * 50
    log = read_log(write(tmp_path / "log", *lines))
    [section] = plan(log=log, c=0.1, max_draft=4).sections
    alpha = (60 + 30) / (60 + 60 + 50)
    assert section.rate.alpha == pytest.approx(alpha)
    # 100 and 50 trials of the first two positions; 20 of the third are too few, and the fourth was not tried
    reach = np.cumprod([0.5, 0.4, alpha, alpha])
    assert [row["tokens"] for row in section.rows] == pytest.approx([1.0, *(1.0 + np.cumsum(reach))])


def test_passes_without_a_draft_dilute_the_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write(tmp_path / "log", *[{"accepted": 2, "drafted": 2}] * 30, *[{"accepted": 0, "drafted": 0}] * 70)
    [section] = plan(log=read_log(log), c=0.1, max_draft=2).sections
    # 30 passes of 3 tokens and cost 1.2, 70 of one token and cost 1
    assert section.facts["speedup_of_run"] == pytest.approx((30 * 3 + 70) / (30 * 1.2 + 70))
    assert section.rate.to_dict()["drafted_share"] == 0.3
    assert main(["plan", "--log", log, "--c", "0.1", "--max-draft", "2"]) == 0
    assert "30% of the passes had a draft; with as many, a run at the best length has a speed-up of 1.509" in (
        capsys.readouterr().out
    )
    always = write(tmp_path / "always", {"accepted": 2, "drafted": 2})
    assert plan(log=read_log(always), c=0.1).sections[0].facts["speedup_of_run"] == pytest.approx(
        plan(log=read_log(always), c=0.1).best["speedup"]
    )


def test_a_batch() -> None:
    found = plan(alpha=0.8, cost=[1 + 0.02 * m for m in range(30)], draft_seconds=0.05, rows=4, max_draft=6)
    [section] = found.sections
    for k, row in enumerate(section.rows):
        rounds = k * 0.05 + 1 + 0.02 * (4 * (k + 1) - 1)
        assert row["speedup"] == pytest.approx(row["tokens"] * 1.06 / rounds, abs=1e-12)
        assert row["synchronous_tokens"] == pytest.approx(sum(0.8 ** (4 * j) for j in range(k + 1)))
        assert row["synchronous_speedup"] == pytest.approx(row["synchronous_tokens"] * 1.06 / rounds, abs=1e-12)
    k = section.best["k"]
    assert section.facts["rounds_to_finish"] == batch.rounds_to_finish(0.8, k, 4, 128)
    assert section.facts["rounds_to_finish_synchronous"] > section.facts["rounds_to_finish"]


def test_a_tree() -> None:
    chances = (0.6, 0.2, 0.1)
    found = plan(method="tree", chances=chances, cost=CURVE, max_draft=6, depth=3, draft_seconds=0.0003)
    [section] = found.sections
    for n, row in enumerate(section.rows):
        best = tree_plan.sequoia(chances, n, 3)
        assert row["tokens"] == pytest.approx(best.tokens, abs=1e-12)
        assert row["speedup"] == pytest.approx(best.tokens / (n * 0.01 + CURVE[n] / CURVE[0]), abs=1e-12)
    grown = tree_plan.greedy(chances, 6, 3, CURVE, 0.01)
    assert section.tree == grown
    assert section.best["nodes"] == len(grown.parents)
    assert section.best["as_chains"] == grown.work()


def test_a_tree_from_a_trace(tmp_path: Path) -> None:
    lines = [step([0, 0], [True, False])] * 5 + [step([0, 0], [False, True])] * 3 + [step([0, 0], [False, False])] * 2
    log = read_log(write(tmp_path / "log", *lines))
    found = plan(method="tree", log=log, c=0.01, max_draft=3)
    assert found.inputs.chances == (0.5, 0.3)
    lines = [step([0], [True])] * 9 + [step([0, 0], [False, True])] * 3
    found = plan(method="tree", log=read_log(write(tmp_path / "log", *lines)), c=0.01, max_draft=3)
    assert found.inputs.chances == pytest.approx((1.0, 0.0))  # 3 of 3 and 9 of 12: what is left of 1
    with pytest.raises(BadRequest, match="no children to count"):
        plan(method="tree", log=read_log(write(tmp_path / "log", {"accepted": 1, "drafted": 2})), c=0.01)


def test_a_vertical_cascade() -> None:
    levels = [Level(0.8, 3, 0.3), Level(0.6, 4, 0.02)]
    [section] = plan(method="cascade", levels=levels, alpha=0.5, max_draft=10).sections
    gain, n, k = cascade.best_vertical(0.8, 0.3, 0.6, 0.02, 10)
    assert (section.best["speedup"], section.best["steps_1"], section.best["steps_2"]) == (gain, n, k)
    assert section.facts["given_speedup"] == cascade.ewif(levels)
    alone = float(speedup.speedup(0.8, gamma.optimal_gamma(0.8, 0.3), 0.3))
    light = float(speedup.speedup(0.5, gamma.optimal_gamma(0.5, 0.02), 0.02))
    assert (section.facts["single_speedup"], section.facts["light_speedup"]) == (alone, light)
    assert section.facts["gain_over_single"] == pytest.approx(gain / max(alone, light) - 1)
    deep = plan(method="cascade", levels=[*levels, Level(0.5, 2, 0.0)]).sections[0]
    assert deep.best["speedup"] == cascade.ewif([*levels, Level(0.5, 2, 0.0)])


def test_a_horizontal_cascade() -> None:
    levels = [Level(0.8, 2, 0.2), Level(0.6, 3, 0.02)]
    [section] = plan(method="horizontal", levels=levels, max_draft=3).sections
    lengths = [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3)]
    for row, both in zip(section.rows, lengths, strict=True):
        assert row["speedup"] == cascade.horizontal_speedup([0.8, 0.6], both, [0.2, 0.02])
    assert [row["level"] for row in section.rows] == [0, 1, 1, 2, 2, 2]
    best = max(cascade.horizontal_speedup([0.8, 0.6], (i, j), [0.2, 0.02]) for i in range(4) for j in range(4) if i + j <= 3)
    assert section.facts["best_speedup"] == best
    both = (section.facts["best_first"], section.facts["best_second"])
    assert cascade.horizontal_speedup([0.8, 0.6], both, [0.2, 0.02]) == best


def test_a_described_device() -> None:
    text = "bandwidth=900GB/s, compute=150TFLOPS,overhead=0.1ms,parameters=7B,bytes=2,cache=128KB,draft_parameters=0.5B"
    source = described(text, context=1000, rows=2)
    device, model = roofline.Device(9e11, 1.5e14, 1e-4), roofline.Model(7e9, 2.0, 128e3)
    assert source.seconds(6) == roofline.pass_seconds(device, model, 6, 1000, 2)
    assert source.draft == roofline.pass_seconds(device, roofline.Model(0.5e9, 2.0), 2, 0, 2)
    slow = described("bandwidth=1e18B/s,compute=1TFLOPS,parameters=7B,draft_parameters=0.5B", rows=3)
    assert slow.draft == pytest.approx(3e9 / 1e12)  # three tokens of 1e9 operations each
    found = plan(alpha=0.7, cost=source, rows=2)
    assert found.inputs.cost.c == pytest.approx(source.draft / source.seconds(1))
    assert found.to_dict()["cost"]["free_tokens"] == roofline.ridge(device, model)
    assert described("bandwidth=2e9B/s,compute=1TOPS,parameters=100,bytes=0.5").seconds(1) == pytest.approx(25e-9)


# the command


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--alpha", "0.5,0.7", "0.9", "--c", "0.1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("α")] == ["α = 0.5", "α = 0.7", "α = 0.9"]
    assert [re.match(r" *(\d+) ", line)[1] for line in lines if line.endswith("<- best")] == [
        str(gamma.optimal_gamma(a, 0.1)) for a in (0.5, 0.7, 0.9)
    ]
    exact = gamma.optimal_gamma(0.7, 0.1)
    loss = 100 * gamma.seed_loss(0.7, 0.1)
    assert f"exact {exact}; continuous 4.025; as often printed 4.045, which gives away {loss:.1f} %" in out
    assert "drafting pays while c < 0.700" in out
    assert main(["plan", "--alpha", "0.1", "--c", "0.5"]) == 0
    assert "no draft pays here: decode plainly" in capsys.readouterr().out
    assert main(["plan", "--alpha", "0.9", "--c", "0.01", "--max-draft", "3"]) == 0
    assert "raise --max-draft" in capsys.readouterr().out


def test_the_table_of_a_log_has_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write(tmp_path / "log", *[{"accepted": 2, "drafted": 3}] * 40, *[{"accepted": 0, "drafted": 4}] * 10)
    assert main(["plan", "--log", log, "--c", "0.05"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^α = 0\.615, 95 % interval 0\.5\d\d to 0\.\d+, 130 trials$", out, re.M)
    assert re.search(r"^ +1 +0\.800 +0\.670-0\.888 +50 +0\.800 +0\.670-0\.888$", out, re.M)
    assert re.search(r"^ +4 +unknown +0\.000-1\.000 +0 +unknown", out, re.M)


@pytest.mark.parametrize(
    "words",
    [
        ["--alpha", "0", "1", "--c", "0.1"],
        ["--alpha", "0", "1", "--c", "1.5"],
        ["--alpha", "1", "--c", "0.1", "--rows", "3"],
        ["--alpha", "0.99", "--c", "1e-9"],
        ["--method", "tree", "--chances", "1,0", "--c", "0.1"],
        ["--method", "tree", "--chances", "0", "--c", "0.1"],
        ["--method", "cascade", "--level", "1,2,0.1", "--level", "0,1,0"],
        ["--method", "cascade", "--level", "0.5,2,0.1"],
        ["--method", "horizontal", "--level", "1,2,0.1", "--level", "0,1,0", "--level", "1,1,0"],
        ["--alpha", "0.5", "--device", "bandwidth=1GB/s,compute=1TFLOPS,parameters=1B"],
    ],
)
def test_json_holds_at_the_edges(words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", *words, "--json", "--plot", str(tmp_path)]) == 0

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert {"method", "most", "batch_rows", "plans", "warnings"} <= set(found)
    for section in found["plans"]:
        assert section["best"] in section["rows"]
        assert all(math.isfinite(value) for row in section["rows"] for value in row.values())
    assert main(["plan", *words]) == 0
    assert not re.search(r"\b(nan|inf)\b", capsys.readouterr().out)


def test_json_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write(tmp_path / "log", *[{"accepted": 2, "drafted": 3}] * 40)
    cost = write(tmp_path / "cost", {"machine": "x", "cost": CostModel((1, 16), (0.01, 0.02), 100, 1e-6).to_dict()})
    assert main(["plan", "--log", log, "--cost", cost, "--context", "1100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cost"]["seconds"][0] == pytest.approx(0.011)
    assert (found["cost"]["constant"], found["cost"]["c"]) == (False, 0.0)
    rate = found["plans"][0]["acceptance"]
    assert (rate["alpha"], rate["trials"]) == (pytest.approx(2 / 3), 120)
    assert [p["trials"] for p in rate["positions"]] == [40, 40, 40]
    assert rate["positions"][0]["reach"] == 1.0
    assert found["plans"][0]["gamma_exact"] is None  # a free drafter at constant cost has none


def test_a_log_from_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO('{"accepted": 1, "drafted": 2}\n'))
    assert main(["plan", "--log", "-", "--c", "0.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["acceptance"]["alpha"] == 0.5


def test_the_stored_curve_of_a_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    toy = install(monkeypatch)
    assert main(["plan", "--model", "toy", "--alpha", "0.7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cost"]["origin"] == "toy"
    assert found["cost"]["seconds"] == pytest.approx([CostModel((1, 16), (0.01, 0.011), 100)(m) for m in range(1, 14)])
    assert toy.opened == 1
    assert "alpha" in error_of(capsys, main(["plan", "--model", "toy", "--alpha", "1.7"]))
    assert toy.opened == 1  # what is wrong is told before a model is opened


def test_a_falling_curve_is_clamped_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = write(tmp_path / "cost", {"seconds": [0.03, 0.04, 0.02, 0.05]})
    assert main(["plan", "--alpha", "0.7", "--cost", cost, "--json"]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"surefoot: warning: \S+: a pass over 3 tokens is quicker than one over fewer; [^\n]+\n", err)
    found = json.loads(out)
    assert found["cost"]["seconds"] == [0.03, 0.04, 0.04, 0.05]
    assert len(found["warnings"]) == 1
    assert found["plans"][0]["rows"][2]["speedup"] == pytest.approx((1 + 0.7 + 0.49) * 0.03 / 0.04)


BAD = {
    "no alpha": (["--c", "0.1"], "give --alpha or --log"),
    "no cost": (["--alpha", "0.7"], "give --c, or a cost curve"),
    "alpha above 1": (["--alpha", "1.2", "--c", "0.1"], "alpha must lie in [0, 1]"),
    "alpha below 0": (["--alpha", "-0.1", "--c", "0.1"], "alpha must lie in [0, 1]"),
    "alpha NaN": (["--alpha", "nan", "--c", "0.1"], "alpha must lie in [0, 1]"),
    "alpha a word": (["--alpha", "high", "--c", "0.1"], "is not a list of numbers"),
    "c 0": (["--alpha", "0.7", "--c", "0"], "c must be a positive number"),
    "c below 0": (["--alpha", "0.7", "--c", "-1"], "c must be a positive number"),
    "c NaN": (["--alpha", "0.7", "--c", "nan"], "c must be a positive number"),
    "c infinite": (["--alpha", "0.7", "--c", "inf"], "c must be a positive number"),
    "two costs": (["--alpha", "0.7", "--c", "0.1", "--cost", "good"], "--c and --cost both say"),
    "two curves": (["--alpha", "0.7", "--model", "x", "--cost", "good"], "--cost and --model both say"),
    "c and seconds": (["--alpha", "0.7", "--c", "0.1", "--draft-seconds", "1"], "give --draft-seconds with a cost curve"),
    "two rates": (["--alpha", "0.7", "--log", "log", "--c", "0.1"], "--alpha and --log both say"),
    "no such log": (["--log", "nowhere", "--c", "0.1"], "cannot read the log nowhere"),
    "no such curve": (["--alpha", "0.7", "--cost", "nowhere"], "cannot read the cost curve nowhere"),
    "curve no JSON": (["--alpha", "0.7", "--cost", "text"], "text is no JSON"),
    "curve without seconds": (["--alpha", "0.7", "--cost", "log"], "has no seconds"),
    "curve of words": (["--alpha", "0.7", "--cost", "words"], "seconds must be a list of numbers"),
    "curve with a 0": (["--alpha", "0.7", "--cost", "zero"], "must be positive numbers"),
    "empty curve": (["--alpha", "0.7", "--cost", "none"], "is empty"),
    "broken model": (["--alpha", "0.7", "--cost", "broken"], "a cost model needs rising widths"),
    "curve too short": (["--alpha", "0.7", "--cost", "good", "--max-draft", "9"], "1 … 3 tokens, and 10 are needed"),
    "draft seconds": (["--alpha", "0.7", "--cost", "good", "--draft-seconds", "-1"], "must be 0 or more"),
    "context of a list": (["--alpha", "0.7", "--cost", "good", "--context", "5"], "leave --context out"),
    "context of c": (["--alpha", "0.7", "--c", "0.1", "--context", "5"], "--context belongs to a cost curve"),
    "context below 0": (["--alpha", "0.7", "--cost", "good", "--context", "-5"], "--context -5 is not allowed"),
    "backend": (["--alpha", "0.7", "--c", "0.1", "--backend", "torch"], "belong to --model"),
    "method": (["--alpha", "0.7", "--c", "0.1", "--method", "star"], "choose chain, tree, cascade, horizontal"),
    "no draft": (["--alpha", "0.7", "--c", "0.1", "--max-draft", "0"], "the longest draft (--max-draft)"),
    "rows": (["--alpha", "0.7", "--c", "0.1", "--rows", "0"], "--rows 0 is not allowed"),
    "rows of a tree": (["--method", "tree", "--chances", "0.5", "--c", "0.1", "--rows", "2"], "--rows belongs to"),
    "chances of a chain": (["--alpha", "0.7", "--c", "0.1", "--chances", "0.5"], "belong to --method tree"),
    "alpha of a tree": (["--method", "tree", "--alpha", "0.7", "--c", "0.1"], "give --chances"),
    "tree without chances": (["--method", "tree", "--c", "0.1"], "give --chances"),
    "rising chances": (["--method", "tree", "--chances", "0.2,0.5", "--c", "0.1"], "must fall and add up"),
    "chances above 1": (["--method", "tree", "--chances", "0.7,0.5", "--c", "0.1"], "must fall and add up"),
    "depth 0": (["--method", "tree", "--chances", "0.7", "--c", "0.1", "--depth", "0"], "depth must be whole numbers from 1"),
    "levels missing": (["--method", "cascade"], "give --level"),
    "levels of a chain": (["--alpha", "0.7", "--c", "0.1", "--level", "0.5,1,0.1"], "--level belongs to"),
    "level torn": (["--method", "cascade", "--level", "0.5,1"], "is no level"),
    "level alpha": (["--method", "cascade", "--level", "1.5,1,0.1"], "alpha of a level must lie"),
    "level c": (["--method", "cascade", "--level", "0.5,1,-0.1"], "c of a level must be 0 or more"),
    "level steps": (["--method", "horizontal", "--level", "0.5,0,0.1"], "steps of a level must be whole numbers from 1"),
    "cascade with c": (["--method", "cascade", "--level", "0.5,1,0.1", "--c", "0.1"], "have their own c"),
    "device unknown": (["--alpha", "0.7", "--device", "speed=3"], "does not know 'speed=3'"),
    "device lacks": (["--alpha", "0.7", "--device", "bandwidth=3GB/s"], "lacks compute, parameters"),
    "device unit": (["--alpha", "0.7", "--device", "bandwidth=3GB,compute=1TFLOPS,parameters=1B"], "is no quantity"),
    "device 0": (["--alpha", "0.7", "--device", "bandwidth=0GB/s,compute=1TFLOPS,parameters=1B"], "must be positive"),
    "folder": (["--alpha", "0.7", "--c", "0.1", "--plot", "text/more"], "cannot write figures to text/more"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log", {"accepted": 1, "drafted": 2})
    write(tmp_path / "text", "hello")
    for file, seconds in {"good": [1, 2, 3], "words": ["a"], "zero": [1, 0, 2], "none": []}.items():
        write(tmp_path / file, {"seconds": seconds})
    write(tmp_path / "broken", {"widths": [2, 1], "seconds": [1, 2]})
    words, told = BAD[name]
    assert told in error_of(capsys, main(["plan", *words]))


# figures


def labels(figure: Any) -> list[tuple[str, str, str]]:
    return [(a.get_title(), a.get_xlabel(), a.get_ylabel()) for a in figure.axes]


def test_figures_are_written_and_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(matplotlib.rcParams)
    folder = tmp_path / "new" / "folder"
    assert main(["plan", "--alpha", "0.5", "0.8", "--c", "0.1", "--plot", str(folder)]) == 0
    names = ["frontier.png", "frontier.svg", "map.png", "map.svg", "speedup.png", "speedup.svg"]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert all(name in capsys.readouterr().out for name in ["speedup.png"])
    for name in names:
        data = (folder / name).read_bytes()
        if name.endswith("png"):
            assert data[:8] == b"\x89PNG\r\n\x1a\n"
            width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
            assert width > 900
            assert height > 600
        else:
            assert b"<svg" in data
        assert len(data) > 10_000
    assert dict(matplotlib.rcParams) == before
    again = plan(alpha=[0.5, 0.8], c=0.1).plot(tmp_path / "again")
    assert {p.name: p.read_bytes() for p in again} == {name: (folder / name).read_bytes() for name in names}


def test_no_pyplot_and_no_matplotlib_without_a_plot() -> None:
    program = (
        "import sys; from surefoot.plan import plan; p = plan(alpha=0.7, c=0.1); p.table(); print('matplotlib' in sys.modules);"
        "p.figures(); print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "False", "False"], done.stderr


def test_the_speedup_figure_shows_the_table() -> None:
    found = plan(alpha=[0.5, 0.8], cost=CURVE, draft_seconds=0.003)
    figure = found.figures()["speedup"]
    [own] = figure.axes
    title = "Speed-up by draft length (the cost curve, c = 0.1)"
    assert labels(figure) == [(title, "draft length γ (tokens)", "speed-up over plain decoding (×)")]
    drawn = [line.get_ydata() for line in own.get_lines()]
    for section in found.sections:
        for column in ("speedup", "speedup_if_flat"):
            expected = [row[column] for row in section.rows]
            assert any(len(y) == len(expected) and np.allclose(y, expected) for y in drawn)
        low, high = band(section, found.inputs.most)
        gain = np.array([row["speedup"] for row in section.rows])
        assert np.all(low[1:] < gain[1:])
        assert np.all(gain[1:] < high[1:])
        assert np.all((high - low)[1:] / gain[1:] < 0.4)
    texts = [t.get_text() for t in figure.legends[0].get_texts()]
    assert texts[:2] == ["α = 0.5", "α = 0.8"]
    assert "if a wider pass cost no more" in texts


def test_legends_stand_beside_the_data() -> None:
    for found in (
        plan(alpha=[0.3, 0.5, 0.8], cost=CURVE, draft_seconds=0.003),
        plan(alpha=0.7, c=0.1, rows=4),
        plan(method="horizontal", levels=[Level(0.8, 2, 0.2), Level(0.6, 3, 0.02)]),
    ):
        for figure in found.figures().values():
            figure.draw_without_rendering()
            for legend in figure.legends:
                assert legend.get_window_extent().y1 <= figure.axes[0].get_tightbbox().y0 + 1
            for own in figure.axes:
                box = own.get_tightbbox()
                assert box.x0 >= 0
                assert box.y0 >= 0
                assert box.x1 <= figure.bbox.x1
                assert box.y1 <= figure.bbox.y1


def test_the_map_and_the_frontier() -> None:
    figures = plan(alpha=0.7, c=0.1).figures()
    own, bar = figures["map"].axes
    assert own.get_yscale() == "log"
    assert (own.get_xlabel(), own.get_ylabel()) == ("acceptance rate α", "cost of a drafted token c (passes)")
    assert bar.get_ylabel() == "best speed-up over plain decoding (×)"
    mesh = own.collections[0].get_array().reshape(61, 97)
    alphas, costs = np.linspace(0.02, 0.98, 97), np.geomspace(0.005, 1.0, 61)
    for i, j in ((0, 96), (30, 50), (60, 96), (20, 0)):
        k = gamma.optimal_gamma(alphas[j], costs[i])
        assert mesh[i, j] == pytest.approx(float(speedup.speedup(alphas[j], k, costs[i])))
    [own] = figures["frontier"].axes
    lines = {line.get_label(): line for line in own.get_lines()}
    assert list(lines) == ["c = 0.01", "c = 0.02", "c = 0.05", "c = 0.1", "c = 0.2", "c = 0.5"]
    x, y = lines["c = 0.1"].get_data()
    assert [gamma.optimal_gamma(float(a), 0.1) for a in x[::20]] == list(y[::20])
    measured = plan(alpha=0.7, cost=CURVE).figures()
    assert measured["map"].axes[0].get_title() == "Best speed-up and draft length γ* (the cost curve, γ up to 6)"
    own = measured["frontier"].axes[0]
    assert own.get_title() == "Best draft length (the cost curve, γ up to 6)"
    x, y = own.get_lines()[0].get_data()  # c = 0
    assert list(y[::20]) == [gamma.optimal_gamma_measured(gamma.tokens_at(float(a), 6), 0.0, CURVE) for a in x[::20]]


def test_the_other_figures(tmp_path: Path) -> None:
    found = plan(method="tree", chances=(0.6, 0.2), c=0.05, max_draft=12)
    [(name, figure)] = found.figures().items()
    assert name == "tree"
    titles = [a.get_title() for a in figure.axes]
    assert titles[:2] == ["Expected tokens a pass", "Speed-up (constant cost of a pass, c = 0.05)"]
    nodes = len(found.sections[0].tree.parents)
    assert titles[2].startswith(f"The best tree: {nodes} nodes, ")
    places = figure.axes[2].collections[0].get_offsets()
    assert len({tuple(p) for p in places}) == nodes  # no two nodes in one place
    assert sorted(places[:, 1]) == sorted(found.sections[0].tree.depths())
    levels = [Level(0.8, 3, 0.3), Level(0.6, 4, 0.02)]
    [figure] = plan(method="cascade", levels=levels, max_draft=6).figures().values()
    assert "Cascade against the best single level" in figure.axes[0].get_title()
    share = figure.axes[0].collections[0].get_array().reshape(6, 6)
    alone = float(speedup.speedup(0.8, gamma.optimal_gamma(0.8, 0.3), 0.3))
    assert share[3, 2] == pytest.approx(cascade.ewif(levels) / alone)  # row k = 4, column n = 3
    three = plan(method="cascade", levels=[*levels, Level(0.5, 2, 0.01)]).figures()["cascade"]
    assert [bar.get_height() for bar in three.axes[0].patches][1] == pytest.approx(cascade.ewif(levels))
    assert plan(alpha=0.7, c=0.1, rows=4).figures()["batch"].axes[0].get_title().startswith("Speed-up of a batch of 4 rows")
    for path in plan(method="horizontal", levels=levels).plot(tmp_path):
        assert path.stat().st_size > 5000


def test_without_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["plan", "--alpha", "0.7", "--c", "0.1", "--plot", str(tmp_path / "out")]
    assert "pip install 'surefoot[plots]'" in error_of(capsys, main(words))
    assert not (tmp_path / "out").exists()
    with pytest.raises(Unsupported):
        plan(alpha=0.7, c=0.1).figures()


def test_read_cost_forms(tmp_path: Path) -> None:
    model = CostModel((1, 4), (0.01, 0.02), 100, 1e-5, 0.003)
    for data in (model.to_dict(), {"cost": model.to_dict(), "report": {}}):
        source = read_cost(write(tmp_path / "c", data), 300)
        assert source.limit is None
        assert source.seconds(2) == model(2, 300)
    assert read_cost(write(tmp_path / "c", {"seconds": [1, 2]})).limit == 2
