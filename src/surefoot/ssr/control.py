"""Whether and when a thinking request is forked: what a draft of the answer is worth, and what it costs.

A fork drafts in the same passes in which the request goes on thinking, so it costs V(2) - V(1) a pass, for as many passes as it
has tokens. It saves a pass for each token of the answer that it foresees, less what looking at that token costs. Lengths of
thoughts and answers, and the share of answers that drafts foresaw, are learned from the requests that ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.cost import CostModel
from ..errors import BadRequest

_KEEP = 0.8
"""Weight of what was known when a request has ended."""
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
            if value is None and name != "draft_tokens" and name != "drafts":
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
    """Share of the answer's tokens that drafts foresaw."""
    _skipped: int = 0
    _seen: int = field(default=0)

    def first(self, thinking_budget: int | None) -> int:
        """Tokens of thought before the first fork."""
        if self.options.draft_budget is not None:
            return self.options.draft_budget
        whole = self.thought if thinking_budget is None else min(self.thought, float(thinking_budget))
        # late enough to foresee something, early enough that the draft is ready when the thought ends
        return int(max(8.0, min(whole / 2, whole - min(self.answer, self.options.draft_tokens))))

    def worth(self, thought: int, remaining: int, context: int, rows: int) -> bool:
        """Whether a fork behind ``thought`` tokens of thought is expected to save more than it costs.

        remaining   tokens that the request may still say
        rows        rows that share its passes now
        """
        if self.options.always:
            return True
        if self.gain(thought, remaining, context, rows) > 0.0:
            return True
        self._skipped += 1
        return self._skipped % _LOOK == 0

    def gain(self, thought: int, remaining: int, context: int, rows: int) -> float:
        """Expected seconds saved, in passes of one row where no cost is known."""
        left = max(self.thought - thought, 0.25 * self.thought)
        answer = min(self.answer, max(0.0, remaining - left))
        drafted = min(answer, left, float(self.options.draft_tokens))
        one, more = self._pass(rows, context), self._pass(rows + 1, context)
        token = (self._wide(rows, context) - one) / 16
        return self.overlap * drafted * max(0.0, one - token) - drafted * (more - one)

    def _pass(self, rows: int, context: int) -> float:
        return 1.0 if self.cost is None else self.cost(rows * self.width, context)

    def _wide(self, rows: int, context: int) -> float:
        return 1.0 if self.cost is None else self.cost(rows * self.width + 16, context)

    def learn(self, thought: int, answer: int, foreseen: int, forked: bool) -> None:
        """A request has ended: tokens of its thought and its answer, and of those that drafts foresaw."""
        keep = _KEEP if self._seen else 0.3
        self._seen += 1
        self.thought += (1.0 - keep) * (thought - self.thought)
        self.answer += (1.0 - keep) * (answer - self.answer)
        if forked and answer:
            self.overlap += (1.0 - keep) * (foreseen / answer - self.overlap)
