"""What the suffix stores say at a place: the continuations of the longest contexts, with the kind of evidence for each.

A level is (match length, share of the continuation among what followed the context, whether the row's own text says so).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from operator import itemgetter
from typing import TYPE_CHECKING

from .ngram import LONGEST
from .suffix_store import BREAK

if TYPE_CHECKING:
    from .suffix_store import Context, ContextStore

Found = tuple[int, int, "Context | int"]
"""Match length, rank of the store, and what was matched there."""

_LENGTH = itemgetter(0)
REACH = 16
"""Matches count up to this length: a copy is the surer the longer it has held."""
_LENGTHS = (0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7)
"""Class of each match length."""
_LONG = (-0.45, 0.0, 0.0, 0.4, 0.75, 1.3, 2.0, 2.4)
_SHARES = ((0.0, 0.7, 0.0, -0.7, -1.1), (0.0, 0.7, -0.2, -0.9, -1.9), (0.0, 0.9, -0.3, -1.9, -2.6))
"""Log-odds by class of length, and for a lone occurrence, a unanimous context, and shares from 2/3, from 1/3, and below (by

class of length: in long contexts a small share says more). Fitted, as all weights of sources are, on greedy answers of
SmolLM2-135M to prompts of eight kinds.
"""
_ELSEWHERE = -1.1
"""What it takes away that only other rows' text says so."""
WEIGHTS = (
    *(
        long + share + shared
        for shared in (0.0, _ELSEWHERE)
        for i, long in enumerate(_LONG)
        for share in _SHARES[min(i, len(_SHARES) - 1)]
    ),
    -1.9,
    -0.9,
)
LEVELS = tuple(1.0 / (1.0 + exp(-weight - 0.5)) for weight in WEIGHTS[:-2])
_KINDS = len(_SHARES[0])
_OWN = len(_LONG) * _KINDS


def contexts(stores: Sequence[ContextStore], tail: Sequence[int], least: int, longest: int = LONGEST) -> list[Found]:
    """Contexts of all stores, the longest last; of equal ones the later store's last."""
    found = [(n, rank, hit) for rank, store in enumerate(stores) for n, hit in store.matches(tail, longest) if n >= least]
    found.sort(key=_LENGTH)  # stable: of equal lengths the later store's stays last
    return found


class SuffixWalk:
    """Behind ``tail``, of which the last ``drafted`` tokens are not in the stores.

    ``place``: where a lone match of ``length`` tokens goes on, in the store of this ``rank``; -1: to be looked up.
    """

    __slots__ = ("_drafted", "_followed", "_least", "_length", "_place", "_rank", "_stores", "_tail")

    def __init__(
        self,
        stores: Sequence[ContextStore],
        tail: list[int],
        least: int,
        drafted: int = 0,
        place: int = -1,
        length: int = 0,
        rank: int = 0,
    ) -> None:
        self._stores, self._tail, self._least = stores, tail, least
        self._drafted, self._place, self._length, self._rank = drafted, place, length, rank
        self._followed = place >= 0

    def candidates(self, width: int) -> list[tuple[int, int]]:
        if self._followed:
            token = self._ahead()
            if token != BREAK:
                return [(token, self._level(self._length, 0, self._rank))]
            self._followed = False
        found = contexts(self._stores, self._tail, self._least, REACH)
        out: list[tuple[int, int]] = []
        seen: set[int] = set()
        totals = [0] * len(self._stores)
        for n, rank, hit in reversed(found):
            if isinstance(hit, int):
                token = self._stores[rank].at(hit)
                if not out:
                    self._place, self._length, self._rank = hit, n, rank
                if token not in seen:
                    seen.add(token)
                    out.append((token, self._level(n, 0, rank)))
            elif hit.total != totals[rank]:
                totals[rank] = hit.total
                fresh = [(count, token) for token, count in hit.recent() if token not in seen]
                if len(fresh) > 1:
                    fresh.sort(key=_LENGTH, reverse=True)  # stable: of equal counts the most recent first
                for count, token in fresh[: width - len(out)]:
                    share = count / hit.total
                    kind = 1 if share == 1.0 else 2 if share >= 0.66 else 3 if share >= 0.33 else 4
                    seen.add(token)
                    out.append((token, self._level(n, kind, rank)))
            if len(out) >= width:
                break
        return out

    def after(self, token: int) -> SuffixWalk:
        tail = [*self._tail[1 - REACH :], token]
        if self._place >= 0 and self._ahead() == token:
            return SuffixWalk(self._stores, tail, self._least, self._drafted + 1, self._place + 1, self._length + 1, self._rank)
        return SuffixWalk(self._stores, tail, self._least, self._drafted + 1)

    def _ahead(self) -> int:
        """The token at the lone match; behind the end of the row's own text come the drafted ones."""
        store = self._stores[self._rank]
        over = self._place - store.end
        if over < 0:
            return store.at(self._place)
        at = len(self._tail) - self._drafted + over
        return self._tail[at] if self._rank == len(self._stores) - 1 and 0 <= at < len(self._tail) else BREAK

    def _level(self, n: int, kind: int, rank: int) -> int:
        own = rank == len(self._stores) - 1
        return _LENGTHS[min(n, len(_LENGTHS) - 1)] * _KINDS + kind + (0 if own else _OWN)
