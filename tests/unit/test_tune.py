"""The tuner on a simulated clock: what it recommends is what is fastest, by arithmetic; and what it writes can be read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from behaviour.clock import TOKENS, VOCAB, Clock, Priced, Script, decode, rate
from toys import Custom, ToyCodec, counter
from toys_cli import error_of, install

from surefoot.cli import main, parser
from surefoot.core.cost import CostModel
from surefoot.core.params import SamplingParams
from surefoot.core.tree import DraftTree
from surefoot.errors import BadRequest, Unsupported
from surefoot.loader import Target, _parse, assemble
from surefoot.tune import Candidate, Option, Tuning, tune
from surefoot.tune.candidate import PLAIN
from surefoot.tune.choose import choose, recommend
from surefoot.tune.predict import Machine, _passes, lengths, trees
from surefoot.tune.profile import Profile, _Ranks
from surefoot.tune.race import Lap, over
from surefoot.tune.toml import config

PROMPT = [VOCAB - 1, 0]
PARAMS = SamplingParams(max_tokens=TOKENS)


def flat(m: int) -> float:
    return 0.010 + 0.0001 * m


def steep(m: int) -> float:
    return 0.010 + 0.004 * m


def stairs(m: int) -> float:
    return 0.010 if m <= 4 else 0.016 if m <= 8 else 0.030


def wrap(model: Any, price: Callable[[int], float]) -> Target:
    """A loaded target whose controller knows the true price."""
    cost = CostModel(tuple(range(1, 33)), tuple(price(m) for m in range(1, 33)), 100)
    return Target(model, ToyCodec([str(i) for i in range(VOCAB)]), SimpleNamespace(cost=lambda *_, **__: cost), Path("toy"))


def tuned(price: Callable[[int], float], draft: float, accuracy: float, **options: Any) -> Tuning:
    clock = Clock()
    target = wrap(Priced(clock, price), price)
    return tune(target, [PROMPT], PARAMS, drafters=[Script(clock, draft, accuracy)], clock=clock, **options)


@pytest.mark.parametrize("price", [flat, steep, stairs])
@pytest.mark.parametrize("accuracy", [0.3, 0.8, 0.97])
def test_predictions_are_what_every_length_measures(price: Callable[[int], float], accuracy: float) -> None:
    """At each length the prediction is the measured speed, as near as one request tells; the best is the best."""
    draft = 0.0003
    found = tuned(price, draft, accuracy, repeats=1)
    plain = rate(decode(price, draft, accuracy, 0))
    truth = [rate(decode(price, draft, accuracy, k)) / plain for k in range(13)]
    predicted = found.curves["script"]
    assert len(predicted) == 13
    assert predicted == pytest.approx(truth, rel=0.12)
    best = max(o.measured or 0.0 for o in found.options if o.candidate.k is not None)
    assert best >= 0.97 * max(truth[1:])
    assert found.best.measured is not None
    assert found.best.measured >= 0.95 * max(truth)
    [fixed] = [o for o in found.options if o.candidate.k is not None]
    assert fixed.candidate.k is not None
    assert fixed.measured == pytest.approx(truth[fixed.candidate.k], rel=1e-9)
    assert fixed.predicted == pytest.approx(fixed.measured, rel=0.12)


def test_the_draft_costs_what_it_costs() -> None:
    """The same acceptance with a dear drafter recommends a shorter draft, or none."""
    cheap, dear = tuned(flat, 0.0, 0.8), tuned(flat, 0.004, 0.8)
    ks = [max(range(13), key=found.curves["script"].__getitem__) for found in (cheap, dear)]
    assert ks[0] > ks[1] >= 1
    assert dear.draft_seconds["script"] == pytest.approx(0.004)
    hopeless = tuned(steep, 0.02, 0.3)
    assert hopeless.recommended.plain
    assert "Nothing beats plain decoding" in hopeless.why
    assert hopeless.best.measured == 1.0


def test_speed_ranks_and_acceptance_does_not() -> None:
    """A drafter that is right less often but costs nothing beats one that is nearly always right and slow."""
    clock = Clock()
    right, quick = Script(clock, 0.008, 0.97), Script(clock, 0.0, 0.8)
    right.name, right.source = "right", 2
    right._script.source = 2
    target = wrap(Priced(clock, flat), flat)
    found = tune(target, [PROMPT], PARAMS, drafters=[right, quick], clock=clock)
    fixed = {o.candidate.name: o for o in found.options if o.candidate.k is not None and o.measured}
    assert fixed["right"].acceptance > fixed["script"].acceptance  # type: ignore[operator]
    assert fixed["right"].rate < fixed["script"].rate  # type: ignore[operator]
    assert found.recommended.name == "script"
    for figures in ([o.measured for o in found.options], [o.rate for o in found.options]):
        told = [x for x in figures if x is not None]
        assert told == sorted(told, reverse=True)


class Lying(Script):
    """Counts on, and from its second request it makes the target say something else: a bug of the engine's making."""

    def __init__(self, clock: Clock, target: Any) -> None:
        super().__init__(clock, 0.0, 1.0)
        self.target, self.seen = target, set()  # type: ignore[var-annotated]

    def propose(self, rows: Any, plans: Any) -> Any:
        self.seen |= {row.id for row in rows}
        trees = super().propose(rows, plans)
        self.target.shift = any(len(tree) > 1 for tree in trees) and len(rows[0].tokens) > 20
        return trees


class Shifting(Priced):
    """Says something else where a drafter told it to."""

    shift = False

    def score(self, slots: Any, forest: Any, need: Any) -> Any:
        found = super().score(slots, forest, need)
        if self.shift:
            found.logits[:, [3, 4]] = found.logits[:, [4, 3]]
        return found


def test_a_drafter_whose_tokens_differ_is_not_eligible() -> None:
    clock = Clock()
    model = Shifting(clock, flat)
    found = tune(wrap(model, flat), [PROMPT], PARAMS, drafters=[Lying(clock, model)], clock=clock)
    assert found.recommended.plain
    assert not found.ok
    assert all(o.equal is False for o in found.options if not o.candidate.plain)
    assert all(o.measured is None for o in found.options if not o.candidate.plain)
    assert "NO (prompts 1)" in found.table()


def test_a_measured_difference_makes_ineligible() -> None:
    plain = Option(PLAIN, measured=1.0, rate=100.0, equal=True)
    fast = Option(Candidate("ngram", "fixed", 5), measured=3.0, rate=300.0, equal=False, differs=(0,))
    slow = Option(Candidate("suffix", "fixed", 3), measured=1.2, rate=120.0, equal=True)
    best, why = recommend([plain, fast, slow])
    assert best is slow
    assert "tokens differed: ngram k=5" in why
    best, why = recommend([plain, fast])
    assert best is plain
    assert "No drafter" in why


def test_the_controller_by_cost_is_preferred_within_a_margin() -> None:
    plain = Option(PLAIN, measured=1.0, equal=True)

    def of(led: float, fixed: float) -> str:
        options = [Option(Candidate("suffix", "fixed", 5), measured=fixed, equal=True)]
        options.append(Option(Candidate("auto", "auto"), measured=led, equal=True))
        return recommend([plain, *options])[0].candidate.label

    assert of(1.50, 1.53) == "auto auto"
    assert of(1.50, 1.56) == "suffix k=5"
    assert of(1.00, 1.02) == "suffix k=5"
    assert of(1.005, 1.005) == "plain"
    assert of(0.98, 0.90) == "plain"


def test_alike_drafters_are_measured_once() -> None:
    made = Profile((5, 5), (5, 0), (3, 0), 0.0, (0.5,), ((1,),))
    other = Profile((5, 5), (5, 5), (3, 1), 0.0, (0.5,), ((1,),))
    names = {name: Candidate(name, "fixed", 5) for name in ("ngram", "suffix", "auto")}
    profiles = {names["ngram"]: other, names["suffix"]: made, names["auto"]: made}
    options = [
        Option(c.longest(k), predicted=1.0 + k / 10 + bonus) for (c, bonus) in zip(profiles, (0.0, 0.2, 0.1)) for k in (1, 2, 3)
    ]
    options.append(Option(Candidate("suffix", "fixed", 4, 3, 8), predicted=1.35))
    chosen = [o.candidate.label for o in choose(options, profiles, 3)]
    assert chosen == ["auto k=3", "suffix k=4 tree of 8, width 3", "ngram k=3", "auto auto"]
    assert [o.candidate.label for o in choose(options, profiles, 1)] == ["auto k=3", "auto auto"]


def test_profile_counts_silence_as_a_miss_and_a_budget_as_none() -> None:
    found = Profile((4, 4, 4, 1), (4, 0, 2, 1), (2, 0, 2, 1), 0.0, (), ())
    # depth 1: three of four; depth 2: two of two that were asked; depth 3: none of the two that got there
    assert [e.value for e in found.by_position()] == pytest.approx([3 / 4, 1.0, 0.0, 0.5])
    assert found.reach() == pytest.approx([0.75, 0.75, 0.0, 0.0])
    assert found.acceptance(4) == pytest.approx(5 / 7)
    assert found.acceptance(1) == pytest.approx(1.0)
    assert Profile((4,), (0,), (0,), 0.0, (), ()).acceptance(4) is None


def test_ranks_follow_the_kept_path() -> None:
    ranks = _Ranks(2)
    #        0 -> 1, 2;  2 -> 3, 4;  the path is 2 then 3
    ranks.add([0, 0, 2, 2], [False, True, True, False], 3)
    assert ranks.chances() == pytest.approx((1 / 3, 1 / 3))  # the third node was reached and had no child
    ranks.add([], [], 2)
    assert ranks.chances() == pytest.approx((1 / 4, 1 / 4))


def test_padding_is_free_and_a_change_is_not() -> None:
    cost = CostModel((2, 10), (0.010, 0.018), 100, change=0.004)
    steady = Machine(cost, 100, min_width=2, steady=True)
    loose = Machine(cost, 100, min_width=2)
    assert loose.plain == pytest.approx(0.010)
    assert _passes([0, 1], loose) == pytest.approx(2 * 0.010)
    # a change is worth four tokens: the small pass is padded to 4, twice, then the size falls
    assert _passes([3, 1, 1, 1], steady) == pytest.approx(2 * 0.004 + 3 * 0.012 + 0.010)
    assert _passes([3, 3], steady) == pytest.approx(0.004 + 2 * 0.012)
    found = Profile((1,) * 9, (1,) * 9, (1,) * 9, 0.001, (), ())
    assert lengths(found, loose) == pytest.approx([1.0, 2 * 0.010 / 0.011])


def test_trees_pay_where_a_second_child_is_likely() -> None:
    cost = CostModel((1, 2, 20), (0.010, 0.0101, 0.012), 100)
    torn = Profile((4,), (4,), (2,), 0.0, (0.5, 0.4), ())
    sure = Profile((4,), (4,), (4,), 0.0, (0.99, 0.0), ())
    mask, chains = Machine(cost, 100), Machine(cost, 100, chains=True)
    best = trees(torn, mask, 4, 8)
    assert best is not None
    assert best.width == 2
    assert trees(sure, mask, 4, 4) is None
    apart = trees(torn, chains, 4, 8)
    assert apart is not None
    assert apart.speedup < best.speedup  # shared nodes are computed once for each leaf


def test_ratios_are_of_laps() -> None:
    plain = [Lap(100, 1.0, 0, 0, ()), Lap(100, 2.0, 0, 0, ()), Lap(100, 1.0, 0, 0, ())]
    fast = [Lap(100, 0.5, 9, 3, ()), Lap(100, 1.0, 9, 3, ()), Lap(100, 1.0, 9, 3, ())]
    assert over(fast, plain) == pytest.approx(2.0)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompts": []}, "no prompts"),
    ({"drafters": ["ngrm"]}, "did you mean 'ngram'"),
    ({"drafters": []}, "drafters is empty"),
    ({"drafters": ["none"]}, "plain decoding, which is measured anyway"),
    ({"drafters": ["model"]}, "needs a draft model"),
    ({"drafters": ["script"]}, "needs the answers"),
    ({"drafters": ["ngram:k=3"]}, "given twice"),
    ({"repeats": 0}, "from 1 up"),
    ({"params": SamplingParams(n=2)}, "leave n out"),
    ({"params": SamplingParams(max_tokens=1)}, "one token long"),
    ({"prompts": [[VOCAB + 3]]}, "must lie in"),
]


@pytest.mark.parametrize("given, message", BAD)
def test_bad_input(given: dict[str, Any], message: str) -> None:
    clock = Clock()
    given = {"prompts": [PROMPT], "params": PARAMS, "drafters": ["ngram"], "clock": clock, **given}
    with pytest.raises(BadRequest, match=message):
        tune(wrap(Priced(clock, flat), flat), **given)


def test_a_model_without_capacity() -> None:
    clock = Clock()
    with pytest.raises(Unsupported, match="one token a pass"):
        tune(wrap(counter(VOCAB, max_nodes=1), flat), [PROMPT], PARAMS, drafters=["ngram"], clock=clock)
    with pytest.raises(BadRequest, match="context holds 64"):
        tune(wrap(counter(VOCAB, max_context=64), flat), [list(range(40)) * 2], PARAMS, drafters=["ngram"], clock=clock)


def test_loader_options_of_trees() -> None:
    target = wrap(counter(VOCAB), flat)
    made = assemble(target, "suffix:width=3,nodes=7", None, "fixed", 4)
    [plan] = made.controller.plan([SimpleNamespace(id=0)])  # type: ignore[union-attr, list-item]
    assert (plan.depth, plan.width, plan.nodes) == (4, 3, 7)
    for spec, controller in (("suffix:width=3", "auto"), ("grammar:width=3", "fixed"), ("suffix:width=0", "fixed")):
        with pytest.raises(BadRequest, match="width"):
            assemble(target, spec, None, controller, 4)
    [spec], _, shape = _parse("suffix:width=2,nodes=5,max_match=4", False, "fixed", None)
    assert shape == {"width": 2, "nodes": 5}
    assert spec.options == {"max_match": 4}


def test_a_drafter_of_ones_own() -> None:
    """It is tuned under its own name; a configuration cannot make it, but says what it was."""
    clock = Clock()
    drafter = Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], (row.tokens[-1] + 1) % VOCAB][: plan.depth + 1]))
    found = tune(wrap(Priced(clock, flat), flat), [PROMPT], PARAMS, drafters=[drafter], clock=clock)
    assert found.recommended.name == "custom"
    assert found.reach["custom"][:2] == pytest.approx([1.0, 0.0])


# -- the file ----------------------------------------------------------------------------------------------------


def tuning(best: Candidate) -> Tuning:
    option = Option(best, 0.5, 1.4, 1.5, 150.0, True)
    cost = CostModel((1, 8), (0.01, 0.011), 100)
    return Tuning(option, (option, Option(PLAIN, measured=1.0, rate=100.0, equal=True)), 100.0, "It is.", cost, 1, 9, "bf16")


FILES = [
    (PLAIN, None, {"drafter": "none", "controller": "auto", "num_speculative_tokens": None, "draft_model": None}),
    (Candidate("auto", "auto"), None, {"drafter": "auto", "controller": "auto", "num_speculative_tokens": None}),
    (Candidate("ngram:max_n=3", "fixed", 7), None, {"drafter": "ngram:max_n=3", "num_speculative_tokens": 7}),
    (Candidate("suffix", "fixed", 4, 3, 9), None, {"drafter": "suffix:width=3,nodes=9", "num_speculative_tokens": 4}),
    (Candidate("model", "auto"), 'a "b"/c\\d', {"drafter": "model", "draft_model": 'a "b"/c\\d'}),
    (Candidate("auto", "auto"), "small", {"drafter": "auto", "draft_model": "small"}),
    (Candidate("auto", "fixed", 3), "small", {"drafter": "auto", "draft_model": None}),
    (Candidate("ngram", "auto"), "small", {"drafter": "ngram", "draft_model": None}),
]  # fmt: skip


@pytest.mark.parametrize("best, draft, wanted", FILES)
def test_the_file_is_what_generate_reads(tmp_path: Path, best: Candidate, draft: str | None, wanted: dict[str, Any]) -> None:
    file = tmp_path / "surefoot.toml"
    model: dict[str, str | int] = {"model": "org/na\x7fme", "precision": "bf16", "kv-tokens": 4096}
    file.write_text(config(tuning(best), model, draft, ["a note\nwith = 1 line"]), "utf-8")
    args = vars(parser(["generate"]).parse_args(["generate", "x", "--config", str(file)]))
    assert {key: args[key] for key in wanted} == wanted
    assert (args["model"], args["precision"], args["kv_tokens"]) == ("org/na\x7fme", "bf16", 4096)
    text = file.read_text("utf-8")
    assert set(tomllib.loads(text)) == {"model", "drafting"}
    assert "predicted" in text
    assert "1.50x" in text


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = install(monkeypatch)
    cost = CostModel((1, 16), (0.01, 0.011), 100)
    made.calibration = SimpleNamespace(cost=lambda model, **_: cost)
    return made


def test_the_command_writes_a_file_that_runs(
    toy: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abc abc abc\nxyz\n")
    file = tmp_path / "surefoot.toml"
    words = ["tune", "org/name", "--prompts", str(prompts), "--quick", "--precision", "bf16", "-o", str(file)]
    assert main([*words, "--max-tokens", "40", "--drafters", "ngram:max_n=3,min_n=2,auto", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompts"] == 2
    assert found["tokens"] == 80
    assert {o["drafter"] for o in found["options"]} == {"none", "ngram:max_n=3,min_n=2", "auto"}
    assert all(o["equal"] in (True, None) for o in found["options"])
    written = tomllib.loads(file.read_text("utf-8"))
    assert written["model"] == {"model": "org/name", "precision": "bf16"}
    assert written["drafting"]["drafter"] == found["recommended"]["drafter"]
    assert main(["generate", "abc", "--max-tokens", "8", "--config", str(file)]) == 0
    assert len(capsys.readouterr().out.strip()) == 8
    opened = toy.opened
    assert "exists" in error_of(capsys, main(words))
    assert toy.opened == opened
    assert main([*words, "--force", "--drafters", "ngram"]) == 0
    assert "recommended:" in capsys.readouterr().out


def test_a_draft_model_is_tuned_too(toy: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "surefoot.toml"
    words = ["tune", "--quick", "--max-tokens", "24", "-md", "small", "-o", str(file), "--json", "--longest", "3"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["predicted_by_length"]) == {"ngram", "suffix", "auto", "model"}
    assert found["reach"]["model"] == [1.0, 1.0, 1.0]  # the toy drafts for itself
    written = tomllib.loads(file.read_text("utf-8"))["drafting"]
    used = written["drafter"] == "model" or (written["drafter"], written.get("controller")) == ("auto", "auto")
    assert ("draft-model" in written) == used
    assert main(["generate", "abc", "--max-tokens", "8", "--config", str(file)]) == 0


WRONG = [
    (["--drafters", "ngrm"], "did you mean 'ngram'"),
    (["--drafters", ","], "--drafters is empty"),
    (["--drafters", "none"], "measured anyway"),
    (["--drafters", "model"], "-md"),
    (["--longest", "0"], "--longest 0"),
    (["-m", "other"], "given twice"),
    (["--prompts", "/nowhere/x.txt"], "/nowhere/x.txt"),
    (["-o", "/nowhere/x.toml"], "cannot write"),
    (["--max-tokens", "0"], "max_tokens"),
]


@pytest.mark.parametrize("words, message", WRONG)
def test_bad_words(
    toy: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in error_of(capsys, main(["tune", "org/name", "-o", str(tmp_path / "new.toml"), *words]))
    assert toy.opened == 0
    assert not list(tmp_path.iterdir())
