"""Incremental detokenizing of one row.

Contract: the pieces of ``push`` and the final ``flush`` put together are exactly ``decode`` of all tokens, whatever the
tokens; text is held back only while later tokens may change it.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class StreamDecoder:
    """A :class:`surefoot.core.protocols.Decoder` over ``tokenizers``' own stream."""

    __slots__ = ("_held", "_ids", "_runs", "_sent", "_skip", "_stream", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, runs: frozenset[int] | None = None, skip_special: bool = True) -> None:
        """``runs``: byte tokens and special tokens of a tokenizer with byte fallback, see :func:`byte_runs`."""
        self._tokenizer = tokenizer
        self._runs = runs
        self._skip = skip_special
        self._stream = DecodeStream(skip_special_tokens=skip_special)
        self._ids: list[int] = []
        self._held: list[int] = []
        self._sent = 0

    def push(self, token: int) -> str:
        """Text that became final with this token."""
        self._ids.append(token)
        if self._runs is None:
            piece = self._stream.step(self._tokenizer, token) or ""
        else:
            # A run of byte tokens is decoded as a whole: one bad byte turns all of it into replacement characters,
            # so nothing of it is final before the run ends.
            self._held.append(token)
            if token in self._runs or self._tokenizer.id_to_token(token) is None:
                return ""
            pending, self._held = self._held, []
            piece = self._stream.step(self._tokenizer, pending) or ""
        self._sent += len(piece)
        return piece

    def flush(self) -> str:
        """Text of an incomplete tail."""
        rest = self._tokenizer.decode(self._ids, skip_special_tokens=self._skip)[self._sent :]
        self._sent += len(rest)
        return rest


def byte_runs(tokenizer: Tokenizer, skip_special: bool) -> frozenset[int] | None:
    """Ids that do not end a run of byte tokens; ``None`` for tokenizers without byte fallback.

    Special tokens that are skipped vanish before decoding, so a run goes on across them.
    """
    if "ByteFallback" not in repr(tokenizer.decoder):
        return None
    table = tokenizer.get_vocab(with_added_tokens=True)
    ids = {i for token, i in table.items() if _BYTE_TOKEN.fullmatch(token)}
    if skip_special:
        ids |= {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return frozenset(ids)
