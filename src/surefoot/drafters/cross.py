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
    base: Reading
    """Of the request, where the row is a shadow of it; else the same."""
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
                lost = {x.row.id for x in live}
                self._follower.close(lost)
                self._without |= lost
                warnings.warn(f"the draft model stops drafting for {len(lost)} requests: {error}", RuntimeWarning, stacklevel=2)
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
        base = self._readings.get(row.id)
        if base is None:
            base = self._readings[row.id] = Reading(self.bridge)
        whole, reading = base.follow(row.base.tokens), base
        if row.of is not None:
            reading = base.fork()
            whole = reading.follow(row.tokens)
        if not whole or not reading.ids:
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
        return _Live(row, reading, base, voice)

    def _draft(self, live: Sequence[_Live]) -> None:
        """Let each voice say its draft, in common passes of the draft model."""
        follower = self._follower
        forks: dict[int, Slot] = {}
        try:
            follower.lead({x.row.id: x.base for x in live if x.row.of is not None})
            for i, x in enumerate(live):
                if x.row.of is not None:
                    forks[i] = follower.beside(x.row.id, x.base, x.reading)
            slots = [forks[i] if i in forks else follower.place(x.row.id, x.reading) for i, x in enumerate(live)]
            logits = follower.catch_up(slots, [x.reading for x in live])
            going = list(range(len(live)))
            while going:
                said = [(i, live[i].voice.say(host(own))) for i, own in zip(going, logits, strict=True)]
                next_ = [(i, token) for i, token in said if token is not None]
                going = [i for i, _ in next_]
                if going:
                    for i in going:
                        if i not in forks:
                            forks[i] = follower.fork(live[i].row.id)
                    logits = follower.step([forks[i] for i in going], [token for _, token in next_])
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
