"""The distilled draft's model: copied layers, files, and its two ways to run."""

from __future__ import annotations

import json
from dataclasses import replace

import gguf
import pytest
import torch
from tiny_llama import VOCAB, save_gguf, tiny_llama

from surefoot.backends.torch import TorchModel
from surefoot.errors import BackendError, BadRequest, ModelNotFound, SurefootError, Unsupported, VocabMismatch
from surefoot.heads.distilled import HIDDEN, Distilled, DistilledStep
from surefoot.heads.distilled_files import load_distilled, save_distilled
from surefoot.heads.files import read
from surefoot.train.layers import read_layers

TOKENS = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(3))
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def folder_of(model, path):
    model.save_pretrained(path)
    return path


def module_of(source, target, layers=(0, 1, 2), draft_ids=None):
    found = read_layers(source, layers)
    module = Distilled(found.config, target.ends(), draft_ids)
    module.load_state_dict(dict(found.tensors))
    return module.eval()


@torch.no_grad()
def logits_of(module, tokens=TOKENS):
    return module.says(module(tokens))


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def target(model):
    return TorchModel(model)


@pytest.mark.parametrize(
    "kind, changes",
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "num_key_value_heads": 4, "rms_norm_eps": 1e-2}),
        ("Llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64}, "max_position_embeddings": 512}),
        ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "tie_word_embeddings": True}),
        ("Mistral", {"sliding_window": None}),
        ("Qwen2", {}),
    ],
)
@torch.no_grad()
def test_all_layers_of_a_folder_are_the_model(kind, changes, tmp_path):
    model = tiny_llama(kind, **changes)
    module = module_of(folder_of(model, tmp_path), TorchModel(model))
    assert (logits_of(module) - model(TOKENS).logits).abs().max() < 1e-4


@pytest.mark.parametrize("kind, changes", [("Llama", {}), ("Llama", {"attention_bias": True}), ("Qwen2", {})])
@torch.no_grad()
def test_all_layers_of_a_gguf_file_are_the_model(kind, changes, tmp_path):
    model = tiny_llama(kind, rope_parameters={"rope_type": "default", "rope_theta": 300.0}, rms_norm_eps=1e-3, **changes)
    module = module_of(save_gguf(model, tmp_path / "m.gguf", kind.lower()), TorchModel(model))
    assert (logits_of(module) - model(TOKENS).logits).abs().max() < 1e-4


@pytest.mark.parametrize("bits, most", [("Q8_0", 0.02), ("Q4_1", 0.15)])
def test_quantized_matrices_are_read(model, bits, most, tmp_path):
    file = save_gguf(model, tmp_path / "m.gguf", bits=getattr(gguf.GGMLQuantizationType, bits))
    true, found = read_layers(folder_of(model, tmp_path / "m"), [1]), read_layers(file, [1])
    assert set(found.tensors) == set(true.tensors)
    for name, x in true.tensors.items():
        error = (found.tensors[name] - x).norm() / x.norm()
        assert error < most, name
        assert ("norm" in name) == (error == 0), name


@torch.no_grad()
def test_the_scaling_of_llama_3_is_known_from_its_factors(tmp_path):
    model = tiny_llama(rope_parameters=LLAMA3 | {"rope_theta": 500000.0}, max_position_embeddings=16384)
    plain = 500000.0 ** (-torch.arange(0, 8, 2) / 8)
    factors = plain / model.model.rotary_emb.inv_freq
    assert factors[0] == 1 < factors[2] < factors[3] == pytest.approx(8)
    module = module_of(save_gguf(model, tmp_path / "m.gguf", factors=factors), TorchModel(model))
    assert torch.allclose(module.layers[0].self_attn.angles, model.model.rotary_emb.inv_freq)
    assert (logits_of(module) - model(TOKENS).logits).abs().max() < 1e-4
    with pytest.raises(Unsupported, match="rotary scaling"):
        read_layers(save_gguf(model, tmp_path / "o.gguf", factors=factors * 1.5), [0])


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_chosen_layers_are_copied_exactly_and_in_order(model, form, tmp_path):
    source = folder_of(model, tmp_path / "m") if form == "folder" else save_gguf(model, tmp_path / "m.gguf")
    found = read_layers(source, [-1, 0])
    assert found.config.layers == (2, 0)
    state = model.state_dict()
    for i, layer in enumerate((2, 0)):
        own = {name: x for name, x in state.items() if name.startswith(f"model.layers.{layer}.")}
        assert len(own) == 9
        for name, x in own.items():
            assert torch.equal(found.tensors[name.replace(f"model.layers.{layer}.", f"layers.{i}.")], x)
    assert torch.equal(found.tensors["norm.weight"], state["model.norm.weight"])
    assert len(found.tensors) == 19


def test_layers_of_a_model_in_shards(model, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    found = read_layers(tmp_path, [1])
    assert torch.equal(found.tensors["layers.0.mlp.up_proj.weight"], model.state_dict()["model.layers.1.mlp.up_proj.weight"])


class TestRefusals:
    @pytest.mark.parametrize("kind", ["Qwen3", "Gemma"])
    def test_other_architectures(self, kind, tmp_path):
        with pytest.raises(Unsupported, match=f"'{kind.lower()}'.* cannot be copied"):
            read_layers(folder_of(tiny_llama(kind), tmp_path), [0])
        with pytest.raises(Unsupported, match=r"'gemma'.* cannot be copied"):
            read_layers(save_gguf(tiny_llama(), tmp_path / "m.gguf", "gemma"), [0])

    def test_a_layer_with_more_parts(self, model, tmp_path):
        model = tiny_llama("Qwen3")
        folder = folder_of(model, tmp_path)
        config = json.loads((folder / "config.json").read_text()) | {"model_type": "llama"}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(Unsupported, match=r"k_norm"):
            read_layers(folder, [0])

    @pytest.mark.parametrize("layers", [[], [3], [0, -4]])
    def test_layers_that_are_not_there(self, model, layers, tmp_path):
        with pytest.raises(BadRequest, match=r"target's 3 layers, 0\.\.2"):
            read_layers(folder_of(model, tmp_path), layers)

    def test_what_is_no_model(self, model, tmp_path):
        with pytest.raises(ModelNotFound, match="GGUF"):
            read_layers(tmp_path / "m.bin", [0])
        with pytest.raises(ModelNotFound, match="no such file"):
            read_layers(tmp_path / "m.gguf", [0])
        (tmp_path / "openvino_model.xml").write_text("<net/>")
        with pytest.raises(Unsupported, match="OpenVINO"):
            read_layers(tmp_path, [0])
        whole = save_gguf(model, tmp_path / "w.gguf").read_bytes()
        for size in (3, 40, len(whole) // 2, len(whole) - 9):
            (tmp_path / "cut.gguf").write_bytes(whole[:size])
            with pytest.raises(BackendError, match=r"cut\.gguf"):
                read_layers(tmp_path / "cut.gguf", [0])

    def test_a_file_that_lacks_a_tensor(self, model, tmp_path):
        folder = folder_of(model, tmp_path)
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        del tensors["model.layers.0.mlp.up_proj.weight"]
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(BackendError, match=r"lacks 'layers\.0\.mlp\.up_proj\.weight'"):
            read_layers(folder, [0])


class TestFiles:
    @pytest.mark.parametrize("draft_ids", [None, torch.tensor([1, 5, 52, 7])])
    def test_round_trip(self, model, target, draft_ids, tmp_path):
        module = module_of(folder_of(model, tmp_path / "m"), target, (2, 0), draft_ids)
        save_distilled(tmp_path / "d", module, {"seed": 3})
        found = read(tmp_path / "d")
        assert found.config["surefoot"] == {"seed": 3}
        assert not any("emb" in name or "head" in name for name in found.tensors)
        back = load_distilled(found, target.ends())
        assert back.config == module.config
        assert not back.training
        assert torch.equal(logits_of(back), logits_of(module))
        assert logits_of(back).shape[-1] == (VOCAB if draft_ids is None else 4)
        assert (back.draft_ids is None) if draft_ids is None else torch.equal(back.draft_ids, draft_ids)

    @pytest.mark.parametrize("kind", ["Qwen2", "Llama"])
    def test_biases_and_scaling_come_back(self, kind, tmp_path):
        rope = LLAMA3 | {"original_max_position_embeddings": 64}
        model = tiny_llama(kind, rope_parameters=rope, max_position_embeddings=512)
        target = TorchModel(model)
        module = module_of(folder_of(model, tmp_path / "m"), target)
        save_distilled(tmp_path / "d", module)
        assert torch.equal(logits_of(load_distilled(read(tmp_path / "d"), target.ends())), logits_of(module))

    def test_a_reduced_head_says_rows_of_the_whole_one(self, model, target, tmp_path):
        folder = folder_of(model, tmp_path)
        ids = torch.tensor([9, 2, 30])
        few, all_ = module_of(folder, target, draft_ids=ids), module_of(folder, target)
        assert torch.allclose(logits_of(few), logits_of(all_)[..., ids], atol=1e-5)

    @pytest.mark.parametrize(
        "change, error, match",
        [
            ({"model_type": "llama"}, Unsupported, "'llama', not a distilled draft"),
            ({"hidden_size": 64}, SurefootError, "64.*32"),
            ({"vocab_size": 99}, VocabMismatch, "99.*53"),
            ({"draft_vocab_size": 3}, BadRequest, "draft_ids"),
            ({"num_hidden_layers": 1, "layers": [0]}, BadRequest, r"layers\.1\..*not of a distilled draft of 1"),
            ({"num_hidden_layers": 3, "layers": [0, 1, 2]}, BadRequest, r"layers\.2\..*missing"),
            ({"layers": [0]}, BadRequest, "'layers' must name 2"),
            ({"intermediate_size": 32}, BadRequest, "shape"),
            ({"head_dim": None}, BadRequest, "head_dim"),
        ],
    )
    def test_a_file_that_does_not_fit(self, model, target, change, error, match, tmp_path):
        module = module_of(folder_of(model, tmp_path / "m"), target, (0, 2))
        save_distilled(tmp_path, module)
        found = read(tmp_path)
        with pytest.raises(error, match=match) as caught:
            load_distilled(replace(found, config=found.config | change), target.ends())
        assert "\n" not in str(caught.value)

    def test_draft_ids_beyond_the_vocabulary(self, model, target, tmp_path):
        module = module_of(folder_of(model, tmp_path / "m"), target, (0,), torch.tensor([1, 2]))
        save_distilled(tmp_path, module)
        found = read(tmp_path)
        found.tensors["draft_ids"] = torch.tensor([1, VOCAB])
        with pytest.raises(VocabMismatch):
            load_distilled(found, target.ends())


@torch.no_grad()
def test_steps_are_the_whole_reading(model, target, tmp_path):
    """Two rows of different lengths, padded pasts and padded new tokens."""
    module = module_of(folder_of(model, tmp_path), target)
    step = DistilledStep(module)
    want = logits_of(module)
    none = [torch.zeros(2, 2, 0, 8)] * 6
    at = torch.arange(40)
    mask = torch.where(at[:, None] >= at, 0.0, HIDDEN)
    logits, past = step(module.embed(TOKENS), at.expand(2, 40), mask.expand(2, 40, 40), at.expand(2, 40), *none)
    assert (logits - want).abs().max() < 1e-4
    # row 0 has read 10 tokens and reads 3; row 1 has read 25 and reads 2
    seen, new = torch.tensor([10, 25]), torch.tensor([3, 2])
    mask = torch.full((2, 3, 28), HIDDEN)
    for b in range(2):
        mask[b, :, : seen[b]] = 0
        for t in range(new[b]):
            mask[b, t, 25 : 25 + t + 1] = 0
    positions = seen[:, None] + torch.arange(3)
    logits, made = step(
        module.embed(TOKENS.gather(1, positions)), positions, mask, new[:, None] - 1, *past[:, :, :, :25].unbind(1)
    )
    for b in range(2):
        end = seen[b] + new[b]
        assert (logits[b, 0] - want[b, end - 1]).abs().max() < 1e-4
        assert (made[b, :, :, : new[b]] - past[b, :, :, seen[b] : end]).abs().max() < 1e-4


def test_only_the_layers_learn(model, target, tmp_path):
    module = module_of(folder_of(model, tmp_path), target, (0, 2), torch.tensor([1, 4, 6]))
    module.says(module(TOKENS)).square().sum().backward()
    names = {name for name, _ in module.named_parameters()}
    assert names == set(module.state_dict())
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in module.parameters())
    assert not target.ends().head.requires_grad
