"""The target's own weights at lower precision as its draft: how near they are, what they refuse, and that output stays."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from toys import fixed, run

from surefoot.backends.torch import TorchModel
from surefoot.backends.torch_quantize import Int8Linear
from surefoot.backends.torch_quantize import quantize as quantize_torch
from surefoot.backends.torch_quantize import quantized_model as torch_draft
from surefoot.core.engine import Engine
from surefoot.core.protocols import Need, TargetModel
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.model import ModelDrafter
from surefoot.errors import BadRequest, ModelNotFound, Unsupported

VOCAB = 96
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [40, 7], [5] * 20]
LENGTHS = (1, 2, 3, 5, 8, 16)
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def tiny(kind: str):
    import transformers as tf

    common = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "initializer_range": 0.3}
    if kind == "gpt2":
        config = tf.GPT2Config(**common, n_embd=64, n_layer=2, n_head=4, n_positions=256)
    else:  # 48: no multiple of a group
        size = 64 if kind == "llama" else 48
        config = tf.LlamaConfig(
            **common, hidden_size=size, intermediate_size=2 * size, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256,
        )  # fmt: skip
    torch.manual_seed(1)
    return tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Transformers folders and, under ``<kind>-ov``, OpenVINO ones."""
    from surefoot.backends.openvino import from_transformers

    root = tmp_path_factory.mktemp("models")
    found = {}
    for kind in ("llama", "gpt2", "odd"):
        model = tiny(kind)
        model.save_pretrained(root / kind)
        found[kind] = root / kind
        found[f"{kind}-ov"] = from_transformers(model, root / f"{kind}-ov")
    return found


def logits_of(model: TargetModel) -> torch.Tensor:
    [slot] = model.open(1)
    found = model.score([slot], Forest.pack([DraftTree.chain(TOKENS)], min_width=2), Need()).logits.clone()
    model.close([slot])
    return found


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).norm() / b.norm()).detach())


def pair(backend: str, kind: str, bits: int, folders: dict[str, Path]) -> tuple[TargetModel, TargetModel]:
    """A target and its copy of fewer bits."""
    if backend == "torch":
        target: TargetModel = TorchModel.load(str(folders[kind]), device="cpu")
        return target, torch_draft(str(folders[kind]), device="cpu", bits=bits)
    from surefoot.backends.openvino import OpenVINOModel
    from surefoot.backends.openvino.quantize import quantized_model

    folder = folders[f"{kind}-ov"]
    options = {"precision": "f32", "threads": 1, "kv_tokens": 8192}
    return OpenVINOModel(folder, **options), quantized_model(folder, bits=bits, **options)


@pytest.mark.parametrize("shape", [(48, 40), (40, 48), (1, 8), (30, 3)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_of_integers_is_near_the_layer(shape, bias) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(*reversed(shape), bias=bias)
    x = torch.randn(2, 5, shape[1])
    ours = Int8Linear(layer.weight, layer.bias)
    assert ours(x).shape == layer(x).shape
    assert difference(ours(x), layer(x)) < 0.02
    assert float((ours.weight - layer.weight.detach()).abs().max()) <= float(layer.weight.detach().abs().max()) / 127 * 0.501
    assert torch.equal(ours(x)[0, 0], ours(x[:1, :1])[0, 0]), "a row does not notice its neighbours"


def test_a_layer_of_zeros_and_a_row_of_zeros() -> None:
    layer = nn.Linear(8, 4)
    nn.init.zeros_(layer.weight)
    assert torch.equal(Int8Linear(layer.weight, layer.bias)(torch.randn(3, 8)), layer.bias.expand(3, 4))
    full = nn.Linear(8, 4)
    assert torch.equal(Int8Linear(full.weight, full.bias)(torch.zeros(3, 8)), full.bias.expand(3, 4))


@pytest.mark.parametrize("kind, layers", [("llama", 15), ("gpt2", 9)])
def test_all_linear_layers_are_replaced_and_embeddings_are_not(kind, layers) -> None:
    model = tiny(kind)
    other = copy.deepcopy(model)
    assert quantize_torch(other) == layers
    assert not [m for m in other.modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]
    assert torch.equal(other.get_input_embeddings().weight, model.get_input_embeddings().weight)
    assert quantize_torch(other) == 0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-8])
def test_packed_numbers_are_within_half_a_step(bits, scale) -> None:
    from surefoot.backends.openvino.quantize import pack

    w = scale * np.random.default_rng(1).normal(size=(5, 3, 32)).astype(np.float32)
    w[0, 0] = 0.0
    w[1] = np.abs(w[1]) + scale  # all of one sign
    numbers, zero, step = pack(w, bits)
    assert numbers.max() == 2**bits - 1
    assert step.dtype == (np.float32 if scale == 1e-8 else step.dtype)
    step = step.astype(np.float32)
    error = np.abs((numbers.astype(np.float32) - zero) * step - w)
    assert (error <= 0.51 * step * (1 if bits == 4 else 1.3)).all()  # scales are rounded to 11 bits
    assert not error[0, 0].any(), "zeros stay zeros"


@pytest.mark.parametrize("kind", ["llama", "gpt2", "odd"])
@pytest.mark.parametrize("bits, limit", [(8, 0.05), (4, 0.4)])
def test_logits_of_the_compressed_graph_are_near(folders, kind, bits, limit) -> None:
    target, draft = pair("openvino", kind, bits, folders)
    far = difference(logits_of(draft), logits_of(target))
    assert 0.0 < far < limit
    assert draft.traits.vocab_size == VOCAB
    assert draft.pool is not target.pool


def test_logits_of_integer_layers_are_near(folders) -> None:
    for kind in ("llama", "gpt2"):
        target, draft = pair("torch", kind, 8, folders)
        assert 0.0 < difference(logits_of(draft), logits_of(target)) < 0.05


def test_the_head_keeps_eight_bits_and_the_folder_is_left_alone(folders, tmp_path) -> None:
    import openvino as ov

    from surefoot.backends.openvino.quantize import quantize

    source = folders["llama-ov"]
    before = {file.name: file.read_bytes() for file in source.iterdir()}
    out = quantize(source, tmp_path / "copy", 4)
    assert {file.name: file.read_bytes() for file in source.iterdir()} == before
    graph = ov.Core().read_model(out / "openvino_model.xml")
    kinds = [node.get_output_element_type(0).get_type_name() for node in graph.get_ops() if node.get_type_name() == "Constant"]
    assert kinds.count("u4") == 2 * 14, "fourteen products, each with numbers and zeros"
    assert kinds.count("u8") == 2
    assert (out / "openvino_model.bin").stat().st_size < 0.45 * (source / "openvino_model.bin").stat().st_size


def test_a_copy_that_was_kept_is_used_again(folders, tmp_path) -> None:
    from surefoot.backends.openvino.quantize import quantized_model

    options = {"precision": "f32", "threads": 1, "kv_tokens": 256}
    quantized_model(folders["llama-ov"], tmp_path / "copy", **options)
    stamp = (tmp_path / "copy" / "openvino_model.bin").stat().st_mtime_ns
    model = quantized_model(folders["llama-ov"], tmp_path / "copy", **options)
    assert (tmp_path / "copy" / "openvino_model.bin").stat().st_mtime_ns == stamp
    assert model.traits.capacity == 256


def test_what_has_few_bits_already_is_refused(folders, tmp_path) -> None:
    from surefoot.backends.openvino.quantize import quantize

    four, eight = quantize(folders["llama-ov"], tmp_path / "4", 4), quantize(folders["llama-ov"], tmp_path / "8", 8)
    for folder, bits, held in ((four, 4, "4.5"), (four, 8, "4.5"), (eight, 8, "8.0")):
        with pytest.raises(Unsupported, match=f"{held[0]}.* bits already.*another drafter"):
            quantize(folder, tmp_path / "again", bits)
    assert not (tmp_path / "again").exists()
    assert quantize(eight, tmp_path / "from 8", 4).is_dir()


def test_bad_input(folders, tmp_path) -> None:
    from surefoot.backends.openvino.quantize import quantize

    with pytest.raises(BadRequest, match="bits must be 4 or 8, not 5"):
        quantize(folders["llama-ov"], tmp_path / "x", 5)
    with pytest.raises(ModelNotFound, match="convert the model first"):
        quantize(tmp_path, tmp_path / "x", 4)
    with pytest.raises(BadRequest, match="8 bits, not 4"):
        torch_draft(str(folders["llama"]), bits=4)


@pytest.mark.parametrize("backend, bits", [("torch", 8), ("openvino", 4), ("openvino", 8)])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_it_agrees_often_and_changes_nothing(folders, backend, kind, bits) -> None:
    target, draft = pair(backend, kind, bits, folders)
    target.adopt(target.probe())
    trees = target.traits.exact or backend == "openvino"
    for options in ({}, {"temperature": 0.9, "seed": 3}):
        wanted = [Engine(target).generate(p, max_tokens=20, **options).token_ids for p in PROMPTS]
        for k in LENGTHS:
            for width in (1, 3) if trees else (1,):
                drafter = ModelDrafter(draft, VOCAB, name="quantized", source=7)
                engine = fixed(target, drafter, k, width, k if width == 1 else 2 * k)
                found = run(engine, *((p, {"max_tokens": 20, **options}) for p in PROMPTS))
                assert [c.token_ids for c in found] == wanted
                drafted, accepted = (sum(getattr(c.stats, n) for c in found) for n in ("draft_tokens", "accepted_tokens"))
                if width == 1 and k <= 3:
                    assert accepted > (0.6 if bits == 8 else 0.15) * drafted > 0
                engine.close()
    target.close([])
