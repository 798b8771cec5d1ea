"""What the tuner found: options with predicted and measured speed, the recommendation, and how they are shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..core.cost import CostModel
from .candidate import Candidate
from .parts import Parts


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate and its figures; ``None`` where nothing was predicted or measured.

    ``predicted``, ``measured``: times plain decoding. ``rate``: tokens per second. ``equal``: the tokens of every run were
    those of plain decoding; an option that is not equal is never recommended. ``acceptance``: of drafted tokens.
    """

    candidate: Candidate
    acceptance: float | None = None
    predicted: float | None = None
    measured: float | None = None
    rate: float | None = None
    equal: bool | None = None
    differs: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        c = self.candidate
        return {
            "drafter": c.name,
            "controller": None if c.plain else c.controller,
            "k": c.k,
            "width": c.width,
            "nodes": c.nodes if c.width > 1 else c.k,
            "acceptance": self.acceptance,
            "predicted": self.predicted,
            "measured": self.measured,
            "tokens_per_second": self.rate,
            "equal": self.equal,
            "differs": list(self.differs),
        }


@dataclass(frozen=True, slots=True)
class Tuning:
    """``options``: the fastest measured first, then what was only predicted. ``curves``: drafter -> speed-up by length from 0.

    ``reach``: drafter -> chance that a draft stays down to each depth. ``draft_seconds``: of one drafted token.
    ``why``: the recommendation in words. ``cascade``: what was measured of the parts of cascades, where they were tuned.
    """

    best: Option
    options: tuple[Option, ...]
    plain_rate: float
    why: str
    cost: CostModel
    prompts: int
    tokens: int
    precision: str
    curves: dict[str, list[float]] = field(default_factory=dict)
    reach: dict[str, list[float]] = field(default_factory=dict)
    draft_seconds: dict[str, float] = field(default_factory=dict)
    cascade: Parts | None = None

    @property
    def recommended(self) -> Candidate:
        return self.best.candidate

    @property
    def ok(self) -> bool:
        """Whether every run that was made said what plain decoding says."""
        return all(o.equal is not False for o in self.options)

    def to_dict(self) -> dict[str, Any]:
        return {
            "recommended": self.best.to_dict(),
            "why": self.why,
            "plain_tokens_per_second": self.plain_rate,
            "precision": self.precision,
            "prompts": self.prompts,
            "tokens": self.tokens,
            "options": [o.to_dict() for o in self.options],
            "cost": self.cost.to_dict(),
            "predicted_by_length": self.curves,
            "reach": self.reach,
            "draft_seconds": self.draft_seconds,
            **({} if self.cascade is None else {"cascade": self.cascade.to_dict()}),
        }

    def rows(self) -> list[str]:
        """The table: a line an option."""
        wide = max(34, *(len(o.candidate.label) + 2 for o in self.options))
        out = [f"{'drafter':<{wide}}{'acceptance':>11}{'predicted':>11}{'measured':>10}{'tokens/s':>10}   equal"]
        for o in self.options:
            equal = {True: "yes", False: "NO", None: "-"}[o.equal]
            share = "-" if o.acceptance is None else f"{100 * o.acceptance:.0f}%"
            rate = "-" if o.rate is None else f"{o.rate:.1f}"
            line = (
                f"{o.candidate.label:<{wide}}{share:>11}{_times(o.predicted):>11}{_times(o.measured):>10}{rate:>10}   {equal}"
            )
            if o.differs:
                line += f" (prompts {', '.join(str(i + 1) for i in o.differs[:6])}{', …' if len(o.differs) > 6 else ''})"
            out.append(line)
        return out

    def table(self) -> str:
        widths = ", ".join(f"{w}: {1e3 * s:.2f}" for w, s in zip(self.cost.widths, self.cost.seconds, strict=True))
        return "\n".join(
            [
                f"milliseconds of a pass by its tokens: {widths}",
                f"{self.prompts} prompts, {self.tokens} tokens; measured in turn with plain decoding, medians of ratios",
                "",
                *self.rows(),
                *([] if self.cascade is None else ["", *self.cascade.rows()]),
                "",
                f"recommended: {self.recommended.label}. {self.why}",
            ]
        )


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
