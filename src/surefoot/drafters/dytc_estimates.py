"""What a dynamic tree cascade knows of its drafters and of decoding: acceptance, seconds of a call, tokens a second.

*Acceptance* of a drafter (:class:`Rate`): of the tokens that it named first at places where the target then spoke, verified
ones for short, the share that was right. Until ``warm_up`` of them are known a prior counts as some more; from then on

    alpha <- decay alpha + (1 - decay) recent

after every ``window``. Tokens at places that the target never reached count for a quarter, at their estimated chance: the
draft's own probability, times how right such probabilities were where they could be verified; where a drafter tells no
probability, alpha itself.

*Cost* of a call (:class:`CallCost`) that drafts k tokens behind each of w drafts: a + b k (1 + s (w - 1)) seconds, fitted to
measured ones, which fade. A drafter that does not follow the target's passes reads what it missed of a row first; what such a
token costs is learned from the calls that had many to read.

*Pace*: seconds of a target pass, which costs are told in, and tokens that decoding yields in that time. Exploring is paid for
from an :class:`Account` of a share of all seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.protocols import Drafter

_BELIEF = 5.0
"""Verified tokens that a prior counts for."""
_UNVERIFIED = 0.25
"""Weight of a token that the target did not speak of."""
_TRUST = 10.0
"""Verified tokens that the trust in a drafter's own probabilities counts for at first."""
_FADE = 0.9
_COLD = 2.0
"""A call counts as at most so many times what is known: one that is dearer met a cold machine, or the next tell it too."""
_FIXED = 0.3
"""Share of its first measured call that a drafter is believed to take whatever the draft's length."""
_BESIDE = 0.5
"""What a draft beside the first is believed to add, in the same call, over what the first costs."""
_BEHIND = 16
"""A drafter that missed so many tokens of a row or fewer just catches up."""
_UNREAD = 0.05
"""Believed cost of reading a token that was missed, over a pass of the target."""
_PACE = 0.97


@dataclass(slots=True)
class Rate:
    """alpha of one drafter."""

    prior: float
    decay: float = 0.7
    window: int = 20
    warm_up: int = 20
    value: float = -1.0
    seen: int = 0
    """Verified tokens."""
    _sum: float = 0.0
    _weight: float = 0.0
    _tries: int = 0
    _right: float = _TRUST
    _claimed: float = _TRUST
    """Of verified tokens with a probability, those that were right, and what was claimed; fading."""

    def __post_init__(self) -> None:
        self.value = self.prior

    @property
    def warm(self) -> bool:
        return self.seen >= self.warm_up

    def verified(self, right: bool, claimed: float | None = None) -> None:
        """The target spoke where the drafter named a token first, which it gave the probability ``claimed``."""
        if claimed is not None:
            self._right = self._right * (1.0 - 1.0 / 64) + right
            self._claimed = self._claimed * (1.0 - 1.0 / 64) + claimed
        self._sum += right
        self._weight += 1.0
        self._tries += 1
        self.seen += 1
        if self.seen <= self.warm_up:
            self.value = (_BELIEF * self.prior + self._sum) / (_BELIEF + self._weight)
            over = self.seen == self.warm_up
        else:
            over = self._tries >= self.window
            if over:
                self.value = self.decay * self.value + (1.0 - self.decay) * self._sum / self._weight
        if over:
            self._sum = self._weight = 0.0
            self._tries = 0

    def unverified(self, claimed: float | None = None) -> None:
        """The target did not get to where the drafter named a token."""
        chance = self.value if claimed is None else min(1.0, claimed * self._right / self._claimed)
        self._sum += _UNVERIFIED * chance
        self._weight += _UNVERIFIED


class CallCost:
    """Seconds of a call. Before the second call nothing is ``known``: the first one meets a cold machine."""

    __slots__ = ("_sums", "beside", "calls", "fixed", "slope", "unread")

    def __init__(self) -> None:
        self.calls = 0
        self.beside = _BESIDE
        self.unread: float | None = None
        """Seconds of reading a token that was missed."""
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self.fixed = self.slope = 0.0

    @property
    def known(self) -> bool:
        return self._sums[0] > 0.0

    def seconds(self, k: int, w: int = 1) -> float:
        """Of a call for k tokens behind each of w drafts, on rows that the drafter has read."""
        return self.fixed + self.slope * k * (1.0 + self.beside * (w - 1))

    def learn(self, seconds: float, k: int, w: int = 1, missed: int = 0) -> None:
        self.calls += 1
        if missed > _BEHIND:
            found = max(0.0, seconds - self.seconds(k, w)) / missed
            self.unread = found if self.unread is None else self.unread + 0.5 * (found - self.unread)
            return
        if self.calls == 1:
            return
        if not self.known:  # two points of the line that is believed, so that calls of one length say no less
            self._add(0.0, _FIXED * seconds)
        else:
            seconds = min(seconds, _COLD * self.seconds(k, w))
            if w > 1 and self.slope > 0.0:
                found = ((seconds - self.fixed) / (self.slope * k) - 1.0) / (w - 1)
                self.beside += (1.0 - _FADE) * (min(max(found, 0.0), 1.0) - self.beside)
        self._add(k * (1.0 + self.beside * (w - 1)), seconds)
        n, x, xx, t, xt = self._sums
        spread = xx - x * x / n
        slope = (xt - x * t / n) / spread if spread > 1e-9 * xx else self.slope
        self.slope = min(max(slope, 0.0), t / x)
        self.fixed = (t - self.slope * x) / n

    def _add(self, x: float, t: float) -> None:
        n, sx, xx, st, xt = (_FADE * value for value in self._sums)
        self._sums = (n + 1.0, sx + x, xx + x * x, st + t, xt + x * t)


@dataclass(slots=True)
class Pace:
    """Fading sums of measured passes."""

    tokens: float = 0.0
    seconds: float = 0.0
    scoring: float = 0.0
    passes: float = 0.0

    def add(self, tokens: int, seconds: float, scoring: float) -> None:
        """A pass with its drafting took ``seconds``, ``scoring`` of them after drafting, and kept ``tokens``."""
        if self.passes > 1.0:  # a pause is no price
            seconds = min(seconds, 4.0 * self.seconds / self.passes)
            scoring = min(scoring, seconds)
        self.tokens = _PACE * self.tokens + tokens
        self.seconds = _PACE * self.seconds + seconds
        self.scoring = _PACE * self.scoring + scoring
        self.passes = _PACE * self.passes + 1.0

    @property
    def unit(self) -> float:
        """Seconds of a pass; 0 before the first."""
        return self.scoring / self.passes if self.passes else 0.0

    @property
    def speed(self) -> float:
        """Tokens that decoding yields in the time of a pass, those of all rows together; at first one, as plain decoding."""
        return self.tokens * self.unit / self.seconds if self.seconds > 0.0 else 1.0


@dataclass(slots=True)
class Account:
    """Seconds that exploring may take: ``share`` of all, and ``credit`` passes to begin with."""

    share: float = 0.005
    credit: float = 4.0
    spent: float = 0.0
    total: float = 0.0

    def allows(self, seconds: float, unit: float) -> bool:
        return self.spent + seconds <= self.share * self.total + self.credit * unit


@dataclass(slots=True)
class Part:
    """A drafter above the bottom, and what is known of it. ``price``: believed cost of a token, over a pass."""

    drafter: Drafter
    number: int
    rate: Rate
    price: float
    cost: CallCost = field(default_factory=CallCost)
    idle: int = 0
    """Passes since it was last asked."""
    wait: int = 0
    """Passes until it is asked although nothing speaks for it."""
    learns: bool = True
    _read: dict[int, int] = field(default_factory=dict)
    _owed: dict[int, float] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether enough is known of it for asking it to be no exploring."""
        return not self.learns or (self.cost.known and self.rate.seen >= min(_BELIEF, self.rate.warm_up))

    def line(self, unit: float) -> tuple[float, float]:
        """Passes of the target that a call lasts, and those that each token adds."""
        if self.learns and unit > 0.0 and self.cost.known:
            return self.cost.fixed / unit, self.cost.slope / unit
        return 0.0, self.price

    def passes(self, k: int, w: int, unit: float) -> float:
        """Passes that a call for k tokens behind each of w drafts lasts."""
        fixed, slope = self.line(unit)
        return fixed + slope * k * (1.0 + self.cost.beside * (w - 1))

    def missed(self, row: int, tokens: int) -> int:
        """Tokens of the row, which has so many, that it would have to read first."""
        return 0 if self.drafter.needs.hidden else tokens - self._read.get(row, 0)

    def reading(self, row: int, tokens: int, unit: float) -> float:
        """Passes that this would last."""
        missed = self.missed(row, tokens)
        if missed <= _BEHIND or not self.learns:
            return 0.0
        known = self.cost.unread
        return missed * (_UNREAD if known is None or unit <= 0.0 else known / unit)

    def read(self, row: int, tokens: int) -> None:
        self._read[row] = tokens
        self._owed.pop(row, None)

    def owe(self, row: int, tokens: float) -> float:
        """Tokens that it would have gained on this row, had it read it; all so far."""
        self._owed[row] = self._owed.get(row, 0.0) + tokens
        return self._owed[row]

    def forget(self, row: int) -> None:
        self._read.pop(row, None)
        self._owed.pop(row, None)


def likely(chance: float, k: int) -> float:
    """Tokens to expect of k, one behind the other, at this chance each."""
    return float(k) if chance > 0.999 else chance * (1.0 - chance**k) / (1.0 - chance)
