"""``plan ssr``: its numbers are the theory's, what it prints, what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys_cli import error_of, install

from surefoot.cli import main
from surefoot.core.cost import CostModel
from surefoot.errors import BadRequest
from surefoot.plan import of_curve, plan_ssr
from surefoot.theory import ssr
from surefoot.theory.ssr import Setting

ASKED = ["--thought", "400", "--answer", "200", "--overlap", "0.7"]
RISING = [0.030 + 0.001 * m for m in range(40)]


def rising(m: int) -> float:
    return RISING[m - 1]


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", "ssr", *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    read: dict[str, Any] = json.loads(out)
    return read


def costs(tmp_path: Path) -> list[str]:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({"seconds": RISING}), encoding="utf-8")
    return ["--cost", str(path)]


def test_the_numbers_are_those_of_the_theory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = found(capsys, *ASKED, *costs(tmp_path), "--draft-budget", "150", "--recovery", "3", "--force-tokens", "2")
    own = Setting(400, 200, 0.7, 150, recovery=3.0, force=2)
    wanted = ssr.latency(own, rising)
    best = made["best"]
    assert (best["budget"], best["chain"], made["budget_given"]) == (150, wanted.chain, True)
    assert best["gain"] == pytest.approx(wanted.gain)
    assert best["seconds"]["total"] == pytest.approx(0.030 * wanted.total)
    for stage in ("thought", "exposed", "hidden", "verify", "continuation"):
        assert best["passes"][stage] == pytest.approx(getattr(wanted, stage))
    assert made["break_even_overlap"] == pytest.approx(ssr.break_even(own, rising))
    assert made["pays"] is True
    assert 150 in [row["budget"] for row in made["budgets"]]


def test_the_best_budget_for_a_curve_of_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    made = found(capsys, "--thought", "400", "--answer", "100", "--overlap", "0:0.1,0.5:0.5,1:0.9", "--chain", "6")
    best = made["best"]
    assert best["gain"] == max(row["gain"] for row in made["budgets"])
    assert best["overlap"] == pytest.approx(0.1 + 0.8 * best["budget"] / 400)
    # later is better, as long as the draft is ready in time
    assert 250 < best["budget"] <= 300
    assert made["cost"] is None
    assert "seconds" not in best


def test_thoughts_of_several_lengths_and_further_forks(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--thought", "100,300", "--answer", "80", "--overlap", "0:0,1:1", "--interval", "60"]
    made = found(capsys, *words, "--draft-budget", "50")
    own = Setting(300, 80, lambda share: share, 50, interval=60, drafts=4, force=4)
    each = [ssr.latency(replace(own, thought=n), lambda m: 1.0) for n in (100, 300)]
    assert made["best"]["gain"] == pytest.approx(1 - sum(e.total for e in each) / sum(e.without for e in each))
    assert made["thoughts"] == [100, 300]
    assert made["setting"]["drafts"] == 4
    assert len(made["best"]["drafted"]) == 4
    one = found(capsys, *words, "--draft-budget", "50", "--max-drafts", "1")
    assert len(one["best"]["drafted"]) == 1


def test_prefix_only_gains_less(capsys: pytest.CaptureFixture[str]) -> None:
    full, prefix = (found(capsys, *ASKED, "--draft-budget", "100", *more) for more in ([], ["--prefix-only"]))
    assert prefix["best"]["gain"] < full["best"]["gain"]
    assert prefix["best"]["accepted"] == pytest.approx(prefix["best"]["prefix"])


def test_where_it_does_not_pay_it_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "dear.json"
    path.write_text(json.dumps({"seconds": [float(m) for m in range(1, 40)]}), encoding="utf-8")
    assert main(["plan", "ssr", *ASKED, "--cost", str(path), "--draft-budget", "100"]) == 0
    out, _ = capsys.readouterr()
    assert "forking does not pay here" in out
    assert "pays at no overlap" in out
    assert "with a fork +100.0 %" in out
    made = found(capsys, *ASKED, "--cost", str(path), "--draft-budget", "100")
    assert made["pays"] is False
    assert made["break_even_overlap"] is None


def test_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", "ssr", *ASKED, *costs(tmp_path), "--tokens", "1.5"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    head, _, titles, *rest = out.splitlines()
    assert "400 tokens of thought, 200 of answer" in head
    assert "1.5 tokens a pass without ssr" in head
    assert titles.split()[:4] == ["budget", "overlap", "drafted", "k"]
    assert sum("<- best" in line for line in rest) == 1
    assert "against plain decoding" in out
    assert "it pays from an overlap of" in out


def test_a_budget_behind_some_thoughts_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--thought", "100,300", "--answer", "80", "--overlap", "0.5", "--draft-budget", "150"]
    assert main(["plan", "ssr", *words]) == 0
    assert "not below every thought" in capsys.readouterr().err


def test_a_short_curve_shortens_chains(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "short.json"
    path.write_text(json.dumps({"seconds": RISING[:8]}), encoding="utf-8")
    made = found(capsys, *ASKED, "--cost", str(path), "--draft-budget", "100")
    assert made["best"]["chain"] == 6
    path.write_text(json.dumps({"seconds": RISING[:3]}), encoding="utf-8")
    status = main(["plan", "ssr", *ASKED, "--cost", str(path)])
    assert "1 … 3 tokens" in error_of(capsys, status)


def test_a_model_is_measured_and_gives_its_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = install(monkeypatch)
    made.model.traits = replace(made.model.traits, min_width=2)
    plan = found(capsys, *ASKED, "--model", "toy", "--draft-budget", "100")
    assert plan["setting"]["width"] == 2
    cost = of_curve(CostModel((1, 16), (0.01, 0.011), 100))
    assert plan["best"]["gain"] == pytest.approx(plan_ssr(400, 200, 0.7, budget=100, width=2, cost=cost).best.mean.gain)


def test_what_is_wrong_is_told_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = install(monkeypatch)
    status = main(["plan", "ssr", "--thought", "0", "--answer", "5", "--overlap", "0.5", "--model", "toy"])
    assert "--thought" in error_of(capsys, status)
    assert made.opened == 0


@pytest.mark.parametrize(
    "words, message",
    [
        (["--answer", "5", "--overlap", "1"], "--thought is missing"),
        ([*ASKED, "--overlap", "1.5"], "overlap"),
        ([*ASKED, "--overlap", "0.5:0.2,0.1:0.3"], "rising"),
        ([*ASKED, "--overlap", "much"], "is no overlap"),
        ([*ASKED, "--thought", "a"], "whole numbers"),
        ([*ASKED, "--max-drafts", "3"], "--interval"),
        ([*ASKED, "--interval", "0"], "interval"),
        ([*ASKED, "--recovery", "0"], "recovery"),
        ([*ASKED, "--draft-tokens", "0"], "draft"),
        ([*ASKED, "--context", "9"], "--cost, --model or --device"),
        ([*ASKED, "--cost", "x.json", "--model", "y"], "give one"),
        ([*ASKED, "--cost", "missing.json"], "cannot read"),
        ([*ASKED, "--backend", "torch"], "belong to --model"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    status = main(["plan", "ssr", *words])
    assert message in error_of(capsys, status)


def test_options_stand_behind_the_word(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["plan", "--json", "ssr", *ASKED])
    assert "behind the word ssr" in error_of(capsys, status)


def test_bad_points_in_python() -> None:
    with pytest.raises(BadRequest, match="points"):
        plan_ssr(100, 10, [])
