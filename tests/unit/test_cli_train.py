"""``surefoot train``: what its options become, what is refused before anything is loaded, and when text is captured."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toys_cli import error_of

from surefoot.cli import main
from surefoot.commands import train as command
from surefoot.errors import BadRequest
from surefoot.train.capture import Settings as CaptureSettings
from surefoot.train.evaluate import Evaluation
from surefoot.train.recipes import RECIPES
from surefoot.train.run import every_tap, make_recipe
from surefoot.train.settings import Settings


class Calls(SimpleNamespace):
    """What the command was about to do: arguments of its two halves."""

    captured: list[tuple[Path, CaptureSettings, tuple[int, ...], int]]
    trained: list[tuple[Path, Any, Settings]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = Calls(captured=[], trained=[])

    def capture(args: Any, data: Path, settings: CaptureSettings, taps: Any, prompts: Any) -> None:
        made.captured.append((data, settings, taps(8), len(prompts)))

    def train(args: Any, data: Path, recipe: Any, settings: Settings) -> int:
        made.trained.append((data, recipe, settings))
        return 0

    monkeypatch.setattr(command, "_capture", capture)
    monkeypatch.setattr(command, "_train", train)
    return made


def test_defaults(calls: Calls, tmp_path: Path) -> None:
    assert main(["train", "medusa", "--out", str(tmp_path / "head")]) == 0
    [(data, settings, taps, prompts)] = calls.captured
    assert data == tmp_path / "head" / "data"
    assert settings == CaptureSettings(2000, rows=64)
    assert (taps, prompts) == ((9,), 0)
    [(data, recipe, training)] = calls.trained
    assert (data, recipe) == (tmp_path / "head" / "data", make_recipe("medusa", {}))
    assert training == Settings()


def test_options_reach_the_settings(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text('"one"\n{"prompt": "two"}\n{"prompt_token_ids": [1, 2]}\n', "utf-8")
    capture = ["--data", str(tmp_path / "text"), "--documents", "9", "--length", "7", "--temperatures", "0,0.5", "--rows", "3"]
    capture += ["--prompts", str(tmp_path / "asked.jsonl")]
    train = ["--epochs", "2", "--lr", "3e-4", "--batch-tokens", "512", "--average", "0.9", "--amp", "--patience", "0"]
    own = ["--set", "inner=48", "--set", "taps_read=2/5/9", "--set", "decay=1"]
    assert main(["train", "hydra", "--out", str(tmp_path / "head"), "--seed", "4", *capture, *train, *own]) == 0
    [(data, settings, taps, prompts)] = calls.captured
    assert data == tmp_path / "text"
    assert settings == CaptureSettings(9, seed=4, length=7, temperatures=(0.0, 0.5), rows=3)
    assert (taps, prompts) == ((2, 5, 9), 3)
    [(data, recipe, training)] = calls.trained
    assert data == tmp_path / "text"
    assert recipe == make_recipe("hydra", {"inner": 48, "taps_read": (2, 5, 9), "decay": 1})
    assert training == Settings(epochs=2, seed=4, lr=3e-4, batch_tokens=512, average=0.9, amp=True, patience=0)


@pytest.mark.parametrize("kind", RECIPES)
def test_every_kind_has_a_recipe(calls: Calls, tmp_path: Path, kind: str) -> None:
    assert main(["train", kind, "--out", str(tmp_path / "head")]) == 0
    assert calls.trained[0][1] == make_recipe(kind, {})
    assert calls.captured[0][2] == calls.trained[0][1].taps(8)


def test_capture_alone_takes_the_taps_of_all_kinds(calls: Calls, tmp_path: Path) -> None:
    assert main(["train", "capture", "--data", str(tmp_path / "text")]) == 0
    assert not calls.trained
    assert calls.captured[0][2] == every_tap(8) == (2, 4, 5, 9)


def text(folder: Path, **mark: Any) -> Path:
    """A folder with a shard, and perhaps the mark of a capture that did not end."""
    folder.mkdir()
    (folder / "shard-00000.safetensors").write_bytes(b"")
    if mark:
        (folder / "unfinished.json").write_text(json.dumps(mark), "utf-8")
    return folder


def test_text_that_is_there_is_taken(calls: Calls, tmp_path: Path) -> None:
    data = text(tmp_path / "text")
    assert main(["train", "eagle", "--out", str(tmp_path / "head"), "--data", str(data)]) == 0
    assert not calls.captured
    assert calls.trained
    assert main(["train", "eagle", "--out", str(tmp_path / "head"), "--data", str(data), "--documents", "70"]) == 0
    assert calls.captured[0][1].documents == 70


@pytest.mark.parametrize(
    "mark, documents",
    [
        ({"kind": "eagle", "documents": 321}, 321),
        ({"kind": "capture", "documents": 321}, None),
        ({"kind": "eagle"}, None),
        ({"kind": "eagle", "documents": "many"}, None),
    ],
)
def test_an_interrupted_capture_goes_on_with_the_same_command(
    calls: Calls, tmp_path: Path, mark: dict[str, Any], documents: int | None
) -> None:
    """Of another kind of head it would have other taps: what is there is taken then."""
    data = text(tmp_path / "text", **mark)
    assert main(["train", "eagle", "--out", str(tmp_path / "head"), "--data", str(data)]) == 0
    assert [settings.documents for _, settings, _, _ in calls.captured] == ([] if documents is None else [documents])


def test_the_mark_is_there_while_text_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from surefoot.train import run

    place, ends = tmp_path / "text" / "unfinished.json", [KeyboardInterrupt, None]

    def capture(*args: Any) -> None:
        assert json.loads(place.read_text("utf-8")) == {"kind": "capture", "documents": 5}
        if (end := ends.pop(0)) is not None:
            raise end

    target = SimpleNamespace(model=SimpleNamespace(traits=SimpleNamespace(n_layers=8)))
    monkeypatch.setattr(command, "_target", lambda *args: target)
    monkeypatch.setattr(run, "capture", capture)
    words = ["train", "capture", "--data", str(tmp_path / "text")]
    assert main([*words, "--documents", "5"]) == 130
    assert main(words) == 0
    assert not place.exists()


@pytest.mark.parametrize(
    "words, says",
    [
        (["medusa"], "needs --out"),
        (["capture"], "needs --data"),
        (["medusa", "--out", "x", "--set", "wings=2"], "no option 'wings'; its options are chunk, decay, heads, layers"),
        (["medusa", "--out", "x", "--set", "heads"], "--set 'heads': write KEY=VALUE"),
        (["medusa", "--out", "x", "--set", "=3"], "write KEY=VALUE"),
        (["medusa", "--out", "x", "--set", "heads=many"], "heads='many' is not allowed; give int"),
        (["medusa", "--out", "x", "--set", "heads=2.5"], "heads=2.5 is not allowed"),
        (["medusa", "--out", "x", "--set", "heads=0"], "heads must be at least 1"),
        (["medusa", "--out", "x", "--set", "own=1"], "own=1 is not allowed; give bool"),
        (["medusa", "--out", "x", "--set", "heads=true"], "heads=True is not allowed"),
        (["medusa", "--out", "x", "--set", "decay=true"], "decay=True is not allowed; give float"),
        (["medusa", "--out", "x", "--set", "loss_name=best"], "best"),
        (["medusa", "--out", "x", "--set", "loss_name=3"], "loss_name=3 is not allowed; give str"),
        (["hydra", "--out", "x", "--set", "taps_read=last"], "taps_read='last' is not allowed"),
        (["hydra", "--out", "x", "--set", "taps_read=1/x"], "taps_read=(1, 'x') is not allowed"),
        (["exit", "--out", "x", "--set", "copy=last", "--set", "head_kind=eesd"], "copy='last' is not allowed"),
        (["distill", "--out", "x", "--set", "layers=a/b"], "layers"),
        (["medusa", "--out", "x", "--temperatures", "warm"], "--temperatures 'warm': give numbers"),
        (["medusa", "--out", "x", "--temperatures=-1"], "temperatures"),
        (["medusa", "--out", "x", "--documents", "0"], "documents"),
        (["medusa", "--out", "x", "--rows", "0"], "rows"),
        (["medusa", "--out", "x", "--epochs", "0"], "epochs must be at least 1"),
        (["medusa", "--out", "x", "--lr", "-1"], "lr must be a number above 0"),
        (["medusa", "--out", "x", "--threads", "0"], "--threads 0: give a whole number from 1 up"),
        (["medusa", "--out", "x", "--prompts", "nowhere.txt"], "nowhere.txt"),
        (["model"], "invalid choice: 'model'"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_loaded(
    words: list[str],
    says: str,
    calls: Calls,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    status = main(["train", *words])
    assert says in error_of(capsys, status)
    assert not calls.captured
    assert not calls.trained
    assert not list(tmp_path.iterdir())


def test_values_of_options() -> None:
    given = ["a=3", "b=0.5", "c=true", "d=False", "e=1/2/x", "f=1e-3", "g=soft_ce", "h=", "i=3/", "j=a=b", "k=-1"]
    assert command.options(given) == {
        "a": 3,
        "b": 0.5,
        "c": True,
        "d": False,
        "e": (1, 2, "x"),
        "f": 0.001,
        "g": "soft_ce",
        "h": "",
        "i": (3,),
        "j": "a=b",
        "k": -1,
    }
    assert command.options(["a=1", "a=2"]) == {"a": 2}
    with pytest.raises(BadRequest, match="KEY=VALUE"):
        command.options(["a=1", "b"])


@pytest.mark.parametrize(
    "kind, options",
    [
        ("hydra", {"taps_read": 4}),
        ("hydra", {"taps_read": (4,)}),
        ("distill", {"layers": "0,-1"}),
        ("distill", {"layers": (0, 3)}),
        ("exit", {"head_kind": "eesd", "copy": -1}),
        ("eagle3", {"tied": False, "layout": "speculators"}),
        ("eagle", {"feature_weight": 0}),
    ],
)
def test_values_that_are_of_their_kind(kind: str, options: dict[str, Any]) -> None:
    recipe = make_recipe(kind, options)
    assert {name: getattr(recipe, name) for name in options} == options


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_told_on_the_way(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    found = Evaluation(step=7, epoch=0.5, seconds=1.0, rate=1e-3, loss=2.5, held_loss=2.0, acceptance=(0.75, 0.5), tau=2.125)
    with command._bar("hydra") as progress:
        progress.start(0, 20)
        progress.step(7, 2.5, 1e-3)
        progress.evaluated(found, True)
        progress.step(8, 2.4, 1e-3)
    said = screen.getvalue()
    assert "0.750 0.500" in said
    assert "tau 2.125" in said
    if not terminal:
        assert said == "surefoot: step 7, loss 2.500, held out tau 2.125 (0.750 0.500) best\n"
