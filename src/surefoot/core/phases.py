"""Options that depend on where in the output a position lies: the thinking budget, and a constraint with a beginning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .constraint import Matcher
from .words import Vocabulary, Word

Array = np.ndarray[Any, Any]


class Thinking:
    """At most ``budget`` output tokens between two markers; then the second is forced, token by token.

    The markers are found in the bytes of prompt and output. The budget is one for the request: once it is spent, thinking that
    begins again ends at once.
    """

    mask = ""

    def __init__(self, budget: int, start: str, end: str, forced: Sequence[int], vocabulary: Vocabulary) -> None:
        self._left = budget
        self._start, self._end = start.encode(), end.encode()
        self._forced = tuple(forced)
        self._vocabulary = vocabulary
        self._tail = b""
        self._inside = False
        self._at = 0
        """Tokens of the forced marker that were emitted; thinking goes on until all are."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Thinking may have begun in the prompt (chat templates write the first marker)."""
        self._scan(self._vocabulary.text(prompt))

    @property
    def forcing(self) -> bool:
        return self._inside and self._left <= 0

    def apply(self, logits: Array, tokens: Sequence[int]) -> None:
        if self.forcing:
            token = self._forced[self._at]
            logits[:] = -np.inf
            logits[token] = 0.0

    def forced(self, limit: int) -> list[int]:
        return list(self._forced[self._at : self._at + limit]) if self.forcing else []

    def advance(self, token: int) -> None:
        if self.forcing:
            self._at += 1
            if self._at == len(self._forced):
                self._inside, self._at, self._tail = False, 0, b""
            return
        if self._inside:
            self._left -= 1
        self._scan(self._tail + self._vocabulary.piece(token))

    def _scan(self, text: bytes) -> None:
        """Find the markers that ``text`` completes; a token may hold several."""
        while (at := text.find(wanted := self._end if self._inside else self._start)) >= 0:
            self._inside = not self._inside
            text = text[at + len(wanted) :]
        longest = max(len(self._start), len(self._end)) - 1
        self._tail = text[max(0, len(text) - longest) :]

    def fork(self) -> Thinking:
        other = object.__new__(Thinking)
        other.__dict__.update(self.__dict__)
        return other


class Constrained:
    """A constraint from the beginning, or from the end of a text of the output on.

    Before that text is complete, tokens that would go on past its end are impossible: the constraint begins between two tokens.
    """

    def __init__(
        self, name: str, matcher: Matcher, after: Word | None, vocabulary: Vocabulary | None, tail: bytes = b""
    ) -> None:
        self.mask = name
        self._matcher = matcher
        self._after = after
        self._vocabulary = vocabulary
        self._tail = tail

    def apply(self, logits: Array, tokens: Sequence[int]) -> None:
        if self._after is None:
            allowed = self._matcher.allowed()
            np.putmask(logits, ~allowed, -np.inf)
            return
        for begun in self._after.begun(self._tail):
            logits[self._after.overshooting[begun]] = -np.inf

    def advance(self, token: int) -> None:
        if self._after is None:
            self._matcher.advance(token)
            return
        assert self._vocabulary is not None
        text = self._tail + self._vocabulary.piece(token)
        if text.endswith(self._after.text):
            self._after = None
            self._matcher = self._matcher.fork()  # up to here it was shared with all forks
        else:
            longest = len(self._after.text) - 1
            self._tail = text[max(0, len(text) - longest) :]

    def forced(self, limit: int) -> list[int]:
        return self._matcher.forced(limit) if self._after is None else []

    @property
    def ended(self) -> bool:
        return self._after is None and self._matcher.ended

    def fork(self) -> Constrained:
        matcher = self._matcher.fork() if self._after is None else self._matcher
        return Constrained(self.mask, matcher, self._after, self._vocabulary, self._tail)
