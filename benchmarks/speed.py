"""Plain against speculative decoding on the prompts of this folder: tokens/s, acceptance, equality, in one run.

Every prompt is decoded by all engines in turn (order rotates), on one loaded model; figures are of decoding (prefill excluded).

    python benchmarks/speed.py [--model REF] [--drafters auto,ngram,suffix] [--length 128] [--limit N]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from provenance import write

from surefoot.control.fixed import FixedController
from surefoot.control.goodput import GoodputController
from surefoot.core.engine import Engine
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.loader import assemble, open_target
from surefoot.models import DEFAULT


def shipped(loaded: Any, drafter: str) -> tuple[list[Any], Any]:
    """Drafters and controller as ``surefoot.load`` makes them."""
    engine = assemble(loaded, drafter)
    return list(engine.drafters.values()), engine.controller


def engines(loaded: Any, names: list[str]) -> dict[str, Engine]:
    target, codec = loaded.model, loaded.codec
    width = target.traits.min_width
    cost = loaded.calibration.cost(target, refresh=True)
    auto = {"min_width": width, "change": cost.change if target.traits.steady else 0.0}
    # no sharing between requests: what a repeated prompt leaves behind must not help the next run
    suffix = {"shared_tokens": 0}
    made = {
        "plain": lambda: ([], None),
        "auto": lambda: shipped(loaded, "auto:shared_tokens=0"),
        "suffix-auto": lambda: ([SuffixDrafter(**suffix)], GoodputController("suffix", cost, **auto)),
        "ngram": lambda: ([NgramDrafter()], FixedController("ngram", 5)),
        "ngram-auto": lambda: ([NgramDrafter()], GoodputController("ngram", cost, **auto)),
        "suffix": lambda: ([SuffixDrafter(**suffix)], FixedController("suffix", 5)),
        "suffix-tree": lambda: ([SuffixDrafter(**suffix)], FixedController("suffix", 5, width=2, nodes=5)),
        "tree-auto": lambda: ([SuffixDrafter(**suffix)], GoodputController("suffix", cost, width=3, **auto)),
    }
    out = {}
    for name in ["plain", *names]:
        drafters, controller = made[name]()
        out[name] = Engine(target, drafters, controller, codec=codec, reuse=False)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--drafters", default="auto,ngram,suffix")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--name", default="speed")
    args = parser.parse_args()
    loaded = open_target(args.model, precision=args.precision)
    lines = (Path(__file__).parent / "prompts.jsonl").read_text("utf-8").splitlines()
    prompts = [json.loads(line) for line in lines][: args.limit or None]
    running = engines(loaded, args.drafters.split(","))
    names = list(running)
    for engine in running.values():
        engine.generate([{"role": "user", "content": "Say hello."}], max_tokens=16)
    seconds: dict[str, dict[str, list[float]]] = {n: {} for n in names}
    tokens: dict[str, list[int]] = {}
    counts = {n: {"passes": 0, "drafts": 0, "draft_tokens": 0, "accepted_tokens": 0} for n in names}
    differing = dict.fromkeys(names, 0)
    for i, item in enumerate(prompts):
        message = [{"role": "user", "content": item["prompt"]}]
        results = {}
        for name in names[i % len(names) :] + names[: i % len(names)]:
            results[name] = done = running[name].generate(message, max_tokens=args.length)
            seconds[name].setdefault(item["category"], []).append(done.stats.decode_seconds)
            for key in counts[name]:
                counts[name][key] += getattr(done.stats, key)
        tokens.setdefault(item["category"], []).append(len(results["plain"].token_ids) - 1)
        for name in names:
            differing[name] += results[name].token_ids != results["plain"].token_ids
    rows = {}
    for name in names:
        c = counts[name]
        per_category = {cat: sum(tokens[cat]) / sum(s) for cat, s in seconds[name].items()}
        every = sum(map(sum, tokens.values())) / sum(sum(s) for s in seconds[name].values())
        rows[name] = {
            "tokens_per_second": every,
            "by_category": per_category,
            "tokens_a_pass": (sum(map(sum, tokens.values())) + len(prompts)) / c["passes"],
            "acceptance_rate": c["accepted_tokens"] / c["draft_tokens"] if c["draft_tokens"] else 0.0,
            "answers_that_differ": differing[name],
        } | c
    for name in names:
        rows[name]["speedup"] = rows[name]["tokens_per_second"] / rows["plain"]["tokens_per_second"]
        rows[name]["speedup_by_category"] = {
            cat: v / rows["plain"]["by_category"][cat] for cat, v in rows[name]["by_category"].items()
        }
        rows[name]["least_speedup_of_a_prompt"] = min(
            a / b for cat in seconds[name] for a, b in zip(seconds["plain"][cat], seconds[name][cat], strict=True)
        )
    print("| drafter | tokens/s | speed-up | tokens a pass | drafted tokens kept | answers that differ |")
    print("|---|---|---|---|---|---|")
    for name, r in rows.items():
        print(
            f"| {name} | {r['tokens_per_second']:.1f} | {r['speedup']:.2f}x | {r['tokens_a_pass']:.2f} | "
            f"{100 * r['acceptance_rate']:.0f} % | {r['answers_that_differ']} of {len(prompts)} |"
        )
    for name, r in rows.items():
        print(name, {k: round(v, 2) for k, v in r["speedup_by_category"].items()}, round(r["least_speedup_of_a_prompt"], 2))
    lengths = [t for per in tokens.values() for t in per]
    figures = {
        "model": loaded.model.traits.name,
        "dtype": loaded.model.traits.dtype,
        "prompts": len(prompts),
        "length": args.length,
        "median_output_tokens": statistics.median(lengths),
        "rows": rows,
    }
    print(f"written: {write(args.name, figures)}")


if __name__ == "__main__":
    main()
