"""Self-speculation over a partial chain of thought (SSR, arXiv 2608.20359): what a fork costs and what its draft saves.

A request thinks L tokens and answers A, tau tokens a pass (tau > 1: by other drafters), a pass of one row costing V(w). Behind
b tokens of thought it is forked: the fork drafts the answer in the same passes, which then cost V(2w), until it has said it,
has m tokens, or the thought ends. The d drafted tokens are then read side by side with the answer (:mod:`.foreseen`):

    without   (L + A) V(w) / tau
    with      L V(w) / tau  +  h (V(2w) - V(w))  +  C(d)  +  (A - d) V(w) / tau

h: passes of the fork. All costs are in passes of one token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, Curve, curve, not_negative, probability, whole
from .foreseen import LONGEST, agreement, best_chain, intact, rate, read


@dataclass(frozen=True, slots=True)
class Setting:
    """One request, and how it is forked.

    overlap   share of the answer that a draft foresees, or that share by b / L
    budget    b; above ``thought``: there is no fork
    draft     m, most tokens of a draft
    interval  tokens of thought between the starts of further forks, ``drafts`` in all; each reads the draft before it, with an
              overlap ``between`` the two (None: as of a thought that was cut there with one that ends where the later begins)
    recovery  r, from 1; ``suffix``: whether the place is found again at all
    chain     k; None: the best, as a controller that knows the costs would take it
    tokens    tau; ``width``: w, tokens of a row's pass without a draft; ``force``: tokens that end the fork's thought
    """

    thought: int
    answer: int
    overlap: float | Callable[[float], float]
    budget: int
    draft: int = 500
    interval: int | None = None
    drafts: int = 1
    between: float | None = None
    recovery: float = 1.0
    suffix: bool = True
    chain: int | None = None
    tokens: float = 1.0
    width: int = 1
    force: int = 1

    def __post_init__(self) -> None:
        for name, least in (
            ("thought", 0),
            ("answer", 1),
            ("budget", 0),
            ("draft", 1),
            ("drafts", 1),
            ("width", 1),
            ("force", 1),
        ):
            whole(name, getattr(self, name), least)
        if self.interval is None and self.drafts > 1:
            raise ValueError(f"drafts is {self.drafts}, which needs interval, the tokens of thought between two drafts")
        if self.interval is not None:
            whole("interval", self.interval, 1)
        if self.chain is not None:
            whole("chain", self.chain)
        if not self.recovery >= 1.0 or not self.tokens >= 1.0:
            raise ValueError(f"recovery ({self.recovery}) and tokens ({self.tokens}) must be 1 or more")
        if self.between is not None:
            probability("between", self.between)
        self.foreseen(1.0)

    def foreseen(self, share: float) -> float:
        """Overlap of a draft made behind that share of the thought with what is said behind all of it."""
        found = self.overlap(share) if callable(self.overlap) else self.overlap
        return float(probability("overlap", found))

    @property
    def widest(self) -> int:
        """Tokens of the widest pass."""
        chain = LONGEST if self.chain is None else self.chain
        return self.width + max(chain + 1, self.width, self.force + 1)


@dataclass(frozen=True, slots=True)
class Latency:
    """Expected costs. ``plain``: without any draft; ``without``: with the other drafters alone.

    thought       of its passes, as far as they would have been without forks; ``exposed``: what forks added to them
    hidden        what the forks' passes would have cost alone, less that
    verify        of passes that began where answer and draft agreed so far; ``continuation``: of those behind
    drafted       tokens of each draft; ``accepted``: drafted tokens that were kept, ``prefix`` of them before any difference
    """

    plain: float
    without: float
    thought: float
    exposed: float
    hidden: float
    verify: float
    continuation: float
    drafted: tuple[float, ...]
    accepted: float
    prefix: float
    chain: int

    @property
    def total(self) -> float:
        return self.thought + self.exposed + self.verify + self.continuation

    @property
    def gain(self) -> float:
        """Share of the latency that SSR takes away; below 0: it adds."""
        return 1.0 - self.total / self.without

    @property
    def gain_over_plain(self) -> float:
        return 1.0 - self.total / self.plain


def latency(setting: Setting, cost: Curve | ArrayLike) -> Latency:
    """The expected costs of a request. ``cost``: V, a function of m or the seconds of 1, 2, … tokens."""
    v = curve(cost, setting.widest)
    row = float(v[setting.width]) / setting.tokens
    parts, exposed, hidden, drafted = _forks(setting, v)
    said, chain, still = 0, 0, 1.0
    verify = prefix = rest = accepted = 0.0
    for n, share in parts:
        a = agreement(share, setting.recovery)
        k = _chain(setting, a, v)
        back = setting.recovery if setting.suffix else math.inf
        more = said + n < setting.answer
        took, kept = read(a, back, k, n, v, more=more, tokens=setting.tokens, width=setting.width)
        if not setting.suffix:  # whoever has left the draft does not come back to it
            took, kept = still * took + (1.0 - still) * n * row, still * kept
        if k:
            first, run, same = intact(a, k, n, v, setting.width)
            verify, prefix, still = verify + still * first, prefix + still * run, still * same
        said, rest, accepted, chain = said + n, rest + took, accepted + kept, chain or k
    total = setting.thought + setting.answer
    return Latency(
        plain=total * float(v[setting.width]),
        without=total * row,
        thought=setting.thought * row,
        exposed=exposed,
        hidden=hidden,
        verify=verify,
        continuation=rest - verify + (setting.answer - said) * row,
        drafted=drafted,
        accepted=accepted,
        prefix=prefix,
        chain=chain,
    )


def over_thoughts(setting: Setting, thoughts: Sequence[int], cost: Curve | ArrayLike, weights: Sequence[float] = ()) -> float:
    """Gain over requests whose thoughts are so long: 1 - expected latency with SSR over that without."""
    p = not_negative("weights", weights if len(weights) else [1.0] * len(thoughts))
    if len(p) != len(thoughts) or not float(p.sum()) > 0.0:
        raise ValueError("give one or more thoughts, and one weight for each, not all 0")
    found = [latency(replace(setting, thought=n), cost) for n in thoughts]
    totals, without = np.array([f.total for f in found]), np.array([f.without for f in found])
    return 1.0 - float((p * totals).sum() / (p * without).sum())


def best_budget(setting: Setting, cost: Curve | ArrayLike, thoughts: Sequence[int] = ()) -> tuple[int, float]:
    """(b, gain) of the best b, to about a hundredth of the thought; over ``thoughts``, where several lengths may come."""
    lengths = thoughts or [setting.thought]

    def gain(b: int) -> float:
        return over_thoughts(replace(setting, budget=b), lengths, cost)

    longest = max(lengths)
    coarse = sorted({round(longest * i / 40) for i in range(40)})
    at = max(coarse, key=lambda b: (gain(b), -b))
    step = max(1, longest // 200)
    near = range(max(0, at - longest // 40), min(longest - 1, at + longest // 40) + 1, step)
    best = max({at, *near}, key=lambda b: (gain(b), -b))
    return best, gain(best)


def break_even(setting: Setting, cost: Curve | ArrayLike) -> float | None:
    """The overlap from which on forking at this budget does not lose; None: it loses at any."""
    found = partial(_gain_at, setting, cost)
    if found(1.0) < 0.0:
        return None
    low, high = 0.0, 1.0
    if found(0.0) >= 0.0:
        return 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) >= 0.0 else (middle, high)
    return high


def _gain_at(setting: Setting, cost: Curve | ArrayLike, share: float) -> float:
    return latency(replace(setting, overlap=share), cost).gain


def _chain(setting: Setting, a: float, v: Array) -> int:
    if setting.chain is not None:
        return setting.chain
    r = setting.recovery if setting.suffix else math.inf
    most = min(LONGEST, len(v) - 2)
    if math.isinf(r):  # what is behind a difference costs the same whatever k is: only the run itself counts
        r = 1.0
    return best_chain(a, r, v[1:], most, tokens=setting.tokens, width=setting.width)


def _forks(setting: Setting, v: Array) -> tuple[list[tuple[int, float]], float, float, tuple[float, ...]]:
    """Stretches of the answer with the overlap of the draft that covers them; what forks add, and hide; tokens of drafts."""
    w, one = setting.width, float(v[setting.width])
    lengths: list[float] = []
    shares: list[float] = []
    exposed = alone = 0.0
    for i in range(setting.drafts):
        b = setting.budget + i * (setting.interval or 0)
        if b >= setting.thought:
            break
        until = setting.thought if i == setting.drafts - 1 else min(setting.thought, b + (setting.interval or 0))
        room = (until - b) / setting.tokens
        wanted = min(setting.draft, setting.answer)
        behind = int(lengths[-1]) if lengths else 0
        share = setting.foreseen((b - (setting.interval or 0)) / b) if behind and setting.between is None else setting.between
        own = agreement(share or 0.0, setting.recovery)
        k = _chain(setting, own, v) if behind else 0
        per = setting.tokens if not k else rate(own, setting.recovery, k, np.ones(k + 1), tokens=setting.tokens)
        covered = min(behind, wanted) if k else 0
        passes = 1.0 + covered / per + (wanted - 1 - covered) / setting.tokens
        cut = room < passes
        # the pass in which the thought ends, or another fork begins, is made but not read
        done = max(0.0, min(room, passes))
        drafted = float(wanted)
        if cut:
            read = max(0.0, done - 1.0)
            ahead = min(read, covered / per) if covered else 0.0
            drafted = min(float(wanted), ahead * per + (read - ahead) * setting.tokens)
        chained = min(done, covered / per) if covered else 0.0
        first = min(1.0, done)
        exposed += first * (float(v[w + max(setting.force + 1, w)]) - one)
        exposed += max(0.0, done - first - chained) * (float(v[2 * w]) - one) + chained * (float(v[w + max(k + 1, w)]) - one)
        alone += first * float(v[max(setting.force + 1, w)]) + max(0.0, done - first - chained) * one
        alone += chained * float(v[max(k + 1, w)])
        lengths.append(drafted)
        shares.append(setting.foreseen(b / setting.thought))
    parts: list[tuple[int, float]] = []
    said = 0
    for drafted, share in zip(reversed(lengths), reversed(shares), strict=True):
        more = min(int(drafted), setting.answer) - said
        if more > 0:
            parts.append((more, share))
            said += more
    return parts, exposed, alone - exposed, tuple(lengths)
