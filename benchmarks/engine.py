"""What the engine costs around the target's pass, and whether predicted gains arrive.

1. plain decoding against the bare pass at the same width and context, in alternating steps (wanted: <= 1.10)
2. a scripted drafter of known acceptance against (1 + sum of reach) / V(k + 1), V from bare passes in alternating steps
   (wanted: >= 0.95)
3. 500 plain tokens after a prompt of 2,000 against 500 after one of 200, in alternating steps (wanted: <= 1.5)
4. the default controller under drafts that are always wrong against plain decoding, alternating runs (wanted: about 1)
5. memory over 200 requests after a warm-up (wanted: flat)

    python benchmarks/engine.py [--model REF] [--quick]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

from provenance import write

from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.measure import measure
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Need
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.script import ScriptDrafter
from surefoot.loader import assemble, open_target
from surefoot.models import DEFAULT

Target = Any


def tokens(n: int, seed: int, vocab: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(n)]


def endless(n: int | None) -> SamplingParams:
    return SamplingParams(max_tokens=n, ignore_eos=True)


def plain_against_bare(target: Target, steps: int) -> dict[str, float]:
    """Alternate engine steps and bare passes over the same number of tokens behind the same context."""
    engine = Engine(target, reuse=False)
    row = engine.add(tokens(200, 1, target.traits.vocab_size), endless(steps + 1))
    engine.step()
    step_times, bare_times = [], []
    forest = Forest.pack([DraftTree.chain([5])], None, [True], target.traits.min_width)
    while not row.done:
        start = time.perf_counter()
        engine.step()
        middle = time.perf_counter()
        if row.done:
            break
        step_times.append(middle - start)
        bare_times.append(bare_pass(target, row.slot, forest))
    engine.close()
    pairs = [a / b for a, b in zip(step_times, bare_times, strict=True)]
    return {
        "step_ms": 1e3 * statistics.median(step_times),
        "bare_pass_ms": 1e3 * statistics.median(bare_times),
        "ratio": statistics.median(step_times) / statistics.median(bare_times),
        "median_of_paired_ratios": statistics.median(pairs),
        "steps": len(pairs),
    }


def bare_pass(target: Target, slot: Any, forest: Forest) -> float:
    """Seconds of a pass that nothing is kept of."""
    start = time.perf_counter()
    target.score([slot], forest, Need())
    seconds = time.perf_counter() - start
    target.commit([slot], [()])
    return seconds


def scripted(target: Target, count: int) -> list[dict[str, float]]:
    """A script of known acceptance against (1 + sum of reach) / V(k + 1), V from bare passes in alternation with the steps."""
    vocab = target.traits.vocab_size
    prompt = tokens(150, 2, vocab)
    plain = Engine(target, reuse=False)
    row = plain.add(prompt, endless(count + 40))
    while not row.done:
        plain.step()
    truth = row.output
    plain.close()
    found = []
    for accuracy in (0.3, 0.5, 0.7, 0.9):
        for k in (1, 2, 3, 5, 7, 11):
            drafter = ScriptDrafter(lambda _: truth, vocab, accuracy=accuracy, seed=k)
            engine = Engine(target, [drafter], FixedController("script", k), reuse=False)
            row = engine.add(prompt, endless(count))
            while len(row.output) < 3:
                engine.step()
            width = max(k + 1, target.traits.min_width)
            forest = Forest.pack([DraftTree.chain(tokens(width, 4, vocab))], None, [True], target.traits.min_width)
            steps: list[float] = []
            bare: list[float] = []
            emitted = 0
            while row.remaining > k + 1:
                n = len(row.tokens)
                start = time.perf_counter()
                engine.step()
                steps.append(time.perf_counter() - start)
                emitted += len(row.tokens) - n
                bare.append(bare_pass(target, row.slot, forest))
            same = row.output == truth[: len(row.output)]
            engine.close()
            expected = 1 + sum(accuracy**i for i in range(1, k + 1))
            realised = emitted / len(steps)
            step, v = statistics.median(steps), statistics.median(bare)
            paired = statistics.median(b / s for s, b in zip(steps, bare, strict=True))
            found.append(
                {
                    "accuracy": accuracy,
                    "k": k,
                    "expected_tokens_a_pass": expected,
                    "measured_tokens_a_pass": realised,
                    "bare_pass_ms": 1e3 * v,
                    "step_ms": 1e3 * step,
                    "of_prediction_at_realised_reach": paired,
                    "of_prediction": paired * realised / expected,
                    "identical": same,
                }
            )
    return found


def contexts(target: Target, count: int) -> dict[str, float]:
    """``count`` plain tokens after a short and after a long prompt, step by step in turn."""
    vocab = target.traits.vocab_size
    lengths = (200, min(2000, target.traits.max_context - count - 8))
    runs = []
    for length in lengths:
        engine = Engine(target, reuse=False)
        row = engine.add(tokens(length, 3, vocab), endless(count + 1))
        while row.cached < length:
            engine.step()
        runs.append((engine, row, []))
    while not all(row.done for _, row, _ in runs):
        for engine, _, times in runs:
            start = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - start)
    for engine, _, _ in runs:
        engine.close()
    near, far = (sum(sorted(times)[: int(0.9 * len(times))]) for _, _, times in runs)
    return {
        "tokens_each": len(runs[0][2]),
        "near_prompt": lengths[0],
        "far_prompt": lengths[1],
        "near_ms_a_token": 1e3 * statistics.median(runs[0][2]),
        "far_ms_a_token": 1e3 * statistics.median(runs[1][2]),
        "ratio": far / near,
        "note": "sums of the quickest nine tenths of the steps of each",
    }


def always_wrong(loaded: Any, count: int, runs: int = 6) -> dict[str, Any]:
    """Decode speed of the default controller over plain, where every drafted token is wrong; fresh engines each time."""
    target = loaded.model
    ratios = []
    for i in range(runs + 1):
        prompt = tokens(200, 100 + i, target.traits.vocab_size)
        plain = Engine(target, reuse=False)
        first = plain.add(prompt, endless(count))
        while not first.done:
            plain.step()
        truth = first.output
        wrong = ScriptDrafter(lambda _, t=truth: t, target.traits.vocab_size, accuracy=0.0)
        drafting = assemble(loaded, wrong)
        second = drafting.add(prompt, endless(count))
        while not second.done:
            drafting.step()
        plain.close()
        drafting.close()
        if i:  # the first run warms up
            ratios.append(first.stats.decode_seconds / second.stats.decode_seconds)
        assert second.output == truth
    return {"tokens_each": count, "ratios": [round(r, 3) for r in ratios], "median": statistics.median(ratios)}


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def memory(target: Target, requests: int) -> dict[str, Any]:
    """Resident memory while equal-sized speculative requests come and go."""
    vocab = target.traits.vocab_size
    drafter = ScriptDrafter(lambda row: [7] * 64, vocab, accuracy=0.5)
    engine = Engine(target, [drafter], FixedController("script", 5))
    curve = []
    for i in range(requests + 20):
        engine.generate(tokens(120 + i % 7, i, vocab), max_tokens=16, ignore_eos=True)
        if i >= 19:
            curve.append(resident_mb())
    engine.close()
    return {
        "requests": requests,
        "first_mb": curve[0],
        "last_mb": curve[-1],
        "growth_percent": 100 * (curve[-1] / curve[0] - 1),
        "every_20th_mb": [round(x, 1) for x in curve[::20]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    args = parser.parse_args()
    loaded = open_target(args.model, precision=args.precision)
    target = loaded.model
    few = args.quick
    curve = measure(target)
    figures: dict[str, Any] = {
        "model": target.traits.name,
        "dtype": target.traits.dtype,
        "min_width": target.traits.min_width,
        "exact": target.traits.exact,
        "pass_ms": {str(w): round(1e3 * s, 2) for w, s in zip(curve.widths, curve.seconds, strict=True)},
        "plain_against_bare_pass": plain_against_bare(target, 100 if few else 400),
        "context": contexts(target, 200 if few else 500),
        "always_wrong_over_plain": always_wrong(loaded, 100 if few else 300),
        "memory": memory(target, 40 if few else 200),
        "scripted": scripted(target, 200 if few else 900),
    }
    bare, script, context, ram = (
        figures["plain_against_bare_pass"], figures["scripted"], figures["context"], figures["memory"],
    )  # fmt: skip
    worst = min(script, key=lambda s: s["of_prediction_at_realised_reach"])
    print(f"pass ms by width: {figures['pass_ms']}")
    print(f"plain step / bare pass: {bare['ratio']:.3f} ({bare['step_ms']:.2f} / {bare['bare_pass_ms']:.2f} ms)")
    print(f"{context['tokens_each']} tokens after {context['far_prompt']} / {context['near_prompt']}: {context['ratio']:.3f}")
    print(f"always wrong drafts / plain: {figures['always_wrong_over_plain']}")
    print(f"memory over {ram['requests']} requests: {ram['first_mb']:.0f} -> {ram['last_mb']:.0f} MB")
    for s in script:
        print(
            f"script accuracy {s['accuracy']} k={s['k']:2d}: {s['of_prediction']:.3f} of the prediction "
            f"({s['of_prediction_at_realised_reach']:.3f} at the realised reach), "
            f"identical: {'yes' if s['identical'] else 'NO'}"
        )
    print(f"least: {worst['of_prediction_at_realised_reach']:.3f}")
    print(f"written: {write('engine', figures)}")


if __name__ == "__main__":
    main()
