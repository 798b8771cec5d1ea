"""What was measured of the drafters that cascades are made of, and what the theory says of their schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..theory import acceptance, schedule
from ..theory.schedule import Drafters, Schedule

ENOUGH = 30
"""Trials of a depth from which its own rate counts rather than that of all depths."""


def rate(accepted: Sequence[int], asked: Sequence[int]) -> tuple[float, ...]:
    """Chance that a token at depth 1, 2, … stays once those above it did; 0 where nothing was ever drafted."""
    if not asked or not max(asked):
        return (0.0,)
    overall = acceptance.from_drafts(accepted, asked).value
    found = acceptance.by_position(accepted, asked)
    return tuple(e.value if e.trials >= ENOUGH else overall for e in found)


@dataclass(frozen=True, slots=True)
class Parts:
    """``names``: drafters as texts, the middles first. ``rates[i]``: acceptance by the target; ``inner[i, j]``: of drafter j by
    middle i; both by depth. ``steps``: one pass of a middle, or one token of a bottom drafter, over a plain step; ``drafted``:
    one drafted token of each. ``seconds``: of target passes over 1, 2, … tokens; ``reviews``: of the middles' passes.
    ``left_out``: reasons.
    """

    names: tuple[str, ...]
    rates: tuple[tuple[float, ...], ...]
    steps: tuple[float, ...]
    drafted: tuple[float, ...]
    inner: dict[tuple[int, int], tuple[float, ...]]
    seconds: tuple[float, ...]
    reviews: tuple[tuple[float, ...], ...]
    left_out: tuple[str, ...] = ()

    @property
    def vertical(self) -> Drafters:
        return Drafters(self.rates, self.steps, self.inner, self.reviews)

    @property
    def horizontal(self) -> Drafters:
        return Drafters(self.rates, self.drafted)

    def schedules(self) -> list[Schedule]:
        """The best schedule of every cascade with a middle first and a bottom drafter last, the fastest by prediction first."""
        longest, middles = len(self.seconds) - 1, len(self.reviews)
        found = schedule.vertical(self.vertical, self.seconds, longest)
        found += schedule.horizontal(self.horizontal, self.seconds, longest)
        fitting = [s for s in found if s.members[0] < middles <= s.members[-1] and sum(i >= middles for i in s.members) == 1]
        return sorted(fitting, key=lambda s: -s.ewif)

    def spec(self, found: Schedule) -> str:
        """The drafter of a schedule, as text."""
        named = [self.names[i].partition(":") for i in found.members]
        of = "/".join(name for name, _, _ in named)
        own = [f"{name}.{option}" for name, _, options in named for option in options.split(",") if option]
        if found.kind == "horizontal":
            return ",".join([f"horizontal:of={of}", f"lengths={'/'.join(map(str, found.steps))}", *own])
        reviews = "/".join(map(str, found.steps[:-1]))
        sizes = [found.steps[-1]]  # of each level: what may arrive for one of its reviews, the bottom's last
        for n in reversed(found.steps[1:-1]):
            sizes.insert(0, n * (sizes[0] + 1))
        return ",".join([f"cascade:of={of}", f"steps={reviews}", f"inner_k={'/'.join(map(str, sizes))}", *own])

    def longest(self, found: Schedule) -> int:
        """The longest draft of a schedule."""
        if found.kind == "horizontal":
            return sum(found.steps)
        most = found.steps[-1]
        for n in reversed(found.steps[:-1]):
            most = n * (most + 1)
        return most

    def limits(self) -> list[tuple[int, int, float, float]]:
        """(middle, bottom, c below which their vertical cascade beats plain decoding, and the bottom alone)."""
        longest, out = len(self.seconds) - 1, []
        for i, j in sorted(self.inner):
            alone = schedule.single(self.rates[j], self.drafted[j], self.seconds, longest)[0]
            over = [
                schedule.break_even_c(self.vertical, (i, j), rival, cost=self.seconds, longest=longest)
                for rival in (1.0, alone)
            ]
            out.append((i, j, over[0], over[1]))
        return out

    def to_dict(self) -> dict[str, Any]:
        """As ``surefoot plan cascade --measured`` reads it."""
        curves = [*(list(r) for r in self.reviews), *[None] * (len(self.names) - len(self.reviews))]
        entries = zip(self.names, self.rates, self.steps, self.drafted, curves, strict=True)
        return {
            "drafters": [
                {"name": name, "alpha": list(a), "c": c, "c_of_token": token, "seconds": s} for name, a, c, token, s in entries
            ],
            "inner": [{"reviewer": i + 1, "drafter": j + 1, "alpha": list(a)} for (i, j), a in sorted(self.inner.items())],
            "seconds": list(self.seconds),
            "break_even": [
                {"reviewer": i + 1, "drafter": j + 1, "over_plain": a, "over_bottom": b} for i, j, a, b in self.limits()
            ],
            "left_out": list(self.left_out),
        }

    def rows(self) -> list[str]:
        """A line a pair: rates of the first drafted token, costs, and the c at which the cascade would win."""
        out = []
        for i, j, plain, bottom in self.limits():
            middle, low = self.names[i], self.names[j]
            limits = [
                f"{rival} while c of {middle} < {c:.3f}" if c > 0 else f"{rival} at no c of {middle}"
                for rival, c in (("plain decoding", plain), (f"{low} alone", bottom))
            ]
            kept = f"the target accepts {self.rates[i][0]:.2f} of {middle}, {middle} {self.inner[i, j][0]:.2f} of {low}"
            out.append(f"{middle} > {low}: {kept}; beats {' and '.join(limits)}; it is {self.steps[i]:.3f}")
        return out + [f"left out: {reason}" for reason in self.left_out]
