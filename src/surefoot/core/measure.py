"""Measuring what passes cost: the target itself is asked, in bursts of passes of one width.

The first pass of a burst tells what changing the width costs, the others what the width costs. Times are lower quartiles:
what else runs on the machine only ever adds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from .cost import CostModel, rising, sizes
from .protocols import Need, Slot, TargetModel
from .tree import DraftTree, Forest

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)
_BURST = 6
"""Passes of one width in a row: a backend that keeps its passes steady needs some to follow a smaller need."""


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
    change = max(0.0, statistics.median(both)) if both else 0.0
    found = CostModel(tuple(usable), tuple(rising([same[w] for w in usable])), context, 0.0, change, change)
    if far > 2 * context:
        # the backend may pad the width that it is asked for
        there = _times(target, [usable[min(2, len(usable) - 1)]], far, repeats, clock)[0]
        slopes = [(seconds - found(w)) / (far - context) for w, seconds in there.items()]
        found = replace(found, per_context=max(0.0, *slopes))
    if not traits.narrow or len(pair := sizes(found, traits)) < 2:
        return found
    return replace(found, switch=_switch(target, pair, same, context, repeats, clock))


def _switch(
    target: TargetModel,
    pair: Sequence[int],
    same: Mapping[int, float],
    context: int,
    repeats: int,
    clock: Callable[[], float],
) -> float:
    """Seconds that going from one size of the pair to the other adds.

    In turns as they occur, a few passes of the second size among many of the first: what has not run for a while has also left
    the processor's caches. What a change costs may show in the next pass too, so whole turns are compared.
    """
    turn = [pair[0]] * 6 + [pair[1]] * 2
    own = CostModel(tuple(sorted(same)), tuple(same[w] for w in sorted(same)), context)
    taken = list(_passes(target, turn * (_BURST * repeats + 1), context, clock))
    extra = [sum(seconds - own(work) for work, seconds in taken[i : i + len(turn)]) for i in range(0, len(taken), len(turn))]
    return max(0.0, sorted(extra[1:])[(len(extra) - 1) // 4] / 2)  # the first turn warms up


def _times(
    target: TargetModel, widths: Sequence[int], context: int, repeats: int, clock: Callable[[], float]
) -> tuple[dict[int, float], dict[int, float]]:
    """Typical seconds by computed width: passes like the one before, and passes of another width than the one before."""
    same: dict[int, list[float]] = {}
    fresh: dict[int, list[float]] = {}
    last = 0
    # going back to the first width, a backend may pad for a while before it changes its size
    round_ = [widths[0]] * (2 * _BURST) + [w for w in widths for _ in range(_BURST)]
    for i, (work, seconds) in enumerate(_passes(target, round_ * (repeats + 1), context, clock)):
        if i >= len(round_):  # the first round warms the kernels up
            (same if work == last else fresh).setdefault(work, []).append(seconds)
        last = work
    return _typical(same), _typical(fresh)


def _passes(
    target: TargetModel, widths: Sequence[int], context: int, clock: Callable[[], float]
) -> Iterator[tuple[int, float]]:
    """(tokens computed, seconds) of one pass after the other over so many random tokens behind ``context`` cached ones."""
    rng = random.Random(0)
    vocab = target.traits.vocab_size

    def chain(n: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(n)]

    [slot] = target.open(1)
    try:
        while slot.length < context:
            _pass(target, slot, chain(min(256, target.traits.max_nodes, context - slot.length)), wanted=False, keep=True)
        for width in widths:
            tokens = chain(width)
            start = clock()
            work = _pass(target, slot, tokens, wanted=True, keep=False)
            yield work, clock() - start
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
