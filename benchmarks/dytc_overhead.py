"""What the dynamic cascade itself costs: microseconds of a step, drafters and target taken out.

Parts and bottom are stand-ins that answer from a list; what they take is measured and subtracted. A step is a proposal, and
learning from its verdict; caches are swept before each as a pass of the model sweeps them. Processor time of the thread.

1. ``bottom``: no part is worth its cost, so drafts come from the bottom alone (wanted: < 150 microseconds)
2. ``parts``: parts are worth asking along the draft
3. ``sides``: a tree of width 3
4. ``suffix``: as 1, with suffix lookup as the bottom, against ``hybrid`` over it alone; lookups included
5. ``real``: the default model with its heads as parts, on prompts of ours: of the time of decoding, what proposals and learning
   take outside of the parts, the lookups of the bottom included (wanted: < 3 %)

    python benchmarks/dytc_overhead.py [--steps N] [--nodes N]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import write

from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Need, Plan, Scores, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.dytc import DytcDrafter
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.loader import assemble, needs, open_target

REAL = "dytc:of=hydra/eagle/suffix"
PROMPTS = Path(__file__).parent / "prompts.jsonl"
VOCAB = 49_152
PASS = 8e-3
SWEEP = np.zeros(8 << 20, np.int64)


class Stand:
    """A drafter that says what a list has after the row's tokens; ``right``: how often it is."""

    needs = Need((1,))
    levels = (0.9, 0.6, 0.3)
    weights = (2.0, 0.4, -0.8, -0.8, 0.0)

    def __init__(self, source: int, text: Sequence[int], right: float, lies: float) -> None:
        self.name, self.source, self.right, self.text, self.lies = f"stand-{source}", source, right, text, lies
        self.rng = random.Random(source)
        self.seconds = 0.0

    def said(self, at: int) -> int:
        return self.text[at] if self.rng.random() < self.right else self.rng.randrange(VOCAB)

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        start = time.thread_time()
        law = np.full(VOCAB, 1.0 / VOCAB, np.float32)
        trees = []
        for row, plan in zip(rows, plans, strict=True):
            tokens = [self.said(len(row.tokens) + i) for i in range(plan.depth)]
            for i, token in enumerate(tokens):
                if plan.stop is not None:
                    plan.stop(law, token, i + 1)
            trees.append(DraftTree.chain([row.tokens[-1], *tokens], None, self.source))
        self.seconds += time.thread_time() - start
        CLOCK.now += self.lies
        return trees

    def observe(self, *args: Any) -> None: ...

    def forget(self, rows: Sequence[Row]) -> None: ...

    def walk(self, row: Row) -> _Walk:
        return _Walk(self, len(row.tokens))


class _Walk:
    def __init__(self, of: Stand, at: int) -> None:
        self.of, self.at = of, at

    def candidates(self, width: int) -> list[tuple[int, int]]:
        start = time.thread_time()
        found = {self.of.said(self.at): 0, 7: 1, 8: 2}
        self.of.seconds += time.thread_time() - start
        return list(found.items())[:width]

    def after(self, token: int) -> _Walk:
        return _Walk(self.of, self.at + 1)


class Clock:
    """What the drafter is told: the costs of stand-ins are made up."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


def measure(make: Callable[[list[int]], tuple[Any, list[Stand]]], plan: Plan, steps: int) -> dict[str, float]:
    rng = random.Random(1)
    text = [rng.choice(range(9, 60)) for _ in range(60_000)]
    drafter, stands = make(text)
    row = Row(0, text[:200], SamplingParams(), limit=1 << 30)
    took, nodes, kept = [], [], []
    for _ in range(steps):
        np.add(SWEEP, 1, out=SWEEP)
        before = sum(s.seconds for s in stands)
        start = time.thread_time()
        (tree,) = drafter.propose([row], [plan])
        seconds = time.thread_time() - start
        verdict = verified(tree, text, len(row.tokens))
        row.tokens += text[len(row.tokens) : len(row.tokens) + len(verdict.path) + 1]
        forest = Forest.pack([tree])
        CLOCK.now += PASS
        start = time.thread_time()
        drafter.observe([row], forest, Scores(torch.empty(0)), [verdict])
        seconds += time.thread_time() - start - (sum(s.seconds for s in stands) - before)
        took.append(1e6 * seconds)
        nodes.append(len(tree) - 1)
        kept.append(len(verdict.path) + 1)
    half = steps // 2  # after estimates have settled
    return {
        "us_a_step": round(statistics.median(took[half:]), 1),
        "mean_us_a_step": round(statistics.mean(took[half:]), 1),
        "share_of_a_step": round(statistics.mean(took[half:]) / (1e6 * PASS), 4),
        "nodes": round(statistics.mean(nodes[half:]), 2),
        "tokens": round(statistics.mean(kept[half:]), 2),
    }


def verified(tree: DraftTree, text: Sequence[int], at: int) -> Verdict:
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    path: list[int] = []
    node = 0
    while True:
        said = text[at + len(path)]
        child = next((i for i in range(len(tokens)) if parents[i] == node and tokens[i] == said), None)
        if child is None:
            return Verdict(tuple(path), said)
        path.append(child)
        node = child


def stands(right: float, seconds: float, bottom: float) -> Callable[[list[int]], tuple[Any, list[Stand]]]:
    def make(text: list[int]) -> tuple[Any, list[Stand]]:
        made = [Stand(i, text, right, seconds) for i in (1, 2, 3)]
        low = Stand(4, text, bottom, 0.0)
        return DytcDrafter(made, low, clock=CLOCK), [*made, low]

    return make


def suffix(text: list[int]) -> tuple[Any, list[Stand]]:
    made = [Stand(i, text, 0.3, 6e-3) for i in (1, 2, 3)]
    return DytcDrafter(made, SuffixDrafter(source=4), clock=CLOCK), made


def alone(text: list[int]) -> tuple[Any, list[Stand]]:
    return HybridDrafter([SuffixDrafter()]), []


def real(prompts: Sequence[str], length: int) -> dict[str, float]:
    """Seconds of the wall clock."""
    target = open_target(**needs([REAL]))
    engine = assemble(target, REAL)
    drafter: Any = engine.drafters["dytc"]
    own, parts = [0.0], [0.0]

    def timed(call: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*given)
            finally:
                into[0] += time.perf_counter() - start

        return run

    drafter.propose, drafter.observe = timed(drafter.propose, own), timed(drafter.observe, own)
    for part in drafter.parts:
        part.drafter.propose = timed(part.drafter.propose, parts)
    took = passes = 0.0
    for prompt in prompts:
        stats = engine.generate([{"role": "user", "content": prompt}], max_tokens=length, temperature=0.0).stats
        took, passes = took + stats.decode_seconds, passes + stats.passes - 1
    engine.close()
    beside = own[0] - parts[0]
    return {
        "us_a_step": round(1e6 * beside / passes, 1),
        "parts_us_a_step": round(1e6 * parts[0] / passes, 1),
        "ms_a_step": round(1e3 * took / passes, 2),
        "share_of_a_step": round(beside / took, 4),
        "steps": int(passes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200, help="steps of each kind (default: 1200)")
    parser.add_argument("--nodes", type=int, default=6, help="most nodes of a draft (default: 6)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chain = Plan("dytc", args.nodes, 1, args.nodes)
    cases = {
        "bottom": (stands(0.3, 6e-3, 0.7), chain),
        "parts": (stands(0.7, 3e-4, 0.3), chain),
        "sides": (stands(0.7, 3e-4, 0.3), Plan("dytc", 4, 3, 2 * args.nodes)),
        "suffix": (suffix, chain),
        "hybrid over suffix": (alone, chain),
    }
    figures: dict[str, Any] = {}
    for name, (make, plan) in cases.items():
        figures[name] = measure(make, plan, args.steps)
        print(f"{name:20s}", figures[name], flush=True)
    lines = PROMPTS.read_text("utf-8").splitlines()
    figures["real"] = real([json.loads(line)["prompt"] for line in lines], 96)
    print(f"{'real':20s}", figures["real"], flush=True)
    told = {"steps": args.steps, "nodes": args.nodes, "pass_ms": 1e3 * PASS, "cost": figures}
    print("written to", write("dytc_overhead", told))


if __name__ == "__main__":
    main()
