"""Heads among those that come with the package: copied in half precision, named by the content of their model."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_llama import VOCAB, tiny_llama

from surefoot.backends.torch import TorchModel
from surefoot.errors import BadRequest
from surefoot.heads.files import read
from surefoot.heads.medusa import Medusa, MedusaConfig
from surefoot.heads.medusa_files import load_medusa, save_medusa
from surefoot.models import content, shipped
from surefoot.train.ship import ship


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "tiny"
    tiny_llama().save_pretrained(folder)
    return folder


def head(folder, model, kind="medusa"):
    ends = TorchModel(tiny_llama()).ends()
    made = Medusa(MedusaConfig(32, VOCAB, 2), ends)
    torch.manual_seed(3)
    for weight in made.parameters():
        weight.data = torch.randn_like(weight)
    save_medusa(folder, made)
    card = {"kind": kind, "target": {"name": "tiny", "content": content(model)}}
    (folder / "card.json").write_text(json.dumps(card), "utf-8")
    (folder / "README.md").write_text("# card", "utf-8")
    return made, ends


def test_what_is_shipped_is_found_and_is_the_head_in_half_precision(model, tmp_path):
    made, ends = head(tmp_path / "made", model)
    ship([tmp_path / "made"], tmp_path / "weights", model, ["medusa"], [4])
    found = shipped(model, tmp_path / "weights")
    assert found.auto == ("medusa",)
    assert found.taps == (4,)
    checkpoint = read(found.heads["medusa"])
    assert {x.dtype for x in checkpoint.tensors.values() if x.is_floating_point()} == {torch.float16}
    again = load_medusa(checkpoint, ends)
    x = torch.randn(3, 32)
    assert torch.allclose(again(x), made(x), rtol=2e-2, atol=2e-1)
    assert (found.heads["medusa"] / "README.md").read_text() == "# card"


def test_heads_that_are_there_stay(model, tmp_path):
    head(tmp_path / "made", model)
    ship([tmp_path / "made"], tmp_path / "weights", model)
    ship([], tmp_path / "weights", model, ["medusa"])
    index = json.loads((tmp_path / "weights" / "index.json").read_text())
    assert index[content(model)]["heads"] == {"medusa": "tiny/medusa"}
    assert index[content(model)]["auto"] == ["medusa"]


def test_what_cannot_be_shipped(model, tmp_path):
    with pytest.raises(BadRequest, match=r"no card\.json"):
        ship([tmp_path], tmp_path / "weights", model)
    with pytest.raises(BadRequest, match="cannot ask 'eagle'"):
        ship([], tmp_path / "weights", model, ["eagle"])
    other = tmp_path / "other"
    tiny_llama(seed=2).save_pretrained(other)
    head(tmp_path / "made", other)
    with pytest.raises(BadRequest, match="another model"):
        ship([tmp_path / "made"], tmp_path / "weights", model)
    assert not (tmp_path / "weights" / "index.json").exists()


def test_a_head_may_be_named_where_a_kind_has_several_drafters(model, tmp_path):
    for name in ("one", "two"):
        head(tmp_path / name, model, kind="exit")
    ship([tmp_path / "one", ("early_exit_deep", tmp_path / "two")], tmp_path / "weights", model)
    assert set(shipped(model, tmp_path / "weights").heads) == {"early_exit", "early_exit_deep"}
    with pytest.raises(BadRequest, match="a head of kind 'exit' is for drafter 'early_exit', not 'medusa'"):
        ship([("medusa", tmp_path / "one")], tmp_path / "weights", model)


def test_cards_that_are_shipped_name_no_folders_of_the_machine():
    from surefoot.train.ship import _PATHS

    said = "surefoot train hydra --data /home/me/data-1/smol --out=/tmp/x/heads/hydra --lr 1e-3, 3/4 of 15/27/31, see a/b/c"
    kept = "surefoot train hydra --data smol --out=hydra --lr 1e-3, 3/4 of 15/27/31, see a/b/c"
    assert _PATHS.sub("", said) == kept
