"""The default controller against drafts that are bad, that turn bad, that alternate, and that are good.

Scripts whose drafts are always wrong, right for 200 tokens and then wrong, right and wrong by turns of 50 tokens, and right
with probability 0.8; each under ``auto`` (goodput behind a breaker), plain decoding, and fixed lengths, in short turns on one
loaded model and the same prompts. The figure of a run is the speed of ``auto`` over that of the other.

1. ``auto`` over plain, wherever drafts are bad (wanted: >= 0.97)
2. ``auto`` over the best fixed length, chosen in hindsight, where drafts are good (wanted: >= 0.95)

    python benchmarks/adversarial.py [--model REF] [--tokens N] [--runs N]
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from provenance import write

from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Need, Plan, Scores, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.script import ScriptDrafter
from surefoot.loader import assemble, open_target
from surefoot.models import DEFAULT

LENGTHS = (1, 2, 3, 5, 8)
WARM = 60
"""Tokens of the run that warms up."""
TURN = 100
"""Tokens that one way decodes before the next has its turn."""


class Turns:
    """A script that is right where ``right(i)`` says so, i counting the tokens of the answer."""

    name = "script"
    source = 1
    needs = Need()

    def __init__(self, truth: Sequence[int], vocab: int, right: Callable[[int], bool]) -> None:
        self._truth, self._vocab, self._right = truth, vocab, right

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._one(row, plan.depth) for row, plan in zip(rows, plans, strict=True)]

    def _one(self, row: Row, depth: int) -> DraftTree:
        at = len(row.tokens) - row.n_prompt
        drafted = [
            token if self._right(i) else (token + 1) % self._vocab for i, token in enumerate(self._truth[at : at + depth], at)
        ]
        return DraftTree.chain([row.tokens[-1], *drafted], source=self.source)

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None: ...

    def forget(self, rows: Sequence[Row]) -> None: ...


def script(name: str, truth: Sequence[int], vocab: int, seed: int) -> Any:
    if name == "right for 200, then wrong":
        return Turns(truth, vocab, lambda i: i < 200)
    if name == "alternating every 50":
        return Turns(truth, vocab, lambda i: (i // 50) % 2 == 0)
    accuracy = {"always wrong": 0.0, "good": 0.8}[name]
    return ScriptDrafter(lambda _: truth, vocab, accuracy=accuracy, seed=seed)


BAD = ("always wrong", "right for 200, then wrong", "alternating every 50")
SCRIPTS = (*BAD, "good")


class Run:
    """One way to decode one prompt, stepped a little at a time."""

    def __init__(
        self, loaded: Any, prompt: list[int], truth: list[int], name: str, way: str | int, count: int, seed: int
    ) -> None:
        self.name, self.way, self.truth = name, way, truth[:count]
        if way == "plain":
            self.engine = Engine(loaded.model, reuse=False)
        else:
            made = script(name, truth, loaded.model.traits.vocab_size, seed)
            controller, k = ("auto", None) if way == "auto" else ("fixed", int(way))
            self.engine = Engine(loaded.model, [made], assemble(loaded, made, None, controller, k).controller, reuse=False)
        self.row = self.engine.add(prompt, SamplingParams(max_tokens=count, ignore_eos=True))

    def turn(self, count: int) -> None:
        """About ``count`` tokens more."""
        end = len(self.row.output) + count
        while not self.row.done and len(self.row.output) < end:
            self.engine.step()

    def close(self) -> tuple[float, float, Any]:
        """Seconds a token, tokens a pass and the breaker's counts."""
        if list(self.row.output) != self.truth:
            raise SystemExit(f"{self.name}, {self.way}: the output is not that of plain decoding")
        self.engine.close()
        told = self.engine.controller.stats() if self.way == "auto" else None  # type: ignore[union-attr]
        stats = self.row.stats
        return stats.decode_seconds / (len(self.truth) - 1), stats.mean_acceptance_length, told


def plain(model: Any, prompt: list[int], count: int) -> list[int]:
    """The answer of plain decoding."""
    engine = Engine(model, reuse=False)
    row = engine.add(prompt, SamplingParams(max_tokens=count, ignore_eos=True))
    while not row.done:
        engine.step()
    engine.close()
    return list(row.output)


def contest(runs: list[Run]) -> None:
    """All to their ends, by turns of :data:`TURN` tokens in an order that rotates: what drifts must not favour one way."""
    while any(not run.row.done for run in runs):
        for run in runs:
            run.turn(TURN)
        runs = runs[1:] + runs[:1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of each run (default: 2000)")
    parser.add_argument("--runs", type=int, default=5, help="prompts, each decoded in every way (default: 5)")
    args = parser.parse_args()
    loaded = open_target(args.model, precision=args.precision)
    vocab, count = loaded.model.traits.vocab_size, args.tokens
    ways = ["plain", "auto", *LENGTHS]
    seconds: dict[str, dict[Any, list[float]]] = {name: {way: [] for way in ways} for name in SCRIPTS}
    breakers: dict[str, list[Any]] = {name: [] for name in SCRIPTS}
    for run in range(args.runs):
        rng = random.Random(run)
        prompt = [rng.randrange(vocab) for _ in range(100)]
        truth = plain(loaded.model, prompt, count + max(LENGTHS) + 16)
        for name in SCRIPTS:
            if run == 0:
                warm = [Run(loaded, prompt, truth, name, way, min(WARM, count), run) for way in ways]
                contest(warm)
                for own in warm:
                    own.close()
            runs = [Run(loaded, prompt, truth, name, way, count, run) for way in ways]
            contest(runs)
            for way, own in zip(ways, runs, strict=True):
                took, length, told = own.close()
                seconds[name][way].append(took)
                if told is not None:
                    breakers[name].append({**told, "mean_acceptance_length": length})
            print(f"run {run + 1}, {name}: " + ", ".join(f"{w} {1e3 * seconds[name][w][-1]:.2f} ms" for w in ways), flush=True)
    figures: dict[str, Any] = {
        "model": loaded.model.traits.name,
        "dtype": loaded.model.traits.dtype,
        "tokens_each": count,
        "runs": args.runs,
        "scripts": {name: summary(name, seconds[name], breakers[name]) for name in SCRIPTS},
    }
    for name, found in figures["scripts"].items():
        best = found["best_fixed"]
        print(
            f"{name}: auto / plain {found['auto_over_plain']['median']:.3f}, "
            f"auto / best fixed (k={best}) {found['auto_over_fixed'][best]['median']:.3f}"
        )
    print(f"written: {write('adversarial', figures)}")


def summary(name: str, seconds: dict[Any, list[float]], breakers: list[Any]) -> dict[str, Any]:
    """Medians of the paired ratios; the best fixed length is chosen by its median time."""

    def over(way: Any) -> dict[str, Any]:
        ratios = [b / a for a, b in zip(seconds["auto"], seconds[way], strict=True)]
        return {"median": statistics.median(ratios), "ratios": [round(r, 3) for r in ratios]}

    best = min(LENGTHS, key=lambda k: statistics.median(seconds[k]))
    return {
        "wanted": "auto_over_plain >= 0.97" if name in BAD else "auto_over_fixed[best_fixed] >= 0.95",
        "auto_over_plain": over("plain"),
        "auto_over_fixed": {str(k): over(k) for k in LENGTHS},
        "best_fixed": str(best),
        "ms_a_token": {str(way): round(1e3 * statistics.median(found), 3) for way, found in seconds.items()},
        "breaker": breakers,
    }


if __name__ == "__main__":
    main()
