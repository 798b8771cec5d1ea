"""Retrieval from a datastore of the user's texts: what followed there where the context was most like the row's tail.

The longest matches are looked up in a suffix array on disk (``datastore.py``): *rings* of places that share n tokens with
the tail, the longest n first, until there are ``sample`` places. A ring spends a part of the mass that longer ones left
(:data:`RELIABILITY`), equally on its places; the estimate of a next token is the mass of the places that go on with it.
Along a path places that go on otherwise drop out, and the match of those that are left grows by a token. Proposals are points
(q = None). Nothing is kept of a row. The idea of drafting from a datastore's suffix array: arXiv 2311.08252.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from math import log
from typing import TYPE_CHECKING

import numpy as np

from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.tree import PENDING, DraftTree, Forest, integers
from ..errors import BadRequest, VocabMismatch
from .datastore import Datastore
from .datastore_format import DEPTH, rebuild
from .evidence import Candidate
from .ngram import whole_number

if TYPE_CHECKING:
    from ..core.request import Row

_SHELLS = 3
"""Match lengths that are looked at: shorter ones than the third have next to no mass left."""
_RARE = 0.01
"""A child less likely than this is not worth a node of a tree."""

RELIABILITY = (0.0, 0.08, 0.19, 0.28, 0.42, 0.51, 0.58, 0.62, 0.67, 0.71, 0.75, 0.78, 0.8, 0.83, 0.86, 0.9, 0.93)
"""Chance that a place whose match is n tokens goes on as the text does, for n = 0, 1, ... (last entry: and beyond).

Measured over files held out of stores of Python sources and of English documentation, 2.5 M tokens each. It is less than
within one row, which repeats itself.
"""
LONGEST = len(RELIABILITY) - 1

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 20)
"""Least matches of the bins of length."""
_BIN = [0, *(bisect_right(_LENGTHS, n) - 1 for n in range(1, _LENGTHS[-1] + 1))]
_FIFTHS = 5
"""Bins of the share of the places that say so: one lone place lies in the third, many that agree in the last."""
LEVELS = (
    *(0.03, 0.12, 0.22, 0.21, 0.45),
    *(0.05, 0.13, 0.30, 0.28, 0.75),
    *(0.07, 0.16, 0.23, 0.35, 0.68),
    *(0.06, 0.12, 0.34, 0.32, 0.80),
    *(0.07, 0.22, 0.42, 0.45, 0.85),
    *(0.05, 0.20, 0.48, 0.64, 0.83),
    *(0.06, 0.22, 0.52, 0.83, 0.97),
    *(0.10, 0.30, 0.60, 0.90, 0.97),
)
"""By bin of length and of share: how often such candidates were right there."""
WEIGHTS = (*(log(level / (1.0 - level)) - 0.5 for level in LEVELS), -0.5, 0.0)
"""Log-odds beside other sources."""

_Hits = list[tuple[int, float, int]]
"""Places, their masses and the lengths of their matches, the longest first."""


def _chance(n: int) -> float:
    return RELIABILITY[n] if n < LONGEST else RELIABILITY[LONGEST]


class RetrievalDrafter:
    """Drafter ``retrieval``. ``fingerprint``: of the target's tokenizer; a store of another one is refused."""

    name = "retrieval"
    needs = Need()
    levels: Sequence[float] = LEVELS
    weights: Sequence[float] = WEIGHTS

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        max_match: int = 16,
        min_match: int = 2,
        sample: int = 32,
        *,
        fingerprint: str | None = None,
        source: int = 4,
    ) -> None:
        if not isinstance(store, str | os.PathLike) or not os.fspath(store):
            raise BadRequest(
                f"retrieval: store={store!r} must be the path of a datastore; "
                "make one with 'surefoot datastore build' and give retrieval:store=PATH"
            )
        self._longest = whole_number(self.name, "max_match", max_match, 1, DEPTH)
        self._least = whole_number(self.name, "min_match", min_match, 1, self._longest)
        self._most = whole_number(self.name, "sample", sample, 1, 1024)
        self.source = source
        self.store = Datastore.open(store)
        header = self.store.header
        if fingerprint is not None and fingerprint != header.fingerprint:
            raise VocabMismatch(
                f"datastore {self.store.path} was built for another tokenizer ({header.fingerprint[:12]}, that of "
                f"{header.model}) than the target's ({fingerprint[:12]}); with the target as MODEL, "
                f"{rebuild(self.store.path, header, 'MODEL')}"
            )

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._tree(row.tokens, plan) for row, plan in zip(rows, plans, strict=True)]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: the store does not change."""

    def forget(self, rows: Sequence[Row]) -> None:
        """Nothing: nothing is kept."""

    def stats(self) -> dict[str, int]:
        """Tokens in the store, and bytes mapped from its file; memory is the system's page cache."""
        return {"rows": 0, "tokens": self.store.header.tokens, "mapped_bytes": self.store.header.size}

    def walk(self, row: Row) -> Place:
        return Place(self, row.tokens[-self._longest :], None)

    def find(self, tail: list[int]) -> _Hits:
        """The places whose contexts are nearest to the end of ``tail``."""
        hits: _Hits = []
        left = 1.0
        for n, places in self.store.rings(tail, self._longest, self._least, self._most, _SHELLS):
            chance = _chance(n)
            mass = left * chance / len(places)
            hits += [(place, mass, n) for place in places]
            left *= 1.0 - chance
        return hits

    def law(self, hits: _Hits) -> dict[int, float]:
        """Mass by next token, in the order found; ends of documents have none."""
        text, size = self.store.text, self.store.header.vocab_size
        law: dict[int, float] = {}
        for place, mass, _ in hits:
            token = text[place]
            if 0 <= token < size:
                law[token] = law.get(token, 0.0) + mass
        return law

    def onward(self, hits: _Hits, token: int) -> _Hits:
        """The places that go on with ``token``, one further."""
        text = self.store.text
        return [(place + 1, mass, n + 1) for place, mass, n in hits if text[place] == token]

    def _tree(self, tokens: list[int], plan: Plan) -> DraftTree:
        if min(plan.depth, plan.nodes, plan.width) > 0:
            hits = self.find(tokens[-self._longest :])
            if hits and plan.width == 1:
                return DraftTree.chain([tokens[-1], *self._chain(hits, plan)], source=self.source)
            if hits:
                return self._grow(tokens[-1], hits, plan)
        return DraftTree.chain(tokens[-1:])

    def _chain(self, hits: _Hits, plan: Plan) -> list[int]:
        limit, floor = min(plan.depth, plan.nodes), plan.floor
        draft: list[int] = []
        reach = scale = 1.0
        while len(draft) < limit:
            if len(hits) == 1:  # nothing is left to count: copy
                place, mass, n = hits[0]
                size = self.store.header.vocab_size
                for token in self.store.tokens(place, limit - len(draft)):
                    reach *= scale * mass
                    if reach < floor or not 0 <= token < size:
                        break
                    draft.append(token)
                    n += 1
                    scale, mass = 1.0, _chance(n)
                break
            law = self.law(hits)
            if not law:
                break
            token = max(law, key=law.__getitem__)
            reach *= scale * law[token]
            if reach < floor:
                break
            draft.append(token)
            hits = self.onward(hits, token)
            scale = _chance(hits[0][2]) / law[token]
        return draft

    def _grow(self, pending: int, hits: _Hits, plan: Plan) -> DraftTree:
        tokens, parents = [pending], [-1]
        heap: list[tuple[float, int, int, int, int, _Hits]] = []
        order = 0  # breaks ties: first found first
        node, depth, reach, scale = 0, 0, 1.0, 1.0
        while True:
            if depth < plan.depth:
                law, least = self.law(hits), max(plan.floor, _RARE * reach)
                for token in sorted(law, key=law.__getitem__, reverse=True)[: plan.width]:
                    value = reach * scale * law[token]
                    if value < least:
                        break
                    heappush(heap, (-value, order, token, node, depth, hits))
                    order += 1
            if not heap or len(tokens) > plan.nodes:
                break
            cost, _, token, parent, depth, hits = heappop(heap)
            node, reach, depth = len(tokens), -cost, depth + 1
            tokens.append(token)
            parents.append(parent)
            hits = self.onward(hits, token)
            scale = _chance(hits[0][2]) / sum(mass for _, mass, _ in hits)
        source = [PENDING] + [self.source] * (len(tokens) - 1)
        return DraftTree(integers(tokens), integers(parents), None, integers(source, np.int16))


class Place:
    """A place behind a row's tokens and some drafted ones; asked for candidates where no place is left, it looks anew."""

    __slots__ = ("_drafter", "_hits", "_tail")

    def __init__(self, drafter: RetrievalDrafter, tail: list[int], hits: _Hits | None) -> None:
        self._drafter = drafter
        self._tail = tail
        self._hits = hits
        """``None``: not looked up yet."""

    def candidates(self, width: int) -> list[Candidate]:
        hits = self._hits
        if hits is None:
            hits = self._hits = self._drafter.find(self._tail)
        law = self._drafter.law(hits)
        if not law or width <= 0:
            return []
        text, longest = self._drafter.store.text, {}
        for place, _, n in reversed(hits):
            longest[text[place]] = n  # the first in the order of hits is written last
        fifths = _FIFTHS * len(hits) / (len(hits) + 1) / sum(law.values())
        ranked = sorted(law, key=law.__getitem__, reverse=True)[:width] if len(law) > 1 else list(law)
        return [(token, _BIN[min(longest[token], _LENGTHS[-1])] * _FIFTHS + int(fifths * law[token])) for token in ranked]

    def after(self, token: int) -> Place:
        hits = self._drafter.onward(self._hits, token) if self._hits else None
        return Place(self._drafter, [*self._tail, token], hits or None)
