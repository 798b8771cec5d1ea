"""A counted store of contexts: which tokens followed the last n tokens, and how often, for every n up to ``depth``.

An *occurrence* is a position e of the text with at least one token before it in its sequence; its contexts are the
1, 2, ... ``depth`` tokens before e, its continuation is the token at e. Occurrences form a trie over the context read
backwards, so one walk from the newest token outwards meets every match length. A branch that holds one occurrence is
kept as that bare position and split only when a second one arrives: most long contexts are unique, and cost one entry.

Counts are exact, also after eviction: occurrences leave in the order they came, and the store then equals one that was
built from the remaining occurrences alone. Of more tokens than are kept, only those are inserted. ``add`` costs O(depth) a
token, ``matches`` O(depth).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

BREAK = -1
"""Separates sequences in the text; no query holds it."""

SCAN = 32
"""Most continuations of one context that a query looks at, the most recent first: bounds the cost of common tokens."""

_SLACK = 4096


class Context:
    """A context that occurred at least twice.

    ``after`` maps continuation -> count, in order of their latest occurrence; ``kids`` maps the next token backwards
    to a :class:`Context` or to the position of a lone occurrence, and is ``None`` at full depth.
    """

    __slots__ = ("after", "kids", "last", "total")

    def __init__(self, token: int, position: int, kids: dict[int, Context | int] | None) -> None:
        self.after = {token: 1}
        self.kids = kids
        self.last = position
        self.total = 1

    def recent(self) -> Iterator[tuple[int, int]]:
        """(continuation, count), the most recent continuation first; at most :data:`SCAN` of them."""
        return islice(reversed(self.after.items()), SCAN)


Match = tuple[int, "Context | int"]
"""Match length, and the context matched; an int is the position of the only occurrence."""


class ContextStore:
    """Counts over the latest ``capacity`` tokens (``None``: over all) of any number of sequences."""

    __slots__ = ("_base", "_first", "_root", "_text", "capacity", "contexts", "depth")

    def __init__(self, depth: int, capacity: int | None = None) -> None:
        self.depth = depth
        self.capacity = capacity
        self.contexts = 0
        self._root: dict[int, Context | int] = {}
        self._text: list[int] = []
        self._base = 0  # position of _text[0]
        self._first = 0  # oldest position that is still counted

    def __len__(self) -> int:
        """Positions counted: tokens, and one break a sequence where sequences are kept apart."""
        return self.end - self._first

    @property
    def end(self) -> int:
        """Position that the next token will have."""
        return self._base + len(self._text)

    @property
    def nbytes(self) -> int:
        """Estimated bytes held: entry and leaf of each position, object and two small dicts of each context."""
        return 120 * len(self._text) + 440 * self.contexts

    def at(self, position: int) -> int:
        """The token at a position, :data:`BREAK` between sequences."""
        return self._text[position - self._base]

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the sequence that is being written."""
        if self.capacity is not None and len(tokens) > self.capacity:
            lead = max(0, self.depth + self.capacity - len(tokens))
            before = self._text[max(0, len(self._text) - lead) :] if lead else []
            self.restore([*before, *tokens], end=self.end + len(tokens))
            return
        text, insert = self._text, self._insert
        # by parts, so that what is evicted is never held beside all that comes
        for start in range(0, max(1, len(tokens)), _SLACK):
            base = self._base
            for token in tokens[start : start + _SLACK]:
                text.append(token)
                insert(len(text) - 1, base)
            self._evict()

    def add_sequence(self, tokens: Sequence[int]) -> None:
        """Append a sequence that has nothing to do with what came before. What would not fit is not inserted at all."""
        if self.capacity is not None:
            tokens = tokens[max(0, len(tokens) - self.capacity + 1) :]
        self._text.append(BREAK)
        self.add(tokens)

    def restore(self, text: Sequence[int], context: int = 0, end: int | None = None) -> None:
        """Hold ``text`` (with breaks) and nothing else; its first ``context`` tokens are not counted, only looked back at.

        ``end`` is the position after the last token; by default the text begins at 0.
        """
        size = len(text)
        first = context if self.capacity is None else max(context, size - self.capacity)
        cut = max(0, first - self.depth)
        self.contexts = 0
        self._root = {}
        self._text = list(text[cut:])
        self._base = (size if end is None else end) - len(self._text)
        self._first = self._base + first - cut
        base, insert = self._base, self._insert
        for index, token in enumerate(self._text[first - cut :], first - cut):
            if token != BREAK:
                insert(index, base)

    def matches(self, tail: Sequence[int], longest: int) -> list[Match]:
        """Contexts that end ``tail``, the shortest first. A lone occurrence is compared up to ``longest`` tokens."""
        found: list[Match] = []
        kids: dict[int, Context | int] | None = self._root
        size = len(tail)
        for n in range(1, min(size, self.depth) + 1):
            hit = kids.get(tail[-n]) if kids is not None else None
            if hit is None:
                break
            if isinstance(hit, int):
                text, index, stop = self._text, hit - self._base, min(size, longest, hit - self._base)
                while n < stop and text[index - n - 1] == tail[-n - 1]:
                    n += 1
                found.append((n, hit))
                break
            found.append((n, hit))
            kids = hit.kids
        return found

    def _insert(self, index: int, base: int) -> None:
        """Count the occurrence at ``_text[index]``."""
        text, depth = self._text, self.depth
        token, position = text[index], index + base
        kids = self._root
        for n in range(1, min(index, depth) + 1):
            before = text[index - n]
            if before == BREAK:
                return
            hit = kids.get(before)
            if hit is None:
                kids[before] = position
                return
            if isinstance(hit, int):
                hit = self._split(hit - base, n, base)
                kids[before] = hit
            hit.total += 1
            hit.last = position
            after = hit.after
            after[token] = after.pop(token, 0) + 1  # taken out first, so that the order of the dict is that of recency
            if hit.kids is None:
                return
            kids = hit.kids

    def _split(self, index: int, n: int, base: int) -> Context:
        """A context of n tokens that so far holds only the occurrence at ``_text[index]``."""
        self.contexts += 1
        if n == self.depth:
            return Context(self._text[index], index + base, None)
        kids: dict[int, Context | int] = {}
        if index > n and (before := self._text[index - n - 1]) != BREAK:
            kids[before] = index + base
        return Context(self._text[index], index + base, kids)

    def _evict(self) -> None:
        """Drop the oldest occurrences beyond the capacity; the text stays as far as later contexts reach back."""
        if self.capacity is None:
            return
        while len(self) > self.capacity:
            self._remove(self._first - self._base)
            self._first += 1
        dead = self._first - self._base - self.depth
        if dead > min(_SLACK, self.capacity):
            del self._text[:dead]
            self._base += dead

    def _remove(self, index: int) -> None:
        """Undo :meth:`_insert`; only ever called for the oldest occurrence."""
        text = self._text
        token = text[index]
        if token == BREAK:
            return
        kids = self._root
        lone: tuple[dict[int, Context | int], int, int] | None = None
        for n in range(1, min(index, self.depth) + 1):
            before = text[index - n]
            if before == BREAK:
                break
            hit = kids[before]
            if isinstance(hit, int):
                del kids[before]
                break
            hit.total -= 1
            left = hit.after[token] - 1
            if left:
                hit.after[token] = left
            else:
                del hit.after[token]
            if hit.total == 1:
                self.contexts -= 1
                if lone is None:  # the one that is left is the latest, and deeper contexts go with this one
                    lone = (kids, before, hit.last)
            if hit.kids is None:
                break
            kids = hit.kids
        if lone is not None:
            lone[0][lone[1]] = lone[2]
