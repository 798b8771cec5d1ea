"""A toy model behind the command line: every reference opens it, and its parts can be replaced before a command runs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from surefoot import loader
from surefoot.backends.table import TableModel
from surefoot.core.cost import CostModel
from surefoot.text import Codec
from surefoot.text.special import Special

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
EOS = 256


def tokenizer(extra: tuple[str, ...] = ("<end>",), swap: bool = False) -> Tokenizer:
    """Bytes, then ``extra`` tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swap:
        letters[10], letters[20] = letters[20], letters[10]
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(extra))
    return made


def table(codec: Codec, *, end: bool = False, max_context: int = 600, max_nodes: int = 64) -> TableModel:
    """A model that only says small letters; its greedy text soon goes round in a circle."""
    logits = torch.full((258, 257), -1e9, dtype=torch.float64)
    letters = [codec.encode(chr(c))[0] for c in range(ord("a"), ord("z") + 1)]
    generator = torch.Generator().manual_seed(1)
    for row in range(258):
        logits[row, letters] = 2 * torch.randn(26, generator=generator, dtype=torch.float64)
    if end:
        logits[:, EOS] = 0.0
    return TableModel(logits, max_context=max_context, max_nodes=max_nodes)


def install(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    codec = Codec(tokenizer(), Special(eos_ids=(EOS,), template=TEMPLATE))
    made = SimpleNamespace(codec=codec, model=table(codec), path=Path("toy"), opened=0)
    made.calibration = SimpleNamespace(cost=lambda model: CostModel((1, 16), (0.01, 0.011), 100))

    def open_target(*args: Any, **options: Any) -> Any:
        made.opened += 1
        return made

    monkeypatch.setattr(loader, "open_target", open_target)
    return made


def error_of(capsys: pytest.CaptureFixture[str], status: int) -> str:
    """The one line of an error, checked for its form."""
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert re.fullmatch(r"surefoot: error: [^\n]+\n", err), err
    return err
