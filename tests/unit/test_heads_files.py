"""Heads on disk: what is read, what is refused and how, and that a write is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from surefoot.core.protocols import Ends
from surefoot.errors import BackendError, BadRequest, ModelNotFound, SurefootError, Unsupported, VocabMismatch
from surefoot.heads import files
from surefoot.heads.files import peek, read, write
from surefoot.heads.hydra import Hydra, HydraConfig
from surefoot.heads.hydra_files import save_hydra
from surefoot.heads.medusa import Medusa, MedusaConfig
from surefoot.heads.medusa_files import save_medusa
from surefoot.heads.open import open_head
from surefoot.heads.recognise import recognise

H, V = 8, 13
TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2]), "c": torch.ones(4, dtype=torch.bfloat16)}


def ends_of(hidden: int = H, vocab: int = V) -> Ends:
    table = torch.randn(vocab, hidden, generator=torch.Generator().manual_seed(3))
    return Ends(table, table, None, lambda x: x)


def same(found, wanted) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[k], wanted[k]) for k in wanted)


@pytest.mark.parametrize(
    "name, shards", [("medusa_lm_head.safetensors", 1), *(("model.safetensors", shards) for shards in (1, 2, 3))]
)
def test_what_was_written_is_read(tmp_path, name, shards):
    folder = tmp_path / "new" / "head"
    write(folder, {"x": 1}, TENSORS, name=name, shards=shards)
    found = read(folder)
    assert found.config == {"x": 1}
    assert same(found.tensors, TENSORS)
    assert found.tensors["c"].dtype == torch.bfloat16
    assert len(list(folder.glob("*.safetensors"))) == shards
    assert peek(folder)[0] == {"x": 1}
    assert sorted(peek(folder)[1]) == ["a", "b", "c"]
    assert read(folder, choose=lambda names: [n for n in names if n != "b"]).tensors.keys() == {"a", "c"}
    assert not list(folder.glob(".*")), "left-over temporary files"


def test_only_chosen_files_are_opened(tmp_path):
    write(tmp_path, {}, TENSORS, shards=3)
    where = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    (tmp_path / where["a"]).write_bytes(b"not a tensor")
    assert same(read(tmp_path, choose=lambda names: ["c"]).tensors, {"c": TENSORS["c"]})
    with pytest.raises(BadRequest, match="fetch it again"):
        read(tmp_path)


def test_tied_tensors_are_written(tmp_path):
    one = torch.ones(3)
    write(tmp_path, {}, {"x": one, "y": one, "z": torch.ones(4, 4).T[1:]})
    assert read(tmp_path).tensors["z"].shape == (3, 4)


def test_the_head_goes_before_the_model(tmp_path):
    write(tmp_path, {}, {"a": TENSORS["a"]})
    write(tmp_path, {}, {"b": TENSORS["b"]}, name="medusa_lm_head.safetensors")
    assert read(tmp_path).tensors.keys() == {"b"}


def test_a_failed_write_leaves_the_old_files(tmp_path, monkeypatch):
    write(tmp_path, {"x": 1}, TENSORS)

    def broken(tensors, file, metadata=None):
        file.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(files, "save_file", broken)
    with pytest.raises(BackendError, match="no space left"):
        write(tmp_path, {"x": 2}, {"a": torch.zeros(1)})
    found = read(tmp_path)
    assert found.config == {"x": 1}
    assert same(found.tensors, TENSORS)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "pytorch_model.bin"])
def test_pickles_only_when_told(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    torch.save(TENSORS, tmp_path / name)
    with pytest.raises(BadRequest, match="pickle=True"):
        read(tmp_path)
    assert same(read(tmp_path, pickle=True).tensors, TENSORS)


def test_pickled_shards(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    torch.save({"a": TENSORS["a"]}, tmp_path / "one.bin")
    torch.save({"b": TENSORS["b"]}, tmp_path / "two.bin")
    with pytest.raises(BadRequest, match="no index"):
        read(tmp_path, pickle=True)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "one.bin", "b": "two.bin"}}))
    assert read(tmp_path, pickle=True).tensors.keys() == {"a", "b"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"z": "one.bin"}}))
    with pytest.raises(BadRequest, match="'z' is missing"):
        read(tmp_path, pickle=True)


class Evil:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    "content",
    [nn.Linear(2, 2), {"a": Evil()}, [torch.ones(2)], {"a": {"b": torch.ones(2)}}],
    ids=["module", "code", "list", "nested"],
)
def test_a_pickle_must_hold_tensors_only(tmp_path, content, capsys):
    (tmp_path / "config.json").write_text("{}")
    torch.save(content, tmp_path / "head.pt")
    with pytest.raises(BadRequest, match=r"head\.pt"):
        read(tmp_path, pickle=True)
    assert capsys.readouterr().out == ""


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(ModelNotFound, match="no such folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        read(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("{}")
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        read(tmp_path)
    write(tmp_path, {}, TENSORS)
    whole = (tmp_path / "model.safetensors").read_bytes()
    for bad in (b"", whole[:5], whole[:-3], b"PK\x03\x04" + whole):
        (tmp_path / "model.safetensors").write_bytes(bad)
        with pytest.raises(BadRequest, match="damaged"):
            read(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole)
    for bad_config in ("{", "[]", "\x00"):
        config.write_text(bad_config)
        with pytest.raises(BadRequest, match=r"config\.json"):
            read(tmp_path)


@pytest.mark.parametrize(
    "index, match",
    [
        ({}, "weight_map"),
        ({"weight_map": {"a": "../secret.safetensors"}}, "not a file of this folder"),
        ({"weight_map": {"a": "/etc/passwd"}}, "not a file of this folder"),
        ({"weight_map": {"a": 3}}, "weight_map"),
        ({"weight_map": {"a": "gone.safetensors"}}, "no such file"),
    ],
)
def test_bad_indices(tmp_path, index, match):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadRequest, match=match):
        read(tmp_path)


def test_an_index_that_names_a_tensor_the_file_lacks(tmp_path):
    write(tmp_path, {}, TENSORS, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    said["weight_map"]["z"] = said["weight_map"]["a"]
    index.write_text(json.dumps(said))
    with pytest.raises(BadRequest, match="lacks a tensor"):
        read(tmp_path)


def test_several_files_without_an_index(tmp_path):
    write(tmp_path, {}, TENSORS, name="one.safetensors")
    assert same(read(tmp_path).tensors, TENSORS)
    write(tmp_path, {}, TENSORS, name="two.safetensors")
    with pytest.raises(BadRequest, match="no index"):
        read(tmp_path)


def test_take_and_integer(tmp_path):
    write(tmp_path, {"n": 3, "s": "3", "t": True}, TENSORS)
    found = read(tmp_path)
    assert found.take("c", (4,)).dtype == torch.float32
    assert found.take("b").dtype == torch.int64
    for name, shape, match in (("z", None, "'z' is missing"), ("a", (3, 2), r"\(2, 3\), expected \(3, 2\)")):
        with pytest.raises(BadRequest, match=match):
            found.take(name, shape)
    assert found.integer("n", least=3) == 3
    assert found.integer("m", 4) == 4
    for name, least in (("n", 4), ("m", 0), ("s", 0), ("t", 0)):
        with pytest.raises(BadRequest, match=name):
            found.integer(name, least=least)


@pytest.mark.parametrize(
    "ids, error",
    [
        (torch.tensor([0, 2, 2]), BadRequest),
        (torch.tensor([0.0, 2.0]), BadRequest),
        (torch.zeros(0, dtype=torch.int64), BadRequest),
        (torch.tensor([0, V]), VocabMismatch),
        (torch.tensor([-1, 2]), VocabMismatch),
    ],
)
def test_draft_ids_name_tokens_of_the_target(tmp_path, ids, error):
    write(tmp_path, {}, {"draft_ids": ids})
    with pytest.raises(error):
        read(tmp_path).draft_ids(V)


def test_heads_are_recognised_by_what_they_hold(tmp_path):
    ends = ends_of()
    save_medusa(tmp_path / "m", Medusa(MedusaConfig(H, V, 2), ends))
    save_hydra(tmp_path / "h", Hydra(HydraConfig(H, V, (1, 3), inner=5), ends))
    for name, kind, made in (("m", "medusa", Medusa), ("h", "hydra", Hydra)):
        found, module = open_head(tmp_path / name, ends, 2)
        assert found == kind
        assert isinstance(module, made)
        assert not module.training
        assert open_head(tmp_path / name, ends, 2, kind=kind)[0] == kind
    with pytest.raises(BadRequest, match="'hydra', not 'medusa'"):
        open_head(tmp_path / "h", ends, 2, kind="medusa")
    with pytest.raises(BadRequest, match="unknown kind"):
        open_head(tmp_path / "h", ends, 2, kind="telepathy")
    with pytest.raises(Unsupported, match="after layer 3, the target has 1"):
        open_head(tmp_path / "h", ends, 1)


LAYER = {f"layers.0.self_attn.{p}_proj.weight": torch.zeros(1) for p in "qkvo"}
FOREIGN = {
    "Hydra head": ({"hydra_num_heads": 4}, {"0.0.linear.weight": torch.zeros(H, H)}),
    "HASS": ({"model_type": "hass"}, {"fc.weight": torch.zeros(1), **LAYER}),
    "MTP": ({"model_type": "deepseek_v3"}, {"model.layers.61.eh_proj.weight": torch.zeros(1)}),
    "MTP head": ({}, {"mtp.fc.weight": torch.zeros(1)}),
    "FastMTP": ({}, {"model.mtp_layers.0.input_proj.weight": torch.zeros(1)}),
    "P-EAGLE": ({"speculators_model_type": "peagle"}, {"d2t": torch.zeros(1), **LAYER}),
    "P-EAGLE head": ({}, {"mask_hidden": torch.zeros(1), "d2t": torch.zeros(1), **LAYER}),
    "DFlash": ({"dflash_config": {"mask_token_id": 1}}, {"fc.weight": torch.zeros(1), **LAYER}),
    "DFlash head in the speculators": ({"speculators_model_type": "dflash"}, {"fc.weight": torch.zeros(1)}),
    "DSpark": ({"speculators_model_type": "dspark"}, {"fc.weight": torch.zeros(1)}),
    "MTP head in the speculators": ({"speculators_model_type": "mtp"}, {"fc.weight": torch.zeros(1)}),
    "'novel'": ({"speculators_model_type": "novel"}, {"fc.weight": torch.zeros(1)}),
    "PARD": ({"pard_token": 7}, {"model.embed_tokens.weight": torch.zeros(1), **LAYER}),
    "MLP speculator": ({"model_type": "mlp_speculator"}, {"proj.0.weight": torch.zeros(1)}),
    "whole language model": (
        {"model_type": "llama"},
        {"model.embed_tokens.weight": torch.zeros(1), "model.layers.0.mlp.up_proj.weight": torch.zeros(1)}
        | {f"model.{name}": t for name, t in LAYER.items()},
    ),
    "unknown format": ({}, {"strange": torch.zeros(1)}),
}


QKV = [f"self_attn.{p}_proj.weight" for p in "qkvo"]


@pytest.mark.parametrize(
    "kind, config, names",
    [
        ("eagle", {}, ["fc.weight", "layers.0.mlp.up_proj.weight", *(f"layers.0.{n}" for n in QKV)]),
        ("eagle3", {}, ["fc.weight", "lm_head.weight", "d2t", *(f"midlayer.{n}" for n in QKV)]),
        ("eagle3", {}, ["fc.weight", "lm_head.weight", *(f"midlayer.{n}" for n in QKV)]),
        ("eagle3", {"speculators_model_type": "eagle3"}, ["fc.weight", "d2t", *(f"layers.0.{n}" for n in QKV)]),
        ("exit", {}, ["norm.weight", "layers.0.input_layernorm.weight", *(f"layers.0.{n}" for n in QKV)]),
        ("exit", {"model_type": "surefoot-exit"}, ["norm.weight"]),
        ("distilled", {"model_type": "surefoot-distilled"}, ["norm.weight", *(f"layers.0.{n}" for n in QKV)]),
        ("medusa", {"model_type": "llama"}, ["model.embed_tokens.weight", "medusa_head.0.0.linear.weight"]),
        ("medusa", {}, ["blocks.0.layers.0.weight", "lm_heads.0.weight"]),
        ("medusa", {}, ["medusa_heads.blocks.0.layers.0.weight"]),
    ],
)
def test_recognised_by_structure(kind, config, names):
    assert recognise(Path("x"), config, names, ends_of()) == kind


@pytest.mark.parametrize("name", FOREIGN)
def test_other_formats_are_refused_by_name(tmp_path, name):
    config, tensors = FOREIGN[name]
    write(tmp_path, {**config, "hidden_size": 4096, "vocab_size": V}, tensors)
    with pytest.raises(Unsupported) as told:
        open_head(tmp_path, ends_of(), 2)
    message = str(told.value)
    assert name in message
    assert "missing: " in message
    assert f"hidden size 4096 against the target's {H}" in message
    assert "vocabulary" not in message, "the vocabularies agree"
    assert "\n" not in message


@pytest.mark.parametrize("name", FOREIGN)
def test_a_refusal_does_not_load_the_tensors(tmp_path, name, monkeypatch):
    config, tensors = FOREIGN[name]
    write(tmp_path, config, tensors)
    monkeypatch.setattr(files, "_tensors", lambda *args: pytest.fail("loaded"))
    with pytest.raises(SurefootError):
        open_head(tmp_path, ends_of(), 2)


def attention_heads():
    """A saved head of each kind that has attention: kind, and what saves it for the target of ``eagle_toys``."""
    from eagle_toys import IDS, eagle, eagle3, ends

    from surefoot.heads.attention import AttentionConfig
    from surefoot.heads.distilled import Distilled, DistilledConfig
    from surefoot.heads.distilled_files import save_distilled
    from surefoot.heads.eagle_files import save_eagle, save_eagle3
    from surefoot.heads.exit import Exit, ExitConfig
    from surefoot.heads.exit_files import save_exit

    own, attention = ends(), AttentionConfig(24, 4, 2, 6)
    return own, {
        "eagle": ("eagle", lambda folder: save_eagle(folder, eagle(own, IDS))),
        "eagle3-raw": ("eagle3", lambda folder: save_eagle3(folder, eagle3(own))),
        "eagle3-speculators": ("eagle3", lambda folder: save_eagle3(folder, eagle3(own), layout="speculators")),
        "kangaroo": (
            "exit",
            lambda folder: save_exit(folder, Exit(ExitConfig("kangaroo", 2, attention), own), layout="kangaroo"),
        ),
        "exit": ("exit", lambda folder: save_exit(folder, Exit(ExitConfig("kangaroo", 2, attention), own, IDS))),
        "bare": ("exit", lambda folder: save_exit(folder, Exit(ExitConfig("bare", 2), own))),
        "distilled": (
            "distilled",
            lambda folder: save_distilled(folder, Distilled(DistilledConfig(40, (0, 5), attention), own)),
        ),
    }


@pytest.mark.parametrize("name", ["eagle", "eagle3-raw", "eagle3-speculators", "kangaroo", "exit", "bare", "distilled"])
def test_heads_with_attention_are_opened_too(tmp_path, name):
    ends, made = attention_heads()
    kind, save = made[name]
    save(tmp_path)
    found, module = open_head(tmp_path, ends, 6)
    assert found == kind
    assert not module.training
    assert open_head(tmp_path, ends, 6, kind=kind)[0] == kind
    other = ends_of(hidden=16, vocab=31)
    with pytest.raises(SurefootError, match=r"24\b.*\b16") as told:
        open_head(tmp_path, other, 6)
    assert "\n" not in str(told.value)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-5])
        with pytest.raises(BadRequest, match="fetch it again"):
            open_head(tmp_path, ends, 6)
