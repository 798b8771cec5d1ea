"""A row's tokens as the draft model reads them: the same text, in its own tokens.

By text: what was committed since is spelled with the draft's tokenizer together with the last stretch before it, because new
text may change how that is cut into tokens; the tokens ahead of the stretch stay. By token, where both tokenizers cut texts
alike: each token goes over by itself, and the few that have no equal are spelled alone.

Marks go over by name, end tokens to end tokens, marks without an equal to nothing; what the target's tokenizer puts before a
prompt gives way to what the draft's puts there. The space that one tokenizer puts before a text is not part of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from .bridge import Bridge, unfinished

_AGAIN = 64
"""Bytes of known text that are spelled again with what follows: more than a word."""
_BEFORE = 32


class Reading:
    """``ids``: the row in the draft's tokens. ``kept``: how many of them no call changed since it was set to their number."""

    __slots__ = ("_begun", "_bridge", "_ends", "_first", "_spelled", "_text", "ids", "kept", "read")

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self.ids: list[int] = list(bridge.theirs.begin)
        self.kept = 0
        self.read = 0
        """Tokens of the row that were read."""
        self._begun = len(self.ids)
        """Where the current stretch of text begins in ``ids``; a mark that goes over ends a stretch."""
        self._ends: list[int] = []
        """By token of the stretch: its end in the text."""
        self._text = bytearray()
        self._spelled = 0
        self._first = True
        """No text yet."""

    def fork(self) -> Reading:
        """A copy that reads on otherwise: what was drafted behind the row. Its ``kept`` counts from here."""
        new = Reading(self._bridge)
        new.ids, new.kept, new.read = list(self.ids), len(self.ids), self.read
        new._begun, new._ends, new._text = self._begun, list(self._ends), bytearray(self._text)
        new._spelled, new._first = self._spelled, self._first
        return new

    def follow(self, tokens: Sequence[int]) -> bool:
        """Read on. False: what stands at the end cannot be written in the draft's tokens, so far."""
        new = tokens[self.read :]
        self.read = len(tokens)
        for place, token in enumerate(new, len(tokens) - len(new)):
            if self._bridge.alike:
                self._go_over(token, place)
            else:
                self._take(token, place)
        return self._spell()

    def _go_over(self, token: int, place: int) -> None:
        ours, theirs, there = self._bridge.ours, self._bridge.theirs, self._bridge.there
        if place < len(ours.begin) and token == ours.begin[place]:
            return
        if token < len(there) and there[token] >= 0:
            self.ids.append(there[token])
        elif token < len(there):
            self.ids += theirs.spell(ours.pieces[token]) or ()

    def _take(self, token: int, place: int) -> None:
        bridge = self._bridge
        ours = bridge.ours
        piece = ours.pieces[token] if token < len(ours.pieces) else b""
        if piece:
            if self._first and ours.lead and piece.startswith(b" "):
                piece = piece[1:]
            self._first = False
            self._text += piece
            return
        if token < len(bridge.there) and (mark := bridge.there[token]) >= 0:
            if place < len(ours.begin) and token == ours.begin[place]:
                return
            self._spell()
            self._change(len(self.ids))
            self.ids.append(mark)
            self._begun = len(self.ids)
            self._ends.clear()
            self._text.clear()
            self._spelled = 0

    def _spell(self) -> bool:
        """Bring ``ids`` to the end of the text."""
        text = self._text
        if self._spelled == len(text):
            return True
        n = bisect_right(self._ends, self._spelled - _AGAIN)
        cut = self._ends[n - 1] if n else 0
        first = not cut and self._begun == len(self._bridge.theirs.begin)
        before = None if first else bytes(text[max(0, cut - _BEFORE) : cut])
        found = self._bridge.theirs.spell(bytes(text[cut:]), before)
        if found is None and not unfinished(bytes(text[-3:])):
            text[cut:] = self._writable(bytes(text[cut:]))
            found = self._bridge.theirs.spell(bytes(text[cut:]), before)
        if found is None:
            return False
        old = self.ids[self._begun + n :]
        same = next((i for i, (a, b) in enumerate(zip(old, found, strict=False)) if a != b), min(len(old), len(found)))
        self._change(self._begun + n + same)
        self.ids[self._begun + n :] = found
        sizes = [len(self._bridge.theirs.pieces[i]) for i in found]
        at = cut - (sum(sizes) - (len(text) - cut))  # a space that comes first
        self._ends[n:] = []
        for size in sizes:
            at += size
            self._ends.append(at)
        self._spelled = len(text)
        return True

    def _writable(self, data: bytes) -> bytes:
        """The text without the characters that the draft has no tokens for."""
        text = data.decode(errors="ignore")
        lost = {c for c in set(text) if self._bridge.theirs.spell(c.encode()) is None}
        return "".join(c for c in text if c not in lost).encode()

    def _change(self, place: int) -> None:
        self.kept = min(self.kept, place)
