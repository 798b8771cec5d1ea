"""``plan cascade``: its numbers are the theory's, what it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toys_cli import error_of, install

from surefoot.cli import main
from surefoot.core.cost import CostModel
from surefoot.errors import BadRequest
from surefoot.plan import of_curve, plan_cascade
from surefoot.theory import arrivals, cascade, schedule
from surefoot.theory.cascade import Level
from surefoot.theory.schedule import Drafters

PAPER = ["--alpha", "0.8,0.4", "--cost", "0.1,0.001", "--inner-alpha", "0.4"]
RISING = [0.030 + 0.002 * m for m in range(60)]


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", "cascade", *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    read: dict[str, Any] = json.loads(out)
    return read


def write(path: Path, value: Any) -> str:
    path.write_text(json.dumps(value), encoding="utf-8")
    return str(path)


def test_the_published_example(capsys: pytest.CaptureFixture[str]) -> None:
    made = found(capsys, *PAPER)
    best = made["best"]
    assert (best["kind"], best["drafters"], best["steps"]) == ("vertical", [1, 2], [5, 3])
    assert best["speedup"] == pytest.approx(cascade.best_vertical(0.8, 0.1, 0.4, 0.001)[0])
    assert best["tokens"] / best["cost"] == pytest.approx(best["speedup"])
    assert made["best_single"]["speedup"] == pytest.approx(2.47, abs=0.005)
    assert made["gain_over_single"] == pytest.approx(best["speedup"] / made["best_single"]["speedup"] - 1)
    assert {s["kind"] for s in made["schedules"]} == {"vertical", "horizontal"}
    [limits] = made["break_even"]
    for key, rival in (("over_plain", 1.0), ("over_bottom", made["singles"][1]["speedup"])):
        at = found(capsys, "--alpha", "0.8,0.4", "--cost", f"{limits[key]},0.001", "--inner-alpha", "0.4")
        [vertical] = [s for s in at["schedules"] if s["kind"] == "vertical"]
        assert vertical["speedup"] == pytest.approx(rival, abs=1e-9)


def test_a_given_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    made = found(capsys, *PAPER, "--steps", "2,7")
    assert [s["steps"] for s in made["schedules"]] == [[2, 7]]
    assert made["best"]["speedup"] == pytest.approx(cascade.ewif([Level(0.8, 2, 0.1), Level(0.4, 7, 0.001)]))
    [limits] = made["break_even"]  # of this schedule, not of the best one
    levels = [Level(0.8, 2, limits["over_plain"]), Level(0.4, 7, 0.001)]
    assert cascade.ewif(levels) == pytest.approx(1.0)
    both = found(capsys, *PAPER, "--steps", "2,7", "--search")
    assert [2, 7] in [s["steps"] for s in both["schedules"]]
    assert both["best"]["steps"] == [5, 3]
    flat = found(capsys, *PAPER, "--lengths", "3,4")
    assert (flat["best"]["kind"], flat["best"]["steps"], flat["break_even"]) == ("horizontal", [3, 4], [])
    assert flat["best"]["speedup"] == pytest.approx(cascade.horizontal_speedup([0.8, 0.4], [3, 4], [0.1, 0.001]))


def test_three_drafters_and_their_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--alpha", "0.9,0.7,0.4", "--cost", "0.3,0.1,0.001", "--names", "big,mid,low"]
    near = found(capsys, *words, "--inner-alpha", "0.8,0.6")
    assert near["inner"] == [{"reviewer": 1, "drafter": 2, "alpha": 0.8}, {"reviewer": 2, "drafter": 3, "alpha": 0.6}]
    every = found(capsys, *words, "--inner-alpha", "0.8,0.5,0.6")
    chains = {tuple(s["drafters"]) for s in every["schedules"] if s["kind"] == "vertical"}
    assert chains == {(1, 2), (1, 3), (2, 3), (1, 2, 3)}
    assert [d["name"] for d in every["drafters"]] == ["big", "mid", "low"]
    drafters = Drafters((0.9, 0.7, 0.4), (0.3, 0.1, 0.001), {(0, 1): 0.8, (0, 2): 0.5, (1, 2): 0.6})
    best = schedule.vertical(drafters)[0]
    assert every["best"]["speedup"] == pytest.approx(best.ewif)
    flat = found(capsys, *words, "--horizontal")
    assert {s["kind"] for s in flat["schedules"]} == {"horizontal"}
    assert flat["best"]["speedup"] == pytest.approx(schedule.horizontal(drafters)[0].ewif)


def test_a_measured_curve_makes_wide_passes_dear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "curve.json", {"seconds": RISING})
    made = found(capsys, *PAPER, "--steps", "3,2", "--curve", file, "--review-curve", file)
    assert made["longest"] == 48
    levels = [Level(0.8, 3, 0.1), Level(0.4, 2, 0.001)]
    assert made["best"]["speedup"] == pytest.approx(arrivals.ewif(levels, RISING, [RISING]))
    assert made["best"]["speedup"] < arrivals.ewif(levels, RISING) < cascade.ewif(levels)
    short = write(tmp_path / "short.json", {"seconds": RISING[:7]})
    assert found(capsys, *PAPER, "--curve", short)["longest"] == 6
    told = error_of(capsys, main(["plan", "cascade", *PAPER, "--curve", short, "--longest", "9"]))
    assert "has the seconds of 1 … 7 tokens, and 10 are needed; lower --longest" in told
    device = found(capsys, *PAPER, "--device", "bandwidth=1e18B/s,compute=1TFLOPS,parameters=7B")
    assert device["best"]["speedup"] < 1.0  # every token of a pass costs as much as one


def test_the_curve_of_a_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    toy = install(monkeypatch)
    made = found(capsys, *PAPER, "--model", "org/name", "--steps", "3,2")
    cost = CostModel((1, 16), (0.01, 0.011), 100)
    levels = [Level(0.8, 3, 0.1), Level(0.4, 2, 0.001)]
    assert made["best"]["speedup"] == pytest.approx(arrivals.ewif(levels, lambda m: cost(m)))
    assert toy.opened == 1
    assert "--alpha must lie" in error_of(capsys, main(["plan", "cascade", *PAPER, "--alpha", "2,0.5", "--model", "x"]))
    assert toy.opened == 1


def test_a_measured_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {
        "drafters": [
            {"name": "quantized", "alpha": 0.9, "c": 0.5, "seconds": RISING},
            {"name": "suffix", "alpha": 0.5, "c": 0.01, "seconds": None},
        ],
        "inner": [{"reviewer": 1, "drafter": 2, "alpha": 0.6}],
        "seconds": RISING,
    }
    made = found(capsys, "--measured", write(tmp_path / "set.json", {"cascade": own}), "--steps", "2,3")
    assert made["best"]["speedup"] == pytest.approx(arrivals.ewif([Level(0.9, 2, 0.5), Level(0.6, 3, 0.01)], RISING, [RISING]))
    assert [d["name"] for d in made["drafters"]] == ["quantized", "suffix"]
    assert made["singles"][1]["speedup"] == pytest.approx(schedule.single(0.5, 0.01, RISING)[0])


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "cascade", *PAPER, "--names", "half,copy"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    [best] = [line for line in lines if line.endswith("<- best cascade")]
    assert best.split()[:6] == ["vertical", "half", ">", "copy", "5,3", "4.284"]
    [alone] = [line for line in lines if line.endswith("<- best alone")]
    assert alone.split()[:3] == ["single", "half", "6"]
    assert "half > copy beats plain decoding while c of half < 1.170 and copy alone while c of half < 0.403; it is 0.1" in out
    assert "+14.5 %" in out


def test_where_nothing_pays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "cascade", "--alpha", "0.2,0.1", "--cost", "0.9,0.3", "--inner-alpha", "0"]) == 0
    out = capsys.readouterr().out
    assert "plain decoding (no draft pays)" in out
    assert "at no c of 1" in out


BAD = {
    "one drafter": (["--alpha", "0.8", "--cost", "0.1"], "--alpha has 1; give A1,A2"),
    "no alpha": (["--cost", "0.1,0.1"], "give --alpha, or --measured"),
    "no cost": (["--alpha", "0.8,0.4"], "give --cost, or --measured"),
    "costs": ([*PAPER, "--cost", "0.1"], "--alpha has 2 drafters and --cost 1"),
    "alpha": ([*PAPER, "--alpha", "1.5,0.4"], "--alpha must lie in [0, 1]"),
    "alpha NaN": ([*PAPER, "--alpha", "nan,0.4"], "--alpha must lie in [0, 1]"),
    "alpha a word": ([*PAPER, "--alpha", "high,low"], "argument --alpha: 'high,low' is not a list of numbers"),
    "cost below 0": ([*PAPER, "--cost=-0.1,0.1"], "--cost must be 0 or more"),
    "cost a file": ([*PAPER, "--cost", "curve.json"], "argument --cost: 'curve.json' is not a list of numbers"),
    "inner": ([*PAPER, "--inner-alpha", "2"], "--inner-alpha must lie in [0, 1]"),
    "too many inner": ([*PAPER, "--inner-alpha", "0.1,0.2"], "--inner-alpha has 2 rates for 2 drafters; give 1"),
    "no inner": (PAPER[:4], "give --inner-alpha, or --horizontal"),
    "no inner for steps": ([*PAPER[:4], "--steps", "2,3"], "give --inner-alpha, or --horizontal"),
    "steps": ([*PAPER, "--steps", "2"], "--steps has 1 entries for 2 drafters"),
    "steps 0": ([*PAPER, "--steps", "0,2"], "--steps must be whole numbers from 1"),
    "steps of words": ([*PAPER, "--steps", "a,b"], "is not a list of whole numbers"),
    "lengths": ([*PAPER, "--lengths", "1,2,3"], "--lengths has 3 entries for 2 drafters"),
    "lengths below 0": ([*PAPER, "--lengths=-1,2"], "--lengths must be whole numbers from 0"),
    "lengths 0": ([*PAPER, "--lengths", "0,0"], "--lengths drafts nothing"),
    "steps of a row": ([*PAPER, "--horizontal", "--steps", "2,2"], "--steps is of a vertical cascade"),
    "longest": ([*PAPER, "--longest", "1"], "(--longest) must be whole numbers from 2"),
    "names": ([*PAPER, "--names", "a"], "--names has 1 entries for 2 drafters"),
    "same names": ([*PAPER, "--names", "a,a"], "--names has 2 entries for 2 drafters"),
    "two curves": ([*PAPER, "--curve", "x", "--model", "y"], "--curve and --model both say"),
    "context": ([*PAPER, "--context", "5"], "--context belongs to a cost curve"),
    "context below 0": ([*PAPER, "--curve", "x", "--context", "-5"], "--context -5 is not allowed"),
    "backend": ([*PAPER, "--backend", "torch"], "belong to --model"),
    "no such curve": ([*PAPER, "--curve", "nowhere"], "cannot read the cost curve nowhere"),
    "no such review": ([*PAPER, "--review-curve", "nowhere"], "cannot read the cost curve nowhere"),
    "no such set": (["--measured", "nowhere"], "cannot read nowhere"),
    "no set": (["--measured", "text"], "is no JSON"),
    "another file": (["--measured", "curve"], "has no cascade"),
    "half a set": (["--measured", "half"], "is not whole"),
    "set and alpha": (["--measured", "half", "--alpha", "0.5,0.5"], "--measured and --alpha both describe"),
    "unknown": ([*PAPER, "--rows", "2"], "unknown option or word '--rows'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("hello")
    write(tmp_path / "curve", {"seconds": [1, 2, 3]})
    write(tmp_path / "half", {"cascade": {"drafters": [{"name": "a"}]}})
    words, told = BAD[name]
    assert told in error_of(capsys, main(["plan", "cascade", *words]))


def test_options_before_the_word_are_not_lost_silently(capsys: pytest.CaptureFixture[str]) -> None:
    assert "stand behind the word cascade" in error_of(capsys, main(["plan", "--json", "cascade", *PAPER]))
    assert "invalid choice: 'tree'" in error_of(capsys, main(["plan", "tree"]))


def test_in_python() -> None:
    made = plan_cascade([0.8, 0.4], [0.1, 0.001], {(0, 1): 0.4}, cost=of_curve(RISING, "a list"))
    assert made.best.ewif == max(s.ewif for s in made.schedules)
    assert made.gain == pytest.approx(made.best.ewif / made.best_single.ewif - 1)
    with pytest.raises(BadRequest, match="counted from 0"):
        plan_cascade([0.8, 0.4], [0.1, 0.001], {(1, 0): 0.4})
    with pytest.raises(BadRequest, match="curves of reviewers"):
        plan_cascade([0.8, 0.4], [0.1, 0.001], [0.4], reviews=[None] * 3)
