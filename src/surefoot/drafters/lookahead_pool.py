"""N-grams by what they begin with: after each context of one to ``n - 1`` tokens, the tokens that came next.

An n-gram x1 … xn is an entry for each beginning (x1), (x1 x2), …, so every n-gram that begins with given tokens is found by
looking up one key a token. Entries of one context are ordered: what was *said* last comes first, then what was only *guessed*.
At most ``capacity`` entries are held (a context with its first continuation is one, each further continuation another); the
contexts not seen for longest go first.

A :class:`LookaheadWalk` reads pools and guesses token by token. Its levels: 0 the guess alone; c = 1 … n - 1 what the longest
context that is known, of c tokens, names first; n - 1 + c the guess, where a context of c tokens names it too; 2 (n - 1) + c
whatever else a context of c tokens names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import itemgetter

from .evidence import Candidate

_NAMED = (0.06, 0.25, 0.5, 0.8, 0.85)
_AGREED = (0.0, 0.5, 0.75, 0.85, 0.9)
_BESIDE = (0.0, 0.06, 0.11, 0.11, 0.1)
"""Chances by length of the context (last entry: and beyond); the first one is that of a guess alone.

As found with SmolLM2-135M on text of eight kinds, greedy, chains of five.
"""

_NAMED_BESIDE = (-1.9, -0.6, -0.3, 0.2)
_AGREED_BESIDE = (0.0, 1.4, 1.1, 1.6)
_OTHERS_BESIDE = (0.0, -1.5, -1.0, -0.8)
"""The same as log-odds beside other sources, suffix first of all, which speak of the same places."""
_UNNAMED = (-1.7, 0.0)
"""Log-odds of a token where others are named, and where none is."""

SEED = 0.02
"""Chance of a token that stands in for a guess."""

KEPT = 4
"""Most continuations of a context."""

_CONTEXT_BYTES = 330
_MORE_BYTES = 24


class Pool:
    """Not safe for threads. ``n``: longest n-gram; ``capacity`` may be lowered at any time by :meth:`trim`."""

    __slots__ = ("_entries", "_found", "capacity", "n")

    def __init__(self, n: int, capacity: int) -> None:
        self.n = n
        self.capacity = capacity
        self._found: OrderedDict[tuple[int, ...], list[int]] = OrderedDict()
        self._entries = 0

    def __len__(self) -> int:
        """Entries."""
        return self._entries

    @property
    def nbytes(self) -> int:
        """Estimated bytes held: key, list and slot of each context, and the continuations."""
        return _CONTEXT_BYTES * len(self._found) + _MORE_BYTES * self._entries

    def after(self, context: tuple[int, ...]) -> Sequence[int]:
        """What came after these tokens, the likeliest first."""
        return self._found.get(context, ())

    def say(self, tokens: Sequence[int], start: int) -> None:
        """Learn ``tokens[start:]``, each behind the tokens before it. What would not fit is left out, the oldest first."""
        found, longest = self._found, self.n - 1
        for end in range(max(start, 1, len(tokens) - self.capacity), len(tokens)):
            token = tokens[end]
            for begin in range(max(0, end - longest), end):
                context = tuple(tokens[begin:end])
                known = found.get(context)
                if known is None:
                    found[context] = [token]
                    self._entries += 1
                    continue
                found.move_to_end(context)
                if known[0] != token:
                    if token in known:
                        known.remove(token)
                    elif len(known) == KEPT:
                        del known[-1]
                    else:
                        self._entries += 1
                    known.insert(0, token)
            if self._entries > self.capacity:
                self.trim(self.capacity)

    def guess(self, context: tuple[int, ...], token: int) -> None:
        """Learn a token that was not said, but would have been after these tokens (of which the last n - 1 count)."""
        found = self._found
        for begin in range(max(0, len(context) - self.n + 1), len(context)):
            end = context[begin:]
            known = found.get(end)
            if known is None:
                found[end] = [token]
                self._entries += 1
            elif token not in known:
                if len(known) == KEPT:
                    known[-1] = token
                else:
                    known.append(token)
                    self._entries += 1
        if self._entries > self.capacity:
            self.trim(self.capacity)

    def trim(self, capacity: int) -> None:
        """Lower the capacity and drop what no longer fits."""
        self.capacity = capacity
        while self._entries > capacity:
            _, known = self._found.popitem(last=False)
            self._entries -= len(known)


def believed(n: int) -> list[float]:
    """The chance of each level, at first."""
    longest = len(_NAMED) - 1
    lengths = [min(c, longest) for c in range(1, n)]
    return [_NAMED[0], *(table[c] for table in (_NAMED, _AGREED, _BESIDE) for c in lengths)]


def weighed(n: int) -> list[float]:
    """Log-odds of the levels beside other sources, then those of a token that is not named."""
    longest = len(_NAMED_BESIDE) - 1
    lengths = [min(c, longest) for c in range(1, n)]
    tables = (_NAMED_BESIDE, _AGREED_BESIDE, _OTHERS_BESIDE)
    return [_NAMED_BESIDE[0], *(table[c] for table in tables for c in lengths), *_UNNAMED]


_CHANCE = itemgetter(2)


class LookaheadWalk:
    """A place: the last tokens up to it, and the guesses from it on. Not changed by looking or going on."""

    __slots__ = ("_at", "_guess", "_known", "_levels", "_pools", "_tail")

    def __init__(
        self,
        pools: Sequence[Pool],
        levels: Sequence[float],
        known: int,
        tail: tuple[int, ...],
        guess: Sequence[int],
        at: int = 0,
    ) -> None:
        self._pools = pools
        self._levels = levels
        self._known = known
        self._tail = tail
        self._guess = guess
        self._at = at

    def candidates(self, width: int) -> Sequence[Candidate]:
        levels, tail, known = self._levels, self._tail, self._known
        guess = self._guess[self._at] if self._at < len(self._guess) else -1
        if width == 1:
            return self._best(guess)
        found: list[tuple[int, int, float]] = []
        seen: set[int] = set()
        step = (len(levels) - 1) // 3
        for c in range(len(tail), 0, -1):
            context = tail[-c:]
            level = c + 2 * step if found else c
            for pool in self._pools:
                for token in pool.after(context):
                    if token < known and token not in seen:
                        seen.add(token)
                        own = c + step if token == guess else level
                        found.append((token, own, levels[own]))
                        level = c + 2 * step
            if len(found) >= width:
                break
        if guess >= 0 and guess not in seen:
            found.append((guess, 0, levels[0]))
        if len(found) > 1:
            found.sort(key=_CHANCE, reverse=True)  # stable: the order found breaks ties
        return [(token, level) for token, level, _ in found[:width]]

    def _best(self, guess: int) -> Sequence[Candidate]:
        """The first of all candidates, with less ado: chains ask for nothing else."""
        tail, known = self._tail, self._known
        for c in range(len(tail), 0, -1):
            context, best = tail[-c:], -1
            for pool in self._pools:
                for token in pool.after(context):
                    if token == guess:
                        return [(token, c + (len(self._levels) - 1) // 3)]
                    if best < 0 and token < known:
                        best = token
            if best >= 0:
                return [(best, c)]
        return [(guess, 0)] if guess >= 0 else []

    def after(self, token: int) -> LookaheadWalk:
        tail = (*self._tail, token)
        longest = (len(self._levels) - 1) // 3
        return LookaheadWalk(self._pools, self._levels, self._known, tail[-longest:], self._guess, self._at + 1)

    def trajectory(self) -> LookaheadWalk:
        """The same place with guesses only."""
        return LookaheadWalk((), self._levels, self._known, self._tail, self._guess, self._at)
