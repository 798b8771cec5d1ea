"""Random numbers that depend on nothing but (seed, position, lane, round).

A draw is a pure function of its key, so the number of drafted tokens, the batch and the order of work cannot
shift it. Generator: SplitMix64 (Steele et al., OOPSLA'14), whose i-th number is a function of its start and i; the start is
its output function chained over the key. The number of token i is thus a function of the key and i, and a race costs no
more than the tokens that matter. Doubles of 53 bits, so that no token wins by a zero.

``Enumerate`` answers the same calls by walking through *all* outcomes with their exact probabilities; the exact
tests run engine and verifier on it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import Tensor

TARGET, ACCEPT, RESIDUAL, DRAFT = 0, 1, 2, 3
"""Lanes: the target's own draw, acceptance tests, residual draws, a drafter's own draws."""

_M64 = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_STEPS = np.uint64(_STEP)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_FEW = 512
"""Supports up to this size run as they are."""
_LIGHT = 1e-3
"""Weight, relative to the heaviest token's, below which tokens run together."""
_TOGETHER = np.array([1 << 40])
"""Their place in the stream; no vocabulary reaches it."""
T = TypeVar("T")
Array = np.ndarray[Any, Any]
Weights = Tensor | Array


class Noise(Protocol):
    """Source of every random decision of one row."""

    def categorical(self, weights: Weights, position: int, lane: int, turn: int = 0, ids: Array | None = None) -> int:
        """A token drawn in proportion to ``weights`` [V] (non-negative, not all zero), or [n], those of ``ids`` [n]."""
        ...

    def accept(self, probability: float, position: int, lane: int, turn: int = 0, index: int = 0) -> bool:
        """True with this probability; ``index`` tells siblings at one position apart."""
        ...


class SplitMix:
    """Counter-based noise of one seed. The seed is reduced to 128 bits."""

    __slots__ = ("_key", "seed")

    def __init__(self, seed: int | None = None) -> None:
        self.seed = secrets.randbits(64) if seed is None else seed
        self._key = _chain(_chain(0, self.seed), self.seed >> 64)

    def _start(self, position: int, lane: int, turn: int) -> int:
        return _chain(_chain(_chain(self._key, turn), lane), position)

    def categorical(self, weights: Weights, position: int, lane: int, turn: int = 0, ids: Array | None = None) -> int:
        return race(_numbers(weights), self._start(position, lane, turn), ids)

    def accept(self, probability: float, position: int, lane: int, turn: int = 0, index: int = 0) -> bool:
        number = _mix((self._start(position, lane, turn) + (index + 1) * _STEP) & _M64)
        return ((number >> 11) + 0.5) * 2.0**-53 < probability


def _chain(start: int, word: int) -> int:
    return _mix((start + _STEP + word) & _M64)


def _mix(z: int) -> int:
    """The output function of SplitMix64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _M64
    return z ^ (z >> 31)


def race(w: Array, start: int, ids: Array | None = None) -> int:
    """The token with the largest w / E, E ~ Exp(1), which is argmax(log w + Gumbel); ``w`` as in :class:`Noise`.

    In a large support tokens of little weight run as one, with their common weight, and among themselves only if they win: a
    race of the whole vocabulary would cost more than all else at a position. The law of the winner is the same, exactly.
    """
    if len(w) <= _FEW:
        names = np.arange(len(w)) if ids is None else ids
        return int(names[(w / exponentials(start, names)).argmax()])
    least = _LIGHT * w.max()
    heavy = np.flatnonzero(w >= least)
    own = w[heavy]
    names = heavy if ids is None else ids[heavy]
    reach = own / exponentials(start, names)
    first = int(reach.argmax())
    if len(heavy) < len(w):
        rest = float(w.sum()) - float(own.sum())
        if rest > 0.0 and rest / float(exponentials(start, _TOGETHER)[0]) > float(reach[first]):
            light = np.flatnonzero((w > 0) & (w < least))
            if len(light):  # else the rest was rounding
                names = light if ids is None else ids[light]
                return int(names[(w[light] / exponentials(start, names)).argmax()])
    return int(names[first])


def _numbers(weights: Weights) -> Array:
    return weights.detach().cpu().numpy() if isinstance(weights, Tensor) else weights


def exponentials(start: int, index: Array) -> Array:
    """Exp(1) numbers at these places (int [n], from 0) of the SplitMix64 stream that begins at ``start``; float64 [n]."""
    z = index.astype(np.uint64)
    z *= _STEPS
    z += np.uint64((start + _STEP) & _M64)
    z ^= z >> _SHIFTS[0]
    z *= _FACTORS[0]
    z ^= z >> _SHIFTS[1]
    z *= _FACTORS[1]
    z ^= z >> _SHIFTS[2]
    z >>= _SHIFTS[3]
    uniform = z.astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-53  # never 0, never 1
    found: Array = np.log(uniform, out=uniform)
    return np.negative(found, out=found)


class Enumerate:
    """Noise that follows a given list of outcomes and records the branches it could have taken."""

    __slots__ = ("branches", "chosen", "probability")

    def __init__(self, chosen: list[int]) -> None:
        self.chosen = chosen
        self.branches: list[list[int]] = []
        self.probability = 1.0

    def _take(self, outcomes: list[int], probabilities: list[float]) -> int:
        depth = len(self.branches)
        self.branches.append(outcomes)
        if depth == len(self.chosen):
            self.chosen.append(0)
        which = self.chosen[depth]
        self.probability *= probabilities[which]
        return outcomes[which]

    def categorical(self, weights: Weights, position: int, lane: int, turn: int = 0, ids: Array | None = None) -> int:
        w = _numbers(weights).astype(np.float64)
        support = np.flatnonzero(w > 0)
        return self._take((support if ids is None else ids[support]).tolist(), (w[support] / w[support].sum()).tolist())

    def accept(self, probability: float, position: int, lane: int, turn: int = 0, index: int = 0) -> bool:
        if probability <= 0.0 or probability >= 1.0:
            return probability >= 1.0
        return bool(self._take([0, 1], [1.0 - probability, probability]))


def enumerate_law(run: Callable[[Noise], T]) -> Iterator[tuple[T, float]]:
    """Every outcome of ``run(noise)`` with its exact probability (outcomes may repeat; add them up)."""
    chosen: list[int] = []
    while True:
        noise = Enumerate(chosen)
        result = run(noise)
        yield result, noise.probability
        while chosen and chosen[-1] + 1 == len(noise.branches[len(chosen) - 1]):
            chosen.pop()
        if not chosen:
            return
        chosen[-1] += 1
