"""A model that reasons and whose passes take as long as they are told to; its engines with and without ``ssr``, in turns."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

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

VOCAB = 400
FAMILY = Family("toy", "<think>", "</think>", "</think>")
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


def engine(target: Waits, options: SsrOptions | None, chain: int | None) -> Engine:
    """``chain``: of fixed length, forks always; None: as ``auto`` decides. ``options`` None: without ssr."""
    widths = (1, 2, 4, 8, 16, 32)
    cost = CostModel(widths, tuple(map(target.price, widths)), 0)
    ssr_source = (
        [] if options is None else [SsrSource(FAMILY, target.pieces, [target.end], ForkControl(options, cost), source=1)]
    )
    if chain is not None:
        merged = HybridDrafter(ssr_source, source=3)
        return Engine(target, [*ssr_source, merged], FixedController("hybrid", chain), reuse=False, clock=target.clock)
    suffix = SuffixDrafter(shared_tokens=0, source=2)
    merged = HybridDrafter([*ssr_source, suffix], source=3)
    costs = LiveCosts(cost)
    steer = Breaker(MarginalController("hybrid", costs), costs, patience=16, longest=256)
    return Engine(target, [*ssr_source, suffix, merged], steer, reuse=False, clock=target.clock)


def ask(own: Engine, target: Waits, prompt: Sequence[int]) -> tuple[float, Row]:
    """Seconds behind the first token, which prefill yields."""
    [row] = own.submit([*prompt, target.start], SamplingParams(stop_token_ids=(target.eos,)))
    while not row.output and not row.done:
        own.step()
    start = target.clock()
    while not row.done:
        own.step()
    return target.clock() - start, row


def play(target: Waits, sides: dict[str, Engine], prompts: Sequence[Sequence[int]]) -> dict[str, list[tuple[float, Row]]]:
    """The same requests by all engines, in turns; answers are compared."""
    found: dict[str, list[tuple[float, Row]]] = {name: [] for name in sides}
    names = list(sides)
    for i, prompt in enumerate(prompts):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(ask(sides[name], target, prompt))
        if len({tuple(found[name][i][1].tokens) for name in names}) > 1:
            raise SystemExit("an answer is another one than plain decoding gives")
    for own in sides.values():
        own.close()
    return found


def seconds(found: Sequence[tuple[float, Row]]) -> float:
    return sum(s for s, _ in found)


def plain(target: Waits) -> Engine:
    return Engine(target, reuse=False, clock=target.clock)
