"""Several engines on one loaded model, timed in turn on the same prompts: decoding only, prefill excluded.

The order rotates from prompt to prompt. A repeat is another pass over *all* prompts with engines made anew, so that what
drafters and controllers have learned when a prompt comes is the history of the prompts before it, never its own answer. Of
the repeats of a prompt the lower time counts: what else runs on the machine only ever adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Controller
from surefoot.loader import assemble

PLAIN = "plain"
HELLO = [{"role": "user", "content": "Say hello."}]


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer. ``seconds``: as the engine counts decoding; ``wall``: with what controllers learn behind each pass."""

    tokens: tuple[int, ...]
    seconds: float
    wall: float
    passes: int
    drafted: int
    accepted: int


Runs = Mapping[str, Sequence[Sequence[Timing]]]
"""By engine, prompt and repeat."""


def engine(loaded: Any, drafter: str, k: int | None = None, controller: Controller | None = None) -> Engine:
    """As ``surefoot.load`` makes it, but prompts share no cache. ``k``: a fixed draft length; ``controller``: another one."""
    made = assemble(loaded, drafter, None, "auto" if k is None else "fixed", k)
    steer = made.controller if controller is None else controller
    return Engine(loaded.model, list(made.drafters.values()), steer, codec=loaded.codec, reuse=False)


def ask(own: Engine, prompt: Sequence[int], length: int) -> Timing:
    """One greedy answer."""
    [row] = own.submit(prompt, SamplingParams(max_tokens=length, temperature=0.0))
    while not row.output and not row.done:
        own.step()
    start = time.perf_counter()
    while not row.done:
        own.step()
    wall = time.perf_counter() - start
    if row.error is not None:
        raise row.error
    stats = row.stats
    return Timing(tuple(row.output), stats.decode_seconds, wall, stats.passes, stats.draft_tokens, stats.accepted_tokens)


def run(
    build: Callable[[], dict[str, Engine]],
    prompts: Sequence[Sequence[int]],
    length: int,
    repeats: int,
    tell: Callable[[str], None],
    warmed: Callable[[], None] = lambda: None,
) -> Runs:
    """Every prompt by every engine that ``build`` makes, ``repeats`` times. ``warmed`` is called after each warm-up."""
    found: dict[str, list[list[Timing]]] = {}
    for repeat in range(repeats):
        running = build()
        names = list(running)
        for own in running.values():
            own.generate(HELLO, max_tokens=16, temperature=0.0)
        warmed()
        for i, prompt in enumerate(prompts):
            first = (i + repeat * (len(names) // 2)) % len(names)
            for name in names[first:] + names[:first]:
                found.setdefault(name, [[] for _ in prompts])[i].append(ask(running[name], prompt, length))
            tell(f"pass {repeat + 1} of {repeats}: prompt {i + 1} of {len(prompts)}")
        for own in running.values():
            own.close()
    return {name: found[name] for name in names}


def summary(runs: Runs, name: str, chosen: Sequence[int]) -> dict[str, Any]:
    """One engine on some of the prompts. The first token of each, which prefill yields, and its pass are left out."""
    own = [runs[name][i] for i in chosen]
    plain = [runs[PLAIN][i] for i in chosen]
    every = [t for timings in own for t in timings]
    passes, drafted = sum(t.passes - 1 for t in every), sum(t.drafted for t in every)
    took, base = ([min(t.seconds for t in timings) for timings in which] for which in (own, plain))
    wall, base_wall = (sum(min(t.wall for t in timings) for timings in which) for which in (own, plain))
    return {
        "tau": sum(len(t.tokens) - 1 for t in every) / max(1, passes),
        "speedup": _ratio(sum(base), sum(took)),
        "speedup_by_wall_clock": _ratio(base_wall, wall),
        "speedup_by_repeat": [
            _ratio(sum(t[r].seconds for t in plain), sum(t[r].seconds for t in own)) for r in range(len(own[0]))
        ],
        "least_speedup_of_a_prompt": min(map(_ratio, base, took)),
        "tokens_per_second": _ratio(sum(len(timings[0].tokens) - 1 for timings in own), sum(took)),
        "drafted_tokens": drafted,
        "drafted_tokens_kept": sum(t.accepted for t in every) / drafted if drafted else 0.0,
        "answers": len(every),
        "answers_that_differ": sum(
            t.tokens != reference[0].tokens for timings, reference in zip(own, plain, strict=True) for t in timings
        ),
    }


def _ratio(a: float, b: float) -> float:
    """1 where an answer has one token only, so that there was nothing to decode."""
    return a / b if a > 0 and b > 0 else 1.0
