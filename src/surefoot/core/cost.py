"""What a pass costs: measured seconds over its number of tokens, at a context.

Speculation pays by V(m), the time of a pass over m tokens; nobody should guess it. ``measure`` asks the target itself.
"""

from __future__ import annotations

import random
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BadRequest
from .protocols import Need, Slot, TargetModel
from .tree import DraftTree, Forest

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)
_BURST = 6
"""Passes of one width in a row: a backend that keeps its passes steady needs some to follow a smaller need."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """``seconds[i]``: typical time of one row's pass over ``widths[i]`` tokens at ``context`` cached tokens.

    ``per_context``: seconds that each further cached token adds to a pass. ``change``: seconds that a pass of another
    width than the one before it takes longer. Piecewise linear, continued by the last slope.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    context: int
    per_context: float = 0.0
    change: float = 0.0

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.widths, self.widths[1:], strict=False))
        if not self.widths or len(self.widths) != len(self.seconds) or not rising or min(self.seconds) <= 0:
            raise BadRequest("a cost model needs rising widths and one positive time for each; measure it again")

    def __call__(self, nodes: int, context: int | None = None) -> float:
        """Seconds of a pass over ``nodes`` tokens (padding included)."""
        extra = 0.0 if context is None else (context - self.context) * self.per_context
        return max(self._base(nodes) + extra, 0.1 * self.seconds[0])

    def _base(self, nodes: int) -> float:
        w, s = self.widths, self.seconds
        if nodes <= w[0] or len(w) == 1:
            return s[0] * (max(1.0, nodes / w[0]) if len(w) == 1 else 1.0)
        i = min(max(bisect_left(w, nodes), 1), len(w) - 1)
        return s[i - 1] + (s[i] - s[i - 1]) * (nodes - w[i - 1]) / (w[i] - w[i - 1])

    def to_dict(self) -> dict[str, Any]:
        return {
            "widths": list(self.widths),
            "seconds": list(self.seconds),
            "context": self.context,
            "per_context": self.per_context,
            "change": self.change,
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> CostModel:
        try:
            return CostModel(
                tuple(int(w) for w in data["widths"]),
                tuple(float(s) for s in data["seconds"]),
                int(data["context"]),
                float(data["per_context"]),
                float(data["change"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"the stored cost model is broken ({error}); delete it to measure again") from None


def measure(
    target: TargetModel,
    widths: Sequence[int] = WIDTHS,
    *,
    context: int = 200,
    far: int = 1000,
    repeats: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> CostModel:
    """Time passes of each width (never under ``min_width``), in rising bursts. Also at ``far`` for the slope.

    The first pass of a burst tells what changing the width costs, the others what the width costs.
    """
    traits = target.traits
    most = min(traits.max_nodes, traits.max_context // 4)
    usable = sorted({max(w, traits.min_width) for w in widths if w <= most})
    far = min(far, traits.max_context - most - 1)
    context = min(context, max(1, far // 2) if far else context)
    same, fresh = _times(target, usable, context, repeats, clock)
    usable = [w for w in usable if w in same]
    both = [fresh[w] - same[w] for w in usable if w in fresh]
    slope = 0.0
    if far > 2 * context:
        w = usable[min(2, len(usable) - 1)]
        slope = max(0.0, (_times(target, [w], far, repeats, clock)[0][w] - same[w]) / (far - context))
    change = max(0.0, statistics.median(both)) if both else 0.0
    return CostModel(tuple(usable), tuple(rising([same[w] for w in usable])), context, slope, change)


def rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls (least squares, pooling neighbours that do): a wider pass is no quicker."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, m), (a, n) = pools.pop(), pools.pop()
            pools.append(((a * n + b * m) / (n + m), n + m))
    return [mean for mean, n in pools for _ in range(n)]


def _times(
    target: TargetModel, widths: Sequence[int], context: int, repeats: int, clock: Callable[[], float]
) -> tuple[dict[int, float], dict[int, float]]:
    """Typical seconds by computed width: passes like the one before, and passes of another width than the one before."""
    rng = random.Random(0)
    vocab = target.traits.vocab_size

    def chain(n: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(n)]

    [slot] = target.open(1)
    try:
        while slot.length < context:
            _pass(target, slot, chain(min(256, target.traits.max_nodes, context - slot.length)), wanted=False, keep=True)
        same: dict[int, list[float]] = {}
        fresh: dict[int, list[float]] = {}
        last = 0
        for turn in range(repeats + 1):
            for w in widths:
                for _ in range(_BURST):
                    tokens = chain(w)
                    start = clock()
                    work = _pass(target, slot, tokens, wanted=True, keep=False)
                    if turn:  # the first round warms the kernels up
                        (same if work == last else fresh).setdefault(work, []).append(clock() - start)
                    last = work
        return _typical(same), _typical(fresh)
    finally:
        target.close([slot])


def _typical(times: dict[int, list[float]]) -> dict[int, float]:
    """Lower quartiles: what else runs on the machine only ever adds."""
    return {w: max(sorted(t)[len(t) // 4], 1e-9) for w, t in times.items()}


def _pass(target: TargetModel, slot: Slot, tokens: Sequence[int], wanted: bool, keep: bool) -> int:
    """One pass; returns the number of tokens that it computed."""
    forest = Forest.pack([DraftTree.chain(tokens)], None, [wanted], target.traits.min_width)
    scores = target.score([slot], forest, Need())
    target.commit([slot], [range(len(tokens)) if keep else ()])
    return scores.work or forest.nodes
