"""The best schedule of a cascade: which drafters, how many steps of each, and the cost at which it would win.

Searched is every schedule whose longest draft is at most ``longest`` tokens: a reviewer that makes n steps over drafts of up to
L tokens drafts up to n (L + 1) itself, so there are few, at any depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np

from . import arrivals
from .arrivals import Cost, Rate
from .checks import Array, curve, not_negative, probability, whole
from .speedup import speedup_measured

LONGEST = 48


@dataclass(frozen=True, slots=True)
class Drafters:
    """What there is to draft with, the heaviest first.

    ``alphas[i]``: rate at which the target accepts the tokens of drafter i; ``costs[i]``: one of its passes (one drafted token,
    where it makes none) over a target pass; ``inner[i, j]``: rate at which drafter i accepts the tokens of a lighter j, where
    it is known; ``reviews[i]``: what passes of drafter i over 1, 2, … tokens cost.
    """

    alphas: tuple[Rate, ...]
    costs: tuple[float, ...]
    inner: Mapping[tuple[int, int], Rate] = field(default_factory=dict)
    reviews: tuple[Cost, ...] = ()

    def __post_init__(self) -> None:
        for alpha in self.alphas:
            probability("alpha", alpha)
        not_negative("cost", self.costs)
        for alpha in self.inner.values():
            probability("inner alpha", alpha)
        if not self.alphas or len(self.alphas) != len(self.costs):
            raise ValueError(f"{len(self.alphas)} alphas and {len(self.costs)} costs: each drafter needs both")
        if not all(0 <= i < j < len(self.alphas) for i, j in self.inner):
            raise ValueError("an inner alpha belongs to a drafter and a lighter one, counted from 0")

    def review(self, i: int) -> Cost:
        return self.reviews[i] if i < len(self.reviews) else None

    def chains(self, least: int = 2) -> list[tuple[int, ...]]:
        """Every choice of ``least`` drafters or more of which each has a known rate for the next."""
        n = len(self.alphas)
        every = [chosen for size in range(least, n + 1) for chosen in combinations(range(n), size)]
        return [chosen for chosen in every if all(pair in self.inner for pair in pairwise(chosen))]


@dataclass(frozen=True, slots=True)
class Schedule:
    """``members`` of a set, the heaviest first, and the ``steps`` of each: reviews for one of the level above; of the last one
    (in a horizontal cascade of all) drafted tokens. ``cost`` of a round over a plain pass."""

    kind: str
    members: tuple[int, ...]
    steps: tuple[int, ...]
    tokens: float
    cost: float

    @property
    def ewif(self) -> float:
        return self.tokens / self.cost


def single(alpha: Rate, c: float, cost: Cost = None, longest: int = LONGEST) -> tuple[float, int]:
    """(speed-up, length) of the best draft of one drafter; length 0: none pays."""
    found = speedup_measured(arrivals.reach(alpha, longest).cumsum(), c, _flat if cost is None else cost)
    best = int(np.argmax(found))
    return float(found[best]), best


def singles(drafters: Drafters, cost: Cost = None, longest: int = LONGEST) -> list[Schedule]:
    """The best draft of each drafter alone, 0 tokens where none pays; in the order of the set."""
    found = []
    for i, (alpha, c) in enumerate(zip(drafters.alphas, drafters.costs, strict=True)):
        gain, k = single(alpha, c, cost, longest)
        tokens = float(arrivals.reach(alpha, k).sum())
        found.append(Schedule("single", (i,), (k,), tokens, tokens / gain))
    return found


def vertical(drafters: Drafters, cost: Cost = None, longest: int = LONGEST) -> list[Schedule]:
    """The best steps of every vertical cascade of the set, the fastest first."""
    whole("longest", longest, 1)
    found = []
    for members in drafters.chains():
        tried = [
            Schedule("vertical", members, part.steps, part.tokens(drafters, members), part.cost(drafters, members, cost))
            for part in _parts(drafters, members, longest)
        ]
        if tried:
            found.append(max(tried, key=lambda s: s.ewif))
    return sorted(found, key=lambda s: -s.ewif)


def horizontal(drafters: Drafters, cost: Cost = None, longest: int = LONGEST) -> list[Schedule]:
    """The best lengths of every horizontal cascade of two drafters or more of the set, each with a token at least."""
    n = len(drafters.alphas)
    every = [chosen for size in range(2, n + 1) for chosen in combinations(range(n), size)]
    found = [s for members in every if (s := _lengths(drafters, members, cost, longest)) is not None]
    return sorted(found, key=lambda s: -s.ewif)


def given_vertical(drafters: Drafters, members: Sequence[int], steps: Sequence[int], cost: Cost = None) -> Schedule:
    """The figures of one vertical schedule."""
    chosen = tuple(members)
    part = _given(drafters, chosen, steps)
    return Schedule("vertical", chosen, part.steps, part.tokens(drafters, chosen), part.cost(drafters, chosen, cost))


def given_horizontal(drafters: Drafters, members: Sequence[int], lengths: Sequence[int], cost: Cost = None) -> Schedule:
    """The figures of one horizontal schedule."""
    costs = [drafters.costs[i] for i in members]
    counts = [int(k) for k in whole("lengths", list(lengths))]
    stays = np.concatenate([arrivals.chances(drafters.alphas[i], k) for i, k in zip(members, counts, strict=True)])
    tokens, width = 1.0 + float(np.cumprod(stays).sum()), sum(counts)
    own = arrivals.pass_cost(arrivals.point(width), cost) + float(np.dot(lengths, costs))
    return Schedule("horizontal", tuple(members), tuple(counts), tokens, own)


def break_even_c(
    drafters: Drafters,
    members: Sequence[int],
    rival: float = 1.0,
    *,
    steps: Sequence[int] | None = None,
    cost: Cost = None,
    longest: int = LONGEST,
) -> float:
    """The cost of one pass of the first reviewer at which the cascade of ``members`` is ``rival`` times plain decoding.

    Below it the cascade wins: over plain decoding with the rival 1, over its bottom alone with the speed-up of that. Of the
    schedule with these ``steps``, else of whichever is best there. Below 0: it does not win even with a reviewer that is free.
    """
    chosen = tuple(members)
    parts = _parts(drafters, chosen, longest) if steps is None else [_given(drafters, chosen, steps)]
    found = []
    for part in parts:
        spare = part.tokens(drafters, chosen) / rival - arrivals.pass_cost(part.law, cost) - part.below
        found.append(spare / part.passes)
    if not found:
        raise ValueError(f"no schedule of {len(chosen)} levels drafts at most {longest} tokens; raise longest")
    return max(found)


@dataclass(frozen=True, slots=True)
class _Part:
    """A level with those below it, for one step above. ``passes``: what its own passes cost, in its passes over one token;
    ``below``: cost of all lower levels; ``longest``: the most tokens it drafts."""

    steps: tuple[int, ...]
    law: Array
    passes: float
    below: float
    longest: int

    def tokens(self, drafters: Drafters, members: Sequence[int]) -> float:
        return arrivals.kept(self.law, drafters.alphas[members[0]])

    def cost(self, drafters: Drafters, members: Sequence[int], cost: Cost) -> float:
        return arrivals.pass_cost(self.law, cost) + self.passes * drafters.costs[members[0]] + self.below


def _parts(drafters: Drafters, members: tuple[int, ...], longest: int) -> Iterator[_Part]:
    """Every schedule of these members."""
    if len(members) == 1:
        for k in range(1, longest + 1):
            yield _Part((k,), arrivals.point(k), float(k), 0.0, k)
        return
    for lower in _parts(drafters, members[1:], longest):
        yield from _over(drafters, members, lower, range(1, longest // (lower.longest + 1) + 1))


def _over(drafters: Drafters, members: tuple[int, ...], lower: _Part, counts: range) -> Iterator[_Part]:
    """A reviewer's steps over one schedule of the levels below it."""
    one = arrivals.review_law(lower.law, drafters.inner[members[0], members[1]])
    width = arrivals.pass_cost(lower.law, drafters.review(members[0]))
    below = lower.passes * drafters.costs[members[1]] + lower.below
    law = arrivals.point(0)
    for n in range(1, counts.stop):
        law = np.convolve(law, one)
        if n >= counts.start:
            yield _Part((n, *lower.steps), law, n * width, n * below, n * (lower.longest + 1))


def _given(drafters: Drafters, members: tuple[int, ...], steps: Sequence[int]) -> _Part:
    counts = [int(n) for n in whole("steps", list(steps), 1)]
    if len(counts) != len(members):
        raise ValueError(f"{len(counts)} steps for {len(members)} drafters; give one for each")
    k = counts[-1]
    part = _Part((k,), arrivals.point(k), float(k), 0.0, k)
    for i in range(len(members) - 2, -1, -1):
        [part] = _over(drafters, members[i:], part, range(counts[i], counts[i] + 1))
    return part


def _lengths(drafters: Drafters, members: tuple[int, ...], cost: Cost, longest: int) -> Schedule | None:
    """Every way to share up to ``longest`` tokens, at once."""
    shares = _shares(len(members), longest)
    if not len(shares):
        return None
    reach = np.array([arrivals.reach(drafters.alphas[i], longest) for i in members]).T  # of each drafter's own depth
    sums = reach[1:].cumsum(0)
    tokens, prefix = np.ones(len(shares)), np.ones(len(shares))
    for i in range(len(members)):
        tokens += prefix * sums[shares[:, i] - 1, i]
        prefix = prefix * reach[shares[:, i], i]
    width = shares.sum(1)
    v = np.ones(longest + 2) if cost is None else curve(cost, longest + 1)
    spent = v[width + 1] + shares @ np.array([drafters.costs[i] for i in members])
    best = int(np.argmax(tokens / spent))
    return Schedule("horizontal", members, tuple(int(k) for k in shares[best]), float(tokens[best]), float(spent[best]))


def _shares(parts: int, longest: int) -> Array:
    """Every tuple of ``parts`` numbers from 1 up whose sum is at most ``longest`` [S, parts]."""
    found = np.zeros((1, 0), np.int64)
    for left in range(parts, 0, -1):
        room = longest - found.sum(1) - left + 1
        found = np.concatenate([np.insert(found[room >= k], found.shape[1], k, axis=1) for k in range(1, max(1, longest) + 1)])
    return found


def _flat(m: int) -> float:
    return 1.0
