"""What happened to a request: counts that follow the kept prefix, and the step trace.

Conventions (those of vLLM): a *draft* is a pass that verified at least one drafted token; acceptance rate =
accepted / drafted tokens; mean acceptance length = 1 + accepted / drafts, the target's own token included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from .protocols import Costs


@dataclass(slots=True)
class SourceStats:
    """Counts of one drafter."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(slots=True)
class LevelStats:
    """Counts of one level of a cascade: a model that reviews what the level below drafts, or the drafter at the bottom.

    ``passes`` over the request's tokens; tokens of the level below that it ``reviewed``, and of these ``accepted``; tokens that
    it ``proposed`` to the level above. All of a round counts, whether or not the target kept it.
    """

    passes: int = 0
    reviewed: int = 0
    accepted: int = 0
    proposed: int = 0


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One pass of one row. Node 0 is the pending token; ``accepted[i]`` only for nodes on the kept path.

    ``p[i]`` is the target's probability of candidate i given its path (softmax at temperature 1 where decoding is greedy);
    ``sources[i]`` names the drafter that candidate i came from.
    """

    position: int
    drafter: str | None
    candidates: tuple[int, ...]
    parents: tuple[int, ...]
    p: tuple[float, ...]
    accepted: tuple[bool, ...]
    token: int
    kept: int
    seconds: float
    sources: tuple[str, ...] = ()

    def kept_first(self, kept: int) -> StepTrace:
        """The trace after the row kept only ``kept`` tokens of the path and the target's own."""
        if kept >= self.kept:
            return self
        left, accepted = kept, []
        for flag in self.accepted:
            accepted.append(flag and left > 0)
            left -= flag
        return replace(self, accepted=tuple(accepted), kept=kept)


class Told(Protocol):
    """Statistics of one drafter's own."""

    def to_dict(self) -> dict[str, object]: ...


@dataclass(slots=True)
class Stats:
    """Counts of one request."""

    passes: int = 0
    """Passes that emitted tokens (prefill excluded)."""
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    """Kept accepted tokens by their depth in the draft, from depth 1."""
    by_source: dict[str, SourceStats] = field(default_factory=dict)
    below: dict[str, LevelStats] = field(default_factory=dict)
    """What went on inside cascades, the lowest level first."""
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    score_seconds: float = 0.0
    """Of the decode seconds: drafting, and the target's passes; the rest is the engine's own."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused."""
    trace: list[StepTrace] | None = None
    ssr: Told | None = None
    """What drafts of the answer gave while the request was thinking (:mod:`surefoot.ssr`)."""

    @property
    def acceptance_rate(self) -> float:
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        return 1.0 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    @property
    def levels(self) -> dict[str, LevelStats]:
        """The levels of a cascade from the bottom up, the target the last; empty where none drafted."""
        if not self.below:
            return {}
        own = LevelStats(self.passes, self.draft_tokens, self.accepted_tokens, self.passes + self.accepted_tokens)
        return {**self.below, "target": own}

    def add_level(self, name: str, *, passes: int = 0, reviewed: int = 0, accepted: int = 0, proposed: int = 0) -> None:
        """What a level inside a cascade did in a round."""
        level = self.below.setdefault(name, LevelStats())
        level.passes += passes
        level.reviewed += reviewed
        level.accepted += accepted
        level.proposed += proposed

    def add_pass(self, drafted: Sequence[str], kept: Sequence[str]) -> None:
        """One verified pass: the source of each drafted node, and of each kept token (``"target"``: its own)."""
        self.passes += 1
        if not drafted:
            return
        accepted = [s for s in kept if s != "target"]
        self.drafts += 1
        self.draft_tokens += len(drafted)
        self.accepted_tokens += len(accepted)
        missing = len(accepted) - len(self.accepted_per_position)
        self.accepted_per_position += [0] * missing
        for depth in range(len(accepted)):
            self.accepted_per_position[depth] += 1
        for name in dict.fromkeys(drafted):
            counts = self.by_source.setdefault(name, SourceStats())
            counts.drafts += 1
            counts.draft_tokens += drafted.count(name)
            counts.accepted_tokens += accepted.count(name)

    def add_time(self, costs: Costs, prefill: bool) -> None:
        """Wall time of a pass that this request took part in."""
        seconds = costs.draft + costs.score + costs.other
        if prefill:
            self.prompt_seconds += seconds
        else:
            self.decode_seconds += seconds
            self.draft_seconds += costs.draft
            self.score_seconds += costs.score

    def add_trace(self, entry: StepTrace) -> None:
        if self.trace is not None:
            self.trace.append(entry)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "passes": self.passes,
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
            "accepted_per_position": list(self.accepted_per_position),
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "by_source": {
                name: {"drafts": s.drafts, "draft_tokens": s.draft_tokens, "accepted_tokens": s.accepted_tokens}
                for name, s in self.by_source.items()
            },
            **({"levels": {name: asdict(level) for name, level in self.levels.items()}} if self.below else {}),
            "prompt_seconds": self.prompt_seconds,
            "decode_seconds": self.decode_seconds,
            "draft_seconds": self.draft_seconds,
            "score_seconds": self.score_seconds,
            "cached_tokens": self.cached_tokens,
            **({} if self.ssr is None else {"ssr": self.ssr.to_dict()}),
        }
