"""``plan_cascade``: what cascades of some drafters gain, their best schedule, and the cost at which they would win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BadRequest, SurefootError
from ..theory import schedule
from ..theory.arrivals import Rate
from ..theory.checks import not_negative, probability, whole
from ..theory.schedule import LONGEST, Drafters, Schedule
from .costs import Cost, Source, settle
from .tables import finite


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Costs of a pass of a cascade's first reviewer below which it beats plain decoding, and its bottom drafter alone.

    ``c``: what it costs. Below 0: not even a reviewer that is free would win.
    """

    members: tuple[int, ...]
    c: float
    over_plain: float
    over_bottom: float

    def to_dict(self) -> dict[str, Any]:
        found = {"over_plain": self.over_plain, "over_bottom": self.over_bottom}
        return {"drafters": [i + 1 for i in self.members], "c": self.c, **found}


@dataclass(frozen=True, slots=True)
class CascadePlan:
    """``schedules``: cascades, the fastest first; ``singles``: the best draft of each drafter alone; ``cost``: None, all 1."""

    drafters: Drafters
    names: tuple[str, ...]
    cost: Cost | None
    longest: int
    schedules: tuple[Schedule, ...]
    singles: tuple[Schedule, ...]
    breaks: tuple[BreakEven, ...]
    warnings: tuple[str, ...] = ()

    @property
    def best(self) -> Schedule:
        return self.schedules[0]

    @property
    def best_single(self) -> Schedule:
        return max(self.singles, key=lambda s: s.ewif)

    @property
    def gain(self) -> float:
        """Of the best cascade over the best single drafter; below 0: it loses."""
        return self.best.ewif / self.best_single.ewif - 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; drafters are counted from 1, the heaviest first."""
        own = self.drafters
        found: dict[str, Any] = {
            "method": "cascade",
            "longest": self.longest,
            "drafters": [
                {"name": name, "alpha": _listed(alpha), "c": c}
                for name, alpha, c in zip(self.names, own.alphas, own.costs, strict=True)
            ],
            "inner": [{"reviewer": i + 1, "drafter": j + 1, "alpha": _listed(a)} for (i, j), a in sorted(own.inner.items())],
            "cost": None if self.cost is None else self.cost.to_dict(),
            "schedules": [_entry(s) for s in self.schedules],
            "singles": [_entry(s) for s in self.singles],
            "best": _entry(self.best),
            "best_single": _entry(self.best_single),
            "gain_over_single": self.gain,
            "break_even": [b.to_dict() for b in self.breaks],
            "warnings": list(self.warnings),
        }
        checked: dict[str, Any] = finite(found)
        return checked

    def table(self) -> str:
        from .cascade_text import table

        return table(self)


def _listed(alpha: Rate) -> float | list[float]:
    return list(alpha) if isinstance(alpha, tuple) else alpha


def _entry(found: Schedule) -> dict[str, Any]:
    members = [i + 1 for i in found.members]
    figures = {"tokens": found.tokens, "cost": found.cost, "speedup": found.ewif}
    return {"kind": found.kind, "drafters": members, "steps": list(found.steps), **figures}


def plan_cascade(
    alphas: Sequence[Rate],
    costs: Sequence[float],
    inner: Mapping[tuple[int, int], Rate] | Sequence[float] = (),
    *,
    steps: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    search: bool | None = None,
    only_horizontal: bool = False,
    cost: Source | None = None,
    reviews: Sequence[Source | None] = (),
    longest: int | None = None,
    names: Sequence[str] = (),
) -> CascadePlan:
    """Plan cascades of drafters, the heaviest first.

    alphas           how often the target accepts the tokens of each: a rate, or the chance at depth 1, 2, …
    costs            one pass of each over a target pass; of one that makes no passes, one drafted token
    inner            how often a drafter accepts a lighter one's tokens: by pair, counted from 0, or a list: of neighbours, or
                     of all pairs in the order 1-2, 1-3, …, 2-3, …
    steps            a vertical schedule: reviews of each, drafted tokens of the last
    lengths          a horizontal schedule: drafted tokens of each
    search           look for the best schedule (default: where none is given)
    only_horizontal  look for horizontal ones only
    cost             seconds of target passes over m tokens (default: all the same)
    reviews          the same of the passes of the first drafter, the second, …
    longest          longest draft of a schedule that is looked for
    """
    try:
        drafters = _drafters(alphas, costs, inner)
        wanted = _wanted(steps, lengths, search, only_horizontal, bool(drafters.inner))
        most = int(whole("the longest draft (--longest)", LONGEST if longest is None else longest, 2))
        given = _checked(drafters, steps, lengths)
        named = _names(names, len(drafters.alphas))
        settled, most, warnings = _settle(cost, most, _needed(given), longest is None)
        if len(reviews) > len(alphas):
            raise BadRequest(f"there are {len(reviews)} curves of reviewers for {len(alphas)} drafters; leave some out")
        priced = []
        for source in reviews:
            own, _, told = _settle(source, most, _needed(given), False)
            priced.append(None if own is None else own.seconds)
            warnings += told
        drafters = replace(drafters, reviews=tuple(priced))
        return _plan(drafters, named, given, wanted, settled, most, warnings)
    except SurefootError:
        raise
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"{error}; correct it") from None


def _plan(
    drafters: Drafters,
    names: tuple[str, ...],
    given: Sequence[tuple[str, tuple[int, ...]]],
    wanted: Sequence[str],
    cost: Cost | None,
    longest: int,
    warnings: Sequence[str],
) -> CascadePlan:
    curve = None if cost is None else cost.seconds
    every = tuple(range(len(drafters.alphas)))
    of = {"vertical": schedule.given_vertical, "horizontal": schedule.given_horizontal}
    found = [of[kind](drafters, every, counts, curve) for kind, counts in given]
    exact = {s.members: s.steps for s in found if s.kind == "vertical" and "vertical" not in wanted}
    if "vertical" in wanted:
        found += schedule.vertical(drafters, curve, longest)
    if "horizontal" in wanted:
        found += schedule.horizontal(drafters, curve, longest)
    if not found:
        raise BadRequest(f"no cascade of these drafters drafts at most {longest} tokens; raise --longest")
    singles = schedule.singles(drafters, curve, longest)
    chains = dict.fromkeys(s.members for s in sorted(found, key=lambda s: -s.ewif) if s.kind == "vertical")

    def below(members: tuple[int, ...], rival: float) -> float:
        return schedule.break_even_c(drafters, members, rival, steps=exact.get(members), cost=curve, longest=longest)

    breaks = tuple(BreakEven(m, drafters.costs[m[0]], below(m, 1.0), below(m, singles[m[-1]].ewif)) for m in chains)
    order = sorted(dict.fromkeys(found), key=lambda s: -s.ewif)
    return CascadePlan(drafters, names, cost, longest, tuple(order), tuple(singles), breaks, tuple(warnings))


def _drafters(
    alphas: Sequence[Rate], costs: Sequence[float], inner: Mapping[tuple[int, int], Rate] | Sequence[float]
) -> Drafters:
    n = len(alphas)
    if n < 2:
        raise BadRequest(f"a cascade has two drafters or more, and --alpha has {n}; give A1,A2,… (the heaviest first)")
    if len(costs) != n:
        raise BadRequest(f"--alpha has {n} drafters and --cost {len(costs)}; give one cost for each, over a target pass")
    a = tuple(_rate("--alpha", x) for x in alphas)
    c = tuple(float(x) for x in not_negative("--cost", list(costs)))
    if isinstance(inner, Mapping):
        return Drafters(a, c, {pair: _rate("an inner alpha", x) for pair, x in inner.items()})
    rates = [float(x) for x in probability("--inner-alpha", list(inner))]
    near = [(i, i + 1) for i in range(n - 1)]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    if rates and len(rates) not in (len(near), len(pairs)):
        raise BadRequest(
            f"--inner-alpha has {len(rates)} rates for {n} drafters; give {len(near)}, of each reviewer for the next drafter"
            + (f", or {len(pairs)}, of each for all lighter ones" if len(pairs) > len(near) else "")
        )
    return Drafters(a, c, dict(zip(near if len(rates) == len(near) else pairs, rates, strict=True)) if rates else {})


def _rate(name: str, alpha: Rate) -> Rate:
    found = probability(name, alpha)
    return tuple(found.tolist()) if found.ndim else float(found)


def _wanted(
    steps: Sequence[int] | None, lengths: Sequence[int] | None, search: bool | None, flat: bool, inner: bool
) -> tuple[str, ...]:
    """Kinds of schedules to look for."""
    if flat and steps is not None:
        raise BadRequest("--steps is of a vertical cascade; give --lengths with --horizontal, or leave --horizontal out")
    looking = search if search is not None else steps is None and lengths is None
    needs = steps is not None or (looking and not flat and lengths is None)
    if needs and not inner:
        raise BadRequest(
            "nothing says how often a reviewer accepts the lighter drafter's tokens; give --inner-alpha, or --horizontal"
        )
    if not looking:
        return ()
    return ("horizontal",) if flat or not inner else ("vertical", "horizontal")


def _checked(
    drafters: Drafters, steps: Sequence[int] | None, lengths: Sequence[int] | None
) -> list[tuple[str, tuple[int, ...]]]:
    found = []
    for kind, flag, counts in (("vertical", "--steps", steps), ("horizontal", "--lengths", lengths)):
        if counts is None:
            continue
        if len(counts) != len(drafters.alphas):
            raise BadRequest(f"{flag} has {len(counts)} entries for {len(drafters.alphas)} drafters; give one for each")
        least = 1 if kind == "vertical" else 0
        found.append((kind, tuple(int(n) for n in whole(flag, list(counts), least))))
        if sum(counts) == 0:
            raise BadRequest(f"{flag} drafts nothing; give a length from 1 up")
    return found


def _most(kind: str, counts: Sequence[int]) -> int:
    """The longest draft of a schedule."""
    if kind == "horizontal":
        return sum(counts)
    most = counts[-1]
    for n in reversed(counts[:-1]):
        most = n * (most + 1)
    return most


def _needed(given: Sequence[tuple[str, Sequence[int]]]) -> int:
    return max((_most(kind, counts) for kind, counts in given), default=0)


def _settle(source: Source | None, most: int, need: int, free: bool) -> tuple[Cost | None, int, list[str]]:
    """The curve as far as it is needed; also shortens the default longest draft to what it knows."""
    if source is None:
        return None, most, []
    if free and source.limit is not None:
        most = max(2, min(most, source.limit - 1))
    if source.limit is not None and max(most, need) + 1 > source.limit:
        known = f"{source.origin} has the seconds of 1 … {source.limit} tokens"
        raise BadRequest(f"{known}, and {max(most, need) + 1} are needed; lower --longest, --steps or --lengths")
    cost, warnings = settle(source, max(most, need) + 1, None)
    return cost, most, warnings


def _names(names: Sequence[str], n: int) -> tuple[str, ...]:
    if names and (len(names) != n or len(set(names)) != n):
        raise BadRequest(f"--names has {len(names)} entries for {n} drafters; give a different one for each")
    return tuple(names) or tuple(str(i) for i in range(1, n + 1))
