"""``surefoot demo``: an answer of the real model, then plain and speculative decoding of the same prompts, side by side.

Contract: both run on the same loaded target, alternate, and start with nothing learned; the token ids of every pair are
compared. Status 1 if any differ.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .common import MODEL, messages

if TYPE_CHECKING:
    from ..core.params import SamplingParams
    from ..loader import Target
    from .answer import Answer

_NOTE = (
    "The harbour museum opens at nine on weekdays and at ten on Sundays. Tickets cost four euros, and children under "
    "twelve go in free. The old lighthouse behind the museum is closed in winter, but the boat hall and the rope "
    "workshop stay open all year. Groups of more than eight people should write to the office two weeks before they "
    "come, so that a guide is there."
)
_CODE = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance = self.balance + amount

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance + amount

    def report(self):
        print(self.owner, self.balance)
"""
# Two prompts whose answers repeat much of the prompt, and one with nothing to copy: drafting helps by kind of text.
PROMPTS = {
    "code": f"Fix the bug in this code and print the whole code:\n\n```python\n{_CODE}```",
    "notice": f"Rewrite this notice, and change every 'museum' to 'gallery'. Keep all other words.\n\n{_NOTE}",
    "question": "Why does the sea look blue on some days and grey on others?",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", default=MODEL, metavar="REF", help=f"an instruct model (default {MODEL})")
    parser.add_argument("--max-tokens", type=int, default=160, metavar="N", help="most new tokens of an answer (default 160)")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="runs of each prompt, plain and speculative (default 3)"
    )


def run(args: argparse.Namespace) -> int:
    from .. import loader
    from ..core.params import SamplingParams
    from ..errors import BadRequest
    from .terminal import progress

    params = SamplingParams(max_tokens=args.max_tokens)
    if args.repeats < 1:
        raise BadRequest(f"--repeats {args.repeats} measures nothing; give 1 or more")
    with progress() as tell:
        target = loader.open_target(args.model, progress=tell)
        target.calibration.cost(target.model)
    if not target.codec.has_template:
        raise BadRequest(f"{args.model} has no chat template; give an instruct model")
    traits = target.model.traits
    print(f"{traits.name}, {traits.dtype} on {traits.device}, {os.cpu_count()} cores, greedy, drafter auto\n", flush=True)
    _stream(target, params)
    print(f"\nplain and speculative decoding of {len(PROMPTS)} prompts, {args.repeats} times each in turn:")
    same, interrupted = _compare(target, params, args.repeats)
    if interrupted:
        return 130
    print(f"peak memory: {_peak() / 1e9:.2f} GB")
    print(f"identical tokens: {'yes' if same else 'no'}")
    return 0 if same else 1


def _peak() -> int:
    """Bytes. Linux counts the memory of the process that started this one in ``ru_maxrss``, so its own record comes first."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _one(target: Target, prompt: str, params: SamplingParams, drafter: str, show: bool = False) -> Answer:
    """One answer by an engine that knows nothing of earlier ones."""
    from ..loader import assemble
    from .answer import answer
    from .terminal import Painter

    engine = assemble(target, drafter)

    painter = Painter(target.codec) if show else None
    if painter is not None and painter.coloured:
        print("(green: drafted and accepted)\n")
    try:
        return answer(engine, messages(prompt, None), params, painter)
    finally:
        engine.close()


def _stream(target: Target, params: SamplingParams) -> None:
    from .report import footer

    prompt = PROMPTS["code"]
    print(f"> {prompt}\n", flush=True)
    print(f"\n\n{footer(_one(target, prompt, params, 'auto', show=True))}", flush=True)


def _compare(target: Target, params: SamplingParams, repeats: int) -> tuple[bool, bool]:
    """Whether all pairs were equal, and whether Ctrl-C ended it."""
    rates: dict[str, list[float]] = {"none": [], "auto": []}
    same = True
    print(f"{'prompt':<10}{'plain':>10}{'speculative':>14}{'ratio':>8}{'accepted':>10}   tokens/s, median")
    for name, prompt in PROMPTS.items():
        _one(target, prompt, params, "none")  # warm-up: kernels of the prompt's own shapes
        own: dict[str, list[float]] = {"none": [], "auto": []}
        share = 0.0
        for turn in range(repeats):
            tokens = []
            for drafter in ("none", "auto") if turn % 2 == 0 else ("auto", "none"):
                done = _one(target, prompt, params, drafter)
                if done.interrupted:
                    return same, True
                own[drafter].append(done.tokens_per_second)
                tokens.append(done.completion.token_ids)
                share = done.completion.stats.acceptance_rate if drafter == "auto" else share
            same = same and tokens[0] == tokens[1]
        plain, fast = statistics.median(own["none"]), statistics.median(own["auto"])
        print(f"{name:<10}{plain:>10.1f}{fast:>14.1f}{_ratio(fast, plain):>7.2f}x{100 * share:>9.0f}%", flush=True)
        for drafter, found in own.items():
            rates[drafter] += found
    plain, fast = statistics.median(rates["none"]), statistics.median(rates["auto"])
    print(f"\nplain       {plain:.1f} tokens/s\nspeculative {fast:.1f} tokens/s\nratio       {_ratio(fast, plain):.2f}")
    return same, False


def _ratio(fast: float, plain: float) -> float:
    return fast / plain if plain else 0.0
