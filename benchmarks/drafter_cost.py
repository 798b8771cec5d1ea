"""What model-free drafters cost: microseconds for each proposed token, for each committed one, and bytes after a million.

The text is a seeded walk over a graph of tokens that now and then copies a span from earlier on, so that there are matches of
every length. A call is timed twice: with three tokens that are new since the last one (as in a step), and again with none;
the difference is the cost of learning them and of looking at a new place. *Cold*: the caches are swept before every call, as
a pass of the model sweeps them.

1. ``ngram`` and ``suffix``, cold, at 32k tokens of history (wanted: < 20 microseconds a proposed token, without new ones)
2. ``recycle``, cold: learning from one pass of nine nodes, and a draft (wanted: < 150 microseconds)

    python benchmarks/drafter_cost.py [--calls N] [--million N]
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from multiprocessing import get_context
from typing import Any

import numpy as np
import psutil
import torch
from provenance import write

from surefoot.core.protocols import Plan, Scores, Verdict
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.ngram import PICKS, NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter

VOCAB = 49_152
HISTORIES = (1_024, 8_192, 32_768)
NEW = 3
"""Tokens committed between two calls."""
CHAIN, TREE = Plan(depth=8, nodes=8), Plan(depth=5, width=3, nodes=9)
CASES: dict[str, tuple[Callable[[], Any], Plan]] = {
    **{f"ngram {pick}": (lambda pick=pick: NgramDrafter(pick=pick), CHAIN) for pick in PICKS},
    "ngram all, tree": (lambda: NgramDrafter(pick="all"), TREE),
    "suffix": (SuffixDrafter, CHAIN),
    "suffix, tree": (SuffixDrafter, TREE),
}
SWEEP = np.zeros(8 << 20, np.int64)
"""64 MB, more than the caches hold."""


@dataclass
class Line:
    """As much of a row as a drafter reads."""

    tokens: list[int]
    id: int = 0
    n_prompt: int = 1
    done: bool = field(default=False)
    prompt_logprobs: None = None


def text(size: int, seed: int) -> list[int]:
    """A walk over a random graph of tokens (steps and jumps by Zipf's law), and spans copied from earlier on."""
    rng = random.Random(seed)
    common = rng.sample(range(VOCAB), 8_000)
    jumps = list(accumulate(1 / (rank + 3) for rank in range(len(common))))
    steps = list(accumulate(1 / (rank + 1) for rank in range(10)))
    graph: dict[int, list[int]] = {}
    out = rng.choices(common, cum_weights=jumps)
    while len(out) < size:
        if len(out) > 200 and rng.random() < 0.02:
            start = rng.randrange(len(out) - 64)
            out += out[start : start + rng.randrange(4, 64)]
        elif rng.random() < 0.15:
            out += rng.choices(common, cum_weights=jumps)
        else:
            if out[-1] not in graph:
                graph[out[-1]] = rng.choices(common, cum_weights=jumps, k=10)
            out += rng.choices(graph[out[-1]], cum_weights=steps)
    return out[:size]


def sweep() -> None:
    np.add(SWEEP, 1, out=SWEEP)


def timed(call: Callable[[], Any], cold: bool) -> tuple[float, Any]:
    """Microseconds, and the result."""
    if cold:
        sweep()
    start = time.perf_counter()
    found = call()
    return 1e6 * (time.perf_counter() - start), found


def proposals(make: Callable[[], Any], plan: Plan, story: list[int], history: int, calls: int, cold: bool) -> dict[str, float]:
    """One row of so much history (and, for suffix, a shared store as large) that grows from call to call."""
    drafter = make()
    past = Line(story[:history], 1, 0)
    drafter.propose([past], [plan])
    drafter.forget([past])
    row = Line(story[history : 2 * history])
    drafter.propose([row], [plan])
    gc.collect()
    fresh, again, drafted = [], [], []
    for i in range(calls):
        at = 2 * history + NEW * i
        row.tokens += story[at : at + NEW]
        took, _ = timed(lambda: drafter.propose([row], [plan]), cold)
        fresh.append(took)
        took, (tree,) = timed(lambda: drafter.propose([row], [plan]), cold)
        again.append(took)
        drafted.append(len(tree) - 1)
    drafter.forget([row])
    per = statistics.mean(drafted)
    return {
        "us_a_call": round(statistics.median(again), 1),
        "us_a_proposed_token": round(statistics.median(again) / per, 2),
        "mean_us_a_proposed_token": round(statistics.mean(again) / per, 2),
        "us_a_proposed_token_with_new_ones": round(statistics.median(fresh) / per, 2),
        "us_a_committed_token": round(statistics.median(a - b for a, b in zip(fresh, again, strict=True)) / NEW, 2),
        "proposed": round(per, 2),
    }


def recycling(calls: int, cold: bool, story: list[int]) -> dict[str, float]:
    """Passes of nine nodes, of which three drafted ones are kept: learning from one, and a chain of eight."""
    from surefoot.drafters.recycle import RecycleDrafter

    drafter = RecycleDrafter(VOCAB)
    row = Line(story[:1_024])
    logits = torch.randn(9, VOCAB, generator=torch.Generator().manual_seed(0))
    learn, draft = [], []
    for i in range(calls):
        at = 1_024 + 4 * i
        tree = DraftTree.chain([row.tokens[-1], *story[at : at + 8]], source=drafter.source)
        forest, verdict = Forest.pack([tree]), Verdict((1, 2, 3), story[at + 3])
        row.tokens += story[at : at + 4]
        if cold:
            sweep()
        logits = logits.roll(997, 1)  # as a pass does, which writes them last
        took, _ = timed(partial(drafter.observe, [row], forest, Scores(logits), [verdict]), False)
        learn.append(took)
        took, _ = timed(lambda: drafter.propose([row], [CHAIN]), cold)
        draft.append(took)
    return {
        "us_to_learn": round(statistics.median(learn), 1),
        "us_to_draft": round(statistics.median(draft), 1),
        "us_a_step": round(statistics.median(a + b for a, b in zip(learn, draft, strict=True)), 1),
    }


def shared(size: int, story: list[int]) -> SuffixDrafter:
    """Rows of a thousand tokens, one after another."""
    drafter = SuffixDrafter()
    for i, start in enumerate(range(0, size, 1_000)):
        past = Line(story[start : start + 1_000], i, 0)
        drafter.propose([past], [Plan()])
        drafter.forget([past])
    return drafter


def alone(drafter: Any, size: int, story: list[int]) -> Any:
    """One row."""
    drafter.propose([Line(story[:size])], [CHAIN])
    return drafter


MEMORY: dict[str, Callable[[int, list[int]], Any]] = {
    "suffix, shared": shared,
    "suffix, one row": lambda size, story: alone(SuffixDrafter(), size, story),
    **{
        f"ngram {pick}, one row": partial(lambda pick, size, story: alone(NgramDrafter(pick=pick), size, story), pick)
        for pick in PICKS
    },
}


def held(name: str, size: int) -> dict[str, Any]:
    """Bytes told and resident after so many tokens. Runs in a process of its own, so that no freed memory is used again."""

    def resident() -> int:
        gc.collect()
        return psutil.Process().memory_info().rss

    story = text(size, seed=1)
    before, start = resident(), time.perf_counter()
    drafter = MEMORY[name](size, story)
    seconds = time.perf_counter() - start
    return {**drafter.stats(), "resident": resident() - before, "us_a_token": round(1e6 * seconds / size, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=150, help="calls of each kind (default: 150)")
    parser.add_argument("--million", type=int, default=1_000_000, help="tokens of the memory test (default: a million)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    story = text(max(2 * max(HISTORIES) + NEW * args.calls, 2_048 + 8 * args.calls), seed=1)
    cost: dict[str, Any] = {}
    for history in HISTORIES:
        for name, (make, plan) in CASES.items():
            entry = {way: proposals(make, plan, story, history, args.calls, way == "cold") for way in ("warm", "cold")}
            cost.setdefault(name, {})[str(history)] = entry
            told = ", ".join(
                f"{way} {own['us_a_proposed_token']} us a proposed token, {own['us_a_committed_token']} a committed one"
                for way, own in entry.items()
            )
            print(f"{history:6d} {name:16s} {told}", flush=True)
    figures: dict[str, Any] = {"calls": args.calls, "vocab": VOCAB, "cost": cost}
    try:
        figures["recycle"] = {way: recycling(args.calls, way == "cold", story) for way in ("warm", "cold")}
        print("recycle:", figures["recycle"])
    except ImportError:
        print("recycle: not there")
    figures["memory"] = {}
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for name in MEMORY:
            figures["memory"][name] = processes.submit(held, name, args.million).result()
            print(f"{name}: {figures['memory'][name]}", flush=True)
    worst = {name: own[str(max(HISTORIES))]["cold"]["us_a_proposed_token"] for name, own in cost.items()}
    figures["wanted"] = {
        "below 20 us a proposed token, cold, at 32k": worst,
        "recycle below 150 us a step, cold": figures.get("recycle", {}).get("cold", {}).get("us_a_step"),
    }
    print("written to", write("drafter_cost", figures))


if __name__ == "__main__":
    main()
