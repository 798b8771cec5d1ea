"""A draft model with a tokenizer of its own: any model drafts for any other (arXiv 2502.05202).

The draft model reads the row's text in its own tokens (:mod:`.reading`) and drafts in one of two ways: through text
(:mod:`.universal`), or in the intersection of the vocabularies (:mod:`.intersection`). The bridge says which way is taken for
greedy requests and which for sampled ones. All drafts are chains.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..core.law import host
from ..core.protocols import Array, Drafter, Need, Plan, Scores, Slot, TargetModel, Verdict
from ..core.request import Row
from ..core.tree import DraftTree, Forest
from ..errors import BackendError, VocabMismatch
from .bridge import INTERSECTION, REFUSED, UNIVERSAL, Bridge
from .follower import Follower
from .intersection import Intersection
from .model import ModelDrafter
from .reading import Reading
from .universal import Universal


def model_drafter(
    draft: TargetModel, vocab_size: int, *, bridge: Bridge | None = None, known: int | None = None, source: int = 1, **more: Any
) -> Drafter:
    """Drafter ``model`` for any pair. ``bridge``: what joins the vocabularies, ``None`` where ids mean the same to both.

    ``more``: options of the drafter that is made.
    """
    if bridge is None:
        return ModelDrafter(draft, vocab_size, known=known, source=source, **more)
    return CrossDrafter(draft, bridge, vocab_size, source=source, **more)


class Voice(Protocol):
    """One draft in the making."""

    def say(self, logits: Array) -> int | None: ...

    def tree(self, source: int) -> DraftTree: ...


@dataclass(frozen=True, slots=True)
class _Live:
    row: Row
    reading: Reading
    voice: Voice


class CrossDrafter:
    """Drafter ``model`` where the vocabularies differ. ``vocab_size``: rows of the target's embedding."""

    name = "model"
    needs = Need()

    def __init__(self, draft: TargetModel, bridge: Bridge, vocab_size: int, *, chunk: int = 256, source: int = 1) -> None:
        for whose, words, rows in (
            ("draft", bridge.theirs, draft.traits.vocab_size),
            ("target", bridge.ours, vocab_size),
        ):
            if len(words.pieces) > rows:
                raise VocabMismatch(
                    f"the {whose}'s tokenizer has {len(words.pieces)} tokens, the model {rows}; give the model's own tokenizer"
                )
        ways = {bridge.greedy, bridge.sampled}
        if REFUSED in ways or not ways <= {INTERSECTION, UNIVERSAL} or (INTERSECTION in ways and not len(bridge.common[0])):
            raise VocabMismatch("draft and target share no tokens; use a draft model of the target's family")
        self.draft = draft
        self.bridge = bridge
        self.source = source
        self._vocab = vocab_size
        self._follower = Follower(draft, chunk)
        self._readings: dict[int, Reading] = {}
        self._without: set[int] = set()
        """Rows that the draft's cache had no room for."""
        self._told = False
        """Whether it was said that the draft's context is too short: once is enough."""

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        found = [self._prepare(row, plan) for row, plan in zip(rows, plans, strict=True)]
        live = [x for x in found if x is not None]
        if live:
            try:
                self._draft(live)
            except BackendError as error:
                # the draft's cache is full: these rows go on without drafts rather than fail
                self._follower.close(x.row.id for x in live)
                self._without.update(x.row.id for x in live)
                warnings.warn(f"the draft model stops drafting for {len(live)} requests: {error}", RuntimeWarning, stacklevel=2)
                return [DraftTree.chain(row.tokens[-1:]) for row in rows]
        return [
            DraftTree.chain(row.tokens[-1:]) if x is None else x.voice.tree(self.source)
            for row, x in zip(rows, found, strict=True)
        ]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: committed tokens are read from the rows when they next ask."""

    def forget(self, rows: Sequence[Row]) -> None:
        self._follower.close(row.id for row in rows)
        for row in rows:
            self._readings.pop(row.id, None)
            self._without.discard(row.id)

    def stats(self) -> dict[str, int]:
        """Rows and draft tokens held; tokens read again because later text changed how the text is cut."""
        held = sum(len(reading.ids) for reading in self._readings.values())
        return {"rows": len(self._readings), "tokens": held, "changed": self._follower.changed}

    def _prepare(self, row: Row, plan: Plan) -> _Live | None:
        """``None``: nothing to draft."""
        if min(plan.depth, plan.nodes) <= 0 or row.id in self._without:
            return None
        reading = self._readings.get(row.id)
        if reading is None:
            reading = self._readings[row.id] = Reading(self.bridge)
        if not reading.follow(row.tokens) or not reading.ids:
            return None
        room = self.draft.traits.max_context - self.draft.traits.min_width - len(reading.ids)
        if room < 1:
            self._tell()
            return None
        greedy = row.params.temperature == 0
        voice: Voice
        if (self.bridge.greedy if greedy else self.bridge.sampled) == INTERSECTION:
            voice = Intersection(self.bridge, row, plan, self._vocab, room)
        else:
            voice = Universal(self.bridge, row, plan, len(reading.ids) / len(row.tokens), room)
        return _Live(row, reading, voice)

    def _draft(self, live: Sequence[_Live]) -> None:
        """Let each voice say its draft, in common passes of the draft model."""
        logits = self._follower.catch_up([(x.row.id, x.reading) for x in live])
        forks: dict[int, Slot] = {}
        try:
            going = list(live)
            while going:
                said = [x.voice.say(host(own)) for x, own in zip(going, logits, strict=True)]
                next_ = [(x, token) for x, token in zip(going, said, strict=True) if token is not None]
                going = [x for x, _ in next_]
                if going:
                    for x in going:
                        if x.row.id not in forks:
                            forks[x.row.id] = self._follower.fork(x.row.id)
                    logits = self._follower.step([forks[x.row.id] for x in going], [token for _, token in next_])
        finally:
            self.draft.close(list(forks.values()))

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            warnings.warn(
                f"the draft model's context holds {self.draft.traits.max_context} tokens; requests go on without drafts from "
                "there, which is slower; give a draft model with a longer context",
                RuntimeWarning,
                stacklevel=2,
            )
