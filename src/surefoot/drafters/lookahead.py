"""Lookahead decoding (arXiv 2402.02057), and Jacobi decoding (arXiv 2305.10427) as its special case ``pool=0``.

A pass that verifies a draft also says what the target would have chosen behind each *refused* token. Those choices are used
twice. As the next guess (Jacobi's iteration): what was chosen behind the refused token of a place is the guess for the place
after it, so wrong guesses are worked on until they settle. And as n-grams, with those of the text itself: a drafted token is
the latest continuation of the longest context that the n-grams know, the guess where they know none.

Width 1 gives a chain, which carries the guesses on itself. Wider plans give a tree of at most ``guesses`` branches, the
likeliest nodes first, and beside it, with ``window`` above 0, a branch of that many guesses, which keeps the iteration going
whatever is verified. Proposals are points (q = None).

Each row has n-grams of its own, from its prompt, its output and its guesses. Rows that have ended leave those of their output,
never of their prompt, to all later ones, unless ``shared`` is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..core.law import host
from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.tree import PENDING, DraftTree, Forest
from ..errors import BadRequest
from .grow import tree
from .lookahead_pool import SEED, LookaheadWalk, Pool, believed, weighed
from .lookahead_tree import branches, carrier
from .ngram import whole_number

if TYPE_CHECKING:
    from ..core.request import Row

_LOOKS, _ALL = 8, 64
"""Most refused nodes of a row that are looked at after a pass (each costs reading a row of logits): beside n-grams, without."""


class _Own:
    """What is kept of one row. ``guess[i]`` is for the place ``at + i``; the first ``known`` tokens are in the pool."""

    __slots__ = ("at", "guess", "known", "pool")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.known = 0
        self.guess: list[int] = []
        self.at = 0


class LookaheadDrafter:
    """Drafter ``lookahead``.

    window   guesses that are always worked on: a branch of a tree, the least length of a chain (0: those of the draft)
    ngram    length of the n-grams: contexts have up to ``ngram - 1`` tokens
    pool     most entries over all rows together (0: plain Jacobi decoding)
    guesses  most branches of a tree that n-grams make
    shared   rows that have ended help later ones
    paths    the target computes a tree path by path, so that a branch costs its ancestors again
    known    ids from here on stand for nothing and are never drafted
    """

    name = "lookahead"
    needs = Need()

    def __init__(
        self,
        window: int = 0,
        ngram: int = 4,
        pool: int = 65_536,
        guesses: int = 4,
        shared: bool = True,
        *,
        paths: bool = False,
        known: int | None = None,
        source: int = 5,
    ) -> None:
        self._window = whole_number(self.name, "window", window, 0, 64)
        self._n = whole_number(self.name, "ngram", ngram, 2, 16)
        self._capacity = whole_number(self.name, "pool", pool, 0, 1 << 26)
        self._guesses = whole_number(self.name, "guesses", guesses, 1, 64)
        if not isinstance(shared, bool):
            raise BadRequest(f"lookahead: shared={shared!r} must be true or false")
        self._shared = Pool(self._n, self._capacity // 2) if shared and self._capacity else None
        self._known = (1 << 62) if known is None else whole_number(self.name, "known", known, 1, 1 << 31)
        self._looks = max(_LOOKS, self._window) if self._capacity else _ALL
        self._paths = paths
        self.source = source
        self.levels: Sequence[float] = believed(self._n)
        self.weights: Sequence[float] = weighed(self._n)
        self._rows: dict[int, _Own] = {}

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._one(row, plan) for row, plan in zip(rows, plans, strict=True)]

    def walk(self, row: Row) -> LookaheadWalk:
        own = self._rows.get(row.id)
        if own is None:
            own = self._rows[row.id] = _Own(Pool(self._n, 0))
            self._divide()
        known = row.base.tokens
        if own.known < len(known):
            if self._capacity:
                own.pool.say(known, own.known)
            own.known = len(known)
        pools = () if not self._capacity else (own.pool,) if self._shared is None else (own.pool, self._shared)
        tail, ahead = tuple(row.tokens[1 - self._n :]), self._ahead(own, len(known))
        return LookaheadWalk(pools, self.levels, self._known, tail, ahead, len(row.drafted))

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Look behind the refused nodes of rows that asked for drafts, whoever drafted them."""
        begin = 0
        for b, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
            root, size = forest.roots[b], forest.sizes[b]
            own = self._rows.get(row.id)
            if own is not None and verdict is not None and not row.done and root == 0 and size > 1 + len(verdict.path):
                self._look(own, row, forest, b, verdict, scores, begin)
            begin += size - root

    def forget(self, rows: Sequence[Row]) -> None:
        """Rows that never asked for a draft leave nothing."""
        gone = [row for row in rows if self._rows.pop(row.id, None) is not None]
        if self._shared is not None:
            for row in gone:
                self._shared.say(row.tokens[row.n_prompt :], 0)
        if gone:
            self._divide()

    def stats(self) -> dict[str, int]:
        """Rows, entries and (estimated) bytes held."""
        pools = [own.pool for own in self._rows.values()]
        shared = self._shared
        return {
            "rows": len(pools),
            "entries": sum(map(len, pools)),
            "shared_entries": len(shared) if shared is not None else 0,
            "bytes": sum(pool.nbytes for pool in pools) + (shared.nbytes if shared is not None else 0),
        }

    def _divide(self) -> None:
        """Give each row an equal part of what the shared pool leaves."""
        free = self._capacity - (self._shared.capacity if self._shared is not None else 0)
        for own in self._rows.values():
            own.pool.trim(free // len(self._rows))

    @staticmethod
    def _ahead(own: _Own, at: int) -> list[int]:
        """The guesses for the places from ``at`` on."""
        if own.at != at:
            own.guess = own.guess[at - own.at :]
            own.at = at
        return own.guess

    def _look(self, own: _Own, row: Row, forest: Forest, b: int, verdict: Verdict, scores: Scores, begin: int) -> None:
        lo, size, accepted = forest.begins[b], forest.sizes[b], len(verdict.path)
        drafted = forest.tokens[lo : lo + size].tolist()
        if forest.linear[b]:
            parents: Sequence[int] = range(-1, size - 1)
            carriers: Sequence[int] = range(accepted + 1, size)
            nodes = carriers[: self._looks]
        else:
            parents = forest.parents[lo : lo + size].tolist()
            depth = forest.depth[lo : lo + size].tolist()
            carriers = carrier(parents, depth, verdict.path)[: self._looks]
            used = {0, *verdict.path, *carriers}
            nodes = [*carriers, *(i for i in range(size) if i not in used)][: self._looks] if self._capacity else carriers
        chosen = dict(zip(nodes, self._argmaxes(scores, [begin + node for node in nodes]), strict=True))
        at = len(row.tokens)
        fresh = [chosen[node] for node in carriers if node in chosen]
        own.guess = fresh + self._ahead(own, at)[len(fresh) :]
        own.at = at
        if self._capacity:
            before = row.tokens[max(0, at - accepted - self._n) : at - accepted - 1]  # ends with the token that was pending
            for node, token in chosen.items():
                path: list[int] = []
                while node > 0 and len(path) < self._n - 1:
                    path.append(drafted[node])
                    node = parents[node]
                own.pool.guess((*before, *reversed(path)), token)

    def _argmaxes(self, scores: Scores, places: Sequence[int]) -> Iterator[int]:
        logits = scores.logits
        if logits.is_cuda:
            return iter(logits[list(places), : self._known].argmax(-1).tolist())
        rows = host(logits)
        return (int(rows[place, : self._known].argmax()) for place in places)

    def _one(self, row: Row, plan: Plan) -> DraftTree:
        room = min(plan.depth, plan.nodes)
        if min(room, plan.width) <= 0:
            return DraftTree.chain(row.tokens[-1:])
        walk = self.walk(row)
        if plan.width == 1:
            least = self._window if self._capacity else room
            drafted, reaches = self._chain(walk, row, room, least, plan.floor)
            n = len(drafted) if plan.cut is None else plan.cut(reaches, [1] * len(drafted))
            return DraftTree.chain([row.tokens[-1], *drafted[:n]], source=self.source)
        size = min(self._window, (plan.nodes + 1) // 2) if self._capacity else plan.nodes
        window: list[int] = []
        if size:
            size = min(size, plan.depth)
            window, _ = self._chain(walk.trajectory(), row, size, size, plan.floor)
        tokens, parents = branches(walk, self.levels, plan, row.tokens[-1], window, self._guesses, self._paths)
        return tree(tokens, parents, [PENDING] + [self.source] * (len(tokens) - 1))

    def _chain(self, walk: LookaheadWalk, row: Row, most: int, least: int, floor: float) -> tuple[list[int], list[float]]:
        """At most ``most`` tokens and their reaches; up to ``least``, tokens of the row stand in where nothing is known."""
        drafted: list[int] = []
        reaches: list[float] = []
        reach = 1.0
        while len(drafted) < most:
            found = walk.candidates(1)
            if found:
                token, level = found[0]
                reach *= self.levels[level]
            else:
                token = row.tokens[-1 - len(drafted) % len(row.tokens)]
                reach *= SEED
                if len(drafted) >= least or token >= self._known:
                    break
            if reach < floor:
                break
            drafted.append(token)
            reaches.append(reach)
            walk = walk.after(token)
        return drafted, reaches
