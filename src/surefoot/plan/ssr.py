"""``plan_ssr``: what a fork that drafts the answer gains while a request thinks, when it is best made, and whether it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..errors import BadRequest, SurefootError
from ..theory import ssr
from ..theory.foreseen import LONGEST
from ..theory.ssr import Latency, Setting
from .costs import Cost, Source, settle
from .tables import finite

Points = Sequence[tuple[float, float]]
"""(share of the thought behind which a fork is made, overlap of its draft with the answer)."""
_STAGES = ("thought", "exposed", "verify", "continuation")
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Row:
    """One budget: the expected costs over all thoughts, in passes of one token."""

    budget: int
    overlap: float
    mean: Latency

    def to_dict(self, unit: float | None) -> dict[str, Any]:
        found = self.mean
        told: dict[str, Any] = {"budget": self.budget, "overlap": self.overlap, "chain": found.chain}
        told |= {"drafted": list(found.drafted), "accepted": found.accepted, "prefix": found.prefix}
        costs = {name: getattr(found, name) for name in ("plain", "without", *_STAGES, "hidden", "total")}
        told |= {"passes": costs, "gain": found.gain, "gain_over_plain": found.gain_over_plain}
        return told if unit is None else told | {"seconds": {name: unit * value for name, value in costs.items()}}


@dataclass(frozen=True, slots=True)
class SsrPlan:
    """``rows``: by budget, rising; ``best``: that of the largest gain, or the one that was asked for; ``cost``: None, all 1."""

    setting: Setting
    thoughts: tuple[int, ...]
    cost: Cost | None
    rows: tuple[Row, ...]
    best: Row
    given: bool
    break_even: float | None
    warnings: tuple[str, ...] = ()

    @property
    def pays(self) -> bool:
        return self.best.mean.gain > 0.0

    @property
    def unit(self) -> float | None:
        """Seconds of a pass over one token."""
        return None if self.cost is None or self.cost.seconds is None else self.cost.seconds[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        own = self.setting
        asked = {f.name: getattr(own, f.name) for f in fields(own) if f.name not in ("thought", "budget", "overlap")}
        found: dict[str, Any] = {
            "method": "ssr",
            "thoughts": list(self.thoughts),
            "setting": asked,
            "cost": None if self.cost is None else self.cost.to_dict(),
            "budgets": [row.to_dict(self.unit) for row in self.rows],
            "best": self.best.to_dict(self.unit),
            "budget_given": self.given,
            "pays": self.pays,
            "break_even_overlap": self.break_even,
            "warnings": list(self.warnings),
        }
        checked: dict[str, Any] = finite(found)
        return checked

    def table(self) -> str:
        from .ssr_text import table

        return table(self)


def plan_ssr(
    thought: int | Sequence[int],
    answer: int,
    overlap: float | Points,
    *,
    budget: int | None = None,
    draft: int = 500,
    interval: int | None = None,
    drafts: int | None = None,
    recovery: float = 1.0,
    suffix: bool = True,
    chain: int | None = None,
    tokens: float = 1.0,
    width: int = 1,
    force: int = 4,
    cost: Source | None = None,
) -> SsrPlan:
    """Plan self-speculation for requests that think and then answer.

    thought   tokens of thought; several: lengths that are equally likely
    answer    tokens of the answer
    overlap   share of the answer that a draft foresees; or points (share of the thought, overlap) of a curve
    budget    tokens of thought before the fork (default: the best)
    draft     most tokens of a draft
    interval  tokens of thought between further forks, ``drafts`` in all (4)
    recovery  tokens said behind a difference before the draft is found again
    suffix    whether it is found again at all
    chain     drafted tokens of a pass (default: the best)
    tokens    tokens that a pass gives without SSR; ``width``: tokens that a row's pass has at least
    force     tokens that end the fork's thought
    cost      seconds of passes over m tokens (default: all the same)
    """
    try:
        lengths = [thought] if isinstance(thought, int) else list(thought)
        if not lengths or min(lengths) < 1:
            raise BadRequest(f"--thought {thought!r}: give one or more numbers of tokens, from 1 up")
        curve = overlap if isinstance(overlap, int | float) else _curve(overlap)
        if drafts is not None and interval is None and drafts > 1:
            raise BadRequest(f"--max-drafts {drafts} needs --interval, the tokens of thought between two drafts")
        many = 1 if interval is None else 4 if drafts is None else drafts
        own = Setting(
            max(lengths),
            answer,
            curve,
            0 if budget is None else budget,
            draft=draft,
            interval=interval,
            drafts=many,
            recovery=recovery,
            suffix=suffix,
            chain=chain,
            tokens=tokens,
            width=width,
            force=force,
        )
        settled, own, warnings = _settle(cost, own)
        return _plan(own, tuple(lengths), settled, budget, warnings)
    except SurefootError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"{error}; correct it") from None


def _plan(own: Setting, thoughts: tuple[int, ...], cost: Cost | None, given: int | None, warnings: Sequence[str]) -> SsrPlan:
    curve = _flat if cost is None else cost.curve
    found, _ = (given, 0.0) if given is not None else ssr.best_budget(own, curve, thoughts)
    budgets = sorted({found, *(round(own.thought * share) for share in _SHARES)})
    rows = [_row(replace(own, budget=b), thoughts, curve) for b in budgets]
    best = next(row for row in rows if row.budget == found)
    if given is not None and given >= min(thoughts):
        warnings = [*warnings, f"--draft-budget {given} is not below every thought: those that are shorter are not forked"]
    at = replace(own, budget=found, thought=round(float(np.mean(thoughts))))
    even = ssr.break_even(at, curve) if found < at.thought else None
    return SsrPlan(own, thoughts, cost, tuple(rows), best, given is not None, even, tuple(warnings))


def _row(own: Setting, thoughts: Sequence[int], curve: Any) -> Row:
    each = [ssr.latency(replace(own, thought=n), curve) for n in thoughts]
    means = {
        f.name: float(np.mean([getattr(e, f.name) for e in each]))
        for f in fields(Latency)
        if f.name not in ("drafted", "chain")
    }
    most = max(len(e.drafted) for e in each)
    drafted = tuple(float(np.mean([e.drafted[i] if i < len(e.drafted) else 0.0 for e in each])) for i in range(most))
    share = float(np.mean([own.foreseen(min(1.0, own.budget / n)) for n in thoughts]))
    return Row(own.budget, share, Latency(**means, drafted=drafted, chain=max(e.chain for e in each)))


def _flat(m: int) -> float:
    return 1.0


def _curve(points: Points) -> Any:
    """Straight lines between points, level beyond them."""
    at = [float(x) for x, _ in points]
    if not at or sorted(set(at)) != at or at[0] < 0.0 or at[-1] > 1.0:
        raise BadRequest(
            "--overlap needs points of rising shares of the thought, from 0 to 1; write them as 0:0.2,0.5:0.6,1:0.9"
        )
    values = [float(y) for _, y in points]
    return lambda share: float(np.interp(share, at, values))


def _settle(source: Source | None, own: Setting) -> tuple[Cost | None, Setting, list[str]]:
    """The curve as far as it is needed, and the setting with the longest chain that it knows where none is given."""
    if source is None:
        return None, own, []
    if source.limit is not None and own.widest > source.limit:
        most = source.limit - own.width - 1
        least = replace(own, chain=max(0, min(LONGEST, most))) if own.chain is None else own
        if least.widest > source.limit:
            known = f"{source.origin} has the seconds of 1 … {source.limit} tokens"
            raise BadRequest(
                f"{known}, and {least.widest} are needed; give more of them, or lower --chain, --width or --force-tokens"
            )
        own = least
    cost, warnings = settle(source, own.widest, None)
    return cost, own, warnings
