"""Many short continuations, drawn without a seed, and the tests of :mod:`.statistics` on them.

The random numbers come from a stream of the audit's own, so a run can be repeated; the request has no seed, so the rule is the
one that an unseeded request gets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.engine import Engine
from ..core.noise import SplitMix
from ..core.params import SamplingParams
from ..core.request import Row
from .cases import POINTS
from .classify import OK, Finding, Judge
from .force import Choice, Position
from .statistics import Test, g_test, transform, transform_event
from .subject import Subject
from .tracks import Track

LENGTH = 16
"""Most tokens of a continuation."""
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Sampled:
    """``findings``: tokens outside of the law; ``prompt`` counts the prompts that were given."""

    tests: list[Test]
    findings: list[Finding]
    rows: list[Row]


def sample(
    subject: Subject,
    engine: Engine,
    name: str,
    prompts: Sequence[tuple[list[int], SamplingParams]],
    n: int,
    seed: int,
    judge: Judge,
) -> Sampled:
    """``n`` continuations by ``engine``, the prompts in turn."""
    drawn: list[list[Row]] = [[] for _ in prompts]
    order: list[tuple[int, Row]] = []
    for begin in range(0, n, AT_ONCE):
        batch = []
        for j in range(begin, min(n, begin + AT_ONCE)):
            prompt, params = prompts[j % len(prompts)]
            row = engine.add(prompt, short(params), noise=SplitMix(_key(seed, name, j)), trace=True)
            batch.append((j % len(prompts), row))
        while not all(row.done for _, row in batch):
            engine.step()
        order += batch
    engine.close()
    for i, row in order:
        drawn[i].append(row)
    rng = np.random.default_rng([seed, *name.encode()])
    points = bool(engine.drafters) and set(engine.drafters) <= set(POINTS)
    values: dict[str, list[float]] = {what: [] for what in ("tokens", "drafted positions", *(["points"] if points else []))}
    found: list[Finding] = []
    for i, rows in enumerate(drawn):
        if rows:
            found += _read(subject, i, rows, values, judge, rng)
    tests = [g_test(name, what, us) for what, us in values.items() if us or what == "tokens"]
    return Sampled(tests, found, [row for _, row in order])


def short(params: SamplingParams) -> SamplingParams:
    """The request without a seed, and short."""
    most = LENGTH if params.max_tokens is None else min(LENGTH, params.max_tokens)
    most = max(most, params.min_tokens)
    return replace(params, seed=None, n=1, max_tokens=most, logprobs=None, top_logprobs=None, echo=False)


def _read(
    subject: Subject, number: int, rows: list[Row], values: dict[str, list[float]], judge: Judge, rng: np.random.Generator
) -> list[Finding]:
    """Add the u's of one prompt's continuations; they share its pass."""
    first = rows[0]
    track = Track(subject.model, first.tokens[: first.n_prompt])
    found: list[Finding] = []
    try:
        for row in rows:
            drafted = _drafted(row)
            ghost = subject.ghost(row.tokens[: row.n_prompt], row.params)
            rest = list(track.peek(row.output[:-1])) if len(row.output) > 1 else []
            for i, (token, logits) in enumerate(zip(row.output, [track.first, *rest], strict=True)):
                choice = Choice(logits, ghost, subject.known, token)
                gap = choice.gap()
                if gap > 0:
                    verdict, tolerance, why = judge.judge(Position(token, choice.best(), gap, 0.0, False))
                    if verdict != OK:
                        why = f"the law gives this token no probability: {why}"
                        found.append(
                            Finding(number, 0, i, False, choice.best(), token, gap, 0.0, tolerance, False, verdict, why)
                        )
                law = choice.law()
                here = transform(law, token, float(rng.random()))
                values["tokens"].append(here)
                offered = drafted.get(ghost.n_prompt + i)
                if offered:
                    values["drafted positions"].append(here)
                    if "points" in values:
                        mass = float(law[sorted(offered)].sum(dtype=np.float64))
                        values["points"].append(transform_event(min(mass, 1.0), token in offered, float(rng.random())))
                ghost.tokens.append(token)
                if ghost.state is not None:
                    ghost.state.advance(token)
    finally:
        track.close()
    return found


def _drafted(row: Row) -> dict[int, set[int]]:
    """Place of a token in the row -> the tokens that were drafted for it, below the path that was kept."""
    out: dict[int, set[int]] = {}
    for step in row.stats.trace or []:
        node, depth = 0, 0
        while depth < step.kept:
            below = [i for i, parent in enumerate(step.parents) if parent == node]
            out[step.position + depth] = {step.candidates[i] for i in below}
            going = [i for i in below if step.accepted[i]]
            if not going:
                break
            node, depth = going[0] + 1, depth + 1
    return out


def _key(seed: int, name: str, j: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{name}\0{j}".encode()).digest()[:8])
