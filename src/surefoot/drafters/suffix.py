"""Suffix decoding: what followed the last tokens before, by count, in this row and in the rows that ended earlier.

Each row has a :class:`ContextStore` of its prompt and output; one more, bounded by tokens, is shared and takes the
outputs of finished rows. The law of the next token starts at the longest context of both stores (the row's own wins
ties) and backs off: a context of n tokens spends RELIABILITY[n] of the mass that is left, in proportion to its counts,
on tokens that no longer context has named; the rest goes on to the next shorter one. Along a path the estimates
multiply: the estimated probability that the node is reached. Proposals are points (q = None).

Width 1 gives a chain; it copies from the matched place as long as that place is the only one of its kind, through the
end of the history into the draft itself. Wider plans give a tree, best path first. The idea of counted suffix
structures for drafting: arXiv 2411.04975.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter
from typing import TYPE_CHECKING

import torch

from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.tree import PENDING, DraftTree, Forest
from .ngram import LONGEST, RELIABILITY, whole_number
from .suffix_store import BREAK, Context, ContextStore

if TYPE_CHECKING:
    from ..core.request import Row

_RARE = 0.01
"""A child less likely than this is not worth a node of a tree."""

_Found = tuple[int, int, "Context | int"]
"""Match length, rank of the store, and what was matched there."""

_LENGTH = itemgetter(0)
_ESTIMATE = itemgetter(1)


def _chance(n: int) -> float:
    return RELIABILITY[n] if n < LONGEST else RELIABILITY[LONGEST]


@dataclass(frozen=True, slots=True)
class Guess:
    """A draft below the pending token: ``parents[i]`` is an index into the draft, -1 = the pending token.

    ``reach[i]`` estimates the probability that node i will be accepted together with all its ancestors.
    """

    tokens: list[int]
    parents: list[int]
    reach: list[float]

    @property
    def score(self) -> float:
        """Expected number of accepted tokens."""
        return sum(self.reach)


class _Local:
    __slots__ = ("known", "store")

    def __init__(self, depth: int) -> None:
        self.known = 0
        self.store = ContextStore(depth)


class SuffixDrafter:
    """Drafter ``suffix``. ``shared_tokens`` bounds the shared store (0: rows learn nothing from each other)."""

    name = "suffix"
    needs = Need()

    def __init__(
        self,
        max_match: int = 8,
        min_match: int = 1,
        shared_tokens: int = 65_536,
        share_prompts: bool = False,
        *,
        source: int = 2,
    ) -> None:
        self._depth = whole_number(self.name, "max_match", max_match, 1, 64)
        self._least = whole_number(self.name, "min_match", min_match, 1, self._depth)
        capacity = whole_number(self.name, "shared_tokens", shared_tokens, 0, 1 << 30)
        self._shared = ContextStore(self._depth, capacity) if capacity else None
        self._share_prompts = share_prompts
        self.source = source
        self._rows: dict[int, _Local] = {}

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._tree(row, self.guess(row, plan)) for row, plan in zip(rows, plans, strict=True)]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: committed tokens are read from the rows when they next ask."""

    def forget(self, rows: Sequence[Row]) -> None:
        """Move what the rows said into the shared store. Rows that never asked for a draft leave nothing."""
        for row in rows:
            if self._rows.pop(row.id, None) is not None and self._shared is not None:
                said = row.tokens if self._share_prompts else row.tokens[row.n_prompt :]
                if len(said) > 1:
                    self._shared.add_sequence(said)

    def stats(self) -> dict[str, int]:
        """Rows, positions counted and (estimated) bytes held."""
        stores = [local.store for local in self._rows.values()]
        shared = self._shared
        return {
            "rows": len(stores),
            "tokens": sum(map(len, stores)),
            "shared_tokens": len(shared) if shared is not None else 0,
            "bytes": sum(store.nbytes for store in stores) + (shared.nbytes if shared is not None else 0),
        }

    def guess(self, row: Row, plan: Plan) -> Guess:
        """The draft with its estimates; empty where the plan or the history gives none."""
        local = self._rows.get(row.id)
        if local is None:
            local = self._rows[row.id] = _Local(self._depth)
        if min(plan.depth, plan.nodes, plan.width) <= 0:
            return Guess([], [], [])
        if local.known < len(row.tokens):
            local.store.add(row.tokens[local.known :])
            local.known = len(row.tokens)
        stores = [local.store] if self._shared is None else [self._shared, local.store]
        tail = row.tokens[-max(LONGEST, self._depth) :]
        if plan.width == 1:
            return self._chain(stores, tail, min(plan.depth, plan.nodes), plan.floor)
        return self._grow(stores, tail, plan)

    def _chain(self, stores: Sequence[ContextStore], tail: list[int], limit: int, floor: float) -> Guess:
        tokens: list[int] = []
        reaches: list[float] = []
        reach, place, length, own = 1.0, -1, 0, len(stores) - 1
        rank = own
        while len(tokens) < limit:
            token = BREAK
            if place >= 0:  # a lone match stays the longest one while it is followed
                over = place - stores[rank].end
                if over < 0:
                    token = stores[rank].at(place)
                elif rank == own:
                    token = tokens[over]
                chance = _chance(length)
            if token == BREAK:
                found = self._found(stores, tail + tokens)
                if not found:
                    break
                length, rank, hit = found[-1]
                law = self._law(stores, found, 1, 0.0)
                token, chance = max(law.items(), key=_ESTIMATE)
                place = hit if isinstance(hit, int) and stores[rank].at(hit) == token else -1
            reach *= chance
            if reach < floor:
                break
            tokens.append(token)
            reaches.append(reach)
            if place >= 0:
                place += 1
                length += 1
        return Guess(tokens, list(range(-1, len(tokens) - 1)), reaches)

    def _grow(self, stores: Sequence[ContextStore], tail: list[int], plan: Plan) -> Guess:
        guess = Guess([], [], [])
        heap: list[tuple[float, int, int, int, list[int]]] = []
        order = 0  # breaks ties: first found first, so that equal histories give equal trees
        node, reach, path = -1, 1.0, tail
        while True:
            if len(path) - len(tail) < plan.depth:
                cut = max(plan.floor / reach, _RARE)
                law = self._law(stores, self._found(stores, path), plan.width, cut)
                for token in sorted(law, key=law.__getitem__, reverse=True)[: plan.width]:
                    value = reach * law[token]
                    if value >= plan.floor:
                        heappush(heap, (-value, order, token, node, path))
                        order += 1
            if not heap or len(guess.tokens) >= plan.nodes:
                return guess
            cost, _, token, parent, before = heappop(heap)
            node, reach, path = len(guess.tokens), -cost, [*before, token]
            guess.tokens.append(token)
            guess.parents.append(parent)
            guess.reach.append(reach)

    def _found(self, stores: Sequence[ContextStore], tail: list[int]) -> list[_Found]:
        """Contexts of all stores, the longest last; of equal ones the later store's last."""
        least = self._least
        found = [(n, rank, hit) for rank, store in enumerate(stores) for n, hit in store.matches(tail, LONGEST) if n >= least]
        found.sort(key=_LENGTH)  # stable: of equal lengths the later store's stays last
        return found

    @staticmethod
    def _law(stores: Sequence[ContextStore], found: Sequence[_Found], width: int, cut: float) -> dict[int, float]:
        """Estimated law of the next token, in the order found; entries under ``cut`` may be missing.

        Width 1 asks for the largest entry only.
        """
        law: dict[int, float] = {}
        mass = 1.0
        totals = [0] * len(stores)
        for n, rank, hit in reversed(found):
            chance = _chance(n)
            if isinstance(hit, int):
                token = stores[rank].at(hit)
                if token in law:
                    continue
                law[token] = mass * chance
            else:
                left = hit.total
                if left == totals[rank]:
                    continue  # the very occurrences that a longer context has spoken for
                totals[rank] = left
                after = hit.after
                for token in law:
                    if token in after:
                        left -= after[token]
                if not left:
                    continue
                weight = mass * chance / left
                for token, count in hit.recent():
                    if weight * count >= cut and token not in law:
                        law[token] = weight * count
            mass *= 1.0 - chance
            if mass < cut or (width == 1 and law and mass <= max(law.values())):
                break
        return law

    def _tree(self, row: Row, guess: Guess) -> DraftTree:
        tokens = [row.tokens[-1], *guess.tokens]
        if guess.parents == list(range(-1, len(guess.tokens) - 1)):
            return DraftTree.chain(tokens, source=self.source)
        source = torch.full((len(tokens),), self.source, dtype=torch.int16)
        source[0] = PENDING
        parents = [-1, *(parent + 1 for parent in guess.parents)]
        return DraftTree(torch.tensor(tokens), torch.tensor(parents), None, source)
