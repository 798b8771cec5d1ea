"""Several engines on one loaded model, timed in turn on the same prompts, decoding only (prefill excluded).

The order rotates from prompt to prompt. A repeat is another pass over *all* prompts with engines made anew, so that what
drafters and controllers have learned when a prompt comes is the same history each time, and nothing of its own answer. Of the
repeats of one prompt the lower time counts: what else runs on the machine only ever adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.control.costs import LiveCosts
from surefoot.core.cost import CostModel, sizes
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Controller, Costs, Plan, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree, depths
from surefoot.loader import assemble

PLAIN = "plain"
HELLO = [{"role": "user", "content": "Say hello."}]


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer. ``seconds``: the engine's own count of decoding; ``wall``: with what controllers learn after each pass."""

    tokens: tuple[int, ...]
    seconds: float
    wall: float
    passes: int
    drafted: int
    accepted: int


Runs = Mapping[str, Sequence[Sequence[Timing]]]
"""By engine, prompt and repeat."""


class Counted:
    """Any controller, and what the passes that it planned computed; ``cost``: the measured curve that values them."""

    def __init__(self, inner: Controller, cost: CostModel, min_width: int, paths: bool) -> None:
        self.inner, self._cost, self._least, self._paths = inner, cost, min_width, paths
        self.clear()

    def clear(self) -> None:
        """Forget the counts (of a warm-up), not what was learned."""
        self.passes = self.nodes = self.needed = self.computed = 0
        self.predicted = self.plain = 0.0

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        return self.inner.plan(rows)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        self.inner.learn(rows, trees, verdicts, costs)
        if costs.prefill:
            return
        for tree, verdict in zip(trees, verdicts, strict=True):
            parents = tree.parents.tolist()
            needed = _path_tokens(parents, self._least) if self._paths else max(len(parents), self._least)
            self.passes += 1
            self.nodes += len(parents) - 1
            self.needed += needed
            self.computed += costs.nodes
            self.predicted += self._cost(needed, costs.context)
            self.plain += (1 + len(verdict.path)) * self._cost(self._least, costs.context)

    def forget(self, rows: Sequence[Row]) -> None:
        self.inner.forget(rows)


def _path_tokens(parents: Sequence[int], least: int) -> int:
    """Tokens of a tree that is computed path by path, each padded to ``least``."""
    inner, depth = set(parents), depths(list(parents))
    return sum(max(depth[leaf] + 1, least) for leaf in range(len(parents)) if leaf not in inner)


def live(loaded: Any, cost: CostModel) -> tuple[LiveCosts, dict[str, Any]]:
    """Costs to learn from, and the options of ``marginal``: as the loader makes them."""
    traits = loaded.model.traits
    costs = LiveCosts(cost, change=cost.change if traits.steady else 0.0)
    kept = sizes(cost, traits) if traits.steady else ()
    return costs, {"sizes": kept, "switch": cost.switch, "min_width": traits.min_width}


def engine(
    loaded: Any, drafter: str, k: int | None = None, controller: Controller | str | None = None, least: int = 1
) -> Engine:
    """As ``surefoot.load`` makes it, without a cache of prompts. ``k``: draft length, fixed (0 or None: by cost)."""
    made = assemble(loaded, drafter, None, "fixed" if k else "auto", k) if drafter != "none" else assemble(loaded, "none")
    steer = made.controller if controller is None else controller
    return Engine(loaded.model, list(made.drafters.values()), steer, codec=loaded.codec, reuse=False)


def ask(engine: Engine, prompt: Sequence[int], length: int) -> Timing:
    """One greedy answer."""
    [row] = engine.submit(prompt, SamplingParams.build({"max_tokens": length, "temperature": 0.0}))
    while not row.output and not row.done:
        engine.step()
    start = time.perf_counter()
    while not row.done:
        engine.step()
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
) -> Runs:
    """Every prompt by every engine that ``build`` makes, ``repeats`` times."""
    found: dict[str, list[list[Timing]]] = {}
    for repeat in range(repeats):
        running = build()
        names = list(running)
        for own in running.values():
            own.generate(HELLO, max_tokens=16, temperature=0.0)
            if isinstance(own.controller, Counted):
                own.controller.clear()
        for i, prompt in enumerate(prompts):
            first = (i + repeat * len(names) // 2) % len(names)
            for name in names[first:] + names[:first]:
                timings = found.setdefault(name, [[] for _ in prompts])
                timings[i].append(ask(running[name], prompt, length))
            tell(f"pass {repeat + 1} of {repeats}, prompt {i + 1} of {len(prompts)}")
        for own in running.values():
            own.close()
    return {name: found[name] for name in names}


def summary(runs: Runs, name: str, chosen: Sequence[int]) -> dict[str, Any]:
    """One engine on some of the prompts: tokens a pass and times of decoding, the first token and its pass left out."""
    own = [runs[name][i] for i in chosen]
    plain = [runs[PLAIN][i] for i in chosen]
    every = [t for timings in own for t in timings]
    passes, drafted = sum(t.passes - 1 for t in every), sum(t.drafted for t in every)
    least = [min(t.seconds for t in timings) for timings in own]
    base = [min(t.seconds for t in timings) for timings in plain]
    repeats = range(len(own[0]))
    return {
        "tau": sum(len(t.tokens) - 1 for t in every) / max(1, passes),
        "speedup": _ratio(sum(base), sum(least)),
        "speedup_by_wall_clock": _ratio(
            sum(min(t.wall for t in timings) for timings in plain), sum(min(t.wall for t in timings) for timings in own)
        ),
        "speedup_by_repeat": [
            _ratio(sum(t[r].seconds for t in plain), sum(t[r].seconds for t in own)) for r in repeats
        ],
        "least_speedup_of_a_question": min((_ratio(a, b) for a, b in zip(base, least, strict=True) if b > 0), default=1.0),
        "tokens_per_second": _ratio(sum(len(timings[0].tokens) - 1 for timings in own), sum(least)),
        "drafted_tokens": drafted,
        "drafted_tokens_kept": sum(t.accepted for t in every) / drafted if drafted else 0.0,
        "answers_that_differ": sum(
            t.tokens != reference[0].tokens for timings, reference in zip(own, plain, strict=True) for t in timings
        ),
        "answers": len(every),
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 1.0
