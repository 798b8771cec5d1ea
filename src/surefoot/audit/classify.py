"""Tie or bug: a verdict on every position at which an output is not what the target says.

Exact mode has no tolerance: all passes agree bit for bit, so any difference is a bug. Elsewhere a token whose gap is at most
twice the measured noise is a *tie*: rounding alone can bring it about, and the draft-free control beside it shows how much
rounding there is. All else is a *bug*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .force import NONE, Forced, Position

OK, TIE, BUG = "ok", "tie", "bug"


@dataclass(frozen=True, slots=True)
class Finding:
    """One position of one output, or its end (``token`` is None), that is not as it should be.

    ``position``: from 0 in the output. ``expected``: what the target says there, or the reference's token at a first
    divergence. ``first``: the first place at which the output leaves the reference.
    """

    prompt: int
    answer: int
    position: int
    first: bool
    expected: int | None
    token: int | None
    gap: float
    noise: float
    tolerance: float
    flips: bool
    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class Judge:
    """``exact``: no tolerance. ``noise``: the largest that was measured on this target. ``least``: a tolerance from outside."""

    exact: bool
    noise: float = 0.0
    least: float = 0.0

    def tolerance(self, position: Position, unit: float = 0.0) -> float:
        """``unit``: what a logit of this size may be off by, whatever the noise."""
        return 0.0 if self.exact else max(2 * position.noise, self.least, unit)

    def judge(self, position: Position, unit: float = 0.0) -> tuple[str, float, str]:
        """Verdict, tolerance, and why."""
        if position.token == position.best:
            return OK, 0.0, ""
        here = self.tolerance(position, unit)
        gap = f"gap {position.gap:.4g}"
        if self.exact:
            if position.best == NONE:
                return BUG, 0.0, "the options leave no token possible here"
            if position.gap == 0:
                return BUG, 0.0, "equal logits, but not the smallest id; in exact mode nothing may differ"
            return BUG, 0.0, f"{gap}; in exact mode nothing may differ"
        if position.gap <= here:
            bound = f"twice the noise {position.noise:.4g} at this position" if here <= 2 * position.noise else f"{here:.4g}"
            control = "; a draft-free pass flips it too" if position.flips else ""
            return TIE, here, f"{gap} within {bound}{control}"
        if position.reached:
            return TIE, here, f"{gap}, but changes of the logits within the noise {position.noise:.4g} give this token"
        if position.gap <= 2 * self.noise:
            return TIE, 2 * self.noise, f"{gap} within twice the largest noise {self.noise:.4g} of this run's draft-free passes"
        return BUG, max(here, 2 * self.noise), f"{gap} exceeds the tolerance {max(here, 2 * self.noise):.4g}"


def findings(
    judge: Judge,
    forced: Forced,
    reference: Sequence[int] | None = None,
    prompt: int = 0,
    answer: int = 0,
    units: Sequence[float] = (),
) -> list[Finding]:
    """What is wrong with an output, position by position; ``reference``: the output that it should equal.

    A first divergence is always told, even where the output follows the target and the reference does not.
    """
    output = [p.token for p in forced.positions]
    leaves = _leaves(output, reference) if reference is not None else None
    found = []
    for i, position in enumerate(forced.positions):
        verdict, tolerance, why = judge.judge(position, units[i] if units else 0.0)
        first = i == leaves
        if verdict == OK and not first:
            continue
        expected = position.best
        if first and reference is not None:
            expected = reference[i]
            if verdict == OK:
                verdict = BUG if judge.exact else TIE
                why = "this output follows the target here; the reference does not"
        found.append(
            Finding(
                prompt, answer, i, first, expected, position.token, position.gap, position.noise, tolerance, position.flips,
                verdict, why,
            )
        )  # fmt: skip
    return found


def _leaves(output: Sequence[int], reference: Sequence[int]) -> int | None:
    """First position at which two outputs hold different tokens."""
    return next((i for i, (a, b) in enumerate(zip(output, reference, strict=False)) if a != b), None)


def end(prompt: int, answer: int, position: int, why: str) -> Finding:
    """The end of an output is wrong: reason, length or text. No rounding explains that."""
    return Finding(prompt, answer, position, False, None, None, float("inf"), 0.0, 0.0, False, BUG, why)
