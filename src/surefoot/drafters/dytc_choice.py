"""Which part of a dynamic tree cascade is worth being asked at a leaf, and its options (see :mod:`.dytc`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ..errors import BadRequest
from .dytc_estimates import Account, Pace, Part
from .dytc_growth import Ask, Growth, Node

_FIRST_WAIT, _LONGEST_WAIT = 8, 512
DOUBT = 0.6
"""A part is asked for the sake of its estimates only where the bottom is less sure."""


@dataclass(frozen=True, slots=True)
class Options:
    """``width``: a leaf and its likeliest siblings that a part extends in one call. ``k_max``: most tokens of a call.

    ``decay``, ``window``, ``warm_up``: of the estimated acceptance. ``t_min``: ``marginal``, or the least P T_s. ``objective``:
    what part and length are chosen by, ``value`` or ``t_s``.
    Switches, to measure what each part of the method is worth: ``tree`` (off: chains), ``siblings`` (off: the leaf alone),
    ``dynamic`` (off: always the first part with k_max tokens, then the bottom), ``estimates`` (off: what is believed at first),
    ``stop`` (off: no t_min, so parts are asked while there is room).
    """

    width: int = 2
    k_max: int = 4
    decay: float = 0.7
    window: int = 20
    warm_up: int = 20
    t_min: float | str = "marginal"
    objective: str = "value"
    tree: bool = True
    siblings: bool = True
    dynamic: bool = True
    estimates: bool = True
    stop: bool = True

    @staticmethod
    def of(name: str, given: Mapping[str, object]) -> Options:
        known = [f.name for f in fields(Options)]
        for option in given:
            if option not in known:
                raise BadRequest(f"{name} takes no option {option!r}; it takes {', '.join(known)}, alphas and costs")
        values = dict(given)
        for option, low, high in (("width", 1, 64), ("k_max", 1, 64), ("window", 1, 10_000), ("warm_up", 0, 10_000)):
            value = values.get(option, low)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise BadRequest(f"{name}: {option}={value!r} must be a whole number from {low} to {high}")
        decay = values.get("decay", 0.0)
        if not _finite(decay) or not 0.0 <= decay < 1.0:  # type: ignore[operator]
            raise BadRequest(f"{name}: decay={decay!r} must be a number from 0 up and under 1")
        t_min = values.get("t_min", "marginal")
        if t_min != "marginal" and (not _finite(t_min) or t_min < 0):  # type: ignore[operator]
            raise BadRequest(f"{name}: t_min={t_min!r} must be 'marginal' or a number from 0 up")
        objective = values.get("objective", "value")
        if objective not in ("value", "t_s"):
            raise BadRequest(f"{name}: objective={objective!r} must be 'value' or 't_s'")
        for option in ("tree", "siblings", "dynamic", "estimates", "stop"):
            value = values.get(option, True)
            if value in ("on", "off"):
                values[option] = value = value == "on"
            if not isinstance(value, bool):
                raise BadRequest(f"{name}: {option}={value!r} must be on or off")
        return Options(**values)  # type: ignore[arg-type]

    @staticmethod
    def believed(name: str, option: str, given: Sequence[float] | None, n: int, usual: float, high: float) -> tuple[float, ...]:
        """What is believed at first, one for each part."""
        found = (usual,) * n if given is None else tuple(given)
        if len(found) != n or not all(_finite(value) and 0.0 <= value <= high for value in found):
            raise BadRequest(f"{name}: {option}={list(found)!r}; give {n} numbers from 0 to {high:g}, one for each part")
        return found


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """A part with a length. ``total``: tokens to expect of it; ``worth``: T_s."""

    part: Part
    k: int
    total: float
    worth: float


class Chooser:
    """Asked at each leaf. :meth:`begin` fixes for a pass what does not depend on the leaf."""

    def __init__(self, parts: Sequence[Part], options: Options, pace: Pace, account: Account) -> None:
        self._parts, self._options, self._pace, self._account = parts, options, pace, account
        self._choices: list[Choice] = []
        """Those that may be worth their cost at some leaf, of largest T_s first."""
        self._due: list[Part] = []
        self._low = self._unit = 0.0
        self._speed = 1.0
        for part in parts:
            part.wait = _FIRST_WAIT

    def begin(self, low: float, low_cost: float) -> None:
        own, self._low = self._options, low
        self._unit, self._speed = self._pace.unit, self._pace.speed
        self._choices, self._due = [], []
        if not own.dynamic:
            self._choices = [Choice(part, own.k_max, 0.0, 0.0) for part in self._parts[:1]]
            return
        for part in self._parts:
            part.idle += 1
            if own.stop and not part.settled and not self._affords(part):
                continue
            found = self._able(part, low_cost)
            if own.objective == "t_s" and found:  # of equals the shortest
                found = [max(found, key=lambda choice: choice.worth)]
            self._choices += found
            if own.estimates and own.stop and part.idle >= part.wait and self._affords(part):
                self._due.append(part)
        if len(self._choices) > 1:
            self._choices.sort(key=lambda choice: (-choice.worth, choice.part.number, choice.k))

    def _affords(self, part: Part, k: int = 1, w: int = 1, reading: float = 0.0) -> bool:
        """Whether there are seconds left to ask it for its estimates' sake."""
        return self._account.allows((part.passes(k, w, self._unit) + reading) * self._unit, self._unit)

    @property
    def resting(self) -> bool:
        """Whether no part will be asked in this pass, whatever the leaves are like."""
        return not self._choices and not self._due

    def _able(self, part: Part, low_cost: float) -> list[Choice]:
        """Lengths that are worth their cost where the bottom is silent and no doubt has accrued: nowhere else, if not there."""
        own, alpha, found = self._options, part.rate.value, []
        marginal = isinstance(own.t_min, str)
        fixed, slope = part.line(self._unit)
        total, reach = 0.0, 1.0
        for k in range(1, own.k_max + 1):  # most often nothing comes of it, in every pass: so plainly
            reach *= alpha
            total += reach
            expected, cost = total + reach * self._low, fixed + slope * k
            if own.stop and marginal and expected <= self._speed * cost:
                continue
            cost += low_cost
            worth = expected / cost if cost > 0.0 else math.inf
            if not own.stop or marginal or worth >= own.t_min:  # type: ignore[operator]
                found.append(Choice(part, k, expected, worth))
        return found

    def __call__(self, growth: Growth, node: Node, chance: float) -> Ask | None:
        """The part that is to extend a leaf, where the bottom's best candidate has this chance."""
        if self._due and node.parent is None and chance < DOUBT:
            ask = self._probe(growth, node)
            if ask is not None:
                return ask
        if not self._choices:
            growth.choose = None  # no part will be asked at any other leaf
            return None
        own = self._options
        room = min(growth.plan.depth - node.depth, growth.room)
        if not own.dynamic:
            return Ask(self._choices[0].part, [node], min(own.k_max, room)) if node.parent is None else None
        nodes = [node]
        if own.siblings and node.parent is not None and growth.width > 1:
            nodes += growth.beside(node, min(own.width, growth.width) - 1)
        able = [choice for choice in self._choices if choice.k <= room]
        values = [self._value(choice, growth, nodes, chance) for choice in able]
        order = range(len(able))
        refused: set[int] = set()
        for i in order if own.objective == "t_s" else sorted(order, key=lambda i: -values[i]):
            choice, value = able[i], values[i]
            if own.stop and isinstance(own.t_min, str) and value <= 0.0:
                continue
            if own.stop and not isinstance(own.t_min, str) and node.reach * choice.worth < own.t_min:
                continue
            part = choice.part
            if part.number not in refused and (not own.stop or self._lets(part, growth, value, choice.k, len(nodes))):
                part.wait = _FIRST_WAIT
                return Ask(part, nodes, choice.k, not part.settled)
            refused.add(part.number)
        return None

    def _value(self, choice: Choice, growth: Growth, nodes: Sequence[Node], chance: float) -> float:
        """Tokens that asking would gain beyond what drafting and verifying cost: G - T (c + V)."""
        k = choice.k
        extra = growth.gained(nodes[0], choice.total, chance, k)
        for other in nodes[1:]:
            extra += growth.gained(other, choice.total, self._low, k)
        cost = choice.part.passes(k, len(nodes), self._unit)
        return extra - growth.plan.floor * growth.paid(k * len(nodes)) - self._speed * cost

    def _lets(self, part: Part, growth: Growth, value: float, k: int, w: int) -> bool:
        """Whether a part that is new, or that has to read the row first, may be asked. ``value``: tokens that it would gain."""
        base = growth.row.base
        reading = part.reading(base.id, len(base.tokens), self._unit)
        if reading > 0.0 and part.owe(base.id, value) < self._speed * reading:
            return False
        return part.settled or self._affords(part, k, w, reading)

    def _probe(self, growth: Growth, node: Node) -> Ask | None:
        """Ask one of the parts that are due, the longest due first, if there are seconds left for it."""
        base = growth.row.base
        for part in sorted(self._due, key=lambda part: -part.idle):
            k = min(1 + part.cost.calls % min(3, self._options.k_max), growth.plan.depth, growth.room)
            if self._affords(part, k, reading=part.reading(base.id, len(base.tokens), self._unit)):
                self._due.clear()
                if part.rate.warm:
                    part.wait = min(2 * part.wait, _LONGEST_WAIT)
                return Ask(part, [node], k, True)
        return None

    def asked(self, part: Part, seconds: float, exploring: bool) -> None:
        """A call took so long."""
        part.idle = 0
        if exploring:
            self._account.spent += seconds
