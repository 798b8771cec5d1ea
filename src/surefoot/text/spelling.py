"""A tokenizer by bytes: which tokens a stretch of bytes is written with, inside a text.

A tokenizer encodes whole texts, but a draft begins in the middle of one. So what stands before is encoded along with it, and
the tokens behind the border count, if there is a border. If a token reaches across (the text before ends within what the
tokenizer would write as one token), the stretch is encoded behind a mark that it cannot merge with, and at last piece by
piece, the longest one first, which needs no text: it also writes parts of characters. The pieces of what comes out are the
bytes asked for, always; what cannot be written so is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

from ..drafters.bridge import unfinished
from .codec import Codec
from .pieces import special_ids

SAMPLES = (
    "The quick brown fox jumps over 12 lazy dogs; it cost $3.50, didn't it?",
    "To see a world in a grain of sand, and a heaven in a wild flower, hold infinity in the palm of your hand.",
    "In 1969 the first humans walked on the moon. Several hundred million people watched them on television.",
    "def add(a, b):\n    return a + b  # sum\n\nfor i in range(10):\n    print(add(i, 1))\n",
    "The ratio is (x + 1) / (y - 2); see the table below:\n\n- one\n- two\n",
)
"""What two tokenizers are compared by."""

_BORDERS = ("\n", "a", " ", ".")
_REACH = 32


class Tokenizing(Protocol):
    """What of a codec is used."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_ids(self) -> Sequence[int]: ...
    @property
    def pieces(self) -> Sequence[bytes]: ...
    def encode(self, text: str, special: bool = True) -> list[int]: ...


class Spelling:
    """See :class:`surefoot.drafters.bridge.Spelling`. ``special``: ids that are marks, not text."""

    def __init__(self, codec: Tokenizing, special: frozenset[int] = frozenset()) -> None:
        self._encode = codec.encode
        self.eos_ids: Sequence[int] = tuple(codec.eos_ids)
        special = special | frozenset(self.eos_ids)
        own = codec.pieces[: codec.vocab_size]
        self.pieces: Sequence[bytes] = [b"" if i in special else piece for i, piece in enumerate(own)]
        self.marks: Mapping[bytes, int] = {own[i]: i for i in sorted(special) if i < len(own) and own[i]}
        self.ids: Mapping[bytes, int] = self._written()
        self._longest = max(map(len, self.ids), default=0)

    @staticmethod
    def of(codec: Codec) -> Spelling:
        return Spelling(codec, special_ids(codec.tokenizer))

    @cached_property
    def lead(self) -> bool:
        return self._text(self._encode("a", special=False)) == b" a"

    @cached_property
    def begin(self) -> tuple[int, ...]:
        plain, whole = self._encode("a", special=False), self._encode("a", special=True)
        return tuple(whole[:n]) if (n := _find(whole, plain)) > 0 else ()

    def faithful(self) -> bool:
        """Whether the bytes of a text's tokens are the text's."""
        for sample in SAMPLES[:3]:
            found = self._text(self._encode(sample, special=False))
            if found not in (sample.encode(), b" " + sample.encode()):
                return False
        return True

    def spell(self, data: bytes, before: bytes | None = b"") -> list[int] | None:
        if not data:
            return []
        cut = max(0, len(data) - unfinished((before or b"")[-3:] + data))
        body, tail = data[:cut], data[cut:]
        found = self._whole(body, before)
        if found is None or not tail:
            return found
        end = self._longest_first(tail)
        return None if end is None else found + end

    def _whole(self, data: bytes, before: bytes | None) -> list[int] | None:
        """``data`` ends where a character ends."""
        if not data:
            return []
        if before is None:
            found = self._behind(b"", data)
            if found is not None:
                return found
            before = b""
        before = before[-_REACH:]
        inner = 0
        while inner < min(4, len(before)) and before[inner] & 0xC0 == 0x80:
            inner += 1
        if len(before) > inner or not self.lead:
            found = self._behind(before[inner:], data)
            if found is not None:
                return found
        start = 0  # the end of a character that begins in the text before
        while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
            start += 1
        head = self._longest_first(data[:start])
        if head is None:
            return None
        if start == len(data):
            return head
        for border in _BORDERS if self.lead else ("", *_BORDERS):
            found = self._behind(border.encode(), data[start:])
            if found is not None:
                return head + found
        return self._longest_first(data)

    def _behind(self, before: bytes, data: bytes) -> list[int] | None:
        """The tokens of ``data`` if the tokenizer puts a border before it."""
        whole = before + data
        try:
            text = whole.decode()
        except UnicodeDecodeError:
            return None
        ids = self._encode(text, special=False)
        lead = 1 if self.lead else 0
        found = self._text(ids)
        if found != whole:
            if not lead or found != b" " + whole:
                return None
        else:
            lead = 0
        if not before:
            return ids
        at = 0
        for n, i in enumerate(ids):
            if at == len(before) + lead:
                return ids[n:]
            at += len(self.pieces[i])
        return None

    def _written(self) -> dict[bytes, int]:
        """Of ids with the same bytes (a letter and its byte token) the one that the tokenizer writes, if in doubt the last."""
        found: dict[bytes, int] = {}
        twice: dict[bytes, list[int]] = {}
        for i, piece in enumerate(self.pieces):
            if piece in found:
                twice.setdefault(piece, [found[piece]]).append(i)
            if piece:
                found[piece] = i
        for piece, several in twice.items():
            try:
                used = set(self._encode(piece.decode(), special=False))
            except UnicodeDecodeError:
                continue
            found[piece] = next((i for i in several if i in used), found[piece])
        return found

    def _longest_first(self, data: bytes) -> list[int] | None:
        out: list[int] = []
        at = 0
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                token = self.ids.get(data[at : at + size])
                if token is not None:
                    break
            else:
                return None
            out.append(token)
            at += size
        return out

    def _text(self, ids: Sequence[int]) -> bytes:
        return b"".join([self.pieces[i] for i in ids])


def _find(whole: Sequence[int], part: Sequence[int]) -> int:
    """Where ``part`` stands in ``whole``; -1: nowhere."""
    return next((n for n in range(len(whole) - len(part) + 1) if list(whole[n : n + len(part)]) == list(part)), -1)
