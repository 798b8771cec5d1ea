"""Drafting through text (universal assisted generation): what the draft model says is cut into the target's tokens.

The draft model speaks greedily. After each of its tokens the text so far is spelled by the target's tokenizer behind the end of
the row, until that gives one token more than was asked for: the last one may be the beginning of a longer one. Proposals are
points (q = None), so they are exact at any temperature and under any rule. Not proposed are a character that the draft did not
finish, and a space at the end, which most tokenizers write as one token with the word after it.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from ..core.law import row_law
from ..core.params import SamplingParams
from ..core.protocols import Array, Plan
from ..core.request import Row
from ..core.tree import DraftTree
from .bridge import Bridge, unfinished

_BEFORE = 32
_MOST = 8
"""Most tokens of the draft model for one of the target's."""
_PLAIN = SamplingParams(temperature=1.0)


class Universal:
    """One draft in the making. ``ratio``: draft model's tokens for one of the target's, so far in this row; ``room``: most."""

    __slots__ = (
        "_before",
        "_bridge",
        "_data",
        "_depth",
        "_limit",
        "_mark",
        "_plan",
        "_reach",
        "_row",
        "_said",
        "_size",
        "_steps",
    )

    def __init__(self, bridge: Bridge, row: Row, plan: Plan, ratio: float, room: int) -> None:
        self._bridge = bridge
        self._row = row
        self._plan = plan
        self._depth = min(plan.depth, plan.nodes)
        self._limit = min(room, ceil(self._depth * min(max(ratio, 1.0), _MOST)) + 1)
        self._before = text_before(bridge, row)
        self._data = b""
        self._said: list[int] = []
        """The target's tokens of the text so far."""
        self._size = 0
        """Bytes that they stand for."""
        self._mark: int | None = None
        """A mark of the target that ends the draft."""
        self._steps = 0
        self._reach = 1.0

    def say(self, logits: Array) -> int | None:
        """Take the draft model's next token; the one to go on with, or ``None`` at the end of the draft."""
        theirs = self._bridge.theirs
        own = logits[: len(theirs.pieces)]
        token = int(own.argmax())
        plan = self._plan
        if plan.floor > 0.0:
            self._reach *= float(1.0 / np.exp(own - own[token]).sum())
            if self._reach < plan.floor:
                return None
        piece = theirs.pieces[token]
        if not piece:
            mark = self._bridge.end(token) if token in theirs.eos_ids else self._bridge.back[token]
            self._mark = mark if mark is not None and mark >= 0 else None
            return None
        self._data += piece
        self._steps += 1
        whole = len(self._data) - unfinished(self._before[-3:] + self._data)
        found = self._bridge.ours.spell(self._data[:whole], self._before) if whole > 0 else None
        if found is not None:
            if found and self._bridge.ours.pieces[found[-1]] == b" ":
                found, whole = found[:-1], whole - 1
            self._said, self._size = found, whole
        if len(self._said) > self._depth - self._bridge.alike or self._steps >= self._limit:
            return None
        if plan.stop is not None and plan.stop(row_law(own, _PLAIN), token, self._steps):
            return None
        return token

    def tree(self, source: int) -> DraftTree:
        tokens = self._said[: self._depth]
        if self._mark is not None and len(tokens) < self._depth and self._size == len(self._data):
            tokens = [*tokens, self._mark]
        return DraftTree.chain([self._row.tokens[-1], *tokens], source=source)


def text_before(bridge: Bridge, row: Row) -> bytes:
    """The end of the row's text, back to its last mark at most."""
    pieces = bridge.ours.pieces
    found: list[bytes] = []
    size = 0
    for token in reversed(row.tokens):
        piece = pieces[token] if token < len(pieces) else b""
        if not piece or size >= _BEFORE:
            break
        found.append(piece)
        size += len(piece)
    return b"".join(reversed(found))
