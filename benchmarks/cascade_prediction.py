"""Predicted against measured speed-up of cascades: 12 settings of known acceptance and known cost, in seconds that really pass.

The target says a text; a middle model says the same text but for a share 1 - alpha of its positions, drawn at random, and the
script at the bottom the middle's text likewise. A pass takes as long as it is told to (it waits), as does a drafted token of a
script, so acceptance and cost are known and everything else is the real engine: its cascades, their caches and rewinds, and its
own time, which is in the measurement and not in the prediction.

predicted   theory.arrivals.ewif, theory.schedule.given_horizontal: E[tokens] over E[cost], V(m) = 1 + slope (m - 1)
measured    tokens a round times the seconds of a plain step over those of a round, measured in turn. Seconds are what was
            waited for, and the typical (median) time beyond it: what else runs on the machine is not the cascade's
on its CPU  the same with the processor time beyond it: what a machine with nothing else to do would measure

    python benchmarks/cascade_prediction.py [--quick]     (wanted: within 10 % at every setting)
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from provenance import write

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.drafters.cascade import Below, CascadeDrafter
from surefoot.drafters.horizontal import HorizontalDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.theory import arrivals, schedule
from surefoot.theory.cascade import Level

VOCAB, PROMPT, TAIL = 48, 8, 400
"""``TAIL``: text behind what is decoded, so that no draft reaches its end."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The heaviest drafter first; ``counts``: steps of each (horizontal: lengths); ``slope``: of the cost of passes."""

    kind: str
    alphas: tuple[float, ...]
    costs: tuple[float, ...]
    counts: tuple[int, ...]
    slope: float = 0.0

    @property
    def curve(self) -> Callable[[int], float]:
        return lambda m: 1.0 + self.slope * (m - 1)

    @property
    def longest(self) -> int:
        if self.kind == "horizontal":
            return sum(self.counts)
        most = self.counts[-1]
        for n in reversed(self.counts[:-1]):
            most = n * (most + 1)
        return most

    def predicted(self) -> tuple[float, float]:
        """Tokens of a round, and the speed-up."""
        if self.kind == "horizontal":
            every = tuple(range(len(self.alphas)))
            found = schedule.given_horizontal(schedule.Drafters(self.alphas, self.costs), every, self.counts, self.curve)
            return found.tokens, found.ewif
        levels = [Level(*entry) for entry in zip(self.alphas, self.counts, self.costs, strict=True)]
        tokens = arrivals.kept(arrivals.draft_law(levels), self.alphas[0])
        return tokens, arrivals.ewif(levels, self.curve, [self.curve] * (len(levels) - 1))


SETTINGS = (
    Setting("vertical", (0.8, 0.4), (0.1, 0.002), (5, 3)),
    Setting("vertical", (0.9, 0.6), (0.2, 0.002), (3, 4)),
    Setting("vertical", (0.7, 0.5), (0.3, 0.01), (1, 4)),
    Setting("vertical", (0.6, 0.8), (0.1, 0.01), (2, 6), 0.02),
    Setting("vertical", (0.95, 0.7), (0.15, 0.004), (6, 2), 0.02),
    Setting("vertical", (0.9, 0.8, 0.5), (0.3, 0.1, 0.002), (2, 2, 3)),
    Setting("vertical", (0.8, 0.7, 0.6), (0.2, 0.1, 0.004), (3, 1, 4), 0.02),
    Setting("vertical", (0.95, 0.9, 0.3), (0.25, 0.1, 0.002), (2, 3, 2)),
    Setting("vertical", (0.6, 0.7, 0.4), (0.4, 0.1, 0.002), (1, 2, 2)),
    Setting("horizontal", (0.9, 0.6), (0.1, 0.002), (2, 6)),
    Setting("horizontal", (0.8, 0.7, 0.4), (0.2, 0.1, 0.002), (2, 2, 4), 0.02),
    Setting("horizontal", (0.7, 0.3), (0.05, 0.002), (4, 3)),
)


class Till:
    """Waits until something has taken the time that it costs. ``paid``: seconds in all; ``inside``: processor time in them."""

    def __init__(self) -> None:
        self.paid = self.inside = 0.0

    def pay(self, start: tuple[float, float], seconds: float) -> None:
        until = start[0] + seconds
        left = until - time.perf_counter()
        if left > 0.0004:  # sleep wakes late: the last bit is waited for awake
            time.sleep(left - 0.0004)
        while time.perf_counter() < until:
            pass
        self.paid += seconds
        self.inside += time.thread_time() - start[1]


def now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


class Said(TableModel):
    """After n tokens comes ``text[n]``, whatever they are; a pass over m tokens takes ``price(m)`` seconds."""

    def __init__(self, text: Sequence[int], price: Callable[[int], float], till: Till) -> None:
        super().__init__(torch.zeros(VOCAB + 1, VOCAB))
        self._text, self._price, self._till = text, price, till
        self._laws = 30.0 * torch.eye(VOCAB, dtype=torch.float64)

    def next_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        return self._laws[self._text[len(tokens)]]

    def score(self, slots: Any, forest: Any, need: Any) -> Any:
        start = now()
        found = super().score(slots, forest, need)
        self._till.pay(start, self._price(forest.nodes))
        return found


class Slow(ScriptDrafter):
    """A script that says this text, of which a drafted token takes ``seconds``."""

    def __init__(self, said: Sequence[int], seconds: float, till: Till, number: int) -> None:
        super().__init__(lambda row: said[row.n_prompt :], VOCAB, source=number)
        self.name, self._seconds, self._till = f"script{number}", seconds, till

    def propose(self, rows: Any, plans: Any) -> Any:
        start = now()
        trees = super().propose(rows, plans)
        self._till.pay(start, self._seconds * sum(len(tree) - 1 for tree in trees))
        return trees


def like(text: Sequence[int], alpha: float, rng: np.random.Generator) -> list[int]:
    """The text with a share 1 - alpha of other tokens: exactly so many of those decoded, in a random order, for less luck."""
    body = len(text) - TAIL - PROMPT
    hits = np.ones(len(text), bool)
    hits[PROMPT : PROMPT + body] = rng.permutation(body) < round(alpha * body)
    hits[PROMPT + body :] = rng.random(TAIL) < alpha
    return [token if hit else (token + 1) % VOCAB for token, hit in zip(text, hits, strict=True)]


def cascade(setting: Setting, text: Sequence[int], second: float, till: Till, rng: np.random.Generator) -> Engine:
    """The engine of a setting over a target that says ``text`` and takes ``second`` seconds a pass."""

    def price(c: float) -> Callable[[int], float]:
        return lambda m: second * c * setting.curve(m)

    target = Said(text, price(1.0), till)
    n = len(setting.alphas)
    if setting.kind == "horizontal":
        entries = zip(setting.alphas, setting.costs, range(1, n + 1), strict=True)
        parts = [Slow(like(text, a, rng), second * c, till, i) for a, c, i in entries]
        whole = HorizontalDrafter(parts, setting.counts, source=n + 1)
        return Engine(target, [*parts, whole], FixedController(whole.name, setting.longest), reuse=False)
    said = [list(text)]
    for alpha in setting.alphas:
        said.append(like(said[-1], alpha, rng))
    bottom = Slow(said[-1], second * setting.costs[-1], till, 1)
    drafters: list[Any] = [bottom]
    most = setting.counts[-1]
    for i in range(n - 2, -1, -1):
        inside = [Below(d) for d in drafters]
        middle = Said(said[i + 1], price(setting.costs[i]), till)
        engine = Engine(middle, inside, FixedController(drafters[-1].name, most), reuse=False)
        made = CascadeDrafter(engine, VOCAB, steps=setting.counts[i], name=f"cascade{i + 1}", source=n - i)
        drafters.append(made)
        most = setting.counts[i] * (most + 1)
    return Engine(target, drafters, FixedController(drafters[-1].name, most), reuse=False)


@dataclass(frozen=True, slots=True)
class Played:
    """Of each round: seconds, those that were waited for, processor time beyond them; the tokens that all of them gave."""

    seconds: list[float]
    paid: list[float]
    beyond: list[float]
    tokens: int

    @property
    def typical(self) -> float:
        """Mean seconds of a round."""
        over = [s - p for s, p in zip(self.seconds, self.paid, strict=True)]
        return statistics.fmean(self.paid) + statistics.median(over)

    @property
    def on_cpu(self) -> float:
        return statistics.fmean(self.paid) + statistics.median(self.beyond)


def played(engine: Engine, text: Sequence[int], till: Till, tokens: int) -> Played:
    """Rounds until so many tokens are decoded; the prompt's own pass is left out."""
    row = engine.add(text[:PROMPT], SamplingParams(max_tokens=len(text) - PROMPT, ignore_eos=True))
    engine.step()
    before = len(row.tokens)
    seconds: list[float] = []
    paid: list[float] = []
    beyond: list[float] = []
    while len(row.output) < tokens:
        (start, busy), till.paid, till.inside = now(), 0.0, 0.0
        engine.step()
        end, worked = now()
        seconds.append(end - start)
        paid.append(till.paid)
        beyond.append(worked - busy - till.inside)
    if row.tokens != list(text[: len(row.tokens)]):
        raise SystemExit("the cascade said something else than its target")
    gave = len(row.tokens) - before
    engine.close()
    return Played(seconds, paid, beyond, gave)


def together(runs: Sequence[Played]) -> Played:
    lists = ([x for r in runs for x in getattr(r, name)] for name in ("seconds", "paid", "beyond"))
    return Played(*lists, sum(r.tokens for r in runs))


def point(setting: Setting, second: float, tokens_a_run: int, count: int, seed: int) -> dict[str, Any]:
    rng, till = np.random.default_rng(seed), Till()
    runs, plain_runs = [], []
    for _ in range(count):
        text = rng.integers(VOCAB, size=PROMPT + tokens_a_run + TAIL).tolist()
        runs.append(played(cascade(setting, text, second, till, rng), text, till, tokens_a_run))
        target = Said(text, lambda m: second, till)
        plain_runs.append(played(Engine(target, reuse=False), text, till, min(40, tokens_a_run)))
    found, plain = together(runs), together(plain_runs)
    tokens, predicted = setting.predicted()
    realised = found.tokens / len(found.seconds)
    measured = realised * plain.typical / found.typical
    return {
        "kind": setting.kind,
        "alphas": setting.alphas,
        "costs": setting.costs,
        "steps": setting.counts,
        "slope": setting.slope,
        "expected_tokens_a_round": tokens,
        "realised_tokens_a_round": realised,
        "expected_round_ms": 1e3 * second * tokens / predicted,
        "measured_round_ms": 1e3 * found.typical,
        "plain_step_ms": 1e3 * plain.typical,
        "predicted": predicted,
        "measured": measured,
        "measured_by_sums": realised * statistics.fmean(plain.seconds) / statistics.fmean(found.seconds),
        "measured_on_cpu": realised * plain.on_cpu / found.on_cpu,
        "deviation": measured / predicted - 1.0,
        "deviation_on_cpu": realised * plain.on_cpu / found.on_cpu / predicted - 1.0,
        "deviation_at_realised_tokens": measured / (predicted * realised / tokens) - 1.0,
        "rounds": len(found.seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=30.0, help="of a target pass over one token (30)")
    parser.add_argument("--runs", type=int, default=3, help="of 1000 tokens, of each setting (3; luck shrinks with more)")
    parser.add_argument("--quick", action="store_true", help="one run of 200; nothing is written unless --name is given")
    parser.add_argument("--name", help="results/NAME.json (cascade_prediction)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokens, runs = (200, 1) if args.quick else (1000, args.runs)
    name = args.name or (None if args.quick else "cascade_prediction")
    left = "".join(f"{text:<{width}}" for text, width in (("", 11), ("alpha", 16), ("c", 18), ("steps", 8)))
    print(
        f"{left}{'slope':>6}{'predicted':>11}{'measured':>10}{'deviation':>11}{'at its tokens':>15}{'on its CPU':>12}",
        flush=True,
    )
    found = []
    for i, setting in enumerate(SETTINGS):
        p = point(setting, args.milliseconds / 1e3, tokens, runs, i)
        found.append(p)
        alphas, costs, steps = ("/".join(f"{x:g}" for x in p[key]) for key in ("alphas", "costs", "steps"))
        print(
            f"{p['kind']:<11}{alphas:<16}{costs:<18}{steps:<8}{p['slope']:>6}{p['predicted']:>10.3f}x{p['measured']:>9.3f}x"
            f"{100 * p['deviation']:>10.1f}%{100 * p['deviation_at_realised_tokens']:>14.1f}%"
            f"{100 * p['deviation_on_cpu']:>11.1f}%",
            flush=True,
        )
    worst = max(found, key=lambda p: abs(p["deviation"]))
    own = max((p["deviation_on_cpu"] for p in found), key=abs)
    print(f"worst: {100 * worst['deviation']:+.1f} %, on its CPU {100 * own:+.1f} % (wanted: within 10 %)")
    if name:
        figures = {
            "target_pass_ms": args.milliseconds,
            "worst_deviation": worst["deviation"],
            "worst_deviation_on_cpu": own,
            "within_10_percent": sum(abs(p["deviation"]) <= 0.1 for p in found),
            "settings": len(found),
            "points": found,
        }
        print(f"written: {write(name, figures)}")


if __name__ == "__main__":
    main()
