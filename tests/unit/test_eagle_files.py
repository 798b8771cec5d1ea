"""EAGLE heads on disk: each layout reads back as it was, public ones as published, and what does not fit is refused."""

from __future__ import annotations

import json

import pytest
import torch
from eagle_toys import IDS, H, V, eagle, eagle3, ends

from surefoot.errors import BadRequest, SurefootError, Unsupported, VocabMismatch
from surefoot.heads.eagle_files import load_eagle, load_eagle3, save_eagle, save_eagle3
from surefoot.heads.files import read, write
from surefoot.heads.open import open_head

ENDS = ends(bias=True)
TOKENS = torch.tensor([[1, 5, 30, 7], [0, 2, 2, 9]])
POSITIONS = torch.arange(4).expand(2, 4)


def same(a, b) -> None:
    width = a.fc.in_features // H - (a.fc.in_features == 2 * H)
    x = torch.randn(2, 4, width * H, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        for one, other in zip(a(TOKENS, x, POSITIONS), b(TOKENS, x, POSITIONS), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    assert (a.draft_ids is None) == (b.draft_ids is None)
    assert a.draft_ids is None or torch.equal(a.draft_ids, b.draft_ids)


def reshaped(folder, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("ids", [None, IDS])
@pytest.mark.parametrize("options", [{}, {"fc_bias": True}, {"scale": torch.rand(2 * H) + 0.5}])
def test_eagle_round_trip(tmp_path, ids, options):
    head = eagle(ENDS, ids, **options)
    save_eagle(tmp_path, head, facts={"seed": 7})
    kind, again = open_head(tmp_path, ENDS, 6)
    assert kind == "eagle"
    assert again.scale is None
    same(head, again)
    found = read(tmp_path)
    assert found.config["surefoot"] == {"seed": 7}
    assert found.config["bias"] is ("fc_bias" in options)
    names = {"fc.weight", *(f"layers.0.self_attn.{p}_proj.weight" for p in "qkvo")}
    names |= {f"layers.0.mlp.{p}_proj.weight" for p in ("gate", "up", "down")} | {"layers.0.post_attention_layernorm.weight"}
    names |= ({"fc.bias"} if "fc_bias" in options else set()) | ({"draft_ids"} if ids is not None else set())
    assert found.tensors.keys() == names, "the names that are published, and no table of the target"


@pytest.mark.parametrize("layout", ["raw", "speculators"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied": True},
        {"norm_before_residual": True, "layers": (1, 2, 4)},
        {"ids": None},
        {"scale": torch.rand(3 * H) + 0.5},
    ],
)
def test_eagle3_round_trip(tmp_path, layout, options):
    head = eagle3(ENDS, **options)
    save_eagle3(tmp_path, head, layout=layout, target="some/model", facts={"seed": 7})
    kind, again = open_head(tmp_path, ENDS, 6)
    assert kind == "eagle3"
    same(head, again)
    assert again.taps(6) == head.taps(6)
    assert again.norm_before_residual == head.norm_before_residual
    found = read(tmp_path)
    assert ("lm_head.weight" in found.tensors) == (not options.get("tied"))
    layer = "midlayer." if layout == "raw" else "layers.0."
    assert {"d2t", "t2d", "norm.weight", f"{layer}hidden_norm.weight", f"{layer}self_attn.q_proj.weight"} <= set(found.tensors)
    assert not any("embed" in name for name in found.tensors)
    if options.get("ids", IDS) is not None:
        assert (found.tensors["d2t"] + torch.arange(len(IDS))).tolist() == IDS.tolist()
        assert found.tensors["t2d"].nonzero()[:, 0].tolist() == IDS.tolist()
    if layout == "speculators":
        method = found.config["speculators_config"]["proposal_methods"][0]
        assert (method["verifier_accept_k"], method["accept_tolerance"]) == (1, 0.0)
        assert found.config["speculators_config"]["verifier"]["name_or_path"] == "some/model"
        assert found.config["transformer_layer_config"]["hidden_size"] == H


def test_scaled_and_biased_attention_round_trips(tmp_path):
    from eagle_toys import config

    from surefoot.heads.eagle import Eagle

    scaling = {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 50.0}
    torch.manual_seed(4)
    head = Eagle(config(1, rope_parameters=scaling, attention_bias=True, rms_norm_eps=0.1), ENDS).eval()
    save_eagle(tmp_path, head)
    again = load_eagle(read(tmp_path), ENDS)
    same(head, again)
    assert again.layer.self_attn.o_proj.bias is not None


def test_a_public_eagle_checkpoint(tmp_path):
    """As published: half precision, the embedding beside it, an old config that says little."""
    head = eagle(ENDS)
    save_eagle(tmp_path / "own", head)
    tensors = {name: t.half() for name, t in read(tmp_path / "own").tensors.items()}
    tensors |= {"embed_tokens.weight": ENDS.embedding.half(), "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}
    said = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 40, "num_hidden_layers": 1, "bias": False,
        "vocab_size": V, "rope_theta": 100.0, "hidden_act": "silu",
    }  # fmt: skip
    write(tmp_path / "public", said, tensors)
    kind, again = open_head(tmp_path / "public", ENDS, 6)
    assert kind == "eagle"
    assert again.embedding is ENDS.embedding
    for name, parameter in again.named_parameters():
        torch.testing.assert_close(parameter, dict(head.named_parameters())[name], rtol=1e-3, atol=1e-3)


def test_an_embedding_that_was_trained_apart_is_used(tmp_path):
    save_eagle(tmp_path, eagle(ENDS))
    own = ENDS.embedding.flip(0)
    write(tmp_path, read(tmp_path).config, read(tmp_path).tensors | {"embed_tokens.weight": own})
    assert torch.equal(load_eagle(read(tmp_path), ENDS).embedding, own)


def test_residual_is_not_normed_unless_the_file_says_so(tmp_path):
    save_eagle3(tmp_path, eagle3(ENDS, norm_before_residual=True))
    config = read(tmp_path).config
    del config["norm_before_residual"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_eagle3(read(tmp_path), ENDS).norm_before_residual is False


@pytest.mark.parametrize("name, value", [("verifier_accept_k", 2), ("accept_tolerance", 0.1)])
def test_lossy_acceptance_is_refused(tmp_path, name, value):
    save_eagle3(tmp_path, eagle3(ENDS), layout="speculators")
    config = read(tmp_path).config
    config["speculators_config"]["proposal_methods"][0][name] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=rf"{name} is {value}.*set it to"):
        load_eagle3(read(tmp_path), ENDS)


def test_heads_for_other_targets_are_refused_with_both_sizes(tmp_path):
    save_eagle(tmp_path / "1", eagle(ENDS))
    save_eagle3(tmp_path / "3", eagle3(ENDS))
    save_eagle3(tmp_path / "s", eagle3(ENDS), layout="speculators")
    for folder, load in (("1", load_eagle), ("3", load_eagle3), ("s", load_eagle3)):
        with pytest.raises(Unsupported, match=rf"hidden size {H}, the target has 12"):
            load(read(tmp_path / folder), ends(V, 12))
        with pytest.raises(VocabMismatch, match=rf"vocabulary of {V}, the target of 40"):
            load(read(tmp_path / folder), ends(40, H))


@pytest.mark.parametrize(
    "drop, says",
    [("lm_head.weight", "lm_head"), ("d2t", "d2t"), ("norm.weight", "norm"), ("midlayer.mlp.up_proj.weight", "up_proj")],
)
def test_a_missing_tensor_is_named(tmp_path, drop, says):
    save_eagle3(tmp_path, eagle3(ENDS))
    found = read(tmp_path)
    write(tmp_path, found.config, {name: t for name, t in found.tensors.items() if name != drop})
    with pytest.raises(SurefootError, match=says) as caught:
        load_eagle3(read(tmp_path), ENDS)
    assert "\n" not in str(caught.value)


def test_what_is_of_another_format_is_named(tmp_path):
    save_eagle(tmp_path / "1", eagle(ENDS))
    save_eagle3(tmp_path / "3", eagle3(ENDS))
    save_eagle3(tmp_path / "s", eagle3(ENDS), layout="speculators")
    with pytest.raises(Unsupported, match="EAGLE-3"):
        load_eagle(read(tmp_path / "3"), ENDS)
    with pytest.raises(Unsupported, match="an EAGLE head, not an EAGLE-3"):
        load_eagle3(read(tmp_path / "1"), ENDS)
    reshaped(tmp_path / "s", speculators_model_type="dflash")
    with pytest.raises(Unsupported, match="dflash"):
        load_eagle3(read(tmp_path / "s"), ENDS)
    found = read(tmp_path / "1")
    write(tmp_path / "2", found.config, found.tensors | {"layers.1.mlp.up_proj.weight": torch.zeros(2, 2)})
    with pytest.raises(Unsupported, match=r"layers\.1\.mlp"):
        load_eagle(read(tmp_path / "2"), ENDS)
    reshaped(tmp_path / "1", num_hidden_layers=2)
    with pytest.raises(Unsupported, match="2 layers"):
        load_eagle(read(tmp_path / "1"), ENDS)


def test_maps_that_contradict_each_other_are_refused(tmp_path):
    save_eagle3(tmp_path, eagle3(ENDS))
    found = read(tmp_path)
    for change, error, says in (
        ({"d2t": found.tensors["d2t"] + V}, VocabMismatch, "the target has"),
        ({"t2d": found.tensors["t2d"].roll(1)}, BadRequest, "d2t and t2d"),
        ({"d2t": found.tensors["d2t"][:-1], "t2d": None}, VocabMismatch, "lm_head says 12 tokens and d2t maps 11"),
    ):
        write(tmp_path / "bad", found.config, {n: t for n, t in (found.tensors | change).items() if t is not None})
        with pytest.raises(error, match=says):
            load_eagle3(read(tmp_path / "bad"), ENDS)


def test_an_unknown_layout_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="layout"):
        save_eagle3(tmp_path, eagle3(ENDS), layout="gguf")
