"""The backends that the engine's contract is run on, each tiny and made here; a new backend joins by one factory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from surefoot.backends.table import TableModel
from surefoot.core.protocols import TargetModel

VOCAB = 53


@dataclass(frozen=True)
class Backend:
    """``draft``: a relative of the target that agrees with it now and then. ``lengths``: draft lengths of the grid.

    ``folder``: for files of its own.
    """

    name: str
    target: TargetModel
    draft: TargetModel
    held: Callable[[TargetModel], int]
    lengths: tuple[int, ...]
    folder: Path = Path()

    @property
    def vocab(self) -> int:
        return self.target.traits.vocab_size

    def prompt(self, length: int, shift: int = 0) -> list[int]:
        """A prompt that repeats itself, so that history drafters have something to say."""
        period = 4 + shift % 3
        return [(5 * (i % period) + 3 * shift + i // 9) % self.vocab for i in range(length)]


def _table(min_width: int, vocab: int, seed: int) -> Callable[[Path], Backend]:
    def make(folder: Path) -> Backend:
        target = TableModel.random(vocab, order=2, seed=seed, sharpness=1.5, min_width=min_width, max_context=256)
        draft = target.mixed(TableModel.random(vocab, order=2, seed=seed + 1, sharpness=1.5), 0.3)
        return Backend("table", target, draft, lambda t: t.open_slots, (1, 2, 3, 5, 8, 16))

    return make


def tiny(config_class: str, **changes):
    """A random transformers model of two layers, float32."""
    import transformers as tf

    common = {"vocab_size": VOCAB, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if config_class == "GPT2Config":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    else:
        sizes = {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
        }  # fmt: skip
    torch.manual_seed(1)
    config = getattr(tf, config_class)(**common, **sizes, **changes)
    return tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def nudged(model, by: float = 0.02):
    """A copy with other weights nearby: a draft model that is right often, not always."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return other


def _torch(config_class: str, **changes) -> Callable[[Path], Backend]:
    def make(folder: Path) -> Backend:
        from surefoot.backends.torch import TorchModel

        model = tiny(config_class, **changes)
        target = TorchModel(model, max_rows=24)
        target.adopt(target.probe())
        draft = TorchModel(nudged(model), max_rows=24)
        return Backend("torch", target, draft, lambda t: len(t._slots), (1, 2, 3, 5, 8, 16))

    return make


def _openvino(config_class: str, trees: str, **changes) -> Callable[[Path], Backend]:
    def make(folder: Path) -> Backend:
        from surefoot.backends.openvino import OpenVINOModel, from_transformers

        model = tiny(config_class, **changes)
        target, draft = (
            OpenVINOModel(from_transformers(each, folder / name), precision="f32", kv_tokens=8192, threads=1, trees=trees)
            for name, each in (("target", model), ("draft", nudged(model)))
        )
        target.adopt(target.probe())
        return Backend("openvino", target, draft, lambda t: t.pool.blocks - t.pool.free, (1, 2, 3, 5, 8, 16))

    return make


FACTORIES: dict[str, Callable[[Path], Backend]] = {
    "table": _table(1, 7, 11),
    "table-padded": _table(4, 11, 13),
    "llama": _torch("LlamaConfig"),
    "gpt2": _torch("GPT2Config"),
    "gemma3-window": _torch(
        "Gemma3TextConfig",
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
        tie_word_embeddings=False,  # tied, random ones repeat the last token for ever
    ),
    "mistral-window": _torch("MistralConfig", sliding_window=8),
    "openvino-llama": _openvino("LlamaConfig", trees="chains"),
    "openvino-mask": _openvino("LlamaConfig", trees="mask"),
}


@pytest.fixture(scope="session")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Backend]:
    made: dict[str, Backend] = {}

    def get(name: str) -> Backend:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = replace(FACTORIES[name](folder), folder=folder)
        return made[name]

    return get
