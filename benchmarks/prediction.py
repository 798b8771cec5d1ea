"""Predicted against measured speed-up: script drafters of known acceptance, draft lengths 1 to 12, on a real model.

Everything alternates in short bursts on one loaded model, all at the same mean context: plain steps of the engine, its steps
with a script of acceptance alpha and length k, and bare passes over 1 and k + 1 tokens, which are the cost curve V of this very
run. The first steps of a burst, in which a backend may still pad to the size of the burst before, are left out.

predicted   theory.speedup.speedup_measured with V, the drafter's own cost, and E[L] from alpha
realised    the same with the tokens a pass that the script in fact gave (its luck; a planner that goes by measured reach)
measured    tokens a pass times the typical plain step over the typical step, burst by burst

    python benchmarks/prediction.py [--model REF] [--quick]     (wanted: within 10 % at every point)
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from provenance import RESULTS, write

from surefoot.control.fixed import FixedController
from surefoot.core.cost import CostModel, rising
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Need
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.script import ScriptDrafter
from surefoot.loader import open_target
from surefoot.models import DEFAULT
from surefoot.theory.speedup import expected_tokens, speedup_measured

ALPHAS = (0.3, 0.5, 0.7, 0.9)
LENGTHS = tuple(range(1, 13))
MIDDLE = 320
"""Mean context of every burst: a pass behind more cached tokens takes longer."""
SETTLE, STEPS, BARE = 9, 32, 16

Target = Any


def endless(n: int) -> SamplingParams:
    return SamplingParams(max_tokens=n, ignore_eos=True)


class Bench:
    """One model and its own plain text, of which every burst decodes a part."""

    def __init__(self, target: Target) -> None:
        self.target = target
        rng = random.Random(2)
        self.vocab = target.traits.vocab_size
        prompt = [rng.randrange(self.vocab) for _ in range(120)]
        engine = Engine(target, reuse=False)
        row = engine.add(prompt, endless(760))
        while not row.done:
            engine.step()
        engine.close()
        self.text = list(row.tokens)

    def padded(self, width: int) -> int:
        """Tokens that a pass over ``width`` is padded to."""
        return max(width, self.target.traits.min_width)

    def steps(self, tokens: float, drafter: ScriptDrafter | None, k: int) -> tuple[list[float], int, float, bool]:
        """Seconds of each step, tokens they gave, seconds of a drafted token, and whether the tokens are those of the text.

        The burst is centred: ``tokens`` a step are expected.
        """
        start = MIDDLE - round(tokens * (SETTLE + STEPS / 2))
        controller = None if drafter is None else FixedController("script", k)
        engine = Engine(self.target, [] if drafter is None else [drafter], controller, reuse=False)
        row = engine.add(self.text[:start], endless(len(self.text) - start))
        while len(row.output) < 1:
            engine.step()
        for _ in range(SETTLE):
            engine.step()
        before, seconds = len(row.tokens), []
        drafted, drafting = row.stats.draft_tokens, row.stats.draft_seconds
        for _ in range(STEPS):
            begin = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - begin)
        gave, same = len(row.tokens) - before, row.tokens == self.text[: len(row.tokens)]
        cost = (row.stats.draft_seconds - drafting) / max(1, row.stats.draft_tokens - drafted)
        engine.close()
        return seconds, gave, cost, same

    def bare(self, width: int) -> float:
        """Typical seconds of a pass over ``width`` tokens that nothing is kept of."""
        [slot] = self.target.open(1)
        traits = self.target.traits
        try:
            while slot.length < MIDDLE:
                part = self.text[slot.length : min(slot.length + 256, MIDDLE)]
                self.target.score([slot], Forest.pack([DraftTree.chain(part)], None, [False], traits.min_width), Need())
                self.target.commit([slot], [range(len(part))])
            forest = Forest.pack([DraftTree.chain(self.text[MIDDLE : MIDDLE + width])], None, [True], traits.min_width)
            seconds = []
            for i in range(SETTLE + BARE):
                begin = time.perf_counter()
                self.target.score([slot], forest, Need())
                if i >= SETTLE:
                    seconds.append(time.perf_counter() - begin)
                self.target.commit([slot], [()])
            return statistics.median(seconds)
        finally:
            self.target.close([slot])


def collect(bench: Bench, lengths: tuple[int, ...], rounds: int) -> tuple[dict[str, Any], dict[int, list[float]]]:
    """Bursts in turn; the order of lengths and of what is measured within one is shuffled each round."""
    rng = random.Random(3)
    passes: dict[int, list[float]] = defaultdict(list)
    points: dict[str, Any] = defaultdict(lambda: {"ratio": [], "speed": [], "gave": 0, "steps": 0, "draft": [], "same": True})
    for turn in range(rounds):
        for k in rng.sample(lengths, len(lengths)):
            for width in sorted({bench.padded(1), bench.padded(k + 1)}):
                passes[width].append(bench.bare(width))
            plain, _, _, same = bench.steps(1.0, None, 0)
            for alpha in rng.sample(ALPHAS, len(ALPHAS)):
                script = ScriptDrafter(
                    lambda row: bench.text[row.n_prompt :], bench.vocab, accuracy=alpha, seed=1000 * turn + k
                )
                seconds, gave, draft, right = bench.steps(float(expected_tokens(alpha, k)), script, k)
                point = points[f"{alpha} {k}"]
                point["ratio"].append(statistics.median(plain) / statistics.median(seconds))
                point["speed"].append((gave / sum(seconds)) * (sum(plain) / len(plain)))
                point["gave"] += gave
                point["steps"] += len(seconds)
                point["draft"].append(draft)
                point["same"] = point["same"] and same and right
        print(f"round {turn + 1} of {rounds}", flush=True)
    return points, passes


def evaluate(points: dict[str, Any], cost: CostModel, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Prediction and measurement of every point."""
    found = []
    seconds = [cost(m) for m in range(1, max(lengths) + 2)]  # below the least width: that of the least width
    for alpha in ALPHAS:
        for k in lengths:
            point = points[f"{alpha} {k}"]
            c = statistics.median(point["draft"]) / seconds[0]
            expected = expected_tokens(alpha, np.arange(k + 1))
            realised = point["gave"] / point["steps"]
            predicted = float(speedup_measured(expected, c, seconds[: k + 1])[k])
            measured = realised * statistics.median(point["ratio"])
            found.append(
                {
                    "alpha": alpha,
                    "k": k,
                    "expected_tokens_a_pass": float(expected[k]),
                    "realised_tokens_a_pass": realised,
                    "predicted": predicted,
                    "predicted_at_realised_reach": predicted * realised / float(expected[k]),
                    "measured": measured,
                    "measured_by_sums": statistics.median(point["speed"]),
                    "deviation": measured / predicted - 1.0,
                    "deviation_at_realised_reach": measured / (predicted * realised / float(expected[k])) - 1.0,
                    "steps": point["steps"],
                    "identical": point["same"],
                }
            )
    return found


def plot(found: list[dict[str, Any]], name: str) -> list[Path]:
    """Lines: predicted; points: measured."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), constrained_layout=True)
    for i, alpha in enumerate(ALPHAS):
        own = [p for p in found if p["alpha"] == alpha]
        ks = [p["k"] for p in own]
        left.plot(ks, [p["predicted"] for p in own], color=f"C{i}", label=f"α = {alpha}")
        left.plot(ks, [p["measured"] for p in own], "o", color=f"C{i}", markersize=5)
        right.plot(ks, [100 * p["deviation"] for p in own], "o-", color=f"C{i}", label=f"α = {alpha}", markersize=4)
    left.axhline(1.0, color="0.6", linewidth=0.8)
    left.set(xlabel="draft length k", ylabel="times plain decoding", title="predicted (lines) and measured (points)")
    right.axhspan(-10, 10, color="0.92")
    right.axhline(0.0, color="0.6", linewidth=0.8)
    right.set(xlabel="draft length k", ylabel="measured over predicted, %", title="deviation; grey: the 10 % wanted")
    for axis in (left, right):
        axis.set_xticks([p["k"] for p in found if p["alpha"] == ALPHAS[0]])
        axis.legend(frameon=False, fontsize=9)
    out = [RESULTS / f"{name}.{kind}" for kind in ("png", "svg")]
    RESULTS.mkdir(exist_ok=True)
    for path in out:
        figure.savefig(path, dpi=150)
    plt.close(figure)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--precision", default="auto")
    parser.add_argument(
        "--rounds", type=int, default=16, help="bursts of each point (16; the luck of a script shrinks with more)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="two rounds of four lengths; nothing is written unless --name is given"
    )
    parser.add_argument("--name", help="results/NAME.json, .png and .svg (prediction)")
    args = parser.parse_args()
    lengths, rounds = ((1, 3, 6, 12), 2) if args.quick else (LENGTHS, args.rounds)
    name = args.name or (None if args.quick else "prediction")
    target = open_target(args.model, precision=args.precision).model
    bench = Bench(target)
    bench.steps(1.0, None, 0)  # warm-up
    points, passes = collect(bench, lengths, rounds)
    widths = sorted(passes)
    cost = CostModel(tuple(widths), tuple(rising([statistics.median(passes[w]) for w in widths])), MIDDLE)
    found = evaluate(points, cost, lengths)
    print("V, ms: " + ", ".join(f"{w}: {1e3 * s:.2f}" for w, s in zip(cost.widths, cost.seconds, strict=True)))
    print(f"{'alpha':>5}{'k':>4}{'predicted':>11}{'measured':>10}{'deviation':>11}{'at realised reach':>19}  identical")
    for p in found:
        print(
            f"{p['alpha']:>5}{p['k']:>4}{p['predicted']:>10.3f}x{p['measured']:>9.3f}x{100 * p['deviation']:>10.1f}%"
            f"{100 * p['deviation_at_realised_reach']:>18.1f}%  {'yes' if p['identical'] else 'NO'}"
        )
    worst = max(found, key=lambda p: abs(p["deviation"]))
    own = max(found, key=lambda p: abs(p["deviation_at_realised_reach"]))
    figures = {
        "model": target.traits.name,
        "dtype": target.traits.dtype,
        "min_width": target.traits.min_width,
        "context": MIDDLE,
        "rounds": rounds,
        "pass_ms": {str(w): 1e3 * s for w, s in zip(cost.widths, cost.seconds, strict=True)},
        "worst_deviation": worst["deviation"],
        "worst_deviation_at_realised_reach": own["deviation_at_realised_reach"],
        "all_identical": all(p["identical"] for p in found),
        "points": found,
    }
    print(
        f"worst: {100 * worst['deviation']:+.1f} % at alpha {worst['alpha']}, k {worst['k']}; at the realised reach "
        f"{100 * own['deviation_at_realised_reach']:+.1f} % at alpha {own['alpha']}, k {own['k']} (wanted: within 10 %)"
    )
    for path in [write(name, figures), *plot(found, name)] if name else []:
        print(f"written: {path}")


if __name__ == "__main__":
    main()
