"""Self-speculation of reasoning models: while a request thinks, it already drafts its answer (SSR, arXiv 2608.20359).

At a draft budget the request is forked: the fork's thought is ended by force, and it writes an answer, in the same passes in
which the request goes on thinking and on the same cache. What it wrote is a :class:`~.reference.Reference` for the request's
own answer: read on from the beginning (the paper's prefix verification), and found again behind a difference (its suffix
decoding). Later forks (the iterative variant) have the earlier drafts for references in turn; the latest are kept side by side.

The source only names tokens, which ``hybrid`` merges with those of the others, and the one verifier decides: nothing that a
fork says can change the answer. Forks are greedy, whatever the request is: of all points the likeliest is accepted most often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.tree import DraftTree, Forest
from ..core.words import Vocabulary
from ..drafters.grow import grow
from ..errors import BadRequest
from .control import ForkControl
from .families import Family
from .reference import LEVELS, SILENT, WEIGHTS, Reference, ReferenceWalk
from .stats import SsrStats
from .thought import Thought

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..core.request import Row


@dataclass(slots=True)
class _Fork:
    """``parent``: id of the request. ``read``: tokens of ``row`` that the reference holds."""

    row: Row
    parent: int
    reference: Reference
    read: int


@dataclass(slots=True)
class _Own:
    """What is known of one row, a request's or a fork's."""

    thought: Thought
    references: list[Reference] = field(default_factory=list)
    walk: ReferenceWalk = SILENT
    walked: int = 0
    """Tokens of the row that ``walk`` stands behind; 0: it does not stand in an answer yet."""
    fork: _Fork | None = None
    """The one that is under way."""
    next: int = -1
    """Tokens of thought at which the next one is due; -1: not decided."""
    stats: SsrStats = field(default_factory=SsrStats)


class SsrSource:
    """Drafter ``ssr``: a source, and the keeper of forks. ``force``: tokens that end a thought early, the family's own."""

    name = "ssr"
    needs = Need()
    levels: Sequence[float] = LEVELS
    weights: Sequence[float] = WEIGHTS

    def __init__(
        self,
        family: Family,
        pieces: Sequence[bytes],
        force: Sequence[int],
        control: ForkControl,
        *,
        source: int = 12,
    ) -> None:
        if not force:
            raise BadRequest(f"the text {family.force!r} that ends a thought has no token; give another one")
        self.family = family
        self.control = control
        self.source = source
        self._vocabulary = Vocabulary(pieces)
        self._force = tuple(force)
        self._engine: Engine | None = None
        self._rows: dict[int, _Own] = {}
        self._forks: dict[int, _Fork] = {}
        """By id of the fork's row."""

    def attach(self, engine: Engine) -> None:
        if self._engine is not None:
            raise BadRequest("an ssr drafter belongs to one engine; make another one for this one")
        self._engine = engine

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [grow(self, row, plan) for row, plan in zip(rows, plans, strict=True)]

    def walk(self, row: Row) -> ReferenceWalk:
        own = self._rows.get(row.id)
        if own is None or not own.references:
            return SILENT
        walk = self._follow(own, row.base)
        for token in row.drafted if walk is not SILENT else ():
            walk = walk.after(token)
        return walk

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        for row, verdict in zip(rows, verdicts, strict=True):
            own = self._rows.get(row.id)
            if own is None:
                own = self._rows[row.id] = _Own(Thought(self.family, self._vocabulary))
            fork = self._forks.get(row.id)
            if fork is not None:
                self._read(fork, row, own)
            elif verdict is not None:
                own.stats.time(row.stats, own.thought.inside, own.walk.intact)
                self._count(own, row)
                own.thought.read(row.tokens)
                self._decide(own, row, len(rows))

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            own = self._rows.pop(row.id, None)
            fork = self._forks.pop(row.id, None)
            if fork is not None:
                parent = self._rows.get(fork.parent)
                if parent is not None and parent.fork is fork:
                    parent.fork = None
            elif own is not None:
                self._end(own)
                own.stats.time(row.stats, own.thought.inside, own.walk.intact)
                if own.thought.answer > row.n_prompt or own.thought.inside:
                    row.stats.ssr = own.stats
                if own.thought.answer > row.n_prompt and not own.thought.inside:
                    answer = len(row.tokens) - own.thought.answer
                    foreseen = own.stats.prefix_tokens + own.stats.suffix_tokens
                    self.control.learn(own.thought.thought, answer, foreseen, bool(own.references))

    def _decide(self, own: _Own, row: Row, rows: int) -> None:
        """Begin a fork where one is due, and end one that nobody waits for any more."""
        thought, options = own.thought, self.control.options
        if not thought.inside or row.done:
            self._end(own)
            return
        if own.next < 0:
            own.next = self.control.first(row.params.thinking_budget)
        if own.stats.drafts >= options.most or thought.thought < own.next:
            return
        own.next = thought.thought + (options.interval or 0)
        if self.control.worth(thought.thought, row.remaining, len(row.tokens), rows):
            self._end(own)
            self._begin(own, row)
        elif options.interval is None:
            own.next = 1 << 62

    def _begin(self, own: _Own, row: Row) -> None:
        assert self._engine is not None
        greedy = replace(
            row.params,
            temperature=0.0,
            seed=None,
            n=1,
            logprobs=None,
            echo=False,
            stop=(),
            verification="auto",
            max_tokens=None,
        )
        most = min(self.control.options.draft_tokens, row.remaining)
        try:
            made = self._engine.spawn(row, self._force, greedy, most)
        except BadRequest:  # the request's options do not let its thought end here
            made = None
        if made is None:
            return
        reference = Reference()
        fork = own.fork = self._forks[made.id] = _Fork(made, row.id, reference, 0)
        earlier = own.references[-self.control.options.drafts :]
        own.references = [*earlier, reference][-self.control.options.drafts :]
        inner = self._rows[made.id] = _Own(own.thought.copy(), earlier)
        inner.thought.read(made.tokens)
        fork.read = inner.thought.answer
        self._read(fork, made, inner)
        own.stats.drafts += 1
        own.stats.budgets.append(own.thought.thought)

    def _read(self, fork: _Fork, row: Row, own: _Own) -> None:
        """What the fork has written since."""
        parent = self._rows.get(fork.parent)
        fork.reference.extend(row.tokens[fork.read :])
        if parent is not None and len(row.tokens) > max(fork.read, row.n_prompt):
            parent.stats.draft_tokens += len(row.tokens) - max(fork.read, row.n_prompt)
        fork.read = len(row.tokens)
        own.thought.read(row.tokens)

    def _end(self, own: _Own) -> None:
        fork, own.fork = own.fork, None
        if fork is not None and self._engine is not None and not fork.row.done:
            self._engine.abort(fork.row)

    def _follow(self, own: _Own, row: Row) -> ReferenceWalk:
        """Up to the row's last token; silent where it is not answering."""
        thought = own.thought
        thought.read(row.tokens)
        if not thought.answer or thought.inside:
            return SILENT
        if not own.walked:
            own.walk = ReferenceWalk.begin(own.references, self.control.options)
            own.walked = thought.answer
        for token in row.tokens[own.walked :]:
            own.walk = own.walk.after(token)
        own.walked = len(row.tokens)
        return own.walk

    def _count(self, own: _Own, row: Row) -> None:
        """Tokens of the last pass that drafts of the answer gave."""
        if not own.walked:
            return
        walk = own.walk
        for place in range(own.walked, len(row.tokens)):
            if row.sources[place - row.n_prompt] == self.source:
                if walk.intact:
                    own.stats.prefix_tokens += 1
                else:
                    own.stats.suffix_tokens += 1
            walk = walk.after(row.tokens[place])
        own.walk, own.walked = walk, len(row.tokens)
