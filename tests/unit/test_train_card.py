"""The card beside the weights: figures of the run, and what is measured later."""

from __future__ import annotations

import json

import pytest
import toys_train as toys

from surefoot.errors import BadRequest, ModelNotFound
from surefoot.train.card import update, write_card
from surefoot.train.loop import train
from surefoot.train.recipes.hydra import HydraRecipe
from surefoot.train.settings import Settings


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    shards = toys.capture(folder / "text", 30)
    settings = Settings(epochs=2, batch_tokens=256, eval_every=2)
    result = train(HydraRecipe(steps=2, inner=8), shards, toys.shape(), folder / "head", settings, threads=1)
    write_card(
        folder / "head",
        result,
        settings,
        target={"name": "toy", "fingerprint": "abc123"},
        data=shards.facts,
        recipe={"inner": 8},
        vocabulary={"size": 24, "coverage": 0.5},
        command="surefoot train hydra --target toy",
    )
    return folder / "head", result


def test_card_says_what_was_trained_on_what_and_how_well(head):
    folder, result = head
    card = json.loads((folder / "card.json").read_text())
    assert card["target"]["fingerprint"] == "abc123"
    assert card["data"]["answer tokens"] == {"trained on": result.labels[0], "held out": result.labels[1]}
    assert card["data"]["capture"]["settings"]["seed"] == 0
    assert card["best"]["tau"] == round(result.best.tau, 4)
    assert [e["step"] for e in card["curve"]] == [e.step for e in result.history]
    assert card["sizes"]["bytes on disk"] == (folder / "model.safetensors").stat().st_size
    assert card["machine"]["threads"] >= 1
    page = (folder / "README.md").read_text()
    for part in (
        "hydra head for toy",
        "`abc123`",
        f"**{result.best.tau:.2f}**",
        "surefoot train hydra",
        "Not measured yet",
        "- lr: ",
    ):
        assert part in page
    assert "- lr: 0.001" in page
    assert page.count("\n| ") >= 4 + len(result.history)


def test_measured_figures_are_filled_in(head):
    folder, _ = head
    update(folder, {"speed-up": {"mt_bench": 1.5, "qa": 1.25}})
    update(folder, {"speed-up": {"mt_bench": 1.75}, "machine": "quiet"})
    card = json.loads((folder / "card.json").read_text())
    assert card["measured"] == {"speed-up": {"mt_bench": 1.75}, "machine": "quiet"}
    page = (folder / "README.md").read_text()
    assert "- speed-up / mt_bench: 1.750" in page
    assert "Not measured" not in page


def test_no_card_and_a_damaged_one_are_named(tmp_path):
    with pytest.raises(ModelNotFound, match=r"card\.json"):
        update(tmp_path, {})
    for text in ("{", "[]", "{}"):
        (tmp_path / "card.json").write_text(text)
        with pytest.raises(BadRequest, match="damaged"):
            update(tmp_path, {})
