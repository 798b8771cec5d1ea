"""The cache of a draft model: verified tokens in one slot a row, drafted ones beside it.

A slot holds verified tokens only, so rejected ones never need removing. Drafted tokens are scored in one of two ways, level
by level, one pass for all rows: on *forks*, each with the path of one node, where the backend runs chains only or where passes
of one size are cheap; else as one *tree* below the slot, scored anew with each level and never committed. For the latter the
row's last token stays out of the cache, as the tree's root.

Tokens that others drafted (those of a shadow, see :mod:`surefoot.core.shadow`) are read on forks too. These are kept until the
request goes on, for shadows that extend them; then the one that agrees furthest with what was committed becomes the slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..core.protocols import Need, Slot, TargetModel
from ..core.request import Row
from ..core.tree import DraftTree, Forest, integers
from ..errors import BackendError

_KEPT = 8
"""Forks of shadows that a request keeps for later ones."""
_LAG = 16
"""Most committed tokens that each of several shadows may read for itself: less dear than a pass of their own."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a pass: tokens below a slot. ``root``: node from which on logits are wanted; ``keep``: nodes to commit."""

    slot: Slot
    tokens: Sequence[int]
    parents: Sequence[int] | None
    root: int
    keep: int = 0


class _Fork:
    """``slot`` holds the first of ``tokens``."""

    __slots__ = ("slot", "tokens")

    def __init__(self, slot: Slot, tokens: Sequence[int]) -> None:
        self.slot, self.tokens = slot, tokens

    def agrees(self, tokens: Sequence[int], start: int) -> int:
        """How many tokens the slot holds of ``tokens``, which begin with the same ``start``."""
        most = min(self.slot.length, len(tokens))
        return next((i for i in range(start, most) if tokens[i] != self.tokens[i]), most)


class DraftCache:
    """``draft``: the model; ``chunk``: most tokens of a row in a pass that catches up. Rows may be shadows."""

    def __init__(self, draft: TargetModel, chunk: int) -> None:
        self.draft = draft
        self.masked = draft.traits.tree and not draft.traits.steady
        """Whether trees are scored as such; where the size of a pass is better kept, forks keep it."""
        self._chunk = min(chunk, draft.traits.max_nodes)
        self._slots: dict[int, Slot] = {}
        self._forks: dict[int, tuple[int, list[_Fork]]] = {}
        """By request: its committed tokens when they were made, and the forks of its shadows."""

    def length(self, row: Row) -> int:
        """Committed tokens of the request that the cache holds."""
        slot = self._slots.get(row.id)
        return 0 if slot is None else slot.length

    def catch_up(self, rows: Sequence[Row], rooted: Sequence[bool]) -> tuple[list[Slot], list[Tensor]]:
        """Read the rows, without the last token of ``rooted`` ones: their slots, and logits [V] after each row's last token."""
        bases = {row.id: row.base for row in rows}
        uses = Counter(row.id for row in rows)
        for base in bases.values():
            self._settle(base)
        late = [base for base in bases.values() if uses[base.id] > 1 and len(base.tokens) - self._best(base)[0] > _LAG]
        if late:
            self._read([self._slot(base) for base in late], late, [True] * len(late))
        slots = [self._slot(row) if row.of is None else self._fork(row) for row in rows]
        return slots, self._read(slots, rows, rooted)

    def _read(self, slots: Sequence[Slot], rows: Sequence[Row], rooted: Sequence[bool]) -> list[Tensor]:
        last: list[Tensor | None] = [None] * len(rows)
        while going := [i for i, x in enumerate(last) if x is None]:
            lines = []
            for i in going:
                slot, tokens = slots[i], rows[i].tokens
                part = tokens[slot.length : slot.length + self._chunk]
                end = slot.length + len(part) == len(tokens)
                lines.append(Line(slot, part, None, len(part) - end, len(part) - (end and rooted[i])))
            found = iter(self.score(lines))
            for i, line in zip(going, lines, strict=True):
                if line.root < len(line.tokens):
                    last[i] = next(found)
        return [x for x in last if x is not None]

    def score(self, lines: Sequence[Line]) -> list[Tensor]:
        """One pass; logits [V] of the nodes that are wanted, in order."""
        trees = [
            DraftTree.chain(line.tokens)
            if line.parents is None
            else DraftTree(integers(line.tokens), integers(line.parents), None, integers([0] * len(line.tokens)))
            for line in lines
        ]
        forest = replace(Forest.pack(trees, min_width=self.draft.traits.min_width), roots=tuple(line.root for line in lines))
        slots = [line.slot for line in lines]
        logits = self.draft.score(slots, forest, Need()).logits.clone()
        self.draft.commit(slots, [range(line.keep) for line in lines])
        return list(logits)

    def branches(self, slot: Slot, rooted: bool) -> Branches:
        return Branches(self.draft, slot, rooted)

    def close(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.id in self._slots:
                self.draft.close([self._slots.pop(row.id)])
            self._drop(row.id)

    def spare(self) -> bool:
        """Give up what was kept for shadows; whether there was any."""
        held = list(self._forks)
        for id in held:
            self._drop(id)
        return bool(held)

    def _drop(self, id: int) -> None:
        _, forks = self._forks.pop(id, (0, []))
        self.draft.close([fork.slot for fork in forks])

    def _settle(self, base: Row) -> None:
        """Keep the forks while the request stands where it stood; where it went on, the best of them becomes its slot."""
        count, forks = self._forks.get(base.id, (0, []))
        if count == len(base.tokens):
            self.draft.close([fork.slot for fork in forks[:-_KEPT]])
            del forks[:-_KEPT]
        elif forks:
            self._slot(base)
            self._drop(base.id)

    def _best(self, row: Row) -> tuple[int, Slot | None]:
        """The slot that holds most of a row, and how much; never its last token, whose logits are asked for."""
        count, forks = self._forks.get(row.id, (0, []))
        n, best = self.length(row), self._slots.get(row.id)
        for fork in forks:
            if (own := fork.agrees(row.tokens, count)) > n:
                n, best = own, fork.slot
        return min(n, len(row.tokens) - 1), best

    def _part(self, n: int, slot: Slot | None) -> Slot:
        return self.draft.open(1)[0] if slot is None or n == 0 else self.draft.fork(slot, n)

    def _slot(self, row: Row) -> Slot:
        """A request's slot."""
        old = self._slots.get(row.id)
        n, best = self._best(row)
        if old is None or old.length != n:
            self._slots[row.id] = self._part(n, best)
            if old is not None:
                self.draft.close([old])
        return self._slots[row.id]

    def _fork(self, row: Row) -> Slot:
        """A slot for a shadow."""
        made = self._part(*self._best(row))
        self._forks.setdefault(row.id, (len(row.base.tokens), []))[1].append(_Fork(made, list(row.tokens)))
        return made


class Branches:
    """The drafted nodes of one row during one round; ``rooted``: scored as a tree, else on forks."""

    def __init__(self, draft: TargetModel, base: Slot, rooted: bool) -> None:
        self._draft = draft
        self._base = base
        self._rooted = rooted
        self._held: dict[int, Slot] = {}
        """Forks by node; each holds the path down to it."""

    def lines(self, level: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> tuple[list[Line], list[int]]:
        """What to score for the nodes of ``level``, and which of them it gives logits for, in order."""
        return self._tree(level, tokens, parents) if self._rooted else self._forks(level, tokens, parents)

    def close(self) -> None:
        self._draft.close(list(self._held.values()))
        self._held = {}

    def _tree(self, level: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> tuple[list[Line], list[int]]:
        needed = set()
        for node in level:
            while node >= 0 and node not in needed:
                needed.add(node)
                node = parents[node]
        order = sorted(needed)  # nodes of one level have the highest numbers, so their logits are the last
        place = {node: i for i, node in enumerate(order)} | {-1: -1}
        line = Line(self._base, [tokens[n] for n in order], [place[parents[n]] for n in order], len(order) - len(level))
        return [line], sorted(level)

    def _forks(self, level: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> tuple[list[Line], list[int]]:
        uses = Counter(parents[node] for node in level)
        self._draft.close([self._held.pop(node) for node in list(self._held) if node not in uses])
        new: dict[int, Slot] = {}
        try:
            for node in level:
                parent = parents[node]
                uses[parent] -= 1
                if parent in self._held and not uses[parent]:
                    new[node] = self._held.pop(parent)
                    continue
                try:
                    new[node] = self._draft.fork(self._held.get(parent, self._base))
                except BackendError:
                    if not new and not self._held:
                        raise
                    # no room for another branch: the node stays a leaf
        finally:
            self._held |= new
        return [Line(slot, [tokens[node]], None, 0, 1) for node, slot in new.items()], list(new)
