"""Candidates against plain decoding on the same prompts, in turn: tokens per second, and whether the tokens are equal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.completion import Prompt
from ..core.engine import Engine
from ..core.params import SamplingParams
from ..core.stats import Stats
from .profile import play


@dataclass(frozen=True, slots=True)
class Lap:
    """One run of a candidate over all prompts. ``tokens``: those that the prompts' own passes gave are not counted."""

    tokens: int
    seconds: float
    drafted: int
    accepted: int
    differs: tuple[int, ...]
    """Prompts whose tokens are not those of plain decoding."""

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def race(
    makers: Sequence[Callable[[], Engine]],
    prompts: Sequence[Prompt],
    params: SamplingParams,
    repeats: int,
    reference: Sequence[tuple[int, ...]],
    tell: Callable[[str], None],
) -> list[list[Lap]]:
    """Laps of each engine. They take turns at every prompt, in an order that rotates; each lap starts with nothing learned."""
    found: list[list[Lap]] = [[] for _ in makers]
    turn = 0
    for lap in range(repeats):
        tell(f"run {lap + 1} of {repeats}")
        engines = [make() for make in makers]
        totals = [_Total() for _ in makers]
        try:
            for number, prompt in enumerate(prompts):
                for i in range(len(engines)):
                    at = (i + turn) % len(engines)
                    row = play(engines[at], prompt, params)
                    totals[at].add(row.stats, len(row.output), tuple(row.output) != reference[number], number)
                turn += 1
        finally:
            for engine in engines:
                engine.close()
        for own, total in zip(found, totals, strict=True):
            own.append(total.lap())
    return found


def over(laps: Sequence[Lap], plain: Sequence[Lap]) -> float:
    """Median ratio of tokens per second, lap by lap."""
    return statistics.median(a.rate / b.rate if b.rate > 0 else 1.0 for a, b in zip(laps, plain, strict=True))


class _Total:
    def __init__(self) -> None:
        self._tokens = self._drafted = self._accepted = 0
        self._seconds = 0.0
        self._differs: list[int] = []

    def add(self, stats: Stats, tokens: int, differs: bool, number: int) -> None:
        self._tokens += tokens - 1
        self._seconds += stats.decode_seconds
        self._drafted += stats.draft_tokens
        self._accepted += stats.accepted_tokens
        if differs:
            self._differs.append(number)

    def lap(self) -> Lap:
        return Lap(self._tokens, self._seconds, self._drafted, self._accepted, tuple(self._differs))
