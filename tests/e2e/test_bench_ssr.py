"""``surefoot bench ssr`` on a real, tiny model: it forks, and every answer is that of plain decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_llama import tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from surefoot.bench import VARIANTS
from surefoot.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["</s>"])
    path = tmp_path / "model"
    tiny_llama(vocab_size=257, max_position_embeddings=512, eos_token_id=256).save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>").save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_on_a_tiny_model(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"task_id": "T/0", "prompt": "def add(a, b):\n"}) + "\n", encoding="utf-8")
    words = ["bench", "ssr", "--model", folder, "--backend", backend, "--humaneval", str(tasks), "--no-own", "--always"]
    lengths = ["--max-tokens", "48", "--thinking-budget", "24", "--draft-budget", "4", "--interval", "8"]
    assert main([*words, *lengths, "--ablations", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["answers_that_differ"] == 0
    found = figures["sets"]["humaneval"]
    assert set(found) == set(VARIANTS)
    assert found["ssr"]["ssr"]["forks"] == 1
    assert found["ssr"]["ssr"]["draft_tokens"] > 0
    assert found["ssr-iterative"]["ssr"]["forks"] > 1
    assert figures["lengths"]["humaneval"]["answer"] > 0
