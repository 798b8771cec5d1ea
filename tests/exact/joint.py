"""Exact joint laws by enumeration: the engine on all outcomes of its noise, against the product of the table's laws.

An engine never drafts a request's first token. The toy targets say it for certain, so that it costs no branches and the tokens
after it, whose joint law is in question, are all within reach of a draft.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from toys import tree

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.law import law
from surefoot.core.noise import DRAFT, Noise, enumerate_law
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree

Law = dict[tuple[int, ...], float]
TOLERANCE = 1e-12
CAUGHT = 1e-3
PROMPT = (0,)


def toy(vocab: int, seed: int, sharpness: float = 0.8) -> TableModel:
    """A random table of order 2 whose first token after PROMPT is 1; no other context is like this one."""
    model = TableModel.random(vocab, 2, seed, sharpness)
    first = model.logits[vocab * (vocab + 1) + PROMPT[0]]
    first[:] = -torch.inf
    first[1] = 0.0
    return model


def expected(target: TableModel, params: SamplingParams, n: int, prompt: Sequence[int] = PROMPT) -> Law:
    """The law of the first n tokens: the product of the target's own laws."""
    out: Law = {(): 1.0}
    for _ in range(n):
        longer: Law = {}
        for path, mass in out.items():
            p = law(target.next_logits([*prompt, *path])[None], params)[0]
            longer |= {(*path, x): mass * float(p[x]) for x in range(len(p)) if p[x] > 0}
        out = longer
    return out


def observed(engine: Engine, params: SamplingParams, n: int, prompt: Sequence[int] = PROMPT, beside=()) -> Law:
    """The law of the engine's first n tokens; ``beside``: (prompt, params) of rows that share its passes."""

    def once(noise: Noise) -> tuple[int, ...]:
        others = [engine.add(p, s) for p, s in beside]
        row = engine.add(prompt, params, noise=noise)
        while not row.done:
            engine.step()
        for other in others:
            engine.abort(other)
        return tuple(row.output[:n])

    out: Law = defaultdict(float)
    for tokens, mass in enumerate_law(once):
        out[tokens] += mass
    return dict(out)


def distance(a: Law, b: Law) -> float:
    """Total variation."""
    return 0.5 * sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in {*a, *b})


def engine_of(target: TableModel, drafter=None, k: int = 2, width: int = 1, nodes: int | None = None, **options) -> Engine:
    if drafter is None:
        return Engine(target, reuse=False, **options)
    return Engine(target, [drafter], FixedController(drafter.name, k, width, nodes), reuse=False, **options)


def gap(engine: Engine, params: SamplingParams, beside=()) -> float:
    """Total variation between what the engine says and what it should say; the total mass must be 1."""
    assert isinstance(engine.target, TableModel)
    n = params.max_tokens
    assert n is not None
    seen = observed(engine, params, n, beside=beside)
    assert abs(sum(seen.values()) - 1.0) <= TOLERANCE
    return distance(seen, expected(engine.target, params, n))


def draft_law(draft: TableModel, row: Row, path: Sequence[int]) -> torch.Tensor:
    """q [V] after the row's tokens and a drafted path."""
    return law(draft.next_logits([*row.tokens, *path])[None], row.params)[0]


def q_chain(draft: TableModel, stop_below: float = 0.0, drop_below: float = 0.0) -> Callable[[Row, Plan], DraftTree]:
    """A chain drawn from the draft's law. ``stop_below``: ends *after* a token less likely than this (exact).

    ``drop_below``: discards such a token instead (wrong: it looks at the token's own sampled value).
    """

    def one(row: Row, plan: Plan) -> DraftTree:
        tokens: list[int] = []
        laws: list[torch.Tensor] = []
        while len(tokens) < plan.depth:
            q = draft_law(draft, row, tokens)
            token = row.noise.categorical(q, len(row.tokens) + len(tokens), DRAFT, row.turn)
            if float(q[token]) < drop_below:
                break
            tokens.append(token)
            laws.append(q)
            if float(q[token]) < stop_below:
                break
        return DraftTree.chain([row.tokens[-1], *tokens], torch.stack(laws) if laws else None, 1)

    return one


def q_tree(draft: TableModel, order: str = "drawn", full_rows: bool = False) -> Callable[[Row, Plan], DraftTree]:
    """``plan.width`` siblings a node, drawn without replacement, down to ``plan.depth`` (breadth first).

    Siblings of one node share a key: the race that chose the first, without the first, chooses the second. Nodes of one
    depth must not share it: their turn counts upwards far from the row's own. ``order="sorted"``
    forgets the order drawn (wrong); ``order="top"`` takes the most likely ones and still claims q (wrong).
    """

    def one(row: Row, plan: Plan) -> DraftTree:
        tokens, parents, paths = [row.tokens[-1]], [-1], [()]
        laws: dict[int, torch.Tensor] = {}
        node = 0
        while node < len(tokens) and len(tokens) < plan.nodes + 1:
            if len(paths[node]) == plan.depth:
                break
            q = draft_law(draft, row, paths[node])
            left = q.clone()
            siblings: list[int] = []
            while len(siblings) < min(plan.width, int((q > 0).sum()), plan.nodes + 1 - len(tokens)):
                if order == "top":
                    token = int(left.argmax())
                else:
                    token = row.noise.categorical(left, len(row.tokens) + len(paths[node]), DRAFT, row.turn + 1000 * (node + 1))
                siblings.append(token)
                left[token] = 0.0
            if order == "sorted":
                siblings.sort(key=lambda x: -float(q[x]))
            laws[node] = q
            tokens += siblings
            parents += [node] * len(siblings)
            paths += [(*paths[node], x) for x in siblings]
            node += 1
        if not laws:
            return DraftTree.chain(tokens)
        if full_rows:
            rows = [laws.get(i, torch.full_like(laws[0], 1.0 / len(laws[0]))) for i in range(len(tokens))]
        else:
            rows = [laws[i] for i in sorted(laws)]
        return tree(tokens, parents, torch.stack(rows))

    return one


def q_shape(
    draft: TableModel, parents: Sequence[int], independent: bool = False, sibling_of: Callable[[list[int]], int] | None = None
) -> Callable[[Row, Plan], DraftTree]:
    """A tree of this shape (sorted by depth), as far as the plan and the draft's law allow; siblings in the order drawn.

    ``independent``: siblings are drawn from q anew each time, so they may repeat; else without replacement.
    ``sibling_of``: the shape follows what was drawn. It gets the tokens drawn so far and names the parent of the next one;
    ``parents`` then tells how many there are.
    """

    def one(row: Row, plan: Plan) -> DraftTree:
        tokens, drawn_for, paths = [row.tokens[-1]], [-1], [()]
        places = {0: 0}  # node of the shape -> node of the tree; a node that cannot be drawn has none, nor has what is below it
        laws: dict[int, torch.Tensor] = {}
        left: dict[int, torch.Tensor] = {}
        for node in range(1, len(parents)):
            asked = parents[node] if sibling_of is None else sibling_of(tokens[1:])
            parent = places.get(asked)
            if parent is None or len(paths[parent]) == plan.depth or len(tokens) > plan.nodes:
                continue
            if parent not in laws:
                laws[parent] = left[parent] = draft_law(draft, row, paths[parent])
            if not bool((left[parent] > 0).any()):
                continue
            turn = row.turn + 1000 * (parent + 1) + (10**6 * node if independent else 0)
            token = row.noise.categorical(left[parent], len(row.tokens) + len(paths[parent]), DRAFT, turn)
            if not independent:
                left[parent] = left[parent].clone()
                left[parent][token] = 0.0
            places[node] = len(tokens)
            tokens.append(token)
            drawn_for.append(parent)
            paths.append((*paths[parent], token))
        if not laws:
            return DraftTree.chain(tokens)
        made = tree(tokens, drawn_for, torch.stack([laws[i] for i in sorted(laws)]))
        return replace(made, independent=independent)

    return one
