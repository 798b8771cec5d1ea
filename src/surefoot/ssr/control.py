"""Whether and when a thinking request is forked: what a draft of the answer is worth, and what it costs.

A fork drafts in the same passes in which the request goes on thinking, so it costs V(2) - V(1) a pass, for as many passes as it
has tokens. It saves a pass for each token of the answer that it foresees, less what looking at that token costs. Lengths of
thoughts and answers, and the share of answers that drafts foresaw, are learned from the requests that ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.cost import CostModel
from ..errors import BadRequest

_KEEP = 0.8
"""Weight of what was known when a request has ended."""
_FIRST = 0.3
"""Of what was believed before any had."""
_TELLING = 32
"""Tokens of an answer side by side with a draft that say all they can about the next one."""
_LOOK = 8
"""Of requests whose fork does not seem worth it, one in so many is forked all the same, to learn."""


@dataclass(frozen=True, slots=True)
class SsrOptions:
    """When to fork, and what to do with drafts.

    draft_budget  tokens of thought before the first fork; None: by what was learned
    draft_tokens  most tokens of a draft
    interval      tokens of thought between further forks; None: one fork only
    max_drafts    most forks of a request (4)
    drafts        how many of the latest drafts are kept as alternatives
    always        fork without asking whether it pays
    prefix, suffix  read drafts on from the answer's beginning; find them again behind a difference
    """

    draft_budget: int | None = None
    draft_tokens: int = 500
    interval: int | None = None
    max_drafts: int | None = None
    drafts: int = 2
    always: bool = False
    prefix: bool = True
    suffix: bool = True

    def __post_init__(self) -> None:
        for name, least in (("draft_budget", 0), ("draft_tokens", 1), ("interval", 1), ("max_drafts", 1), ("drafts", 1)):
            value = getattr(self, name)
            if value is None and name not in ("draft_tokens", "drafts"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadRequest(f"ssr: {name}={value!r} must be a whole number from {least} up")
        for name in ("always", "prefix", "suffix"):
            if not isinstance(getattr(self, name), bool):
                raise BadRequest(f"ssr: {name}={getattr(self, name)!r} must be true or false")
        if self.max_drafts is not None and self.max_drafts > 1 and self.interval is None:
            raise BadRequest(
                f"ssr: max_drafts={self.max_drafts} needs interval, the tokens of thought between two drafts; give it"
            )

    @property
    def most(self) -> int:
        """Drafts of a request."""
        if self.interval is None:
            return 1
        return 4 if self.max_drafts is None else self.max_drafts


@dataclass(frozen=True, slots=True)
class Moment:
    """When a fork is considered.

    thought     tokens of thought so far; ``budget``: most of them, where the request bounds them
    remaining   tokens that the request may still say
    context     tokens that it holds
    rows        rows that share its passes, itself included, without a fork of its own
    """

    thought: int
    remaining: int
    context: int
    rows: int = 1
    budget: int | None = None


@dataclass(slots=True)
class ForkControl:
    """``cost``: of the target's passes; None: two rows are taken to cost as much as one."""

    options: SsrOptions
    cost: CostModel | None = None
    width: int = 1
    """Tokens of a row in a pass, at least."""
    thought: float = 400.0
    answer: float = 200.0
    overlap: float = 0.5
    """Share of the answer's tokens that drafts foresaw, as far as they went."""
    _skipped: int = 0
    _seen: int = 0

    def first(self, thinking_budget: int | None) -> int:
        """Tokens of thought before the first fork."""
        if self.options.draft_budget is not None:
            return self.options.draft_budget
        whole = self.thought if thinking_budget is None else min(self.thought, float(thinking_budget))
        # late enough to foresee something, early enough that the draft is ready when the thought ends
        return int(max(8.0, min(whole / 2, whole - min(self.answer, self.options.draft_tokens))))

    def worth(self, moment: Moment) -> bool:
        """Whether a fork now is expected to save more than it costs, or is wanted all the same."""
        if self.options.always or self.gain(moment) > 0.0:
            return True
        if self._drafted(moment) < 1.0:  # nothing could be learned either
            return False
        self._skipped += 1
        return self._skipped % _LOOK == 0

    def pays(self, moment: Moment) -> bool:
        """Whether a fork that is under way is expected to."""
        return self.options.always or self.gain(moment) > 0.0

    def gain(self, moment: Moment) -> float:
        """Expected seconds saved over all rows of the passes; in passes, where no cost is known.

        Each of them waits for what the fork adds to a pass; the request alone is spared the passes that its draft saves, of
        which the others are spared what it adds to theirs.
        """
        drafted = self._drafted(moment)
        rows, context = moment.rows, moment.context
        one, more = self._pass(rows, context), self._pass(rows + 1, context)
        spared = one if rows == 1 else one + (rows - 1) * (one - self._pass(rows - 1, context))
        token = rows * (self._wide(rows, context) - one) / 16
        return self.overlap * drafted * max(0.0, spared - token) - drafted * rows * (more - one)

    def _drafted(self, moment: Moment) -> float:
        """Tokens that a fork is expected to say in time, and the request after it."""
        left = max(self.thought - moment.thought, 0.25 * self.thought)
        if moment.budget is not None:
            left = min(left, float(max(0, moment.budget - moment.thought)))
        answer = min(self.answer, max(0.0, moment.remaining - left))
        return min(answer, left, float(self.options.draft_tokens))

    def _pass(self, rows: int, context: int) -> float:
        return 1.0 if self.cost is None else self.cost(rows * self.width, context)

    def _wide(self, rows: int, context: int) -> float:
        return 1.0 if self.cost is None else self.cost(rows * self.width + 16, context)

    def learn(self, thought: int, answer: int, foreseen: int, drafted: int) -> None:
        """A request has ended: tokens of its thought, of its answer, of those that drafts foresaw, and of the longest draft.

        Where no answer came, the thought is known to be so long at least.
        """
        fresh = 1.0 - (_KEEP if self._seen else _FIRST)
        self._seen += 1
        self.thought += fresh * ((thought if answer else max(thought, self.thought)) - self.thought)
        self.answer += fresh * (answer - self.answer)
        covered = min(answer, drafted)
        if covered:
            self.overlap += fresh * min(1.0, covered / _TELLING) * (min(1.0, foreseen / covered) - self.overlap)
