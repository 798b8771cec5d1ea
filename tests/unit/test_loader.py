"""What load refuses or leaves out before anything is loaded."""

from __future__ import annotations

import pytest

import surefoot
from surefoot import loader
from surefoot.control.fixed import FixedController
from surefoot.errors import BadRequest


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
