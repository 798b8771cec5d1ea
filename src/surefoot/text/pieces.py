"""The bytes that each token id stands for."""

from __future__ import annotations

from tokenizers import Tokenizer


def pieces_of(tokenizer: Tokenizer, size: int) -> list[bytes]:
    """One entry an id below ``size``; an added token's bytes are those of its name, an unused id has none."""
    return [tokenizer.decode([i], skip_special_tokens=False).encode() for i in range(size)]
