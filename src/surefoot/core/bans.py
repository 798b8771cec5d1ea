"""Options that make tokens impossible: bad words, bad sequences of ids, and end tokens before ``min_tokens``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .words import Vocabulary, Word

Array = np.ndarray[Any, Any]


class BadWords:
    """Texts that the output never contains, however they are cut into tokens."""

    mask = "bad_words"

    def __init__(self, words: Sequence[Word], vocabulary: Vocabulary, tail: bytes = b"") -> None:
        self._words = words
        self._vocabulary = vocabulary
        self._longest = max(len(word.text) for word in words) - 1
        self._tail = tail
        """The last bytes of the output."""

    def apply(self, logits: Array, tokens: Sequence[int]) -> None:
        for word in self._words:
            for begun in word.begun(self._tail):
                logits[word.completing[begun]] = -np.inf

    def advance(self, token: int) -> None:
        tail = self._tail + self._vocabulary.piece(token)
        self._tail = tail[len(tail) - self._longest :] if len(tail) > self._longest else tail

    def fork(self) -> BadWords:
        return BadWords(self._words, self._vocabulary, self._tail)


class BadSequences:
    """Sequences of token ids that the output never contains."""

    mask = "bad_words_ids"

    def __init__(self, sequences: Sequence[Sequence[int]], tail: tuple[int, ...] = ()) -> None:
        self._sequences = sequences
        self._longest = max(map(len, sequences)) - 1
        self._tail = tail

    def apply(self, logits: Array, tokens: Sequence[int]) -> None:
        for *before, last in self._sequences:
            if not before or self._tail[-len(before) :] == tuple(before):
                logits[last] = -np.inf

    def advance(self, token: int) -> None:
        self._tail = (*self._tail, token)[-self._longest :] if self._longest else ()

    def fork(self) -> BadSequences:
        return BadSequences(self._sequences, self._tail)


class Least:
    """``min_tokens``: no end token before that many tokens."""

    mask = "min_tokens"

    def __init__(self, ends: Iterable[int], left: int) -> None:
        self._ends = list(ends)
        self._left = left

    def apply(self, logits: Array, tokens: Sequence[int]) -> None:
        if self._left > 0:
            logits[self._ends] = -np.inf

    def advance(self, token: int) -> None:
        self._left -= 1

    def fork(self) -> Least:
        return Least(self._ends, self._left)
