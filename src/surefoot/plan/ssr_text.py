"""A plan of self-speculation as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .text import aligned

if TYPE_CHECKING:
    from .ssr import Row, SsrPlan


def table(plan: SsrPlan) -> str:
    return "\n".join([_head(plan), "", *_grid(plan), "", *_facts(plan)])


def _head(plan: SsrPlan) -> str:
    own, cost = plan.setting, plan.cost
    thought = "/".join(map(str, plan.thoughts))
    parts = ["ssr", f"{thought} tokens of thought, {own.answer} of answer"]
    if cost is None or cost.seconds is None:
        parts.append("every pass costs the same; costs in passes")
    else:
        one, two = cost.seconds[own.width - 1], cost.seconds[2 * own.width - 1]
        parts.append(f"{cost.origin}: a pass {one * 1e3:.3g} ms, with a fork {100 * (two / one - 1):+.1f} %; costs in seconds")
    if own.tokens > 1:
        parts.append(f"{own.tokens:g} tokens a pass without ssr")
    return " · ".join(parts)


def _grid(plan: SsrPlan) -> list[str]:
    unit, places = (1.0, 1) if plan.unit is None else (plan.unit, 3)
    cells = [["budget", "overlap", "drafted", "k", "thought", "fork adds", "hidden", "verify", "rest", "total", "gain"]]
    for row in plan.rows:
        m = row.mean
        drafted = "+".join(f"{n:.0f}" for n in m.drafted) or "none"
        costs = (m.thought, m.exposed, m.hidden, m.verify, m.continuation, m.total)
        figures = [f"{unit * value:.{places}f}" for value in costs]
        cells.append([str(row.budget), f"{row.overlap:.2f}", drafted, str(m.chain), *figures, f"{100 * m.gain:+.1f} %"])
    first, *rest = aligned(cells)
    mark = "  <- as given" if plan.given else "  <- best"
    return [first, *(line + (mark if row is plan.best else "") for line, row in zip(rest, plan.rows, strict=True))]


def _facts(plan: SsrPlan) -> list[str]:
    best = plan.best
    m = best.mean
    unit, name = (1.0, "passes") if plan.unit is None else (plan.unit, "s")
    sides = f"without ssr {unit * m.without:.4g} {name}; with it {unit * m.total:.4g}"
    out = [f"{sides}: {100 * m.gain:+.1f} % of the latency is saved"]
    if plan.setting.tokens > 1:
        out.append(f"against plain decoding: {100 * m.gain_over_plain:+.1f} %")
    out.append(_when(plan, best))
    if plan.break_even is None:
        out.append("at this budget it pays at no overlap")
    else:
        out.append(f"at this budget it pays from an overlap of {plan.break_even:.2f} on; it is {best.overlap:.2f}")
    return out


def _when(plan: SsrPlan, best: Row) -> str:
    if not plan.pays:
        return "forking does not pay here: leave it out"
    wanted = min(plan.setting.draft, plan.setting.answer)
    drafted = max(best.mean.drafted, default=0.0)
    ready = (
        "the draft is ready when the thought ends"
        if drafted >= wanted - 0.5
        else f"the thought ends behind {drafted:.0f} of its {wanted} tokens"
    )
    return f"fork behind {best.budget} tokens of thought: {ready}"
