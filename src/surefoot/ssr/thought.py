"""Where in a row's tokens a thought begins and ends, read token by token: markers are found in the bytes of the tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.words import Vocabulary
from .families import Family


class Thought:
    """``inside``: the row is thinking. ``begin``: place of the thought's first token. ``answer``: place of the first token
    behind the last thought; 0 while there was none, or it goes on. ``known``: tokens read."""

    __slots__ = ("_end", "_start", "_tail", "_vocabulary", "answer", "begin", "inside", "known")

    def __init__(self, family: Family, vocabulary: Vocabulary) -> None:
        self._start, self._end = family.start.encode(), family.end.encode()
        self._vocabulary = vocabulary
        self._tail = b""
        self.inside = False
        self.begin = self.answer = self.known = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Read ``tokens[known:]``."""
        new = tokens[self.known :]
        text = self._tail + self._vocabulary.text(new)
        if (self._end if self.inside else self._start) in text:
            self._look(new)
        else:
            self._leave(text)
        self.known = len(tokens)

    def ended(self, tokens: Sequence[int]) -> Thought | None:
        """Behind ``tokens`` that follow; None where the thought still goes on there."""
        other: Thought = object.__new__(Thought)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._look(tokens)
        other.known += len(tokens)
        return None if other.inside else other

    @property
    def thought(self) -> int:
        """Tokens of the thought so far; of the last one where the answer has begun."""
        if self.inside:
            return self.known - self.begin
        return max(0, self.answer - self.begin) if self.answer else 0

    def _look(self, tokens: Sequence[int]) -> None:
        for place, token in enumerate(tokens, self.known):
            text = self._tail + self._vocabulary.piece(token)
            while (at := text.find(wanted := self._end if self.inside else self._start)) >= 0:
                text = text[at + len(wanted) :]
                self.inside = not self.inside
                if self.inside:
                    self.begin, self.answer = place + 1, 0
                else:
                    self.answer = place + 1
            self._leave(text)

    def _leave(self, text: bytes) -> None:
        longest = max(len(self._start), len(self._end)) - 1
        self._tail = text[max(0, len(text) - longest) :]
