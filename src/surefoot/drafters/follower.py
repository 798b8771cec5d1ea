"""The cache of a draft model that reads a text of its own, whose last tokens may change.

A slot holds what was read. Where the text's tokens changed, the slot is forked at the last token that stayed, and the rest is
read again. Drafted tokens, those of shadows too, are read on forks that are closed at the end of the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from ..core.protocols import Need, Slot, TargetModel
from ..core.tree import DraftTree, Forest
from .reading import Reading

_LAG = 16
"""Most tokens of the request that each of its shadows may read for itself: less dear than a pass of their own."""


class Follower:
    """``chunk``: most tokens of a row in one pass."""

    def __init__(self, draft: TargetModel, chunk: int) -> None:
        self.draft = draft
        self._chunk = min(chunk, draft.traits.max_nodes)
        self._slots: dict[int, Slot] = {}
        self.changed = 0
        """Tokens that were read again because their text is cut otherwise now."""

    def catch_up(self, slots: Sequence[Slot], readings: Sequence[Reading]) -> list[Tensor]:
        """Read to the end; logits [V] after each row's last token. No row is without tokens."""
        found = self._read(slots, [reading.ids for reading in readings])
        for reading in readings:
            reading.kept = len(reading.ids)
        return found

    def lead(self, rows: Mapping[int, Reading]) -> None:
        """Read requests, by key, for shadows that would have much to read otherwise."""
        late = [(key, reading) for key, reading in rows.items() if len(reading.ids) - self._length(key) > _LAG]
        if late:
            self._read([self.place(key, reading) for key, reading in late], [reading.ids[:-1] for _, reading in late])
            for _, reading in late:
                reading.kept = len(reading.ids)

    def place(self, key: int, reading: Reading) -> Slot:
        """The request's slot: it holds tokens as they are now, and not the last one, whose logits are asked for."""
        slot = self._slots.get(key)
        if slot is None:
            self._slots[key] = slot = self.draft.open(1)[0]
            return slot
        stays = min(slot.length, reading.kept, len(reading.ids) - 1)
        if stays < slot.length:
            self.changed += slot.length - stays
            self._slots[key] = self.draft.fork(slot, stays)
            self.draft.close([slot])
        return self._slots[key]

    def beside(self, key: int, reading: Reading, fork: Reading) -> Slot:
        """A place for a shadow, whose reading is a fork of the request's; to be closed."""
        stays = min(self._length(key), reading.kept, fork.kept, len(fork.ids) - 1)
        return self.draft.fork(self._slots[key], stays) if stays > 0 else self.draft.open(1)[0]

    def fork(self, key: int) -> Slot:
        """A place for drafted tokens behind what the row has read; to be closed."""
        return self.draft.fork(self._slots[key])

    def step(self, slots: Sequence[Slot], tokens: Sequence[int]) -> list[Tensor]:
        """One token further on each fork; logits [V] after it."""
        return self._pass(slots, [[token] for token in tokens], [True] * len(slots))

    def close(self, keys: Iterable[int]) -> None:
        self.draft.close([self._slots.pop(key) for key in keys if key in self._slots])

    def _length(self, key: int) -> int:
        return self._slots[key].length if key in self._slots else 0

    def _read(self, slots: Sequence[Slot], texts: Sequence[Sequence[int]]) -> list[Tensor]:
        last: list[Tensor | None] = [None] * len(slots)
        while going := [i for i, x in enumerate(last) if x is None]:
            parts = [texts[i][slots[i].length : slots[i].length + self._chunk] for i in going]
            ends = [slots[i].length + len(part) == len(texts[i]) for i, part in zip(going, parts, strict=True)]
            found = iter(self._pass([slots[i] for i in going], parts, ends))
            for i, end in zip(going, ends, strict=True):
                if end:
                    last[i] = next(found)
        return [x for x in last if x is not None]

    def _pass(self, slots: Sequence[Slot], chains: Sequence[Sequence[int]], wanted: Sequence[bool]) -> list[Tensor]:
        """One committed pass; the last token's logits of the wanted rows."""
        forest = Forest.pack(
            [DraftTree.chain(c[-1:]) for c in chains],
            [c[:-1] for c in chains],
            wanted,
            self.draft.traits.min_width,
        )
        logits = self.draft.score(slots, forest, Need()).logits.clone()
        self.draft.commit(slots, [range(len(c)) for c in chains])
        return list(logits)
