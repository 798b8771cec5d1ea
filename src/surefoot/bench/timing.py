"""Several engines on one loaded model, in turn on the same prompts; the order rotates from prompt to prompt.

Timed is decoding, from the first token on. What drafters have learned when a prompt comes is the history of the prompts before
it. Of the repeats, each a pass over all prompts with engines made anew, the lower time of a prompt counts: what else runs on
the machine only ever adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..core.params import SamplingParams

Tell = Callable[[str], None]
_WARM = 8
"""Tokens of the answer that comes before the first prompt."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer. ``seconds``: of decoding, by the wall clock; ``ssr``: what forks did, where there were any."""

    tokens: tuple[int, ...]
    seconds: float
    passes: int
    drafted: int
    accepted: int
    ssr: Mapping[str, Any] | None


Runs = dict[str, list[list[Timing]]]
"""By variant, prompt and repeat."""


def ask(own: Engine, prompt: Sequence[int], params: SamplingParams) -> Timing:
    row = own.add(prompt, params)
    try:
        while not row.output and not row.done:
            own.step()
        start = time.perf_counter()
        while not row.done:
            own.step()
        seconds = time.perf_counter() - start
    finally:
        own.abort(row)
    if row.error is not None:
        raise row.error
    stats = row.stats
    told = None if stats.ssr is None else stats.ssr.to_dict()
    return Timing(tuple(row.output), seconds, stats.passes, stats.draft_tokens, stats.accepted_tokens, told)


def turns(
    make: Mapping[str, Callable[[], Engine]],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    repeats: int,
    tell: Tell,
) -> Runs:
    """Every prompt by every engine that ``make`` makes."""
    names = list(make)
    found: Runs = {name: [[] for _ in prompts] for name in names}
    for repeat in range(repeats):
        running = {name: made() for name, made in make.items()}
        try:
            for own in running.values():
                own.generate(list(prompts[0]), max_tokens=_WARM)
            for i, prompt in enumerate(prompts):
                first = (i + repeat * (len(names) // 2)) % len(names)
                for name in names[first:] + names[:first]:
                    found[name][i].append(ask(running[name], prompt, params))
                tell(f"pass {repeat + 1} of {repeats}: prompt {i + 1} of {len(prompts)}")
        finally:
            for own in running.values():
                own.close()
    return found
