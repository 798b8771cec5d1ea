"""A lane as the model in the middle of a cascade: drafts of others are reviewed by what it says behind them.

It has no cache to fill: :meth:`LaneTarget.follow` takes a slot to a row's committed tokens, and what is committed to a slot
are drafted tokens behind those, for the length of a round. The row's owner tells the lane of the target's passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..core.protocols import InvarianceReport, Need, Scores, Slot, Traits
from ..core.request import Row
from ..core.tree import Forest
from ..errors import BackendError, Unsupported
from .lane import Lane
from .paths import Path, Paths, path, whole

_ROOM = 1 << 40
"""Tokens that it holds: none."""


@dataclass(slots=True, eq=False)
class LaneSlot:
    """``row``: the request that it follows, which had ``count`` tokens; ``read``: what is committed behind them, the row's
    pending token first; ``last``: tokens of the last pass."""

    row: Row | None = None
    count: int = 1
    read: Path = ()
    last: Path = ()
    open: bool = True

    @property
    def length(self) -> int:
        return self.count - 1 + len(self.read)


class LaneTarget:
    """A :class:`~surefoot.core.protocols.TargetModel` that :class:`~surefoot.core.protocols.Follows` rows.

    ``vocab_size``: the target's; ids from ``known`` on stand for nothing and are never said. ``paths``: what drafters that ask
    the same lane share with it. ``max_context``: the target's.
    """

    def __init__(
        self,
        lane: Lane,
        vocab_size: int,
        *,
        known: int | None = None,
        name: str = "lane",
        max_context: int = 1 << 20,
        paths: Paths | None = None,
    ) -> None:
        self.paths = paths if paths is not None else Paths(lane)
        self._ids, self._depth = lane.draft_ids, lane.depth
        self._known = vocab_size if known is None else min(known, vocab_size)
        self.traits = Traits(
            name=name,
            vocab_size=vocab_size,
            hidden_size=0,
            n_layers=0,
            max_context=max_context,
            max_nodes=lane.depth,
            capacity=_ROOM,
            tree=False,
        )

    @property
    def lane(self) -> Lane:
        return self.paths.lane

    @property
    def depth(self) -> int:
        """Most tokens that it can say behind those of a request, drafted ones included. Behind more, all are alike to it."""
        return self._depth

    def open(self, n: int) -> list[Slot]:
        return [LaneSlot() for _ in range(n)]

    def follow(self, slot: Slot, row: Row) -> bool:
        """As :meth:`surefoot.core.protocols.Follows.follow`; also False where the lane cannot look that far."""
        own, read = _own(slot), path(row)[:-1]
        if len(read) >= self.depth or not self.paths.knows(row):
            return False
        own.row, own.count, own.read, own.last = row.base, len(row.base.tokens), read, ()
        return True

    def fork(self, slot: Slot, length: int | None = None) -> Slot:
        own = _own(slot)
        if length == 0:
            return LaneSlot()
        kept = len(own.read) if length is None else length - own.count + 1
        if not 0 <= kept <= len(own.read):
            raise BackendError(f"cannot fork {length} tokens: a lane goes back to {own.count - 1}; follow the row instead")
        return LaneSlot(own.row, own.count, own.read[:kept])

    def score(self, slots: Sequence[Slot], forest: Forest, need: Need) -> Scores:
        """What the lane says behind each token; padding is not read."""
        if need.hidden:
            raise Unsupported("a lane has no layers to tap; ask the target for them")
        asked: list[tuple[Row, Path]] = []
        tokens = forest.tokens.tolist()
        for b, slot in enumerate(slots):
            own, lo, n = _own(slot), forest.begins[b], forest.sizes[b]
            if own.row is None or len(own.row.tokens) != own.count:
                raise BackendError("the slot is not where its row is; follow the row before each round")
            if not forest.linear[b]:
                raise BackendError("a lane reads chains only; draft with width 1")
            own.last = tuple(tokens[lo : lo + n])
            asked += [(own.row, (*own.read, *own.last[: i + 1])) for i in range(forest.roots[b], n)]
        near = [i for i, (_, read) in enumerate(asked) if len(read) <= self._depth]
        said = whole(self.paths.said([asked[i] for i in near]), self._ids, self.traits.vocab_size)
        logits = torch.zeros(len(asked), self.traits.vocab_size, dtype=said[0].dtype if said else torch.float32)
        for i, line in zip(near, said, strict=True):
            logits[i] = line
        logits[:, self._known :] = -torch.inf
        return Scores(logits)

    def commit(self, slots: Sequence[Slot], paths: Sequence[Sequence[int]]) -> None:
        for slot, nodes in zip(slots, paths, strict=True):
            own = _own(slot)
            if list(nodes) != list(range(len(nodes))) or len(nodes) > len(own.last):
                raise BackendError(f"{list(nodes)} is not a beginning of the {len(own.last)} tokens of the row's last pass")
            own.read, own.last = (*own.read, *own.last[: len(nodes)]), ()

    def close(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            if isinstance(slot, LaneSlot):
                slot.open, slot.row = False, None

    def probe(self) -> InvarianceReport:
        return InvarianceReport(True, 1, False, {})


def _own(slot: Slot) -> LaneSlot:
    if not isinstance(slot, LaneSlot) or not slot.open:
        raise BackendError("this slot is closed or belongs to another model; open a new one")
    return slot
