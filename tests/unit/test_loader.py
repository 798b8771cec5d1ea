"""What load refuses or leaves out before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toys import ToyCodec, counter

import surefoot
from surefoot import drafter_spec, loader
from surefoot.control.breaker import Breaker
from surefoot.control.fixed import FixedController
from surefoot.control.goodput import GoodputController
from surefoot.control.marginal import MarginalController
from surefoot.core.cost import CostModel
from surefoot.drafters.script import ScriptDrafter
from surefoot.errors import BadRequest
from surefoot.text.vocab import VocabReport


class Loaded(Exception):
    """The loader went on to load a model."""


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise Loaded

    monkeypatch.setattr(loader, "open_target", refuse)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"drafter": "none", "num_speculative_tokens": 4}, "plain decoding"),
        ({"drafter": "none", "controller": "fixed"}, "plain decoding"),
        ({"drafter": None, "controller": "window"}, "plain decoding"),
        ({"drafter": "none:k=3"}, "plain decoding"),
        ({"controller": "fixd"}, "did you mean 'fixed'"),
        ({"controller": FixedController("suffix", 2), "num_speculative_tokens": 3}, "decides the draft length"),
        ({"drafter": "model"}, "belong together"),
        ({"drafter": "suffix", "draft_model": "x"}, "belong together"),
        ({"drafter": "suffix:k=2", "num_speculative_tokens": 3}, "given twice"),
        ({"drafter": "suffix:k"}, "not key=value"),
        ({"num_speculative_tokens": -1}, "positive whole number"),
        ({"drafter": "ngram+suffx"}, "did you mean 'suffix'"),
        ({"drafter": "ngram+ngram:max_n=2"}, "named twice"),
        ({"drafter": "auto+ngram"}, "stands alone"),
        ({"drafter": "ngram+none"}, "stands alone"),
        ({"drafter": "ngram+"}, "unknown drafter ''"),
        ({"drafter": "ngram:k=2+suffix:k=3"}, "given twice"),
        ({"drafter": "ngram+model"}, "belong together"),
        ({"drafter": "ngram+suffix", "draft_model": "x"}, "belong together"),
        ({"drafter": "ngram+suffix", "controller": "fixed"}, "takes one drafter"),
        ({"drafter": "ngram+suffix", "controller": "breaker"}, "takes one drafter"),
        ({"drafter": "suffix:width=2"}, "width"),
        ({"drafter": "suffix:width=0", "controller": "fixed"}, "from 1 up"),
        ({"controller": "bandid"}, "did you mean 'bandit'"),
    ],
)
def test_contradictions_are_told_before_anything_is_loaded(options: dict[str, object], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        surefoot.load(**options)


def test_what_is_right_goes_on_to_load() -> None:
    with pytest.raises(Loaded):
        surefoot.load(drafter="suffix:k=2", controller="fixed")


def test_a_length_of_zero_does_not_load_the_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(loader, "open_target", lambda model, *args, **options: opened.append(model))
    monkeypatch.setattr(loader, "assemble", lambda target, drafter, *args, **options: drafter)
    assert surefoot.load("big", draft_model="small", num_speculative_tokens=0) == "none"
    assert opened == ["big"]


# what is assembled on a loaded model


class Letters(ToyCodec):
    """A tokenizer that goes with any of its kind."""

    def compare(self, other: Any) -> Any:
        return VocabReport(True, 0, None, (16, 16), (0, 0), (None, None))


def target(**traits: Any) -> Any:
    """A loaded model that counts."""
    cost = CostModel((1, 2, 16), (1.0, 1.1, 2.5), 100, 0.0, 0.3)
    model = counter(16)
    model.traits = replace(model.traits, **traits)
    return loader.Target(model, Letters("abcdefghijklmnop"), SimpleNamespace(cost=lambda target: cost), Path("toy"))


def names(engine: Any) -> tuple[str, ...]:
    """Drafters that the controller picks from."""
    inner = engine.controller.inner if isinstance(engine.controller, Breaker) else engine.controller
    return (inner._drafter,) if isinstance(inner, MarginalController) else tuple(inner._names)


@pytest.mark.parametrize(
    "drafter, draft, made, picked",
    [
        ("auto", False, ["suffix", "lookahead", "hybrid", "grammar"], ("grammar",)),
        ("auto", True, ["model", "suffix", "lookahead", "hybrid", "grammar"], ("model", "grammar")),
        ("auto:max_match=4", True, ["model", "suffix", "lookahead", "hybrid", "grammar"], ("model", "grammar")),
        ("hybrid:of=suffix/model/recycle", True, ["suffix", "model", "recycle", "hybrid"], ("hybrid",)),
        ("ngram:max_n=3 + model", True, ["ngram", "model"], ("ngram", "model")),
        ("suffix+ngram+grammar", False, ["suffix", "ngram", "grammar"], ("suffix", "ngram", "grammar")),
        ("model", True, ["model"], ("model",)),
    ],
)
@pytest.mark.parametrize("controller", ["auto", "goodput", "thompson", "bandit"])
def test_the_controller_picks_from_the_drafters_that_were_named(drafter, draft, made, picked, controller):
    engine = loader.assemble(target(), drafter, target() if draft else None, controller, 5)
    assert list(engine.drafters) == made
    if controller in ("auto", "goodput"):
        assert names(engine) == picked
    assert len(engine.names) == len(made) + 1  # each with a source of its own
    assert isinstance(engine.controller, Breaker) == (controller == "auto")
    wanted = loader.assemble(target(), "none").generate([0, 1, 2], max_tokens=40)
    assert engine.generate([0, 1, 2], max_tokens=40).token_ids == wanted.token_ids


@pytest.mark.parametrize("drafter, inner", [("auto", MarginalController), ("suffix", GoodputController)])
def test_auto_goes_by_cost_behind_a_breaker_on_one_set_of_costs(drafter, inner):
    engine = loader.assemble(target(steady=True), drafter)
    assert isinstance(engine.controller.inner, inner)
    assert engine.controller._costs is engine.controller.inner.costs
    assert engine.controller._costs.change == 0.3
    assert loader.assemble(target(), "suffix").controller._costs.change == 0.0
    before = engine.controller._costs.steps
    engine.generate([0, 1, 2], max_tokens=20)
    assert engine.controller._costs.steps > before
    assert engine.controller.stats()["state"] == "closed"


def test_breaker_is_a_fixed_length_guarded():
    engine = loader.assemble(target(), "suffix:width=2,nodes=5", None, "breaker", 3)
    [plan] = engine.controller.inner.plan([None])
    assert (plan.drafter, plan.depth, plan.width, plan.nodes) == ("suffix", 3, 2, 5)


@pytest.mark.parametrize("controller", ["fixed", "window", "confidence", "breaker"])
def test_controllers_of_one_drafter_take_the_draft_model_that_was_given(controller):
    assert list(loader.assemble(target(), "auto", target(), controller).drafters) == ["model"]


def test_a_drafter_of_ones_own_is_guarded_too():
    engine = loader.assemble(target(), ScriptDrafter(lambda row: [1] * 50, 16, accuracy=0.0))
    assert isinstance(engine.controller, Breaker)
    assert names(engine) == ("script",)


def test_every_controller_that_is_registered_can_be_made():
    for name in loader.CONTROLLERS:
        engine = loader.assemble(target(), "hybrid" if name == "marginal" else "suffix", None, name, 3)
        assert type(engine.controller).__name__ == loader.CONTROLLERS[name].partition(":")[2]
        assert engine.generate([0, 1, 2], max_tokens=10).token_ids


def test_drafters_as_text():
    specs, most = drafter_spec.parse("NGRAM:max-n=3,k=5,x=true+suffix:y=0.5,z=a", ["ngram", "suffix"])
    assert [(s.name, s.options) for s in specs] == [("ngram", {"max_n": 3, "x": True}), ("suffix", {"y": 0.5, "z": "a"})]
    assert most == 5
