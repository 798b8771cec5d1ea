"""Inputs to tables: a row a draft length (or tree size, or cascade), the best of them, and the facts around it.

Every number comes from :mod:`surefoot.theory`; nothing here knows how it is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..theory import batch, cascade, gamma, speedup, tree_plan
from ..theory.cascade import Level
from .costs import Cost
from .inputs import Acceptance, Inputs

Row = dict[str, float | int]
FINISH = 128
"""Tokens a row of a batch for which the rounds are counted."""


@dataclass(frozen=True, slots=True)
class Section:
    """One table. ``best`` is one of ``rows``; ``tree`` only of trees: parents, rank and reach of the best one."""

    title: str
    rows: tuple[Row, ...]
    best: Row
    facts: dict[str, float | int | None]
    rate: Acceptance | None = None
    tree: tree_plan.Tree | None = None

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"title": self.title}
        if self.rate is not None:
            found["acceptance"] = self.rate.to_dict()
        found |= {"rows": [dict(row) for row in self.rows], "best": dict(self.best), **self.facts}
        if self.tree is not None:
            found["tree"] = {"parents": list(self.tree.parents), "rank": list(self.tree.rank), "reach": list(self.tree.reach)}
        return found


def sections(inputs: Inputs) -> tuple[Section, ...]:
    if inputs.method == "tree":
        return (_tree(inputs),)
    if inputs.method == "cascade":
        return (_vertical(inputs),)
    if inputs.method == "horizontal":
        return (_horizontal(inputs),)
    return tuple((_batch if inputs.rows > 1 else _chain)(inputs, rate) for rate in inputs.rates)


def _chain(inputs: Inputs, rate: Acceptance) -> Section:
    cost = _known(inputs)
    tokens = rate.tokens(inputs.most)
    gain = speedup.speedup_measured(tokens, cost.c, cost.curve)
    rows: list[Row] = [{"k": k, "tokens": float(tokens[k]), "speedup": float(gain[k])} for k in range(inputs.most + 1)]
    if cost.seconds is not None:
        ms = speedup.seconds_per_token(tokens, cost.c * cost.seconds[0], cost.curve) * 1e3
        flat = speedup.speedup_measured(tokens, cost.c, Cost("c", cost.c).curve)
        for row, own, slow in zip(rows, flat, ms, strict=True):
            row |= {"speedup_if_flat": float(own), "ms_per_token": float(slow)}
    best = rows[gamma.optimal_gamma_measured(tokens, cost.c, cost.curve)]
    pays = speedup.break_even_measured(tokens, cost.curve) if inputs.most else 0.0
    flat_pays = float(speedup.break_even(rate.alpha))
    facts: dict[str, float | int | None] = {"break_even_c": pays if cost.seconds is not None else flat_pays}
    if rate.drafted is not None:
        facts["speedup_of_run"] = speedup.speedup_of_run(rate.drafted, best["tokens"], best["speedup"])
    return Section(rate.name, tuple(rows), best, facts | _optimum(rate.alpha, cost.c), rate)


def _optimum(alpha: float, c: float) -> dict[str, float | int | None]:
    """The optima of a constant cost, which need no longest draft; None where there is none."""
    if c <= 0.0:
        return {"gamma_exact": None, "gamma_continuous": None, "gamma_printed": None, "gamma_printed_loss": None}
    endless = alpha == 1.0
    inner = 0.0 < alpha < 1.0
    return {
        "gamma_exact": None if endless and c < 1.0 else gamma.optimal_gamma(alpha, c),
        "gamma_continuous": gamma.continuous_gamma(alpha, c) if inner else None,
        "gamma_printed": None if endless else gamma.gamma_seed_approximation(alpha, c),
        "gamma_printed_loss": None if endless else gamma.seed_loss(alpha, c),
    }


def _batch(inputs: Inputs, rate: Acceptance) -> Section:
    cost, b = _known(inputs), inputs.rows
    rows: list[Row] = [
        {
            "k": k,
            "tokens": batch.ragged_tokens(rate.alpha, k),
            "speedup": batch.batch_speedup(rate.alpha, k, cost.c, b, cost.curve),
            "synchronous_tokens": batch.synchronous_tokens(rate.alpha, k, b),
            "synchronous_speedup": batch.batch_speedup(rate.alpha, k, cost.c, b, cost.curve, ragged=False),
        }
        for k in range(inputs.most + 1)
    ]
    best = _best(rows)
    locked = _best(rows, "synchronous_speedup")
    facts: dict[str, float | int | None] = {
        "rows_in_batch": b,
        "best_k_synchronous": locked["k"],
        "rounds_to_finish": batch.rounds_to_finish(rate.alpha, int(best["k"]), b, FINISH),
        "rounds_to_finish_synchronous": batch.rounds_to_finish(rate.alpha, int(best["k"]), b, FINISH, ragged=False),
    }
    return Section(f"{rate.name}, {b} rows", tuple(rows), best, facts, rate)


def _tree(inputs: Inputs) -> Section:
    cost = _known(inputs)
    whole = tree_plan.greedy(inputs.chances, inputs.most, inputs.depth)
    # the greedy tree of n nodes is the first n nodes of every larger one
    trees = [tree_plan.Tree(whole.parents[:n], whole.rank[:n], whole.reach[:n]) for n in range(len(whole.parents) + 1)]
    tokens = [tree.tokens for tree in trees]
    gain = speedup.speedup_measured(tokens, cost.c, cost.curve)
    rows: list[Row] = [
        {"nodes": n, "tokens": tokens[n], "speedup": float(gain[n]), "depth": tree.depth, "as_chains": tree.work()}
        for n, tree in enumerate(trees)
    ]
    best = _best(rows)
    chain = speedup.speedup_measured(gamma.tokens_at(inputs.chances[0], len(trees) - 1), cost.c, cost.curve)
    at = int(np.argmax(chain))
    facts: dict[str, float | int | None] = {"best_chain_k": at, "best_chain_speedup": float(chain[at])}
    title = f"children {', '.join(f'{p:g}' for p in inputs.chances)}, depth up to {inputs.depth}"
    return Section(title, tuple(rows), best, facts, inputs.rates[0] if inputs.rates else None, trees[int(best["nodes"])])


def _vertical(inputs: Inputs) -> Section:
    levels = inputs.levels
    first = levels[0]
    single = _single(first.alpha, first.c, inputs.most)
    facts: dict[str, float | int | None] = {"single_k": single[1], "single_speedup": single[0]}
    best_single = single[0]
    if inputs.rates:  # how often the target itself accepts the lightest drafter's tokens
        light = _single(inputs.rates[0].alpha, levels[-1].c, inputs.most)
        facts |= {"light_k": light[1], "light_speedup": light[0]}
        best_single = max(best_single, light[0])
    own: Row = {**_steps(levels), **_cascade(levels)}
    rows = [own]
    if len(levels) == 2:
        second = levels[1]
        rows = []
        for n in range(1, inputs.most + 1):
            tried = [_two(first, second, n, k) for k in range(1, inputs.most + 1)]
            rows.append(_best(tried))
        facts["given_speedup"] = own["speedup"]
    best = _best(rows)
    facts["gain_over_single"] = best["speedup"] / best_single - 1.0
    return Section(_levels_title(levels), tuple(rows), best, facts)


def _two(first: Level, second: Level, n: int, k: int) -> Row:
    levels = [Level(first.alpha, n, first.c), Level(second.alpha, k, second.c)]
    return {**_steps(levels), **_cascade(levels)}


def _steps(levels: Any) -> Row:
    return {f"steps_{i}": level.steps for i, level in enumerate(levels, 1)}


def _cascade(levels: Any) -> Row:
    return {"tokens": cascade.round_tokens(levels), "cost": cascade.round_cost(levels), "speedup": cascade.ewif(levels)}


def _horizontal(inputs: Inputs) -> Section:
    levels = inputs.levels
    alphas, costs, given = [x.alpha for x in levels], [x.c for x in levels], [x.steps for x in levels]
    rows: list[Row] = []
    for k in range(sum(given) + 1):
        lengths, left = [], k
        for steps in given:
            lengths.append(min(steps, left))
            left -= lengths[-1]
        which = next((i for i, n in enumerate(np.cumsum(given), 1) if k <= n), len(given)) if k else 0
        row: Row = {"k": k, "level": which, "tokens": cascade.horizontal_tokens(alphas, lengths)}
        rows.append({**row, "speedup": cascade.horizontal_speedup(alphas, lengths, costs)})
    singles = [_single(x.alpha, x.c, inputs.most)[0] for x in levels]
    facts: dict[str, float | int | None] = {"single_level": int(np.argmax(singles)) + 1, "single_speedup": max(singles)}
    if len(levels) == 2:
        most = range(inputs.most + 1)
        gain, first, second = max(
            (cascade.horizontal_speedup(alphas, (i, j), costs), -i, -j) for i in most for j in most if i + j <= inputs.most
        )
        facts |= {"best_first": -first, "best_second": -second, "best_speedup": gain}
    return Section(_levels_title(levels), tuple(rows), _best(rows), facts)


def _single(alpha: float, c: float, most: int) -> tuple[float, int]:
    """(speed-up, length) of the best draft of one drafter alone, at constant cost."""
    k = gamma.optimal_gamma(alpha, c, most) if c > 0.0 else most
    return float(speedup.speedup(alpha, k, c)), k


def _levels_title(levels: Any) -> str:
    return "levels " + "; ".join(f"α = {x.alpha:g}, {x.steps} steps, c = {x.c:g}" for x in levels)


def _best(rows: list[Row], name: str = "speedup") -> Row:
    """The first of the largest."""
    return max(rows, key=lambda row: row[name])


def _known(inputs: Inputs) -> Cost:
    assert inputs.cost is not None
    return inputs.cost


def finite(value: Any) -> Any:
    """The same with None where a number is not finite: JSON has neither infinity nor NaN."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
