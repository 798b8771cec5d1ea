"""Lines and trees: speed-up by length, the frontier of the best length, batches, trees, horizontal cascades."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from ..theory import cascade, gamma, simulate
from ..theory.checks import Array
from .canvas import COLOURS, PLAIN, axes, figure, label, legend, shorten

if TYPE_CHECKING:
    from .run import Plan
    from .tables import Section

ROUNDS, RUNS = 100, 400
"""Monte Carlo: passes of a run, and runs."""
_COSTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def speedup(plan: Plan) -> Figure:
    """Speed-up against the draft length: prediction, the same at constant cost, where runs of 100 passes fall."""
    cost = plan.inputs.cost
    assert cost is not None
    measured = cost.seconds is not None
    made = figure()
    own = axes(made, f"Speed-up by draft length ({_cost(plan)})", "draft length γ (tokens)", "speed-up over plain decoding (×)")
    for section, colour in _coloured(plan):
        k, gain = _column(section, "k"), _column(section, "speedup")
        low, high = band(section, plan.inputs.most)
        own.fill_between(k, low, high, color=colour, alpha=0.15, linewidth=0)
        own.plot(k, gain, color=colour, marker="o", markersize=4, label=_name(section))
        if measured:
            own.plot(k, _column(section, "speedup_if_flat"), color=colour, linestyle="--", linewidth=1.2)
        own.plot(section.best["k"], section.best["speedup"], "*", color=colour, markersize=15, markeredgecolor="white")
    own.plot([], [], "*", color=PLAIN, markersize=11, label="best length")
    own.fill_between([], [], [], color=PLAIN, alpha=0.25, linewidth=0, label=f"90 % of runs of {ROUNDS} passes")
    if measured:
        own.plot([], [], color=PLAIN, linestyle="--", linewidth=1.2, label="if a wider pass cost no more")
    _plain(own)
    own.xaxis.set_major_locator(MaxNLocator(integer=True))
    own.set_xlim(-0.03 * plan.inputs.most, 1.03 * plan.inputs.most)
    legend(made, own, 3)
    return made


def band(section: Section, most: int) -> tuple[Array, Array]:
    """5 and 95 % of the speed-up of simulated runs, by length."""
    assert section.rate is not None
    rng = np.random.default_rng(0)
    chances = section.rate.chances(most)
    low, high = [], []
    for row in section.rows:
        made = simulate.accepted(rng, chances[: int(row["k"])], ROUNDS * RUNS).reshape(RUNS, ROUNDS).mean(1) + 1.0
        bounds = np.quantile(made, [0.05, 0.95]) * row["speedup"] / row["tokens"]
        low.append(bounds[0])
        high.append(bounds[1])
    return np.array(low), np.array(high)


def frontier(plan: Plan) -> Figure:
    """The best length against alpha, for several costs of a drafted token."""
    cost, most = plan.inputs.cost, plan.inputs.most
    assert cost is not None
    alphas = np.linspace(0.0, 0.97, 195)
    costs = sorted({*_COSTS, float(f"{cost.c:.2g}")} - {0.0}) if cost.seconds is None else sorted({0.0, *_COSTS})
    made = figure()
    limit = "" if cost.seconds is None else f", γ up to {most}"
    title = f"Best draft length ({_cost(plan, c=False)}{limit})"
    own = axes(made, title, "acceptance rate α", "best draft length γ* (tokens)")
    for i, c in enumerate(costs):
        if cost.seconds is None:
            best = [gamma.optimal_gamma(float(a), c) for a in alphas]
        else:
            best = [gamma.optimal_gamma_measured(gamma.tokens_at(float(a), most), c, cost.curve) for a in alphas]
        own.step(alphas, best, where="post", color=COLOURS[i % len(COLOURS)], linewidth=1.8, label=f"c = {c:g}")
    own.set_yscale("symlog", linthresh=1, linscale=0.5)
    top = max(2.0, own.get_ylim()[1])
    named = (0, 1, 2, 3, 4, 6, 8, 12, 20, 40, 80, 150)
    ticks = [t for t in named if t <= top]
    own.set_yticks(ticks, [str(t) for t in ticks])
    own.yaxis.set_minor_locator(NullLocator())
    own.set_ylim(-0.15, top)
    own.set_xlim(0, 1)
    legend(made, own, 4)
    return made


def batch(plan: Plan) -> Figure:
    """Speed-up of a batch whose rows go on by themselves, and of one whose rows advance in step."""
    made = figure()
    title = f"Speed-up of a batch of {plan.inputs.rows} rows ({_cost(plan)})"
    own = axes(made, title, "draft length γ (tokens a row)", "speed-up over plain decoding of the batch (×)")
    for section, colour in _coloured(plan):
        k, name = _column(section, "k"), _name(section)
        own.plot(k, _column(section, "speedup"), color=colour, marker="o", markersize=4, label=f"{name}: each by itself")
        step = _column(section, "synchronous_speedup")
        own.plot(k, step, color=colour, marker="s", markersize=4, linestyle="--", label=f"{name}: in step")
    _plain(own)
    own.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(made, own)
    return made


def tree(plan: Plan) -> Figure:
    """Expected tokens and speed-up by the number of nodes, and the best tree."""
    [section] = plan.sections
    made = figure(11.0, 5.6)
    made.set_layout_engine("constrained", wspace=0.06)
    grid = made.add_gridspec(2, 2, width_ratios=(1.0, 1.25))
    n = _column(section, "nodes")
    upper = made.add_subplot(grid[0, 0])
    upper.plot(n, _column(section, "tokens"), color=COLOURS[0], marker="o", markersize=3)
    label(upper, "Expected tokens a pass", "", "tokens")
    lower = made.add_subplot(grid[1, 0], sharex=upper)
    lower.plot(n, _column(section, "speedup"), color=COLOURS[1], marker="o", markersize=3)
    lower.plot(section.best["nodes"], section.best["speedup"], "*", color=COLOURS[1], markersize=15, markeredgecolor="white")
    _plain(lower)
    label(lower, f"Speed-up ({_cost(plan)})", "nodes of the tree", "speed-up (×)")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    _draw(made.add_subplot(grid[:, 1]), section)
    return made


def _draw(own: Axes, section: Section) -> None:
    """Leaves side by side, a node above the middle of its children; the darker, the likelier."""
    best = section.tree
    assert best is not None
    depth = best.depths()
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(best.parents):
        children.setdefault(parent, []).append(node)
    places: dict[int, float] = {}
    for node in _below(children, -1):  # children before their parents
        own_children = children.get(node)
        leaves = sum(1 for done in places if done not in children)
        places[node] = float(np.mean([places[c] for c in own_children])) if own_children else float(leaves)
    for node, parent in enumerate(best.parents):
        above = 0 if parent < 0 else depth[parent]
        own.plot([places[parent], places[node]], [above, depth[node]], color="#999999", linewidth=1.0, zorder=1)
    points = [(places[i], depth[i]) for i in range(len(depth))]
    if points:
        x, y = zip(*points, strict=True)
        size = min(110.0, 1500.0 / max(depth.count(d) for d in depth))
        drawn = own.scatter(x, y, c=best.reach, cmap="viridis_r", vmin=0.0, vmax=1.0, s=size, edgecolors="white", zorder=2)
        own.figure.colorbar(drawn, ax=own, label="chance that the node is accepted", shrink=0.85)
    own.plot(places[-1], 0, "s", color="black", markersize=10)
    own.annotate("pending token", (places[-1], 0), xytext=(10, 6), textcoords="offset points", fontsize=9)
    title = f"The best tree: {len(depth)} nodes, {best.tokens:.2f} tokens a pass" if depth else "No tree pays: decode plainly"
    label(own, title, "", "depth (drafted tokens)")
    own.set_ylim(max(depth, default=1) + 0.4, -0.5)
    own.margins(x=0.08)
    own.set_xticks([])
    own.yaxis.set_major_locator(MaxNLocator(integer=True))
    own.grid(visible=False)


def _below(children: dict[int, list[int]], root: int) -> list[int]:
    """Nodes of a tree, each after its children, in order from left to right."""
    out: list[int] = []
    stack: list[tuple[int, bool]] = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done or node not in children:
            out.append(node)
            continue
        stack.append((node, True))
        stack += [(child, False) for child in reversed(children[node])]
    return out


def horizontal(plan: Plan) -> Figure:
    """Speed-up by the number of drafted tokens; later ones come from lighter drafters."""
    [section] = plan.sections
    made = figure()
    own = axes(made, "Speed-up of a horizontal cascade", "drafted tokens", "speed-up over plain decoding (×)")
    k, gain, which = _column(section, "k"), _column(section, "speedup"), _column(section, "level")
    for i, level in enumerate(plan.inputs.levels, 1):
        at = np.flatnonzero(which == i)
        line = np.concatenate([at[:1] - 1, at]) if len(at) else at
        own.plot(
            k[line],
            gain[line],
            color=COLOURS[(i - 1) % len(COLOURS)],
            marker="o",
            label=f"α = {level.alpha:g}, c = {level.c:g}",
        )
    own.plot(section.best["k"], section.best["speedup"], "*", color="black", markersize=13, label="best")
    _plain(own)
    own.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(made, own, 3)
    return made


def levels(plan: Plan) -> Figure:
    """A vertical cascade of other than two levels: speed-up with the first, the first two, … of them."""
    [section] = plan.sections
    own_levels = plan.inputs.levels
    made = figure()
    own = axes(made, "Speed-up of a vertical cascade by its depth", "levels of the cascade", "speed-up over plain decoding (×)")
    depth = np.arange(1, len(own_levels) + 1)
    gain = [cascade.ewif(own_levels[:n]) for n in depth]
    own.bar(depth, gain, width=0.55, color=COLOURS[0], label="steps as given")
    single = section.facts["single_speedup"]
    assert single is not None
    own.axhline(single, color=COLOURS[1], linestyle="--", label=f"first level alone, {section.facts['single_k']} tokens")
    _plain(own)
    own.set_xticks(depth)
    own.set_ylim(0, 1.15 * max(*gain, single, 1.0))
    legend(made, own, 3)
    return made


def _coloured(plan: Plan) -> Any:
    return zip(plan.sections, [COLOURS[i % len(COLOURS)] for i in range(len(plan.sections))], strict=True)


def _name(section: Section) -> str:
    assert section.rate is not None
    return f"α = {section.rate.alpha:.3g}{'' if section.rate.estimate is None else ' (log)'}"


def _column(section: Section, name: str) -> Array:
    return np.array([row[name] for row in section.rows])


def _plain(own: Axes) -> None:
    own.axhline(1.0, color=PLAIN, linewidth=1.0, linestyle=":", label="plain decoding")


def _cost(plan: Plan, c: bool = True) -> str:
    cost = plan.inputs.cost
    assert cost is not None
    kind = "constant cost of a pass" if cost.seconds is None else shorten(cost.origin, 32)
    return f"{kind}, c = {cost.c:.2g}" if c else kind
