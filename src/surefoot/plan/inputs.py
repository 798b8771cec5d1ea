"""What is planned for: acceptance from a number or a log, cost, method and limits, checked and brought together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BadRequest
from ..theory import acceptance, gamma, speedup
from ..theory.acceptance import Estimate
from ..theory.cascade import Level
from ..theory.checks import Array, not_negative, probability, whole
from .costs import Cost
from .logs import Log

METHODS = ("chain", "tree", "cascade", "horizontal")
ENOUGH = 30
"""Trials of a position from which its own rate is used rather than the rate of all positions."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A rate, or what a log says: the rate of all positions, and of each."""

    name: str
    alpha: float
    estimate: Estimate | None = None
    positions: tuple[Estimate, ...] = ()
    reach: tuple[Estimate, ...] = ()
    drafted: float | None = None
    """Share of the passes that had a draft."""

    def chances(self, most: int) -> list[float]:
        """a_1 … a_most: of the position where it was tried often enough, else alpha."""
        own = [e.value if e.trials >= ENOUGH else self.alpha for e in self.positions[:most]]
        return own + [self.alpha] * (most - len(own))

    def tokens(self, most: int) -> Array:
        """Expected tokens of a round at draft lengths 0 … most."""
        if not self.positions:
            return gamma.tokens_at(self.alpha, most)
        return speedup.tokens_from_reach(acceptance.reach(self.chances(most)))

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"alpha": self.alpha}
        if self.estimate is not None:
            found |= {"low": self.estimate.low, "high": self.estimate.high, "trials": self.estimate.trials}
            found["drafted_share"] = self.drafted
            found["positions"] = [
                {
                    "position": i,
                    **{"chance": a.value, "low": a.low, "high": a.high, "trials": a.trials},
                    **{"reach": r.value, "reach_low": r.low, "reach_high": r.high},
                }
                for i, (a, r) in enumerate(zip(self.positions, self.reach, strict=True), 1)
            ]
        return found


def of_rate(alpha: float) -> Acceptance:
    found = float(probability("alpha", alpha))
    return Acceptance(f"α = {found:g}", found)


def of_log(log: Log) -> Acceptance:
    estimate = acceptance.from_drafts(log.accepted, log.lengths)
    return Acceptance(
        f"α = {estimate.value:.3f} of {log.name}",
        estimate.value,
        estimate,
        tuple(acceptance.by_position(log.accepted, log.lengths)),
        tuple(acceptance.reach_by_position(log.accepted, log.lengths)),
        len(log.accepted) / (len(log.accepted) + log.plain),
    )


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a plan is made of."""

    method: str
    most: int
    """Longest draft; of trees the most nodes; of cascades the most steps of a level."""
    cost: Cost | None
    """None where each level of a cascade has its own."""
    rates: tuple[Acceptance, ...] = ()
    chances: tuple[float, ...] = ()
    depth: int = 8
    levels: tuple[Level, ...] = ()
    rows: int = 1

    @property
    def need(self) -> int:
        """Tokens of the widest pass."""
        return self.rows * (self.most + 1)


def check_method(method: str, levels: Sequence[Level], chances: Sequence[float] | None, rows: int, depth: int | None) -> None:
    """Options that do not belong together."""
    if method not in METHODS:
        raise BadRequest(f"unknown method {method!r}; choose {', '.join(METHODS)}")
    cascade = method in ("cascade", "horizontal")
    if cascade and not levels:
        raise BadRequest(f"the method {method} needs levels; give --level alpha,steps,c for each, the heaviest first")
    if levels and not cascade:
        raise BadRequest("--level belongs to --method cascade or horizontal; add it, or leave --level out")
    if method != "tree" and (chances or depth is not None):
        raise BadRequest("--chances and --depth belong to --method tree; add it, or leave them out")
    if method != "chain" and rows != 1:
        raise BadRequest("--rows belongs to --method chain; leave it out")
    whole("rows", rows, 1)


def checked_level(level: Level) -> Level:
    return Level(
        float(probability("alpha of a level", level.alpha)),
        int(whole("steps of a level", level.steps, 1)),
        float(not_negative("c of a level", level.c)),
    )
