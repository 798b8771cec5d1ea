"""Predicted against measured latency of self-speculation (drafter ``ssr``) on a model that reasons, in seconds that pass.

The model thinks so many random words and answers so many; behind a thought that was cut, each word of the answer is that of the
full one with a known chance, the overlap. A pass over m tokens, whose rows share it, takes 1 + slope (m - 1) times a plain pass
(it waits), so costs and overlap are known and everything else is the real engine: forks, drafts, controllers and its own time,
which is in the measurement and not in the prediction.

grid        overlap x answer x thought, one fork at a quarter of the thought; by chains of fixed length, and as ``auto`` drafts
            (by estimated reach, where what to draft and whether to fork is decided from cost), against theory.ssr.latency
            at that chain, and at the best one; wanted: latency within 10 % at every point
iterative   overlap that grows with the thought: one fork, and three
published   the overlap which the published gain of the best task (24.1 %) asks for by the theory, and what it brings here
zero        overlap 0, a run of requests on one engine that has to find out by itself: latency of the whole run, the first
            requests included, over plain decoding of the same; wanted: at most 3 % more

    python benchmarks/ssr_prediction.py [--counted] [--quick]

``--counted``: nothing waits, the clock of the engine shows what the passes would have taken: exact, and quick, but the engine's
own time is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from provenance import write

from surefoot.backends.table_thinking import ThinkingTable
from surefoot.control.breaker import Breaker
from surefoot.control.costs import LiveCosts
from surefoot.control.fixed import FixedController
from surefoot.control.marginal import MarginalController
from surefoot.core.cost import CostModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.request import Row
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.ssr import Family, ForkControl, SsrOptions, SsrSource
from surefoot.theory import ssr
from surefoot.theory.ssr import Setting

VOCAB, CHAIN, SLOPE = 400, 8, 0.02
FAMILY = Family("toy", "<think>", "</think>", "</think>")
PUBLISHED = 0.241
"""The largest published reduction of latency: Gemma on ClassEval; prefixes alone gave 7.9 % there, by the ablation."""
Overlap = float | Callable[[float], float]


class Clock:
    """Seconds that pass, or that are counted."""

    def __init__(self, counted: bool) -> None:
        self._counted = counted
        self._now = 0.0

    def __call__(self) -> float:
        return self._now if self._counted else time.perf_counter()

    def wait(self, until: float) -> None:
        """Sleep wakes late: the last bit is waited for awake."""
        if self._counted:
            self._now = until
            return
        left = until - time.perf_counter()
        if left > 0.0004:
            time.sleep(left - 0.0004)
        while time.perf_counter() < until:
            pass


class Waits(ThinkingTable):
    """Its passes take ``price(m)`` seconds of ``clock``."""

    price: Callable[[int], float] = staticmethod(lambda m: 0.0)
    clock: Clock

    def score(self, slots: Any, forest: Any, need: Any) -> Any:
        start = self.clock()
        found = super().score(slots, forest, need)
        self.clock.wait(start + self.price(forest.nodes))
        return found


def model(thought: int, answer: int, overlap: Overlap, slope: float, own: argparse.Namespace, seed: int) -> Waits:
    made = Waits(VOCAB, thought=thought, answer=answer, overlap=overlap, seed=seed)
    made.price = lambda m: own.milliseconds / 1e3 * (1.0 + slope * (m - 1))
    made.clock = Clock(own.counted)
    return made


def engine(target: Waits, options: SsrOptions, chain: int | None) -> Engine:
    """``chain``: of fixed length, forks always; None: as ``auto`` decides."""
    widths = (1, 2, 4, 8, 16, 32)
    cost = CostModel(widths, tuple(map(target.price, widths)), 0)
    own = SsrSource(FAMILY, target.pieces, [target.end], ForkControl(options, cost), source=1)
    if chain is not None:
        merged = HybridDrafter([own], source=3)
        return Engine(target, [own, merged], FixedController("hybrid", chain), reuse=False, clock=target.clock)
    suffix = SuffixDrafter(shared_tokens=0, source=2)
    merged = HybridDrafter([own, suffix], source=3)
    costs = LiveCosts(cost)
    steer = Breaker(MarginalController("hybrid", costs), costs, patience=16, longest=256)
    return Engine(target, [own, suffix, merged], steer, reuse=False, clock=target.clock)


def ask(own: Engine, target: Waits, prompt: Sequence[int]) -> tuple[float, Row]:
    """Seconds behind the first token, which prefill yields."""
    [row] = own.submit([*prompt, target.start], SamplingParams(stop_token_ids=(target.eos,)))
    while not row.output and not row.done:
        own.step()
    start = target.clock()
    while not row.done:
        own.step()
    return target.clock() - start, row


def pair(
    target: Waits, own: Engine, plain: Engine, prompts: Sequence[Sequence[int]]
) -> tuple[list[float], list[float], list[Row]]:
    """The same requests with and without, in turns; answers are compared."""
    took, base, rows = [], [], []
    for i, prompt in enumerate(prompts):
        sides = {True: own, False: plain}
        found = {which: ask(sides[which], target, prompt) for which in ((True, False) if i % 2 else (False, True))}
        if found[True][1].tokens != found[False][1].tokens:
            raise SystemExit("an answer is another one than plain decoding gives")
        took.append(found[True][0])
        base.append(found[False][0])
        rows.append(found[True][1])
    return took, base, rows


def prompts(count: int, seed: int) -> list[list[int]]:
    return [[1 + seed % 50, 2, 3 + i] for i in range(count)]


def point(
    thought: int, answer: int, overlap: Overlap, options: SsrOptions, own: argparse.Namespace, chain: int | None, seed: int
) -> dict[str, Any]:
    """One point: predicted and measured latency over that of plain decoding."""
    target = model(thought, answer, overlap, SLOPE, own, seed)
    ssr_engine = engine(target, replace(options, always=chain is not None), chain)
    plain = Engine(target, reuse=False, clock=target.clock)
    took, base, rows = pair(target, ssr_engine, plain, prompts(own.requests, seed))
    # the end marker and the end of the answer are tokens too; the first token is not timed
    setting = Setting(
        thought,
        answer + 1,
        overlap,
        options.draft_budget or 0,
        draft=options.draft_tokens,
        interval=options.interval,
        drafts=options.most,
        chain=chain,
    )
    setting = replace(setting, budget=max(0, setting.budget - 1))
    found = ssr.latency(setting, lambda m: 1.0 + SLOPE * (m - 1))
    predicted, measured = found.total / found.plain, sum(took) / sum(base)
    told = [row.stats.ssr.to_dict() for row in rows if row.stats.ssr is not None]
    ssr_engine.close()
    return {
        "thought": thought,
        "answer": answer,
        "overlap": overlap if isinstance(overlap, float) else "0.2 + 0.75 share",
        "chain": "auto" if chain is None else chain,
        "budget": options.draft_budget,
        "interval": options.interval,
        "predicted_latency": predicted,
        "measured_latency": measured,
        "deviation": measured / predicted - 1.0,
        "predicted_gain": 1.0 - predicted,
        "measured_gain": 1.0 - measured,
        "plain_token_ms": 1e3 * sum(base) / sum(len(row.output) - 1 for row in rows),
        "drafts": statistics.fmean(t["drafts"] for t in told) if told else 0.0,
        "predicted_accepted": found.accepted,
        "accepted": statistics.fmean(t["prefix_tokens"] + t["suffix_tokens"] for t in told) if told else 0.0,
        "seconds_by_stage": {
            stage: statistics.fmean(t[f"{stage}_seconds"] for t in told) if told else 0.0
            for stage in ("thought", "verify", "continuation")
        },
    }


def zero(thought: int, answer: int, slope: float, own: argparse.Namespace, requests: int) -> dict[str, Any]:
    """A run of requests whose drafts foresee nothing."""
    target = model(thought, answer, 0.0, slope, own, 7)
    with_ssr = engine(target, SsrOptions(), None)
    took, base, rows = pair(target, with_ssr, Engine(target, reuse=False, clock=target.clock), prompts(requests, 7))
    with_ssr.close()
    late = requests // 2
    forked = [row.stats.ssr is not None and row.stats.ssr.to_dict()["drafts"] > 0 for row in rows]
    return {
        "thought": thought,
        "answer": answer,
        "slope": slope,
        "requests": requests,
        "forked": forked,
        "cost_of_the_run": sum(took) / sum(base) - 1.0,
        "cost_of_its_second_half": sum(took[late:]) / sum(base[late:]) - 1.0,
        "most_for_one_request": max(t / b for t, b in zip(took, base, strict=True)) - 1.0,
    }


def rising(share: float) -> float:
    return 0.2 + 0.75 * share


def implied(thought: int, answer: int) -> float:
    """The overlap at which the theory gives the published gain, chains at their best."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        setting = Setting(thought, answer, middle, thought // 4)
        low, high = (low, middle) if ssr.latency(setting, lambda m: 1.0 + SLOPE * (m - 1)).gain >= PUBLISHED else (middle, high)
    return high


def line(p: dict[str, Any]) -> str:
    own = f"{p['overlap']!s:>18}{p['answer']:>8}{p['thought']:>9}{p['chain']!s:>7}{p['interval']!s:>10}"
    figures = f"{100 * p['predicted_gain']:>10.1f} %{100 * p['measured_gain']:>10.1f} %{100 * p['deviation']:>10.1f} %"
    return f"{own}{figures}{p['predicted_accepted']:>10.1f}{p['accepted']:>8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=30.0, help="of a pass over one token (30)")
    parser.add_argument("--requests", type=int, default=4, help="of a point (4); luck shrinks with more")
    parser.add_argument("--counted", action="store_true", help="count the seconds of passes instead of waiting")
    parser.add_argument("--quick", action="store_true", help="few points; nothing is written unless --name is given")
    parser.add_argument("--name", help="results/NAME.json (ssr_prediction)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    overlaps, answers, thoughts, run = (0.3, 0.6, 0.9), (100, 200), (150, 300), 24
    if args.quick:
        overlaps, answers, thoughts, run = (0.6,), (60,), (80,), 8
        args.requests = min(args.requests, 2)
    name = args.name or (None if args.quick or args.counted else "ssr_prediction")
    title = f"{'overlap':>18}{'answer':>8}{'thought':>9}{'chain':>7}{'interval':>10}"
    print(f"{title}{'predicted':>12}{'measured':>12}{'latency off':>12}{'accepted':>10}{'':>8}")

    def measured(thought: int, answer: int, overlap: Overlap, chain: int | None, **options: Any) -> dict[str, Any]:
        told = SsrOptions(**{"draft_budget": thought // 4, **options})
        p = point(thought, answer, overlap, told, args, chain, len(grid))
        print(line(p), flush=True)
        return p

    grid: list[dict[str, Any]] = []
    for overlap in overlaps:
        for answer in answers:
            for thought in thoughts:
                grid += [measured(thought, answer, overlap, CHAIN)]
                grid += [measured(thought, answer, overlap, None)]
    long, short = max(thoughts), min(answers)
    several = [
        measured(long, short, rising, CHAIN),
        measured(long, short, rising, CHAIN, interval=long // 4, max_drafts=3),
        measured(long, short, rising, CHAIN, draft_budget=long // 2),
    ]
    answer = max(answers)
    published = [measured(thought, answer, implied(thought, answer), None) for thought in thoughts]
    nothing = []
    for slope in (SLOPE,) if args.quick else (SLOPE, 0.15, 0.4):
        p = zero(min(thoughts), max(answers), slope, args, run)
        nothing.append(p)
        costs = ", ".join(f"{100 * p[key]:+.1f} %" for key in ("cost_of_the_run", "cost_of_its_second_half"))
        print(f"overlap 0, slope {slope}: {costs} (second half); forked {sum(p['forked'])} of {p['requests']}", flush=True)
    worst = max((p["deviation"] for p in grid), key=abs)
    most = max(p["cost_of_the_run"] for p in nothing)
    print(f"worst deviation of latency: {100 * worst:+.1f} % (wanted: within 10 %)")
    print(f"best gain: {100 * max(p['measured_gain'] for p in grid):.1f} %; most lost at overlap 0: {100 * most:+.1f} %")
    if name:
        figures = {
            "pass_ms": args.milliseconds,
            "slope": SLOPE,
            "counted": args.counted,
            "requests_a_point": args.requests,
            "worst_deviation": worst,
            "within_10_percent": sum(abs(p["deviation"]) <= 0.1 for p in grid),
            "points": len(grid),
            "best_gain": max(p["measured_gain"] for p in grid),
            "published_gain": PUBLISHED,
            "most_lost_at_zero_overlap": most,
            "averaging": "sums over the requests of a point; at overlap 0 over the whole run, its first requests included",
            "grid": grid,
            "iterative": several,
            "at_the_published_gain": published,
            "zero_overlap": nothing,
        }
        print(f"written: {write(name, figures)}")


if __name__ == "__main__":
    main()
