"""What a source of draft tokens tells a drafter that merges several of them.

A source looks ahead from a place: the row's tokens and, behind them, drafted ones. There it names candidates for the next
token, each with a *level*: a class of evidence (a match of so many tokens, a rank) whose candidates are right about equally
often. How often that is, is for the merging drafter to learn; ``levels`` says what to believe at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..core.request import Row

Candidate = tuple[int, int]
"""Token, and level of its evidence."""


class Walk(Protocol):
    """A place behind a row's tokens and some drafted ones. Not changed by looking or going on."""

    def candidates(self, width: int) -> Sequence[Candidate]:
        """At most ``width`` different tokens that may come next, the likeliest first."""
        ...

    def after(self, token: int) -> Walk:
        """The place behind one more drafted token."""
        ...


class Source(Protocol):
    """A drafter, or a part of one, that can be asked token by token."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> int:
        """The number that marks its tokens."""
        ...

    @property
    def levels(self) -> Sequence[float]:
        """By level: the believed chance that such a candidate is the next token, where this source is asked alone."""
        ...

    @property
    def weights(self) -> Sequence[float]:
        """By level: the log-odds that it adds where several sources are asked.

        Two more at the end: of a token that it does not name, while it names others, and while it names none.
        """
        ...

    def walk(self, row: Row) -> Walk:
        """The place behind ``row.tokens``; what was committed since the last call is learned first."""
        ...
