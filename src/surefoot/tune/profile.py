"""What a drafter offers and what stays of it: one run at a generous fixed length, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.completion import Prompt
from ..core.engine import Engine
from ..core.params import SamplingParams
from ..core.request import Row
from ..theory import acceptance as theory


@dataclass(frozen=True, slots=True)
class Profile:
    """One entry a pass after the prompt's: tokens ``asked`` for, ``drafted`` and ``accepted``.

    ``asked`` falls short of the draft length where a request's budget cuts it, which is no miss; a drafter that has less to
    say than asked for is one. ``by_rank[b]``: chance that the b-th child of a node is the target's token.
    """

    asked: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    draft_seconds: float
    """Of one drafted token."""
    by_rank: tuple[float, ...]
    outputs: tuple[tuple[int, ...], ...]

    def acceptance(self, k: int) -> float | None:
        """Share of drafted tokens that stay if at most ``k`` are drafted a pass; ``None`` where nothing is drafted."""
        drafted = sum(min(n, k) for n in self.drafted)
        return sum(min(n, k) for n in self.accepted) / drafted if drafted else None

    def by_position(self) -> list[theory.Estimate]:
        """Chance that the token at depth i stays once those above it did, what was asked and not drafted being a miss."""
        return theory.by_position(self.accepted, self.asked)

    def reach(self) -> list[float]:
        """r_1 … r_K; a depth that was never tried is not reached."""
        found = theory.reach([e.value if e.trials else 0.0 for e in self.by_position()])
        return [float(r) for r in found]


def profile(engine: Engine, prompts: Sequence[Prompt], params: SamplingParams, k: int, width: int = 1) -> Profile:
    """Run ``engine``, which drafts ``k`` tokens deep and ``width`` wide, over the prompts one by one."""
    asked: list[int] = []
    drafted: list[int] = []
    accepted: list[int] = []
    ranks = _Ranks(width)
    rows = [play(engine, prompt, params, trace=True) for prompt in prompts]
    for row in rows:
        steps = row.stats.trace or []
        for step in steps:
            if step.position == row.n_prompt:  # nothing is drafted in the prompt's own pass
                continue
            left = row.limit - (step.position - row.n_prompt) - 1
            if step is steps[-1] and row.finish_reason == "stop":
                left = sum(step.accepted)  # what came after the end was not refused
            if left < 1:
                continue
            asked.append(min(k, left))
            accepted.append(min(sum(step.accepted), asked[-1]))
            drafted.append(len(step.candidates))
            ranks.add(step.parents, step.accepted, asked[-1])
    seconds, tokens = (sum(getattr(row.stats, name) for row in rows) for name in ("draft_seconds", "draft_tokens"))
    return Profile(
        tuple(asked),
        tuple(drafted),
        tuple(accepted),
        seconds / max(1, tokens),
        ranks.chances(),
        tuple(tuple(row.output) for row in rows),
    )


def play(engine: Engine, prompt: Prompt, params: SamplingParams, *, trace: bool = False) -> Row:
    """One request to its end; what fails on its way raises."""
    row = engine.add(prompt, params, trace=trace)
    try:
        while not row.done:
            engine.step()
    finally:
        engine.abort(row)
    if row.error is not None:
        raise row.error
    return row


class _Ranks:
    """Counts, over nodes that were reached and may have children, which child was the target's token."""

    def __init__(self, width: int) -> None:
        self._hits = [0] * width
        self._tries = 0

    def add(self, parents: Sequence[int], accepted: Sequence[bool], depth: int) -> None:
        reached, place = 0, 0
        children: dict[int, list[int]] = {}
        for i, parent in enumerate(parents, 1):
            children.setdefault(parent, []).append(i)
        while reached < depth:
            self._tries += 1
            own = children.get(place, [])
            rank = next((b for b, i in enumerate(own) if accepted[i - 1]), None)
            if rank is None or rank >= len(self._hits):
                return
            self._hits[rank] += 1
            reached, place = reached + 1, own[rank]

    def chances(self) -> tuple[float, ...]:
        return tuple(h / max(1, self._tries) for h in self._hits)
