"""Horizontal cascade: one drafter drafts the first tokens, others go on behind them (arXiv 2312.11462).

A drafted token counts only if all before it are accepted, so the early ones are worth a dear drafter, the later ones a cheap
one. Part i drafts at most ``lengths[i]`` tokens behind those that the parts before it drafted, as a shadow of the row; where
one drafts fewer, the next goes on from there. Drafts are chains.

Where any part drew its tokens from a law that it reports, the others' tokens are points: each is reported as drawn from the law
that gives it 1. Stops that a controller asks for count from the draft's first token, and end the whole draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.protocols import Array, Drafter, Need, Plan, Scores, Stop, Verdict
from ..core.shadow import shadow
from ..core.tree import PENDING, DraftTree, Forest, integers
from ..errors import BadRequest

if TYPE_CHECKING:
    from ..core.request import Row


@dataclass(slots=True)
class _Draft:
    """One row's draft so far. ``laws``: as far as tokens were drawn, by depth."""

    row: Row
    plan: Plan
    tokens: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    laws: dict[int, Tensor] = field(default_factory=dict)
    over: bool = False

    @property
    def room(self) -> int:
        return 0 if self.over else min(self.plan.depth, self.plan.nodes) - len(self.tokens)

    def behind(self) -> Row | None:
        """The row with what was drafted so far; None where its options leave no way on."""
        if not self.tokens:
            return self.row
        try:
            return shadow(self.row, self.tokens)
        except BadRequest:
            return None

    def asked(self, most: int) -> Plan:
        """The plan of the next part."""
        n = min(most, self.room)
        stop = None if self.plan.stop is None else self._stop(self.plan.stop, len(self.tokens))
        free = max(self.plan.free - len(self.tokens), 0)
        return replace(self.plan, depth=n, width=1, nodes=n, free=free, stop=stop, cut=None)

    def _stop(self, stop: Stop, before: int) -> Stop:
        def wrapped(law: Array, token: int, depth: int) -> bool:
            self.over = stop(law, token, before + depth) or self.over
            return self.over

        return wrapped

    def extend(self, tree: DraftTree) -> None:
        laws = tree.law_rows()
        tokens = tree.tokens.tolist()[1:]
        for i in range(len(tokens)):
            if i in laws:
                self.laws[len(self.tokens) + i] = laws[i]
        self.tokens += tokens
        self.sources += tree.source.tolist()[1:]

    def tree(self, source: int) -> DraftTree:
        chain = DraftTree.chain([self.row.tokens[-1], *self.tokens], self._q(), source)
        return replace(chain, source=integers([PENDING, *self.sources], np.int16))

    def _q(self) -> Tensor | None:
        if not self.laws:
            return None
        some = next(iter(self.laws.values()))
        rows = []
        for i, token in enumerate(self.tokens):
            own = self.laws.get(i)
            if own is None:
                own = torch.zeros_like(some)
                own[token] = 1.0
            rows.append(own.to(some))
        return torch.stack(rows)


class HorizontalDrafter:
    """``parts`` in the order in which they draft, ``lengths``: most tokens of each. All are drafters of the engine too."""

    needs = Need()

    def __init__(self, parts: Sequence[Drafter], lengths: Sequence[int], *, name: str = "horizontal", source: int = 12) -> None:
        if not parts or len(parts) != len(lengths):
            raise BadRequest(
                f"{name}: {len(lengths)} lengths for {len(parts)} drafters; give one length for each, as in lengths=2/6"
            )
        for length in lengths:
            if isinstance(length, bool) or not isinstance(length, int) or length < 1:
                raise BadRequest(f"{name}: length {length!r} (of lengths) must be a whole number from 1 up")
        self.name, self.source = name, source
        self.lengths = tuple(lengths)
        self._parts = tuple(parts)

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        drafts = [_Draft(row, plan) for row, plan in zip(rows, plans, strict=True)]
        for part, most in zip(self._parts, self.lengths, strict=True):
            going = [(d, behind) for d in drafts if d.room > 0 and d.plan.width > 0 and (behind := d.behind()) is not None]
            if not going:
                break
            trees = part.propose([behind for _, behind in going], [d.asked(most) for d, _ in going])
            for (draft, _), tree in zip(going, trees, strict=True):
                draft.extend(tree)
        return [draft.tree(self.source) for draft in drafts]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: the engine tells the parts itself."""

    def forget(self, rows: Sequence[Row]) -> None:
        """Nothing, as for :meth:`observe`."""
