"""Toy targets with a real tokenizer, one token a byte: what loader and command line work on, without weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from surefoot.backends.table import TableModel
from surefoot.core.cost import CostModel
from surefoot.text import Codec
from surefoot.text.special import Special

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
EOS = 256
SIZE = 257
"""Tokens of the tokenizer: 256 bytes and the end token."""


def tokenizer(swap: Sequence[tuple[int, int]] = (), added: Sequence[str] = ("<end>",)) -> Tokenizer:
    """``swap``: pairs of ids that change places."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    for a, b in swap:
        letters[a], letters[b] = letters[b], letters[a]
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(added))
    return made


def codec(swap: Sequence[tuple[int, int]] = (), added: Sequence[str] = ("<end>",)) -> Codec:
    return Codec(tokenizer(swap, added), Special(eos_ids=(EOS,), template=TEMPLATE))


def table(seed: int = 1, rows: int = SIZE, sharpness: float = 2.0, padding: float = -1e9, **options: int) -> TableModel:
    """Says small letters only. ``rows``: size of its embedding; ids beyond the tokenizer have the logit ``padding``."""
    logits = torch.full((rows + 1, rows), -1e9, dtype=torch.float64)
    logits[:, SIZE:] = padding
    letters = [codec().encode(chr(c))[0] for c in range(ord("a"), ord("z") + 1)]
    generator = torch.Generator().manual_seed(seed)
    said = sharpness * torch.randn(SIZE + 1, 26, generator=generator, dtype=torch.float64)
    for row in range(rows + 1):
        logits[row, letters] = said[min(row, SIZE)]
    return TableModel(logits, **({"max_context": 1200, "max_nodes": 64} | options))


def target(model: TableModel | None = None, own: Codec | None = None, cost: CostModel | None = None) -> Any:
    """What the loader makes of a model reference; the cost curve is given, not measured."""
    curve = cost if cost is not None else CostModel((1, 16), (0.01, 0.011), 100)
    return SimpleNamespace(
        model=model if model is not None else table(),
        codec=own if own is not None else codec(),
        calibration=SimpleNamespace(cost=lambda model: curve),
        path=Path("toy"),
        backend="",
        folder=None,
        identity=None,
    )
