"""A plan as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import Plan
    from .tables import Section

_NAMES = {
    "speedup": "speed-up",
    "speedup_if_flat": "if width were free",
    "ms_per_token": "ms/token",
    "synchronous_tokens": "in step: tokens",
    "synchronous_speedup": "speed-up in step",
    "as_chains": "tokens as chains",
}


def table(plan: Plan) -> str:
    """All tables, each with its facts."""
    return "\n\n".join([_head(plan), *(_section(plan, s) for s in plan.sections)])


def _head(plan: Plan) -> str:
    inputs = plan.inputs
    parts = [inputs.method]
    cost = inputs.cost
    if cost is None:
        parts.append("every pass costs the same, each level has its c")
    elif cost.seconds is None:
        parts.append(f"c = {cost.c:g}, every pass costs the same")
    else:
        last = len(cost.seconds)
        wide = f"V({last}) = {cost.seconds[-1] / cost.seconds[0]:.2f}"
        parts.append(f"{cost.origin}: one token {cost.seconds[0] * 1e3:.3g} ms, {wide}, c = {cost.c:.3g}")
        parts += [f"up to {value:.0f} tokens a pass are free" for name, value in cost.facts if name == "free_tokens"]
    return " · ".join(parts)


def _section(plan: Plan, section: Section) -> str:
    lines = [section.title, *_positions(section)]
    lines += _grid(section.rows, section.best)
    lines += _facts(plan, section)
    return "\n".join(lines)


def _positions(section: Section) -> list[str]:
    rate = section.rate
    if rate is None or rate.estimate is None:
        return []
    e = rate.estimate
    lines = [f"α = {e.value:.3f}, 95 % interval {e.low:.3f} to {e.high:.3f}, {e.trials} trials"]
    cells = [["position", "stays", "95 %", "trials", "reach", "95 %"]]
    for i, (a, r) in enumerate(zip(rate.positions, rate.reach, strict=True), 1):
        own = "unknown" if not a.trials else f"{a.value:.3f}"
        reach = "unknown" if not a.trials else f"{r.value:.3f}"
        cells.append([str(i), own, f"{a.low:.3f}-{a.high:.3f}", str(a.trials), reach, f"{r.low:.3f}-{r.high:.3f}"])
    return [*lines, *aligned(cells), ""]


def _grid(rows: Sequence[dict[str, Any]], best: dict[str, Any]) -> list[str]:
    names = list(rows[0])
    two = {"steps_1": "n", "steps_2": "k"} if "steps_3" not in names else {}
    cells = [[two.get(name) or _NAMES.get(name) or name.replace("_", " ") for name in names]]
    cells += [[_number(row[name]) for name in names] for row in rows]
    lines = aligned(cells)
    return [lines[0], *(line + ("  <- best" if row is best else "") for line, row in zip(lines[1:], rows, strict=True))]


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]


def _number(value: float | int | None) -> str:
    if value is None or not math.isfinite(value):
        return "none"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _facts(plan: Plan, section: Section) -> list[str]:
    method = plan.inputs.method
    if method == "tree":
        return _tree(section)
    if method in ("cascade", "horizontal"):
        return _levels(section)
    return _batch(section) if plan.inputs.rows > 1 else _chain(plan, section)


def _chain(plan: Plan, section: Section) -> list[str]:
    facts, best = section.facts, section.best
    out = []
    if best["k"] == 0:
        out.append("no draft pays here: decode plainly")
    elif best["k"] == plan.inputs.most:
        out.append(f"the best length is the longest that was tried ({plan.inputs.most}); raise --max-draft to look further")
    if section.rate is not None and section.rate.drafted is not None and section.rate.drafted < 1.0:
        share = f"{section.rate.drafted:.0%} of the passes had a draft"
        out.append(f"{share}; with as many, a run at the best length has a speed-up of {facts['speedup_of_run']:.3f}")
    pays = facts["break_even_c"]
    out.append("drafting pays at no cost of a draft" if pays is None or pays <= 0 else f"drafting pays while c < {pays:.3f}")
    if plan.inputs.cost is not None and plan.inputs.cost.c > 0:
        exact, real, printed = facts["gamma_exact"], facts["gamma_continuous"], facts["gamma_printed"]
        parts = [
            f"exact {'endless' if exact is None else exact}",
            f"continuous {_number(real)}",
            f"as often printed {_number(printed)}",
        ]
        loss = facts["gamma_printed_loss"]
        if loss is not None:
            parts[-1] += f", which gives away {100 * loss:.1f} %"
        out.append(f"γ* at constant cost: {'; '.join(parts)}")
    return out


def _batch(section: Section) -> list[str]:
    f = section.facts
    alone, locked = f["rounds_to_finish"], f["rounds_to_finish_synchronous"]
    return [
        f"rows in step are best at k = {f['best_k_synchronous']}",
        f"until every row has 128 tokens, at k = {section.best['k']}: {alone:.1f} rounds, in step {locked:.1f}",
    ]


def _tree(section: Section) -> list[str]:
    f, tree = section.facts, section.tree
    out = [f"best chain: k = {f['best_chain_k']}, speed-up {f['best_chain_speedup']:.3f}"]
    if tree is not None and tree.parents:
        out.append(f"best tree, parent of each node: {' '.join(str(p) for p in tree.parents)}")
    return out


def _levels(section: Section) -> list[str]:
    f = section.facts
    out = []
    if "single_k" in f:
        out.append(f"first level alone: {f['single_k']} tokens, speed-up {f['single_speedup']:.3f}")
    else:
        out.append(f"best level alone: {f['single_level']}, speed-up {f['single_speedup']:.3f}")
    if "light_speedup" in f:
        out.append(f"lightest level alone: {f['light_k']} tokens, speed-up {f['light_speedup']:.3f}")
    if "given_speedup" in f:
        out.append(f"with the steps as given: speed-up {f['given_speedup']:.3f}")
    if "best_first" in f:
        out.append(f"best lengths: {f['best_first']} and {f['best_second']}, speed-up {f['best_speedup']:.3f}")
    gain = f.get("gain_over_single")
    if gain is not None:
        out.append(f"the best cascade against the best single level: {100 * gain:+.1f} %")
    return out
