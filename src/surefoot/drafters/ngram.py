"""Prompt lookup: find earlier places where the last n tokens occurred, and propose what followed there.

The longest n from ``max_n`` down to ``min_n`` that occurred wins. ``pick`` says what follows of several things that did:

``recent``    what followed at the latest place. A copy that reaches the end of the history goes on with the tokens it has just
              copied, so a repeated span extends through its own end.
``frequent``  what followed most often, of equals the latest, among the :data:`~.suffix_store.SCAN` latest continuations;
              looked up anew after each drafted token.
``all``       all that followed, as branches of a tree, the likeliest first; ``frequent`` where the plan allows no branches.
``max_gram``  of the places, that which agrees furthest back; when the copy reaches the end of the history, the longest match is
              looked up anew, and where only one token matches, the most frequent follower of that token is taken. The base
              drafter of cascade speculative drafting (arXiv 2312.11462), with the row itself as the bigram model.

Proposals are points (q = None). ``plan.floor`` ends a path where the product of :data:`RELIABILITY` (times the share of the
continuation, where they are counted) falls under it. Each row is indexed over its latest ``max_tokens`` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.tree import PENDING, DraftTree, Forest, integers
from ..errors import BadRequest
from .ngram_index import FAR, NgramIndex
from .suffix_store import Context, ContextStore

if TYPE_CHECKING:
    from ..core.request import Row

RELIABILITY = (0.0, 0.35, 0.6, 0.75, 0.85, 0.88, 0.9, 0.92, 0.93)
"""Chance that what followed the last n tokens before follows them again, for n = 0, 1, ... (last entry: and beyond)."""

PICKS = ("recent", "frequent", "all", "max_gram")

LONGEST = len(RELIABILITY) - 1

_COUNT = itemgetter(1)


def whole_number(drafter: str, option: str, value: int, low: int, high: int) -> int:
    """``value`` if it is an int in low..high; else a :class:`BadRequest` that names the option."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{drafter}: {option}={value!r} must be a whole number from {low} to {high}")
    return value


class _Held:
    """One row: an index of places, a store of counts, or both."""

    __slots__ = ("index", "store", "known")

    def __init__(self, index: NgramIndex | None, store: ContextStore | None) -> None:
        self.index = index
        self.store = store
        self.known = 0

    def catch_up(self, tokens: Sequence[int]) -> None:
        if self.known < len(tokens):
            if self.index is not None:
                self.index.catch_up(tokens)
            if self.store is not None:
                self.store.add(tokens[self.known :])
            self.known = len(tokens)


class NgramDrafter:
    """Drafter ``ngram``. State: one index a row, dropped when the row ends."""

    name = "ngram"
    needs = Need()

    def __init__(
        self, max_n: int = 4, min_n: int = 1, pick: str = "recent", max_tokens: int = 1 << 18, *, source: int = 1
    ) -> None:
        self._max_n = whole_number(self.name, "max_n", max_n, 1, 64)
        self._min_n = whole_number(self.name, "min_n", min_n, 1, 64)
        if min_n > max_n:
            raise BadRequest(f"ngram: min_n={min_n} is more than max_n={max_n}; lower min_n or raise max_n")
        if pick not in PICKS:
            raise BadRequest(f"ngram: pick={pick!r} is unknown; choose one of {', '.join(PICKS)}")
        self._pick = pick
        self._most = whole_number(self.name, "max_tokens", max_tokens, 1, 1 << 30)
        self.source = source
        self._rows: dict[int, _Held] = {}

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._tree(row, plan) for row, plan in zip(rows, plans, strict=True)]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: committed tokens are read from the rows when they next ask."""

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rows.pop(row.id, None)

    def stats(self) -> dict[str, int]:
        """Rows, tokens and (estimated) bytes held."""
        held = [part for row in self._rows.values() for part in (row.index, row.store) if part is not None]
        return {
            "rows": len(self._rows),
            "tokens": sum(len(row.index if row.index is not None else row.store or ()) for row in self._rows.values()),
            "bytes": sum(part.nbytes for part in held),
        }

    def _tree(self, row: Row, plan: Plan) -> DraftTree:
        tokens, parents = self._draft(row, plan)
        if parents is None or parents == list(range(len(parents))):
            return DraftTree.chain([row.tokens[-1], *tokens], source=self.source)
        source = integers([PENDING] + [self.source] * len(tokens), np.int16)
        return DraftTree(integers([row.tokens[-1], *tokens]), integers([-1, *parents]), None, source)

    def _draft(self, row: Row, plan: Plan) -> tuple[list[int], list[int] | None]:
        """Drafted tokens, and their parents in the tree; ``None``: a chain."""
        limit = min(plan.depth, plan.nodes)
        if limit <= 0:
            return [], None
        held = self._rows.get(row.id)
        if held is None:
            held = self._rows[row.id] = self._hold()
        held.catch_up(row.base.tokens)
        tokens = row.tokens
        index, store = held.index, held.store
        if index is None:
            assert store is not None
            tail = list(tokens[-max(LONGEST, self._max_n) :])
            if self._pick == "all" and plan.width > 1:
                return self._branch(store, tail, plan)
            return self._follow(store, tail, limit, plan.floor), None
        if self._pick == "max_gram":
            return _max_gram(index, store, tokens, limit, plan.floor), None
        return _copy(index, tokens, limit, plan.floor), None

    def _hold(self) -> _Held:
        least, most, pick = self._min_n, self._max_n, self._pick
        if pick in ("frequent", "all"):
            return _Held(None, ContextStore(most, self._most))
        chained = pick == "max_gram"
        bigrams = ContextStore(1, self._most) if chained and least == 1 else None
        return _Held(NgramIndex(least, most, self._most, chained), bigrams)

    def _next(self, store: ContextStore, tail: Sequence[int], width: int) -> list[tuple[int, float]]:
        """What followed the longest match, the likeliest first, each with its estimated chance."""
        found = store.matches(tail, max(LONGEST, self._max_n))
        if not found or found[-1][0] < self._min_n:
            return []
        n, hit = found[-1]
        chance = RELIABILITY[min(n, LONGEST)]
        if isinstance(hit, int):
            return [(store.at(hit), chance)]
        after = list(hit.recent())
        if width == 1:
            after = [max(after, key=_COUNT)]  # of equals the first: the latest
        else:
            after.sort(key=_COUNT, reverse=True)
        return [(token, chance * count / hit.total) for token, count in after[:width]]

    def _follow(self, store: ContextStore, path: list[int], limit: int, floor: float) -> list[int]:
        begin, reach = len(path), 1.0
        while len(path) - begin < limit and (found := self._next(store, path, 1)):
            token, chance = found[0]
            reach *= chance
            if reach < floor:
                break
            path.append(token)
        return path[begin:]

    def _branch(self, store: ContextStore, tail: list[int], plan: Plan) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        parents: list[int] = []
        heap: list[tuple[float, int, int, int, list[int]]] = []
        order, node, reach, path = 0, 0, 1.0, tail  # order breaks ties: the first found first
        while True:
            if len(path) - len(tail) < plan.depth:
                for token, chance in self._next(store, path, plan.width):
                    if reach * chance >= plan.floor:
                        heappush(heap, (-reach * chance, order, token, node, path))
                        order += 1
            if not heap:
                break
            cost, _, token, parent, before = heappop(heap)
            tokens.append(token)
            parents.append(parent)
            if len(tokens) >= plan.nodes:
                break
            node, reach, path = len(tokens), -cost, [*before, token]
        return tokens, parents


def _copy(index: NgramIndex, tokens: Sequence[int], limit: int, floor: float) -> list[int]:
    """What followed at the latest place, on through the end of the history into the draft."""
    n, start = index.find(tokens)
    draft: list[int] = []
    reach, end = 1.0, len(tokens)
    while n and len(draft) < limit:
        reach *= RELIABILITY[min(n, LONGEST)]
        if reach < floor:
            break
        place = start + len(draft)
        draft.append(tokens[place] if place < end else draft[place - end])
        n += 1
    return draft


def _max_gram(index: NgramIndex, bigrams: ContextStore | None, tokens: Sequence[int], limit: int, floor: float) -> list[int]:
    """Copy after the longest match; at the end of the history match again; where one token matches, its usual follower."""
    path = list(tokens[-FAR:])
    begin, end, place, n, reach = len(path), len(tokens), len(tokens), 0, 1.0
    while len(path) - begin < limit:
        if place >= end:
            n, place = index.longest(tokens, path)
            if not n:
                break
        token, chance = tokens[place], RELIABILITY[min(n, LONGEST)]
        if n == 1 and bigrams is not None and isinstance(hit := bigrams.matches(path, 1)[0][1], Context):
            token, count = max(hit.recent(), key=_COUNT)
            chance *= count / hit.total
            place = end  # looked up anew behind it
        reach *= chance
        if reach < floor:
            break
        path.append(token)
        place += 1
        n += 1
    return path[begin:]
