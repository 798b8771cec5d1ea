"""The loop: what it keeps and tells, how it ends, and that a run that was killed goes on to the very same weights."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import toys_train as toys
from safetensors.torch import load_file

from surefoot.errors import BackendError, BadRequest
from surefoot.train import checkpoint, loop
from surefoot.train.average import Average
from surefoot.train.evaluate import tau
from surefoot.train.loop import train
from surefoot.train.recipes.hydra import HydraRecipe
from surefoot.train.settings import Settings

SETTINGS = Settings(epochs=9, batch_tokens=256, lr=5e-3, held=0.1, patience=0, eval_every=10, average=0.9, checkpoint_every=7)
STEPS = 72


@dataclass(frozen=True)
class Noisy(HydraRecipe):
    """Uses the generator that a checkpoint must hold, as recipes with feature noise do."""

    def loss(self, module, shape, batch):
        value = HydraRecipe.loss(self, module, shape, batch)
        return value * (1 + 0.1 * torch.rand(())) if module.training else value


RECIPE = Noisy(steps=2, inner=16)


class Watch:
    """Remembers what it was told; ``at``: what to do after which step."""

    def __init__(self, at=None):
        self.at = at or {}
        self.started, self.steps, self.evaluations = [], [], []

    def start(self, done, total):
        self.started.append((done, total))

    def step(self, step, loss, rate):
        self.steps.append((step, loss, rate))
        self.at.get(step, lambda: None)()

    def evaluated(self, evaluation, best):
        self.evaluations.append((evaluation, best))


def go(shards, out, settings=SETTINGS, recipe=RECIPE, **more):
    return train(recipe, shards, toys.shape(), out, settings, threads=1, **more)


def weights(out):
    return load_file(out / "model.safetensors")


def log(out):
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def same(a, b):
    assert weights(a).keys() == weights(b).keys()
    assert all(torch.equal(w, weights(b)[name]) for name, w in weights(a).items())
    assert log(a) == log(b)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return toys.capture(tmp_path_factory.mktemp("text"), 60)


@pytest.fixture(scope="module")
def whole(shards, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return out, go(shards, out)


def test_a_run_tells_and_keeps_what_it_says(shards, tmp_path):
    watch = Watch()
    before = torch.get_rng_state()
    result = go(shards, tmp_path, progress=watch, facts={"note": "toy"})
    assert torch.equal(before, torch.get_rng_state())
    assert watch.started == [(0, STEPS)]
    assert [s for s, _, _ in watch.steps] == list(range(1, STEPS + 1))
    assert [e.step for e in result.history] == [10, 20, 30, 40, 50, 60, 70, STEPS]
    assert result.best.tau == max(e.tau for e in result.history) > 2
    assert [e for e, best in watch.evaluations if best][-1] == result.best
    assert (result.stopped, result.steps, result.total) == ("epochs", STEPS, STEPS)
    assert sum(result.documents) == 60
    assert result.history[0].loss == pytest.approx(sum(x for _, x, _ in watch.steps[:10]) / 10)
    assert len(log(tmp_path)) == 8
    facts = json.loads((tmp_path / "config.json").read_text())["surefoot"]
    assert (facts["note"], facts["best"]["step"], facts["training"]["seed"]) == ("toy", result.best.step, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "log.jsonl", "model.safetensors"]


def test_the_same_settings_give_the_same_weights_and_another_seed_others(shards, whole, tmp_path):
    go(shards, tmp_path / "again")
    same(whole[0], tmp_path / "again")
    go(shards, tmp_path / "other", dataclasses.replace(SETTINGS, seed=1))
    assert log(tmp_path / "other") != log(whole[0])


@pytest.mark.parametrize("step", [23, 30, STEPS])
def test_ctrl_c_leaves_a_checkpoint_that_goes_on_to_the_same_result(shards, whole, tmp_path, step):
    before = signal.getsignal(signal.SIGINT)
    watch = Watch({step: lambda: signal.raise_signal(signal.SIGINT)})
    with pytest.raises(KeyboardInterrupt):
        go(shards, tmp_path, progress=watch)
    assert len(watch.steps) == step
    assert signal.getsignal(signal.SIGINT) is before
    assert (tmp_path / "checkpoint.pt").exists()
    torch.rand(100)  # the caller's generator may be anywhere
    watch = Watch()
    result = go(shards, tmp_path, progress=watch)
    assert watch.started == [(step, STEPS)]
    same(whole[0], tmp_path)
    assert [e.step for e in result.history] == [e.step for e in whole[1].history]
    assert not (tmp_path / "checkpoint.pt").exists()


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import test_train_loop as t
from pathlib import Path
from surefoot.train.shards import Shards
t.go(Shards(Path({text!r})), Path({out!r}), progress=t.Watch({{23: lambda: os.kill(os.getpid(), signal.SIGKILL)}}))
"""


def test_a_killed_run_goes_on_to_the_same_result(whole, tmp_path):
    shards = toys.capture(tmp_path / "text", 60)
    here = Path(__file__).parent
    code = KILLED.format(tests=str(here), text=str(tmp_path / "text"), out=str(tmp_path / "out"))
    paths = os.pathsep.join([str(here), str(here.parent)])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    watch = Watch()
    go(shards, tmp_path / "out", progress=watch)
    assert watch.started == [(21, STEPS)]
    same(whole[0], tmp_path / "out")


def test_a_full_disk_is_an_error_that_keeps_the_last_checkpoint(shards, whole, tmp_path, monkeypatch):
    good, count = torch.save, [0]

    def full(state, file):
        count[0] += 1
        if count[0] == 3:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        good(state, file)

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(BackendError, match=r"No space left on device.*free some space"):
        go(shards, tmp_path)
    assert not list(tmp_path.glob("*.part"))
    watch = Watch()
    go(shards, tmp_path, progress=watch)
    assert watch.started == [(14, STEPS)]
    same(whole[0], tmp_path)


def test_a_time_limit_keeps_the_best_and_a_further_run_ends_the_same(shards, whole, tmp_path):
    result = go(shards, tmp_path, limit_seconds=0.0)
    assert (result.stopped, result.steps, len(result.history)) == ("time", 1, 1)
    assert weights(tmp_path)
    assert go(shards, tmp_path).stopped == "epochs"
    same(whole[0], tmp_path)


def test_training_ends_when_it_gets_no_better(shards, tmp_path, monkeypatch):
    taus = iter([0.1, 0.5, 0.3, 0.5, 0.4, 0.9])
    monkeypatch.setattr(loop, "evaluate", lambda *rest: (1.0, (next(taus),)))
    result = go(shards, tmp_path, dataclasses.replace(SETTINGS, patience=3))
    assert (result.stopped, result.steps, result.best.step) == ("patience", 50, 20)
    assert [e.tau for e in result.history] == [1.1, 1.5, 1.3, 1.5, 1.4]


def test_the_best_weights_are_kept_not_the_last(shards, tmp_path, monkeypatch):
    taus = iter([0.5, 0.3, 0.2])
    monkeypatch.setattr(loop, "evaluate", lambda *rest: (1.0, (next(taus),)))
    go(shards, tmp_path / "a", dataclasses.replace(SETTINGS, epochs=3, eval_every=10, schedule="linear"))
    monkeypatch.setattr(loop, "evaluate", lambda *rest: (1.0, (0.5,)))
    short = Watch({10: lambda: signal.raise_signal(signal.SIGINT)})
    with pytest.raises(KeyboardInterrupt):
        go(shards, tmp_path / "b", dataclasses.replace(SETTINGS, epochs=3, eval_every=10, schedule="linear"), progress=short)
    assert all(torch.equal(w, weights(tmp_path / "b")[name]) for name, w in weights(tmp_path / "a").items())


@pytest.mark.parametrize(
    "change", [{"lr": 1e-3}, {"seed": 3}, {"epochs": 2}, {"batch_tokens": 128}, {"steps": 3}], ids=lambda c: next(iter(c))
)
def test_another_run_is_not_gone_on_with(shards, tmp_path, change):
    go(shards, tmp_path, limit_seconds=0.0)
    recipe = dataclasses.replace(RECIPE, **change) if "steps" in change else RECIPE
    settings = SETTINGS if "steps" in change else dataclasses.replace(SETTINGS, **change)
    name = "recipe" if "steps" in change else next(iter(change))
    with pytest.raises(BadRequest, match=f"another {name}"):
        go(shards, tmp_path, settings, recipe)


def test_a_damaged_checkpoint_is_named(shards, tmp_path):
    go(shards, tmp_path, limit_seconds=0.0)
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    for cut in (whole[: len(whole) // 2], b"", b"nothing"):
        (tmp_path / "checkpoint.pt").write_bytes(cut)
        with pytest.raises(BadRequest, match=r"checkpoint\.pt is damaged; delete it"):
            go(shards, tmp_path)


@dataclass(frozen=True)
class Broken(HydraRecipe):
    where: str = "loss"

    def loss(self, module, shape, batch):
        value = HydraRecipe.loss(self, module, shape, batch)
        if self.where == "gradient":
            return value + (module.fc.weight - module.fc.weight.detach()).sum().sqrt()
        return value * float("nan")


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_no_number_names_the_step_and_the_fix(shards, tmp_path, where):
    with pytest.raises(BackendError, match=rf"the {where} of step 1 .* smaller lr \(now 0.005\)"):
        go(shards, tmp_path, recipe=Broken(steps=2, inner=8, where=where))


def test_too_little_text_is_said_before_anything_is_written(tmp_path):
    shards = toys.capture(tmp_path / "text", 3, longest=12)
    with pytest.raises(BadRequest, match="too little captured text"):
        go(shards, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_half_precision_learns_too(shards, tmp_path):
    result = go(shards, tmp_path, dataclasses.replace(SETTINGS, amp=True))
    assert result.best.tau > 2


@pytest.mark.parametrize("schedule, half", [("cosine", 0.5), ("linear", 0.5)])
def test_rate_rises_then_falls(schedule, half):
    s = Settings(lr=2.0, schedule=schedule, warmup=0.1)
    rates = [s.rate(i, 110) for i in range(110)]
    assert rates[:11] == pytest.approx([2 * (i + 1) / 11 for i in range(11)])
    assert all(a > b for a, b in pairwise(rates[11:]))
    assert s.rate(11 + 99 // 2, 110) == pytest.approx(2 * half, rel=0.03)
    assert rates[-1] < 0.05
    assert Settings(lr=2.0, warmup=0.0).rate(0, 10) == 2.0
    quarter = 1 - 25 / 99 if schedule == "linear" else 0.8505
    assert s.rate(36, 110) == pytest.approx(2 * quarter, rel=0.01)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"clip": -1.0},
        {"warmup": 1.0},
        {"average": 1.0},
        {"schedule": "step"},
        {"eval_every": 0},
        {"checkpoint_every": 0},
        {"batch_tokens": 0},
        {"patience": -1},
    ],
    ids=lambda w: next(iter(w)),
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        Settings(**wrong)


def test_average_follows_and_gives_back():
    module = torch.nn.Linear(1, 1, bias=False)
    average = Average(module, 0.5)
    with torch.no_grad():
        module.weight.fill_(1.0)
        average.state["weight"].fill_(0.0)
    average.update(1)  # early: 1 - 2/11
    assert float(average.state["weight"]) == pytest.approx(9 / 11)
    average.update(1000)
    assert float(average.state["weight"]) == pytest.approx(9 / 11 + 1 / 11)
    with average.used():
        assert float(module.weight.detach()) == pytest.approx(10 / 11)
    assert float(module.weight.detach()) == 1.0


def test_tau_is_one_and_the_sum_of_the_products():
    assert tau((0.5, 0.4, 0.0, 0.9)) == pytest.approx(1 + 0.5 + 0.2)
    assert tau(()) == 1
