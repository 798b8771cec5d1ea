"""Models that users bring: transformers folders with their tokenizers, as targets and as drafts, on both backends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM as Auto
from transformers import GPT2Config, LlamaConfig, PreTrainedTokenizerFast

import surefoot

TEXT = ["the cat sat on the mat and the dog sat on the log", "0123456789 (yes) [no] {maybe} the end, and so on."] * 20
PROMPTS = ["the cat sat on the mat and the", "0123 the log the log the", "and so"]


def save(folder: Path, config: object, seed: int, vocab: int, text: list[str] = TEXT) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, special_tokens=["</s>"], show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    torch.manual_seed(seed)
    model = Auto.from_config(config, dtype=torch.float32)
    # larger weights: a random model of the usual scale has no opinions
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(4.0)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    return folder


def llama(layers: int, vocab: int = 320) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab, hidden_size=48, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    gpt2 = GPT2Config(
        vocab_size=320, n_embd=48, n_layer=2, n_head=4, n_positions=256, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return {
        "target": save(root / "target", llama(3), 0, 300),
        "draft": save(root / "draft", gpt2, 1, 300),
        "padded": save(root / "padded", llama(1, 384), 2, 300),
        "other": save(root / "other", llama(1), 3, 300, [line[::-1] for line in TEXT]),
    }


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path_factory.getbasetemp() / "shared-cache"
    monkeypatch.setenv("SUREFOOT_CACHE", str(root))


def by_transformers(folder: Path, prompt: list[int], length: int, known: int) -> list[int]:
    """Greedy, over the ids that the tokenizer knows: the rows of a padded embedding stand for nothing."""
    model = Auto.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    padding = list(range(known, model.config.vocab_size)) or None
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=length,
            do_sample=False,
            pad_token_id=0,
            suppress_tokens=padding,
        )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("backend", ["openvino", "torch"])
def test_a_folder_answers_as_in_transformers(folders: dict[str, Path], backend: str) -> None:
    engine = surefoot.load(folders["target"], "ngram", backend, precision="f32" if backend == "openvino" else "auto")
    assert engine.target.traits.exact
    for prompt in PROMPTS:
        done = engine.generate(prompt, max_tokens=40)
        assert list(done.token_ids) == by_transformers(
            folders["target"], engine.codec.prompt(prompt), 40, engine.codec.vocab_size
        )
    engine.close()


@pytest.mark.parametrize("backend", ["openvino", "torch"])
@pytest.mark.parametrize("draft", ["target", "draft", "padded"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_model_changes_nothing(folders: dict[str, Path], backend: str, draft: str, temperature: float) -> None:
    plain = surefoot.load(folders["target"], "none", backend)
    fast = surefoot.load(
        folders["target"], "model", backend, draft_model=folders[draft], controller="fixed", num_speculative_tokens=3
    )
    options = {"max_tokens": 30, "temperature": temperature, "seed": 5}
    wanted = [plain.generate(p, **options).token_ids for p in PROMPTS]
    found = [fast.generate(p, **options) for p in PROMPTS]
    assert [c.token_ids for c in found] == wanted
    assert [c.token_ids for c in fast.generate_batch(PROMPTS, **options)] == wanted
    if draft == "target":
        drafted, accepted = (sum(getattr(c.stats, n) for c in found) for n in ("draft_tokens", "accepted_tokens"))
        assert drafted > 0
        # its own draft, drawn with the same noise, is always right; what is drafted past an end is not kept
        assert accepted >= drafted - 2 * len(PROMPTS)
    plain.close()
    fast.close()


def test_another_vocabulary_is_told_or_refused_by_name(folders: dict[str, Path]) -> None:
    with pytest.raises(surefoot.VocabMismatch, match="ids"):
        surefoot.load(folders["target"], "model:vocab=equal", draft_model=folders["other"])
    plain = surefoot.load(folders["target"], "none").generate("the cat", max_tokens=12)
    with pytest.warns(RuntimeWarning, match="ids"):
        engine = surefoot.load(folders["target"], "model", draft_model=folders["other"], controller="fixed")
    drafted = engine.generate("the cat", max_tokens=12)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.draft_tokens


def test_auto_takes_the_cpu_backend(folders: dict[str, Path]) -> None:
    engine = surefoot.load(folders["target"])
    assert type(engine.target).__module__.startswith("surefoot.backends.openvino") != torch.cuda.is_available()
    assert engine.generate("the cat", max_tokens=4).usage.completion_tokens == 4
