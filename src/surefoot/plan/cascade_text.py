"""A plan of cascades as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .text import aligned

if TYPE_CHECKING:
    from ..theory.arrivals import Rate
    from ..theory.schedule import Schedule
    from .cascades import BreakEven, CascadePlan


def table(plan: CascadePlan) -> str:
    return "\n".join([_head(plan), "", *_set(plan), "", *_grid(plan), "", *_facts(plan)])


def _head(plan: CascadePlan) -> str:
    cost = plan.cost
    if cost is None or cost.seconds is None:
        return "cascade · every target pass costs the same"
    wide = f"V({len(cost.seconds)}) = {cost.seconds[-1] / cost.seconds[0]:.2f}"
    return f"cascade · {cost.origin}: one token {cost.seconds[0] * 1e3:.3g} ms, {wide}"


def _set(plan: CascadePlan) -> list[str]:
    own = plan.drafters
    judges = [i for i in range(len(own.alphas)) if any(pair[0] == i for pair in own.inner)]
    cells = [["drafter", "c", "α of the target", *(f"α of {plan.names[i]}" for i in judges)]]
    for j, (name, alpha, c) in enumerate(zip(plan.names, own.alphas, own.costs, strict=True)):
        rates = [_rate(own.inner[i, j]) if (i, j) in own.inner else "-" for i in judges]
        cells.append([name, f"{c:.4g}", _rate(alpha), *rates])
    return aligned(cells)


def _rate(alpha: Rate) -> str:
    """Where it depends on the depth, that of the first and of the last known one."""
    if not isinstance(alpha, tuple):
        return f"{alpha:.3f}"
    return f"{alpha[0]:.3f}" if len(set(alpha)) == 1 else f"{alpha[0]:.2f}…{alpha[-1]:.2f}"


def _grid(plan: CascadePlan) -> list[str]:
    cells = [["kind", "drafters", "steps", "tokens", "cost", "speed-up"]]
    listed = [*plan.schedules, *plan.singles]
    for s in listed:
        figures = [f"{value:.3f}" for value in (s.tokens, s.cost, s.ewif)]
        cells.append([s.kind, drafters(plan, s), ",".join(map(str, s.steps)), *figures])
    first, *rest = aligned(cells)
    marks = ["  <- best cascade" if s is plan.best else "" for s in listed]
    marks = [m or ("  <- best alone" if s is plan.best_single else "") for m, s in zip(marks, listed, strict=True)]
    return [first, *(line + mark for line, mark in zip(rest, marks, strict=True))]


def drafters(plan: CascadePlan, found: Schedule) -> str:
    return (" + " if found.kind == "horizontal" else " > ").join(plan.names[i] for i in found.members)


def _facts(plan: CascadePlan) -> list[str]:
    alone = plan.best_single
    told = "plain decoding (no draft pays)" if alone.steps == (0,) else f"{plan.names[alone.members[0]]}, k = {alone.steps[0]}"
    out = [f"the best cascade against the best alone ({told}): {100 * plan.gain:+.1f} %"]
    return out + [_breaks(plan, b) for b in plan.breaks]


def _breaks(plan: CascadePlan, found: BreakEven) -> str:
    top, bottom = plan.names[found.members[0]], plan.names[found.members[-1]]
    name = " > ".join(plan.names[i] for i in found.members)
    parts = [
        f"{rival} while c of {top} < {limit:.3f}" if limit > 0 else f"{rival} at no c of {top}"
        for rival, limit in (("plain decoding", found.over_plain), (f"{bottom} alone", found.over_bottom))
    ]
    return f"{name} beats {' and '.join(parts)}; it is {found.c:.4g}"
