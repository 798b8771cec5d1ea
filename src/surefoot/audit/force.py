"""Teacher forcing: what the target says at every position of an output, each after the output's own beginning.

At each position the options of the request shape the logits along the path, by the same state and laws as in the engine. The
token that the rule would emit is the argmax (greedy), or the winner of the race argmax(log p + Gumbel[seed, position])
(coupled); where draws follow neither, any token of the law will do.

``gap`` is the least amount, in logits after the options, by which the emitted token had to be raised to be that token: 0
where it is. ``noise`` is the largest difference of these logits between draft-free scorings in several shapes. If a pass
moves no logit by more than ``noise``, it can make a token win whose gap is at most twice that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.law import host, row_law
from ..core.laws import Laws
from ..core.noise import TARGET
from ..core.params import SamplingParams
from ..core.request import Row
from ..errors import BadRequest
from .subject import Subject
from .tracks import CANONICAL, Shape, Track, scored

Array = np.ndarray[Any, Any]
_FAR = 64.0
"""Raising a token by more than this many logits is not looked at: it does not belong to the law."""
_TRIES = 64
NONE = -1
"""No token is possible."""


@dataclass(frozen=True, slots=True)
class Position:
    """One output position. ``best``: the token of the canonical scoring; ``flips``: another draft-free one gives another.

    ``top``: the largest logit. ``reached``: a draft-free scoring, or changes within the noise, give the emitted token.
    """

    token: int
    best: int
    gap: float
    noise: float
    flips: bool
    top: float = 0.0
    reached: bool = False


@dataclass(frozen=True, slots=True)
class Forced:
    """Every position of one output."""

    positions: tuple[Position, ...]

    @property
    def noise(self) -> float:
        return max((p.noise for p in self.positions), default=0.0)

    @property
    def flips(self) -> int:
        return sum(p.flips for p in self.positions)


class Forcer:
    """``shapes``: of the draft-free scorings that are compared with the canonical one."""

    def __init__(self, subject: Subject, shapes: Sequence[Shape]) -> None:
        self.subject = subject
        self.shapes = tuple(shapes)
        self._known: dict[object, tuple[SamplingParams, Forced]] = {}

    def __call__(
        self, prompt: list[int], output: Sequence[int], params: SamplingParams, index: int = 0, shapes: Sequence[Shape] = ()
    ) -> Forced:
        """``index``: which answer of the request it is; ``shapes``: more of them, for this output."""
        every = tuple(dict.fromkeys((*self.shapes, *shapes)))
        key = (tuple(prompt), tuple(output), index, every, id(params))
        if key not in self._known:  # the options are kept, so that no others get their id
            self._known[key] = params, self._force(prompt, output, params, index, every)
        return self._known[key][1]

    @property
    def noise(self) -> float:
        """The largest noise of all that was scored."""
        return max((forced.noise for _, forced in self._known.values()), default=0.0)

    def _force(
        self, prompt: list[int], output: Sequence[int], params: SamplingParams, index: int, shapes: Sequence[Shape]
    ) -> Forced:
        if not output:
            return Forced(())
        root = Track(self.subject.model, prompt)
        try:
            return self._compare(root, prompt, output, params, index, shapes)
        finally:
            root.close()

    def _compare(
        self,
        root: Track,
        prompt: list[int],
        output: Sequence[int],
        params: SamplingParams,
        index: int,
        shapes: Sequence[Shape],
    ) -> Forced:
        base = list(self._walk(root, prompt, output, params, index, CANONICAL))
        best, gaps = [c.best() for c in base], [c.gap() for c in base]
        noise, others = [0.0] * len(output), [set[int]() for _ in output]
        for shape in shapes:
            for i, choice in enumerate(self._walk(root, prompt, output, params, index, shape)):
                here = apart(base[i].logits, choice.logits)
                noise[i] = max(noise[i], here)
                if here > 0:
                    others[i].add(choice.best())
        return Forced(
            tuple(
                Position(
                    token,
                    best[i],
                    gaps[i],
                    noise[i],
                    bool(others[i] - {best[i]}),
                    float(base[i].logits.max()),
                    token in others[i] or (gaps[i] > 2 * noise[i] > 0 and base[i].raced and base[i].reached(noise[i])),
                )
                for i, token in enumerate(output)
            )
        )

    def siblings(self, prompt: list[int], output: Sequence[int]) -> float:
        """How far the logits move when only tokens beside the path change: more than 0 where nodes see what they must not."""
        if not output or not self.subject.model.traits.tree:
            return 0.0
        one, other = (scored(self.subject.model, prompt, output, Shape(4, distance)) for distance in (1, 11))
        return max(apart(host(a), host(b)) for a, b in zip(one, other, strict=True))

    def _walk(
        self, root: Track, prompt: list[int], output: Sequence[int], params: SamplingParams, index: int, shape: Shape
    ) -> Iterator[Choice]:
        row = self.subject.ghost(prompt, params, index)
        logits = scored(self.subject.model, prompt, output, shape, root)
        for token, own in zip(output, logits, strict=True):
            yield Choice(own, row, self.subject.known, token)
            row.tokens.append(token)
            if row.state is not None:
                row.state.advance(token)


class Choice:
    """What one scoring says at one position of a row. ``logits`` [V]: after the options; all -inf where none is possible."""

    def __init__(self, logits: Tensor, row: Row, known: int, token: int) -> None:
        self.params, self.noise, self.position, self.token = row.params, row.noise, len(row.tokens), token
        laws = Laws(logits[None], row.params, row.state, known=known)
        try:
            # the laws may hand out the row of a buffer that is used again
            self.logits = laws.shaped(0).copy()
        except BadRequest:
            self.logits = np.full(logits.shape[-1], -np.inf, np.float32)
        self._how = how(row.params)
        self.raced = self._how == "race"

    def best(self) -> int:
        return self._of(self.logits)

    def gap(self) -> float:
        """Least raise that makes the token the one that is chosen, to a thousandth or a billionth part."""
        if self._of(self.logits) == self.token:
            return 0.0
        own = float(self.logits[self.token])
        if not own > -np.inf:
            return float("inf")
        if self._how == "greedy":
            return float(self.logits.max()) - own
        low, high = 0.0, _FAR
        if self._raised(high) != self.token:
            return float("inf")
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (low, middle) if self._raised(middle) == self.token else (middle, high)
        return high

    def law(self) -> Array:
        return row_law(self.logits, self.params)

    def reached(self, noise: float) -> bool:
        """Whether the token is chosen after random changes of all logits by at most ``noise``.

        In a race with filters the edge of a set may move, and another token win than the one that was nearest to winning.
        """
        rng = np.random.default_rng(self.position)
        for _ in range(_TRIES):
            shift = rng.uniform(-noise, noise, self.logits.shape[0]).astype(self.logits.dtype)
            if self._of(self.logits + shift) == self.token:
                return True
        return False

    def _raised(self, by: float) -> int:
        lifted = self.logits.copy()
        lifted[self.token] += by
        return self._of(lifted)

    def _of(self, logits: Array) -> int:
        if not float(logits.max()) > -np.inf:
            return NONE
        if self._how == "greedy":
            return int(logits.argmax())
        laws = Laws(torch.from_numpy(logits)[None], self.params)
        if self._how == "any":
            p = laws[0]
            return self.token if p[self.token] > 0 else int(p.argmax())
        return laws.draw(0, self.noise, self.position, TARGET)


def how(params: SamplingParams) -> str:
    """What decides a token: ``greedy``, ``race`` (a seed), or ``any`` token of the law."""
    if params.temperature == 0:
        return "greedy"
    seeded = params.seed is not None and params.verification in ("auto", "coupled")
    return "race" if seeded else "any"


def apart(a: Array, b: Array) -> float:
    """Largest difference of two rows of logits; tokens that both make impossible do not count."""
    if np.array_equal(a, b):
        return 0.0
    both = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    return float(np.abs(a[both].astype(np.float64) - b[both]).max(initial=0.0))
