"""Maps: the best speed-up over acceptance and cost, and the gain of a two-level cascade over its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from ..theory import cascade as theory
from ..theory import gamma, speedup
from ..theory.cascade import Level
from ..theory.checks import Array
from .canvas import axes, figure, legend, shorten
from .costs import Cost

if TYPE_CHECKING:
    from .run import Plan

ALPHAS = np.linspace(0.02, 0.98, 97)
COSTS = np.geomspace(0.005, 1.0, 61)
LONGEST = 200
"""At constant cost no best length of the map is longer."""
_LINES = (1, 2, 3, 5, 8, 12, 20, 40)


def best(plan: Plan) -> Figure:
    """The best speed-up over alpha and c, with the lines from which the best length is at least 1, 2, 3, …"""
    cost = plan.inputs.cost
    assert cost is not None
    kind = "constant cost of a pass" if cost.seconds is None else f"{shorten(cost.origin, 32)}, γ up to {plan.inputs.most}"
    gains = _gains(cost, plan.inputs.most)
    gain = gains.max(0)
    made = figure(7.5, 5.4)
    own = axes(made, f"Best speed-up and draft length γ* ({kind})", "acceptance rate α", "cost of a drafted token c (passes)")
    own.set_yscale("log")
    # beyond the upper end the colour stays: one corner must not take all colours
    top = float(np.quantile(gain, 0.97))
    drawn = own.pcolormesh(
        ALPHAS, COSTS, gain, cmap="viridis", shading="gouraud", vmin=1.0, vmax=max(top, 1.01), rasterized=True
    )
    made.colorbar(drawn, ax=own, label="best speed-up over plain decoding (×)", extend="max" if top < gain.max() else "neither")
    for k in _LINES:
        if k < len(gains):
            ahead = gains[k:].max(0) - gains[:k].max(0)  # above 0: the best length is k or more
            if ahead.min() < 0.0 < ahead.max():
                line = own.contour(ALPHAS, COSTS, ahead, levels=[0.0], colors="white", linewidths=1.0)
                own.clabel(line, fmt=f"γ* ≥ {k}", fontsize=8, inline=True)
    at = float(np.clip(cost.c, COSTS[0], COSTS[-1]))
    marker, name = (
        ("o", "what is planned") if at == cost.c else ("v" if cost.c < at else "^", "what is planned, beyond the map")
    )
    point: dict[str, Any] = {"color": "#d1495b", "markersize": 9, "markeredgecolor": "white", "clip_on": False}
    alphas = [section.rate.alpha for section in plan.sections if section.rate is not None]
    own.plot(np.clip(alphas, ALPHAS[0], ALPHAS[-1]), [at] * len(alphas), marker, label=name, linestyle="none", **point)
    own.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    own.yaxis.set_minor_formatter(NullFormatter())
    own.set_xlim(ALPHAS[0], ALPHAS[-1])
    own.grid(visible=False)
    legend(made, own)
    return made


def _gains(cost: Cost, most: int) -> Array:
    """Speed-up at each draft length, c and alpha [K+1, C, A]."""
    if cost.seconds is None:
        return speedup.speedup(ALPHAS, np.arange(LONGEST + 1)[:, None, None], COSTS[:, None])
    out = np.zeros((most + 1, len(COSTS), len(ALPHAS)))
    for j, alpha in enumerate(ALPHAS):
        tokens = gamma.tokens_at(float(alpha), most)
        for i, c in enumerate(COSTS):
            out[:, i, j] = speedup.speedup_measured(tokens, float(c), cost.curve)
    return out


def cascade(plan: Plan) -> Figure:
    """EWIF of a two-level cascade over its best single level, for every number of steps."""
    [section] = plan.sections
    first, second = plan.inputs.levels
    steps = np.arange(1, plan.inputs.most + 1)
    single = section.best["speedup"] / (1.0 + float(section.facts["gain_over_single"] or 0.0))
    gain = np.array(
        [
            [theory.ewif([Level(first.alpha, int(n), first.c), Level(second.alpha, int(k), second.c)]) for n in steps]
            for k in steps
        ]
    )
    share = gain / single
    made = figure(7.5, 5.8)
    n, k = int(section.best["steps_1"]), int(section.best["steps_2"])
    levels = f"α = {first.alpha:g}, c = {first.c:g} over α = {second.alpha:g}, c = {second.c:g}"
    title = (
        f"Cascade against the best single level ({single:.2f}×): {section.best['speedup']:.2f}× at n = {n}, k = {k}\n{levels}"
    )
    own = axes(made, title, "n: steps of the reviewing drafter a pass", "k: tokens of the light drafter a step")
    low, high = min(0.98, float(share.min())), max(1.02, float(share.max()))
    norm = TwoSlopeNorm(1.0, low, high)
    drawn = own.pcolormesh(steps, steps, share, cmap="RdBu", norm=norm, shading="nearest", rasterized=True)
    ticks = [*np.linspace(low, 1.0, 4), *np.linspace(1.0, high, 4)[1:]]
    label = "speed-up of the cascade over that of the single level"
    made.colorbar(drawn, ax=own, label=label, ticks=ticks, format="%.2f")
    own.plot(n, k, "*", color="white", markersize=17, markeredgecolor="black")
    for axis in (own.xaxis, own.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    own.grid(visible=False)
    return made
