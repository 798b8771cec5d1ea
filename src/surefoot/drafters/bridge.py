"""What joins two vocabularies: for each of our tokens the draft model's token of the same bytes, and back.

A token is its bytes in the middle of a text; a mark (begin, end, role) is its name, and only marks are equal to marks. Where
several ids stand for the same bytes, one of them is used: the one that the tokenizer itself writes. End tokens are each
other's equals whatever their names. "Ours" is the target's side, "theirs" the draft model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

EQUAL, PADDED, INTERSECTION, UNIVERSAL, REFUSED = "equal", "padded", "intersection", "universal", "refused"
"""Ways to draft with another model; the last one is none."""


class Spelling(Protocol):
    """A tokenizer by bytes."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """The text of each id; empty for marks and for ids that stand for nothing."""
        ...

    @property
    def ids(self) -> Mapping[bytes, int]:
        """Text -> the id that is written for it."""
        ...

    @property
    def marks(self) -> Mapping[bytes, int]:
        """Name of a mark -> its id."""
        ...

    @property
    def eos_ids(self) -> Sequence[int]: ...

    @property
    def begin(self) -> Sequence[int]:
        """Marks that the tokenizer puts before a prompt."""
        ...

    @property
    def lead(self) -> bool:
        """Whether the tokenizer puts a space before a text."""
        ...

    def spell(self, data: bytes, before: bytes | None = b"") -> list[int] | None:
        """Tokens whose pieces are ``data``, as they stand behind ``before`` (``None``: at the beginning of a text, where a
        space may come first). ``None`` where there are none."""
        ...


@dataclass(frozen=True, slots=True)
class Bridge:
    """``greedy``, ``sampled``: the way for requests of temperature 0 and above it.

    there     our id -> theirs; -1: none
    back      their id -> ours; -1: none
    common    the intersection: their ids [n] and, in the same order, ours
    alike     both cut texts in the same places, so a context goes over token by token
    """

    ours: Spelling
    theirs: Spelling
    there: list[int]
    back: list[int]
    common: tuple[Array, Array]
    alike: bool
    greedy: str
    sampled: str

    @staticmethod
    def of(
        ours: Spelling, theirs: Spelling, greedy: str = UNIVERSAL, sampled: str = INTERSECTION, alike: bool = False
    ) -> Bridge:
        there, back = [-1] * len(ours.pieces), [-1] * len(theirs.pieces)

        def join(mine: int, other: int) -> None:
            there[mine], back[other] = other, mine

        for mine, other in ((ours.ids, theirs.ids), (ours.marks, theirs.marks)):
            for text, i in mine.items():
                if text in other:
                    join(i, other[text])
        ends = [i for i in ours.eos_ids if there[i] not in theirs.eos_ids], [i for i in theirs.eos_ids if back[i] < 0]
        for i, j in zip(*ends, strict=False):
            if there[i] >= 0:  # the name of our end token is theirs for something else
                back[there[i]] = -1
            join(i, j)
        their = np.array([j for j, i in enumerate(back) if i >= 0], np.int64)
        return Bridge(ours, theirs, there, back, (their, np.array(back, np.int64)[their]), alike, greedy, sampled)

    def end(self, token: int) -> int | None:
        """Our end token for one of theirs."""
        if self.back[token] in self.ours.eos_ids:
            return self.back[token]
        return self.ours.eos_ids[0] if self.ours.eos_ids else None


def unfinished(data: bytes) -> int:
    """Bytes at the end of ``data`` that begin a character and do not complete it."""
    for n in range(1, min(3, len(data)) + 1):
        byte = data[-n]
        if byte & 0xC0 == 0x80:
            continue
        size = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return n if size > n else 0
    return 0
