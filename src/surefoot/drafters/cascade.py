"""Vertical cascade: a lossless engine over a lighter model, with a drafter of its own, is a drafter (arXiv 2312.11462).

In each round the inner engine goes on behind the row's tokens, for ``steps`` of its own passes or until the draft is as long as
planned. Its output follows the lighter model's law, so that law is the proposal's q. It may end behind a token because of that
token (end of the text, little confidence), never without one. Levels nest: the inner engine's drafter may be a cascade.

A row's inner row is a shadow (:mod:`..core.shadow`), which the next round's succeeds with as much of the cache as holds. Nodes
are marked with the source that named the token: a drafter below, whose token the lighter model agreed to, or the model itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..core.engine import Engine
from ..core.protocols import Array, Drafter, Follows, Need, Plan, Scores, Stop, Verdict
from ..core.shadow import Aside, shadow
from ..core.tree import PENDING, DraftTree, Forest, integers
from ..core.verify import FRESH
from ..errors import BackendError, BadRequest, VocabMismatch

if TYPE_CHECKING:
    from ..core.request import Row

_SLACK = 2
"""Tokens beyond the draft that an inner row may get."""


class Below:
    """A drafter inside a cascade. The outer engine, whose drafter it is too, tells it of passes and of rows that ended."""

    needs = Need()

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.name, self.source = inner.name, inner.source
        self.ends: dict[int, int] = {}
        """Most tokens that each row's draft reaches up to, the lighter model's own behind it included."""

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return self.inner.propose(rows, [self._within(row, plan) for row, plan in zip(rows, plans, strict=True)])

    def _within(self, row: Row, plan: Plan) -> Plan:
        most = self.ends.get(row.id, len(row.tokens) + plan.depth + 1) - len(row.tokens) - 1
        if plan.depth <= most:
            return plan
        return replace(plan, depth=max(most, 0), nodes=plan.nodes if plan.width > 1 and most > 0 else max(most, 0))

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None: ...

    def forget(self, rows: Sequence[Row]) -> None: ...


@dataclass(slots=True)
class _Draft:
    """One row's draft of this round."""

    row: Row
    inner: Row
    depth: int
    stops: list[Stop]
    fresh: bool
    """Whether its tokens are drawn from a law of their own, which is to be reported."""
    before: tuple[int, int, int]
    """Passes, reviewed and accepted tokens of the inner row before this round."""
    steps: int = 0
    seen: int = 0
    over: bool = False

    @property
    def tokens(self) -> list[int]:
        return self.inner.tokens[len(self.row.tokens) :]

    def read(self) -> None:
        """Look at what the last pass brought; ``over`` where the draft ends, ``depth`` tokens long at most."""
        found = self.tokens[: self.depth]
        self.steps += len(found) > self.seen
        for i in range(self.seen, len(found)):
            said = found[i] in self.row.stop_ids
            if said or (self.stops and self._stopped(found[i], i)):
                self.depth, self.over = i + 1, True
                return
        self.seen = len(found)
        self.over = self.over or self.seen >= self.depth or self.inner.done

    def _stopped(self, token: int, i: int) -> bool:
        assert self.inner.laws is not None
        asked = [stop(self.inner.laws[i], token, i + 1) for stop in self.stops]
        return any(asked)


class CascadeDrafter:
    """``engine``: over the lighter model, its drafters wrapped (:class:`Below`), its cache not reused.

    ``vocab_size``: of the target. ``steps``: most passes of the lighter model in a round (None: as many as the draft takes).
    ``confidence``: the draft ends behind a token that the lighter model gave less. ``source`` marks that model's own tokens.
    """

    needs = Need()

    def __init__(
        self,
        engine: Engine,
        vocab_size: int,
        *,
        steps: int | None = None,
        confidence: float = 0.0,
        part: Drafter | None = None,
        name: str = "cascade",
        source: int = 11,
    ) -> None:
        found = engine.target.traits.vocab_size
        if found != vocab_size:
            raise VocabMismatch(
                f"a cascade's lighter model must have the target's {vocab_size} tokens, not {found}; use one of the same family"
            )
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
            raise BadRequest(f"{name}: steps={steps!r} must be a whole number from 1 up")
        if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
            raise BadRequest(f"{name}: confidence={confidence!r} must be a number from 0 to 1")
        self.engine = engine
        self.name, self.source = name, source
        self._steps, self._confidence = steps, float(confidence)
        self._level, self._mark = (name, source) if part is None else (part.name, part.source)
        self._below = [d for d in engine.drafters.values() if isinstance(d, Below)]
        self._bottom = None
        if len(engine.drafters) == 1 and not (self._below and isinstance(self._below[0].inner, CascadeDrafter)):
            self._bottom = next(iter(engine.drafters))
        self._inner: dict[int, Row] = {}
        self._without: set[int] = set()
        """Rows that the lighter model's cache had no room for."""

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        trees = [DraftTree.chain(row.tokens[-1:]) for row in rows]
        left = [i for i, plan in enumerate(plans) if min(plan.depth, plan.nodes, plan.width) > 0]
        while left:  # several drafts behind one request's tokens share a cache: one after the other
            now: dict[int, int] = {}
            for i in left:
                now.setdefault(rows[i].id, i)
            picked = list(now.values())
            for i, tree in zip(picked, self._round([rows[i] for i in picked], [plans[i] for i in picked]), strict=True):
                trees[i] = tree
            left = [i for i in left if i not in picked]
        return trees

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: what the inner engine's cache holds is compared with the tokens that were kept when it is next asked."""

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            inner = self._inner.pop(row.id, None)
            if inner is not None:
                self.engine.abort(inner)
            for each in self._below:
                each.ends.pop(row.id, None)
            self._without.discard(row.id)

    def close(self) -> None:
        self.engine.close()
        self._inner = {}
        for each in self._below:
            each.ends = {}

    def _round(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        drafts = [self._begin(row, plan) for row, plan in zip(rows, plans, strict=True)]
        going = [draft for draft in drafts if draft is not None]
        try:
            while going:
                self.engine.step([draft.inner for draft in going])
                for draft in going:
                    if draft.inner.slot is None and not draft.inner.done:  # it was not admitted
                        raise BackendError("the cache of the lighter model is full; load it with a larger kv_tokens")
                    draft.read()
                going = [d for d in going if not d.over and (self._steps is None or d.steps < self._steps)]
        except BackendError as error:
            # these requests go on without drafts rather than fail
            lost = [draft.row for draft in drafts if draft is not None]
            self.forget([row.base for row in lost])
            self._without.update(row.id for row in lost)
            warnings.warn(f"{self.name} stops drafting for {len(lost)} requests: {error}", RuntimeWarning, stacklevel=3)
            return [DraftTree.chain(row.tokens[-1:]) for row in rows]
        return [
            DraftTree.chain(row.tokens[-1:]) if draft is None else self._tree(draft)
            for row, draft in zip(rows, drafts, strict=True)
        ]

    def _begin(self, row: Row, plan: Plan) -> _Draft | None:
        """The row's draft, its inner row behind the row's tokens; None where the lighter model cannot follow it there."""
        traits = self.engine.target.traits
        depth = min(plan.depth, plan.nodes, traits.max_context - traits.min_width - len(row.tokens))
        target = self.engine.target
        most = target.depth - len(row.drafted) if isinstance(target, Follows) else depth + _SLACK
        depth = min(depth, most)
        if depth < 1 or row.id in self._without:
            return None
        try:
            inner = shadow(row)
        except BadRequest:
            return None
        old = self._inner.get(row.id)
        fresh = row.params.temperature > 0 and row.rule(has_q=True) in FRESH
        inner.stop_ids = frozenset()
        inner.turn = max(row.turn, 0 if old is None else old.turn)
        inner.noise = Aside(row.noise, inner.turn) if fresh else row.noise
        inner.limit = len(row.tokens) - inner.n_prompt + min(depth + _SLACK, most)
        stops = [] if plan.stop is None else [plan.stop]
        if self._confidence > 0:
            stops.append(self._doubtful)
        inner.laws = [] if fresh or stops else None
        if old is None or old.done or old.slot is None:
            self.engine.adopt(inner)
        else:
            inner.stats = old.stats
            self.engine.succeed(old, inner)
        self._inner[row.id] = inner
        for each in self._below:
            each.ends[row.id] = len(row.tokens) + depth
        if isinstance(target, Follows):
            self.engine.step([])  # admits it
            if inner.slot is None or not target.follow(inner.slot, row):
                return None
        return _Draft(row, inner, depth, stops, fresh, _counts(inner))

    def _doubtful(self, law: Array, token: int, depth: int) -> bool:
        return float(law[token]) < self._confidence

    def _tree(self, draft: _Draft) -> DraftTree:
        n = min(draft.depth, len(draft.tokens))
        tokens, laws = draft.tokens[:n], draft.inner.laws
        self._count(draft, n)
        sources = [self._mark if s == PENDING else s for s in draft.inner.sources[:n]]
        q = torch.from_numpy(np.stack(laws[:n])) if draft.fresh and laws and n else None
        tree = DraftTree.chain([draft.row.tokens[-1], *tokens], q, self.source)
        return replace(tree, source=integers([PENDING, *sources], np.int16))

    def _count(self, draft: _Draft, proposed: int) -> None:
        passes, reviewed, accepted = (now - then for now, then in zip(_counts(draft.inner), draft.before, strict=True))
        stats = draft.row.base.stats
        if self._bottom is not None:  # a cascade counts for itself
            stats.add_level(self._bottom, proposed=reviewed)
        stats.add_level(self._level, passes=passes, reviewed=reviewed, accepted=accepted, proposed=proposed)


def _counts(row: Row) -> tuple[int, int, int]:
    stats = row.stats
    return stats.passes, stats.draft_tokens, stats.accepted_tokens
