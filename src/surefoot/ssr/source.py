"""Self-speculation of reasoning models: while a request thinks, it already drafts its answer (SSR, arXiv 2608.20359).

At a draft budget the request is forked: the fork's thought is ended by force, and it writes an answer, in the same passes in
which the request goes on thinking and on the same cache. What it wrote is a :class:`~.reference.Reference` for the request's
own answer: read on from the beginning (the paper's prefix verification), and found again behind a difference (its suffix
decoding). Later forks (the iterative variant) have the earlier drafts for references in turn; the latest are kept side by side.

The source only names tokens, which ``hybrid`` merges with those of the others, and the one verifier decides: nothing that a
fork says can change the answer. Forks are greedy, whatever the request is: of all points the likeliest is accepted most often.
They end with the thought, and give way to requests that wait.
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
from .control import ForkControl, Moment
from .families import Family
from .reference import LEVELS, SILENT, WEIGHTS, Reference, ReferenceWalk, latest
from .stats import SsrStats, Stage
from .thought import Thought

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..core.request import Row

_NEVER = 1 << 62
_AGAIN = 16
"""Tokens of thought until the next try where there was no room for a fork."""


@dataclass(slots=True)
class _Fork:
    """``read``: tokens of ``row`` that the reference holds. ``asked``: it was worth its cost when ``crowd`` rows shared it."""

    row: Row
    parent: _Own
    reference: Reference
    read: int
    asked: bool
    crowd: int


@dataclass(slots=True)
class _Own:
    """What is known of one row, a request's or a fork's."""

    thought: Thought
    references: list[Reference] = field(default_factory=list)
    walk: ReferenceWalk = SILENT
    begun: int = 0
    """Place of the answer that ``walk`` stands in; 0: it does not stand in one yet."""
    walked: int = 0
    """Tokens of the row that it stands behind."""
    fork: _Fork | None = None
    """The one that is under way."""
    begin: int = -1
    """Place of the thought that it belongs to, or would."""
    next: int = 0
    """Tokens of that thought at which the next one is due."""
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
        self.family = family
        self.control = control
        self.source = source
        self._vocabulary = Vocabulary(pieces)
        text = self._vocabulary.text(force)
        if family.end.encode() not in text:
            raise BadRequest(
                f"the text that ends a thought comes out as {text.decode(errors='replace')!r} in the model's tokens, "
                f"without the end marker {family.end!r}; give another one"
            )
        marked = next(n for n in range(1, len(force) + 1) if family.end.encode() in self._vocabulary.text(force[:n]))
        # options may allow nothing of what follows the marker, such as a grammar of the answer
        self._forces = tuple(dict.fromkeys((tuple(force), tuple(force[:marked]))))
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
            if row.id in self._forks:
                self._read(self._forks[row.id])
            if verdict is None or row.hidden:
                continue
            own = self._rows.get(row.id)
            if own is None:
                own = self._rows[row.id] = _Own(Thought(self.family, self._vocabulary))
            own.stats.time(row.stats, self._stage(own, row))
            self._count(own, row)
            own.thought.read(row.tokens)
            self._decide(own, row, len(rows) - (own.fork is not None and own.fork.row in rows))

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            own = self._rows.pop(row.id, None)
            fork = self._forks.pop(row.id, None)
            if fork is not None:
                fork.parent.stats.draft_seconds += row.stats.prompt_seconds + row.stats.decode_seconds
                if fork.parent.fork is fork:
                    fork.parent.fork = None
            elif own is not None:
                if own.fork is not None and self._engine is not None:
                    self._engine.abort(own.fork.row)
                own.stats.time(row.stats, "thought")
                self._learn(own, row)

    def _learn(self, own: _Own, row: Row) -> None:
        """The request has ended."""
        thought = own.thought
        if thought.answer <= row.n_prompt and not thought.inside:
            return
        row.stats.ssr = own.stats
        if row.finish_reason in ("stop", "length"):
            answer = 0 if thought.inside else len(row.tokens) - thought.answer
            drafted = max((len(reference.tokens) for reference in own.references), default=0)
            self.control.learn(thought.thought, answer, own.stats.prefix_tokens + own.stats.suffix_tokens, drafted)

    def _decide(self, own: _Own, row: Row, rows: int) -> None:
        """Begin a fork where one is due, and end one that nobody waits for any more. ``rows``: of the pass, without its own."""
        thought, options, fork = own.thought, self.control.options, own.fork
        if row.done or not thought.inside:
            self._end(own)
            return
        budget = row.params.thinking_budget
        moment = Moment(thought.thought, row.remaining, len(row.tokens), rows, budget)
        if fork is not None and fork.asked and rows > fork.crowd:
            fork.crowd = rows
            if not self.control.pays(moment):
                self._end(own)
        if own.begin != thought.begin:
            own.begin, own.next = thought.begin, self.control.first(budget)
        if own.stats.drafts >= options.most or thought.thought < own.next:
            return
        own.next = _NEVER if options.interval is None else thought.thought + options.interval
        if self.control.worth(moment):
            self._end(own)
            self._begin(own, row, moment)

    def _begin(self, own: _Own, row: Row, moment: Moment) -> None:
        if row.state is not None and row.state.forced(1):  # the thought is being ended just now
            return
        for force in self._forces:
            thought = own.thought.ended(force)
            if thought is None:
                continue
            try:
                made = self._spawn(row, force)
            except BadRequest:  # the request's options do not let its thought end like that
                continue
            if made is None:
                own.next = min(own.next, moment.thought + _AGAIN)
            else:
                self._made(own, made, thought, moment)
            return
        own.next = _NEVER

    def _spawn(self, row: Row, force: Sequence[int]) -> Row | None:
        assert self._engine is not None
        greedy = replace(
            row.params,
            temperature=0.0,
            seed=None,
            n=1,
            logprobs=None,
            top_logprobs=None,
            echo=False,
            stop=(),
            verification="auto",
            max_tokens=None,
        )
        return self._engine.spawn(row, force, greedy, min(self.control.options.draft_tokens, row.remaining))

    def _made(self, own: _Own, made: Row, thought: Thought, moment: Moment) -> None:
        reference = Reference(made.tokens[thought.answer :])
        worth = self.control.pays(moment)
        own.fork = self._forks[made.id] = _Fork(made, own, reference, len(made.tokens), worth, moment.rows)
        self._rows[made.id] = _Own(thought, list(own.references))
        own.references = [*latest(own.references, self.control.options.drafts), reference]
        own.stats.drafts += 1
        own.stats.budgets.append(moment.thought)

    def _read(self, fork: _Fork) -> None:
        """What the fork has written since."""
        new = fork.row.tokens[fork.read :]
        fork.reference.extend(new)
        fork.read += len(new)
        fork.parent.stats.draft_tokens += len(new)

    def _end(self, own: _Own) -> None:
        """The engine takes rows that are done out of its passes when this one is over."""
        fork, own.fork = own.fork, None
        if fork is not None:
            fork.row.abort()

    def _follow(self, own: _Own, row: Row) -> ReferenceWalk:
        """Up to the row's last token; silent where it is not answering."""
        thought = own.thought
        thought.read(row.tokens)
        if not thought.answer or thought.inside:
            return SILENT
        if own.begun != thought.answer:
            own.walk = ReferenceWalk.begin(own.references, self.control.options)
            own.begun = own.walked = thought.answer
        for token in row.tokens[own.walked :]:
            own.walk = own.walk.after(token)
        own.walked = len(row.tokens)
        return own.walk

    def _stage(self, own: _Own, row: Row) -> Stage:
        """In which the pass began that is over now."""
        thought = own.thought
        if thought.inside or thought.answer <= row.n_prompt:
            return "thought"
        agreed = own.walk.intact if own.begun == thought.answer else bool(own.references)
        return "verify" if agreed else "continuation"

    def _count(self, own: _Own, row: Row) -> None:
        """Tokens of the last pass that drafts of the answer gave."""
        if not own.begun:
            return
        for place in range(own.walked, len(row.tokens)):
            if row.sources[place - row.n_prompt] == self.source:
                if own.walk.foretold(row.tokens[place]):
                    own.stats.prefix_tokens += 1
                else:
                    own.stats.suffix_tokens += 1
            own.walk = own.walk.after(row.tokens[place])
        own.walked = len(row.tokens)
