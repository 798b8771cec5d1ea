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
from os import PathLike
from typing import TYPE_CHECKING
from weakref import finalize

from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.tree import PENDING, DraftTree, Forest
from ..errors import BadRequest
from .grow import tree
from .ngram import LONGEST, RELIABILITY, whole_number
from .suffix_disk import StoreFile
from .suffix_store import BREAK, ContextStore
from .suffix_walk import LEVELS, REACH, WEIGHTS, Found, SuffixWalk, contexts

if TYPE_CHECKING:
    from ..core.request import Row

_RARE = 0.01
"""A child less likely than this is not worth a node of a tree."""

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

    def __init__(self, depth: int, capacity: int) -> None:
        self.known = 0
        self.store = ContextStore(depth, capacity)


class SuffixDrafter:
    """Drafter ``suffix``. ``shared_tokens`` bounds the shared store (0: rows learn nothing from each other).

    ``store``: a file that keeps the text of the shared store from run to run, ``store_tokens`` of it (default: as many as the
    shared store holds), for the tokenizer that ``vocabulary`` names. ``max_local_tokens`` bounds the store of each row.
    """

    name = "suffix"
    needs = Need()
    levels: Sequence[float] = LEVELS
    weights: Sequence[float] = WEIGHTS

    def __init__(
        self,
        max_match: int = 8,
        min_match: int = 1,
        shared_tokens: int = 65_536,
        share_prompts: bool = False,
        *,
        max_local_tokens: int = 1 << 18,
        store: str | PathLike[str] | None = None,
        store_tokens: int | None = None,
        vocabulary: str = "",
        source: int = 2,
    ) -> None:
        self._depth = whole_number(self.name, "max_match", max_match, 1, 64)
        self._least = whole_number(self.name, "min_match", min_match, 1, self._depth)
        capacity = whole_number(self.name, "shared_tokens", shared_tokens, 0, 1 << 30)
        self._shared = ContextStore(self._depth, capacity) if capacity else None
        self._most = whole_number(self.name, "max_local_tokens", max_local_tokens, 1, 1 << 30)
        self._file: StoreFile | None = None
        if store is not None:
            if self._shared is None:
                raise BadRequest("suffix: store= keeps the shared store, and shared_tokens=0 has none; leave one of them out")
            kept = capacity if store_tokens is None else whole_number(self.name, "store_tokens", store_tokens, 1, 1 << 30)
            self._file = StoreFile(store, vocabulary, kept, self._depth)
            self._file.load()
            self._shared.restore(self._file.kept, self._file.context)
            finalize(self, self._file.flush)  # when it is no longer used, and at exit
        elif store_tokens is not None:
            raise BadRequest(f"suffix: store_tokens={store_tokens!r} bounds a file, and store= names none; give store=PATH")
        self._share_prompts = share_prompts
        self.source = source
        self._rows: dict[int, _Local] = {}

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._tree(row, self.guess(row, plan)) for row, plan in zip(rows, plans, strict=True)]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: committed tokens are read from the rows when they next ask."""

    def forget(self, rows: Sequence[Row]) -> None:
        """Move what the rows said into the shared store. Hidden ones, and those that never asked, leave nothing."""
        for row in rows:
            if self._rows.pop(row.id, None) is not None and self._shared is not None and not row.hidden:
                said = row.tokens if self._share_prompts else row.tokens[row.n_prompt :]
                if len(said) > 1:
                    self._shared.add_sequence(said)
                    if self._file is not None:
                        self._file.add(said)

    def save(self) -> None:
        """Write what rows that ended have said to ``store``; without one, nothing."""
        if self._file is not None:
            self._file.save()

    def close(self) -> None:
        """:meth:`save`, with a warning where it fails. The drafter stays usable."""
        if self._file is not None:
            self._file.flush()

    def stats(self) -> dict[str, int]:
        """Rows, positions counted and (estimated) bytes held."""
        stores = [local.store for local in self._rows.values()]
        shared = self._shared
        return {
            "rows": len(stores),
            "tokens": sum(map(len, stores)),
            "shared_tokens": len(shared) if shared is not None else 0,
            "bytes": sum(held.nbytes for held in (*stores, shared, self._file) if held is not None),
        }

    def guess(self, row: Row, plan: Plan) -> Guess:
        """The draft with its estimates; empty where the plan or the history gives none."""
        if min(plan.depth, plan.nodes, plan.width) <= 0:
            self._rows.setdefault(row.id, _Local(self._depth, self._most))
            return Guess([], [], [])
        stores, tail = self._caught_up(row.base), self._tail(row)
        if plan.width == 1:
            return self._chain(stores, tail, row.drafted, min(plan.depth, plan.nodes), plan.floor)
        return self._grow(stores, tail, plan)

    def walk(self, row: Row) -> SuffixWalk:
        return SuffixWalk(self._caught_up(row.base), row.tokens[-REACH:], self._least, len(row.drafted))

    def _caught_up(self, row: Row) -> list[ContextStore]:
        """The stores, the row's own last, which has learned all the row's tokens."""
        local = self._rows.get(row.id)
        if local is None:
            local = self._rows[row.id] = _Local(self._depth, self._most)
        if local.known < len(row.tokens):
            local.store.add(row.tokens[local.known :])
            local.known = len(row.tokens)
        return [local.store] if self._shared is None else [self._shared, local.store]

    def _tail(self, row: Row) -> list[int]:
        return row.tokens[-max(LONGEST, self._depth) :]

    def _chain(
        self, stores: Sequence[ContextStore], tail: list[int], drafted: Sequence[int], limit: int, floor: float
    ) -> Guess:
        """``drafted``: tokens at the end of ``tail`` that no store has."""
        tokens: list[int] = []
        behind = [*drafted]
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
                    token = behind[over]
                chance = _chance(length)
            if token == BREAK:
                found = contexts(stores, tail + tokens, self._least)
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
            behind.append(token)
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
            room, most = plan.nodes - len(guess.tokens), -reach * RELIABILITY[LONGEST]  # no child's reach is more
            if len(path) - len(tail) < plan.depth and not sum(entry[0] <= most for entry in heap) >= room:
                cut = max(plan.floor / reach, _RARE)
                law = self._law(stores, contexts(stores, path, self._least), plan.width, cut)
                for token in sorted(law, key=law.__getitem__, reverse=True)[: plan.width]:
                    value = reach * law[token]
                    if value >= plan.floor:
                        heappush(heap, (-value, order, token, node, path))
                        order += 1
            if not heap or not room:
                return guess
            cost, _, token, parent, before = heappop(heap)
            node, reach, path = len(guess.tokens), -cost, [*before, token]
            guess.tokens.append(token)
            guess.parents.append(parent)
            guess.reach.append(reach)

    @staticmethod
    def _law(stores: Sequence[ContextStore], found: Sequence[Found], width: int, cut: float) -> dict[int, float]:
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
                if mass * chance >= cut:
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
        parents = [-1, *(parent + 1 for parent in guess.parents)]
        return tree(tokens, parents, [PENDING] + [self.source] * len(guess.tokens))
