"""``tune --cascade``: what it takes from runs, what it predicts from that, and that the winner can be loaded."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from toys_cli import error_of, install

from surefoot.cli import main, parser
from surefoot.control.fixed import FixedController
from surefoot.core.cost import CostModel
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Costs, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree
from surefoot.errors import BadRequest, SurefootError
from surefoot.plan import plan_cascade, read_measured
from surefoot.theory import arrivals, schedule
from surefoot.theory.cascade import Level
from surefoot.theory.schedule import Schedule
from surefoot.tune import Candidate, Option, Tuning, tune_cascade
from surefoot.tune.candidate import PLAIN
from surefoot.tune.cascades import _best
from surefoot.tune.parts import Parts, rate
from surefoot.tune.reviews import Reviews
from surefoot.tune.toml import config

PASS = tuple(0.020 + 0.0005 * m for m in range(25))
HALF = tuple(0.008 + 0.0003 * m for m in range(25))
PARTS = Parts(
    ("quantized", "suffix:max_match=6", "ngram"),
    ((0.95, 0.9), (0.6, 0.7), (0.5,)),
    (0.4, 0.004, 0.002),
    (0.41, 0.004, 0.002),
    {(0, 1): (0.65, 0.75), (0, 2): (0.55,)},
    PASS,
    (HALF,),
    ("layer_skip: not here",),
)


def test_rates_by_depth_are_those_that_were_tried_enough() -> None:
    accepted, asked = [0] * 10 + [1] * 10 + [2] * 20, [2] * 40
    assert rate(accepted, asked) == pytest.approx((30 / 40, 20 / 30))
    few = rate([*accepted, 3, 2], [*asked, 3, 3])  # two trials of the third depth say less than all together
    assert few[2] == pytest.approx((30 + 20 + 5) / (40 + 30 + 6))
    assert rate([], []) == (0.0,)
    assert rate([0, 0], [4, 4]) == (0.0, 0.0, 0.0, 0.0)


def test_schedules_are_the_theory_s() -> None:
    found = PARTS.schedules()
    kinds = {(s.kind, s.members) for s in found}
    assert kinds == {("vertical", (0, 1)), ("vertical", (0, 2)), ("horizontal", (0, 1)), ("horizontal", (0, 2))}
    for own in found:
        if own.kind == "horizontal":
            assert own.cost == pytest.approx(
                PASS[sum(own.steps)] / PASS[0] + own.steps[0] * 0.41 + own.steps[1] * PARTS.drafted[own.members[1]]
            )
        assert PARTS.longest(own) <= 24
    [flat] = [s for s in found if s.kind == "vertical" and s.members == (0, 2)]
    n, k = flat.steps
    levels = [Level(0.9, n, 0.4), Level(0.55, k, 0.002)]
    law = arrivals.draft_law(levels)
    assert flat.cost == pytest.approx(arrivals.round_cost(levels, PASS, [HALF]))
    assert flat.tokens == pytest.approx(arrivals.kept(law, (0.95, 0.9)))


def test_the_cost_at_which_it_would_win() -> None:
    for i, j, over_plain, over_bottom in PARTS.limits():
        alone = schedule.single(PARTS.rates[j], PARTS.drafted[j], PASS, 24)[0]
        for c, rival in ((over_plain, 1.0), (over_bottom, alone)):
            at = Parts(PARTS.names, PARTS.rates, (c, *PARTS.steps[1:]), PARTS.drafted, PARTS.inner, PASS, (HALF,))
            [own] = [s for s in at.schedules() if (s.kind, s.members) == ("vertical", (i, j))]
            assert own.ewif == pytest.approx(rival, abs=1e-9)
    told = "\n".join(PARTS.rows())
    assert "the target accepts 0.95 of quantized, quantized 0.65 of suffix:max_match=6" in told
    assert "left out: layer_skip: not here" in told


def test_specs() -> None:
    assert PARTS.spec(Schedule("vertical", (0, 1), (3, 4), 1, 1)) == (
        "cascade:of=quantized/suffix,steps=3,inner_k=4,suffix.max_match=6"
    )
    assert PARTS.longest(Schedule("vertical", (0, 1), (3, 4), 1, 1)) == 15
    assert PARTS.spec(Schedule("horizontal", (0, 2), (2, 6), 1, 1)) == "horizontal:of=quantized/ngram,lengths=2/6"
    assert PARTS.longest(Schedule("horizontal", (0, 2), (2, 6), 1, 1)) == 8
    deep = Parts(("model", "quantized", "ngram"), (), (), (), {}, (), ())
    assert deep.spec(Schedule("vertical", (0, 1, 2), (2, 3, 4), 1, 1)) == (
        "cascade:of=model/quantized/ngram,steps=2/3,inner_k=15/4"
    )
    assert deep.longest(Schedule("vertical", (0, 1, 2), (2, 3, 4), 1, 1)) == 32


def test_reviews_are_counted_with_silence_as_a_miss() -> None:
    seen = Reviews(FixedController("ngram", 4), 4)
    row = Row(0, [1, 2], SamplingParams(max_tokens=10), limit=10)
    assert seen.plan([row])[0].depth == 4
    for drafted, accepted, prefill, seconds in ((4, 2, 0, 0.010), (0, 0, 1, 0.006), (2, 2, 0, 0.008), (3, 1, 50, 9.0)):
        tree = DraftTree.chain(list(range(drafted + 1)))
        verdict = Verdict(tuple(range(1, accepted + 1)), 7)
        seen.learn([row], [tree], [verdict], Costs(0.001, seconds, 0.001, drafted + 1, prefill, 30))
    assert (seen.asked, seen.drafted, seen.accepted) == ([4, 4, 4], [4, 0, 2], [2, 0, 2])  # the prompt's pass is none
    assert seen.token_seconds == pytest.approx(0.003 / 6)
    cost = seen.cost()
    assert [cost(m) for m in (1, 3, 5)] == pytest.approx([0.007, 0.009, 0.011])
    row.commit([5] * 5, [0] * 5)  # 5 tokens left: one is the reviewer's own, one the target's
    seen.learn([row], [DraftTree.chain([5, 6])], [Verdict((1,), 7)], Costs(0.0, 0.01, 0.0, 2, 0, 30))
    assert seen.asked[-1] == 3
    with pytest.raises(BadRequest, match="made no pass"):
        Reviews(FixedController("ngram", 4), 4).cost()


def test_both_kinds_are_measured_if_there_is_room() -> None:
    options = [Option(Candidate(f"cascade:of=a{i}/b", "fixed", 3), predicted=3 - i / 10) for i in range(3)]
    options.append(Option(Candidate("horizontal:of=a/b,lengths=1/2", "fixed", 3), predicted=1.0))
    assert _best(options, 3) == [options[0], options[1], options[3]]
    assert _best(options, 1) == [options[0]]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = install(monkeypatch)
    cost = CostModel((1, 16), (0.01, 0.011), 100)
    made.calibration = SimpleNamespace(cost=lambda model, **_: cost)
    made.folder = made.identity = None
    return made


def test_the_specs_can_be_made(toy: SimpleNamespace) -> None:
    """With the lengths that were meant: a fixed controller asks each level for as much as a schedule says."""
    plain = PLAIN.engine(toy, None).generate("abc", max_tokens=20)  # type: ignore[arg-type]
    parts = Parts(("model", "ngram"), (), (), (), {}, (), ())
    for found in (Schedule("vertical", (0, 1), (3, 4), 1, 1), Schedule("horizontal", (0, 1), (2, 5), 1, 1)):
        candidate = Candidate(parts.spec(found), "fixed", parts.longest(found))
        assert candidate.takes_draft
        engine = candidate.engine(toy, toy)  # type: ignore[arg-type]
        [plan] = engine.controller.plan([SimpleNamespace(id=0)])
        made = engine.drafters[plan.drafter]
        assert plan.depth == parts.longest(found)
        if found.kind == "horizontal":
            assert made.lengths == (2, 5)
        else:
            [inner] = made.engine.controller.plan([SimpleNamespace(id=0)])
            assert (inner.drafter, inner.depth) == ("ngram", 4)
        assert engine.generate("abc", max_tokens=20).token_ids == plain.token_ids
        engine.close()


def test_the_command(toy: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abc abc abc\nxyz\n")
    file = tmp_path / "surefoot.toml"
    words = ["tune", "org/name", "-md", "small", "--cascade", "--quick", "--precision", "bf16", "--prompts", str(prompts)]
    assert (
        main([*words, "--max-tokens", "24", "--longest", "4", "--bottoms", "ngram:max_n=3,min_n=2", "-o", str(file), "--json"])
        == 0
    )
    out = capsys.readouterr().out
    found = json.loads(out)
    own = found["cascade"]
    assert [d["name"] for d in own["drafters"]] == ["model", "ngram:max_n=3,min_n=2"]
    assert own["drafters"][0]["alpha"] == [1.0] * 4  # the toy drafts for itself
    assert own["drafters"][0]["c"] > 0
    assert len(own["left_out"]) == 2
    raced = [o["drafter"] for o in found["options"] if o["measured"] is not None]
    assert {name.partition(":")[0] for name in raced} >= {"none", "cascade", "horizontal"}
    assert all(o["equal"] in (True, None) for o in found["options"])
    assert tomllib.loads(file.read_text("utf-8"))["drafting"]["drafter"] == found["recommended"]["drafter"]
    assert "# model > ngram:max_n=3,min_n=2: the target accepts 1.00" in file.read_text("utf-8")
    assert main(["generate", "abc", "--max-tokens", "8", "--config", str(file)]) == 0
    assert len(capsys.readouterr().out.strip()) == 8
    (tmp_path / "set.json").write_text(out)
    planned = plan_cascade(**read_measured(str(tmp_path / "set.json")))
    assert planned.names == ("model", "ngram:max_n=3,min_n=2")


def test_the_file_of_a_cascade_runs(toy: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "surefoot.toml"
    best = Option(Candidate("cascade:of=model/suffix,steps=2,inner_k=3", "fixed", 8), 0.5, 1.4, 1.5, 150.0, True)
    plain = Option(PLAIN, measured=1.0, rate=100.0, equal=True)
    cost = CostModel((1, 8), (0.01, 0.011), 100)
    tuning = Tuning(best, (best, plain), 100.0, "It is.", cost, 1, 9, "bf16", cascade=PARTS)
    file.write_text(config(tuning, {"model": "org/name"}, "small", []), "utf-8")
    args = parser(["generate"]).parse_args(["generate", "x", "--config", str(file)])
    assert (args.drafter, args.controller, args.num_speculative_tokens) == (best.candidate.name, "fixed", 8)
    assert args.draft_model == "small"
    assert main(["generate", "abc", "--max-tokens", "8", "--config", str(file)]) == 0
    with_it = capsys.readouterr().out
    assert main(["generate", "abc", "--max-tokens", "8", "--drafter", "none"]) == 0
    assert capsys.readouterr().out == with_it


def test_what_cannot_run_is_left_out_or_told(toy: SimpleNamespace) -> None:
    with pytest.raises(BadRequest, match=r"needs a middle and a bottom drafter \(quantized: .*layer_skip: "):
        tune_cascade(toy, ["abc"])
    with pytest.raises(SurefootError, match="layer_skip"):
        tune_cascade(toy, ["abc"], middles=["layer_skip"])
    with pytest.raises(BadRequest, match="named twice"):
        tune_cascade(toy, ["abc"], middles=["model"], bottoms=["ngram", "ngram"], draft=toy)
    with pytest.raises(BadRequest, match="no prompts"):
        tune_cascade(toy, [])


WRONG = [
    (["--middles", "quantized"], "belong to --cascade"),
    (["--bottoms", "ngram"], "belong to --cascade"),
    (["--cascade", "--drafters", "ngram"], "with --cascade give --middles and --bottoms"),
    (["--cascade", "--middles", "ngram"], "unknown drafter 'ngram'"),
    (["--cascade", "--middles", "none"], "--middles: 'none' cannot be one"),
    (["--cascade", "--middles", "model"], "-md"),
    (["--cascade", "--bottoms", "quantized"], "unknown drafter 'quantized'"),
    (["--cascade", "--bottoms", "ngram+suffix"], "cannot be one"),
]


@pytest.mark.parametrize("words, message", WRONG)
def test_bad_words(
    toy: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in error_of(capsys, main(["tune", "org/name", "-o", str(tmp_path / "new.toml"), *words]))
    assert toy.opened == 0
