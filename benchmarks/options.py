"""What request options cost: a step of k = 8 drafted tokens with penalties and top-p against a greedy one without options.

The scripted drafts are all right (accuracy 1: every node of every draft is shaped, the dearest case) or right with 0.7. The two
requests step in turn on one loaded model, after the same prompt, so that both see the same machine (wanted: penalties + top-p
below 1.10). Structured output and log-probabilities are told beside it.

    python benchmarks/options.py [--model REF] [--prompts N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from provenance import write

from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.drafters.script import ScriptDrafter
from surefoot.loader import open_target
from surefoot.models import DEFAULT

K, LENGTH = 8, 181
PROMPTS = Path(__file__).parent / "prompts.jsonl"
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "sampling (temperature 0.8)": {"temperature": 0.8, "seed": 5},
    "penalties, greedy": PENALTIES,
    "penalties + top-p 0.9": {"temperature": 0.8, "seed": 5, "top_p": 0.9, **PENALTIES},
    "penalties + top-p 0.9 + top-k 50 + bias": {
        "temperature": 0.8, "seed": 5, "top_p": 0.9, "top_k": 50, "logit_bias": {5: 1.0, 900: -100}, **PENALTIES,
    },
    "bad words + min_tokens": {"bad_words": [" the", "certainly"], "min_tokens": 150},
    "top_logprobs 5": {"logprobs": 5},
}  # fmt: skip


def prompts(target: Any, n: int) -> list[list[int]]:
    """``n`` prompts of all kinds."""
    lines = PROMPTS.read_text("utf-8").splitlines()
    chosen = lines[:: max(1, len(lines) // n)][:n]
    return [target.codec.prompt([{"role": "user", "content": json.loads(line)["prompt"]}]) for line in chosen]


def steps(target: Any, options: dict[str, Any], accuracy: float, tokens: list[int]) -> tuple[list[float], list[float]]:
    """Seconds of the steps of a request without options and of one with ``options``, made in turn."""
    rows, engines = [], []
    for own in ({}, options):
        params = SamplingParams.build({"max_tokens": LENGTH, "ignore_eos": True, **own})
        plain = Engine(target.model, codec=target.codec, reuse=False)
        row = plain.add(tokens, params)
        while not row.done:
            plain.step()
        plain.close()
        said = row.output
        script = ScriptDrafter(lambda _, said=said: said, target.model.traits.vocab_size, accuracy=accuracy)
        engine = Engine(target.model, [script], FixedController("script", K), codec=target.codec, reuse=False)
        rows.append(engine.add(tokens, params))
        engines.append(engine)
    times: tuple[list[float], list[float]] = ([], [])
    for engine in engines:  # the prompt, and the first token, which is never drafted
        engine.step()
    while not any(row.done for row in rows):
        for engine, own in zip(engines, times, strict=True):
            start = time.perf_counter()
            engine.step()
            own.append(time.perf_counter() - start)
    for engine in engines:
        engine.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--prompts", type=int, default=8)
    args = parser.parse_args()
    target = open_target(args.model)
    asked = prompts(target, args.prompts)
    found: dict[str, dict[str, Any]] = {}
    for name, options in CASES.items():
        for accuracy in (1.0, 0.7):
            ratios, bare, own = [], [], []
            for tokens in asked:
                without, with_options = steps(target, options, accuracy, tokens)
                ratios.append(statistics.median(with_options) / statistics.median(without))
                bare += without
                own += with_options
            entry = {
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(r, 3) for r in ratios],
                "step_ms": round(1e3 * statistics.median(own), 2),
                "step_without_ms": round(1e3 * statistics.median(bare), 2),
            }
            found[f"{name}, drafts right with {accuracy}"] = entry
            against = f"{entry['step_ms']} ms against {entry['step_without_ms']}"
            print(f"{name:42s} accuracy {accuracy}: {entry['ratio']:.3f} ({against})")
    print("written to", write("options", {"model": args.model, "k": K, "prompts": args.prompts, "cases": found}))


if __name__ == "__main__":
    main()
