"""Texts in a stream of tokens, found by bytes: a text may begin inside one token and end inside another.

A vocabulary is its pieces: the bytes that each token id stands for, special tokens under their own names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

_KEPT = 256
"""Texts whose tokens are remembered."""


class Word:
    """One text, and the tokens that complete it after each beginning of it.

    ``completing[i]``: ids whose piece, after ``text[:i]``, completes the text (for i = 0: contains it whole).
    ``overshooting[i]``: those of them that go on past it.
    """

    __slots__ = ("completing", "overshooting", "text")

    def __init__(self, text: bytes, pieces: Sequence[bytes], order: Sequence[int]) -> None:
        """``order``: ids sorted by piece."""
        self.text = text
        whole = [i for i in order if text in pieces[i]]
        self.completing = [np.array(whole, np.int64)]
        self.overshooting = [np.array([i for i in whole if pieces[i].find(text) + len(text) < len(pieces[i])], np.int64)]
        for begun in range(1, len(text)):
            rest = text[begun:]
            at = bisect_left(order, rest, key=lambda i: pieces[i])
            found = []
            while at < len(order) and pieces[order[at]].startswith(rest):
                found.append(order[at])
                at += 1
            self.completing.append(np.array(found, np.int64))
            self.overshooting.append(np.array([i for i in found if len(pieces[i]) > len(rest)], np.int64))

    def begun(self, tail: bytes) -> list[int]:
        """Lengths of the beginnings of the text that ``tail`` ends with, 0 included."""
        most = min(len(self.text) - 1, len(tail))
        return [0, *(n for n in range(1, most + 1) if tail.endswith(self.text[:n]))]


class Vocabulary:
    """The pieces of a tokenizer, and the words that were looked up in them."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._order: list[int] = []
        self._words: OrderedDict[bytes, Word] = OrderedDict()

    def word(self, text: str) -> Word:
        key = text.encode()
        if key in self._words:
            self._words.move_to_end(key)
            return self._words[key]
        if not self._order:
            self._order = sorted(range(len(self.pieces)), key=self.pieces.__getitem__)
        found = self._words[key] = Word(key, self.pieces, self._order)
        while len(self._words) > _KEPT:
            self._words.popitem(last=False)
        return found

    def text(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.piece(token) for token in tokens)

    def piece(self, token: int) -> bytes:
        """'' for the ids of a padded embedding."""
        return self.pieces[token] if token < len(self.pieces) else b""
