"""The target as a draft model that is less sure of itself: its logits, scaled down.

A draft with the target's own law is never refused, and most drafts without a law are never weighed by one. This one is
refused often, so that the rule for drafts with a law and its residual are tested on any target, without a second model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core.protocols import InvarianceReport, Need, Scores, Slot, TargetModel, Traits
from ..core.tree import Forest


class Blurred:
    """A :class:`TargetModel` over another one's cache; ``factor`` scales the logits."""

    def __init__(self, model: TargetModel, factor: float = 0.6) -> None:
        self._model = model
        self._factor = factor

    @property
    def traits(self) -> Traits:
        return self._model.traits

    def open(self, n: int) -> list[Slot]:
        return self._model.open(n)

    def fork(self, slot: Slot, length: int | None = None) -> Slot:
        return self._model.fork(slot, length)

    def score(self, slots: Sequence[Slot], forest: Forest, need: Need) -> Scores:
        scores = self._model.score(slots, forest, need)
        return replace(scores, logits=self._factor * scores.logits)

    def commit(self, slots: Sequence[Slot], paths: Sequence[Sequence[int]]) -> None:
        self._model.commit(slots, paths)

    def close(self, slots: Sequence[Slot]) -> None:
        self._model.close(slots)

    def probe(self) -> InvarianceReport:
        return self._model.probe()
