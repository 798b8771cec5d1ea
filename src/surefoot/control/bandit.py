"""A bandit over (drafter, draft length), plain decoding included; its reward is what is wanted: kept tokens a second.

No model of acceptance or cost: an arm is as good as the tokens it gave over the seconds it took. (By acceptance rate the
shortest draft wins, whatever a pass costs.) Evidence fades by ``discount`` a pass, since texts change. Two policies:

    ucb   the arm with the largest rate + c sigma sqrt(ln N / n): discounted UCB (Garivier & Moulines, 2011), where n and N
          count passes of the arm and of all arms and sigma is the measured spread of the rate from pass to pass
    exp3  an arm drawn from (1 - mix) softmax(G) + mix / K; G of the arm grows by eta z / probability a pass, where z is
          its rate relative to the running mean, in units of the spread (Auer et al., 2002; fading as in Exp3.S)

Rates of one row and of eight are different things, so each size of batch, by powers of two, has its own evidence. Passes
that also fill the cache of a prompt, and drafts cut by the end of their request, tell nothing about an arm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.protocols import PLAIN, Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest
from .asked import Asked, drafted
from .options import names, number, stay_of, whole

if TYPE_CHECKING:
    from .costs import LiveCosts

Array = np.ndarray[Any, Any]
KINDS = ("ucb", "exp3")
_LEAST = 0.1
"""Spread of rates, as a share of the mean rate, that is believed in at least: what never varied may still change."""
_FAR = 3.0
"""Rewards count as at most this many spreads away from the mean."""
_WORTH = 0.1
"""Evidence of fewer passes than this is as good as none: the arm is tried again."""


def ladder(most: int) -> list[int]:
    """1, 2, 3, 5, 8, … up to ``most``."""
    found, a, b = [], 1, 2
    while a <= most:
        found.append(a)
        a, b = b, a + b
    return found


class Evidence:
    """Fading sums over passes of K arms, at one size of batch."""

    __slots__ = ("_all", "gains", "n", "seconds", "squares", "sums", "tokens")

    def __init__(self, arms: int) -> None:
        self._all: Array = np.zeros((6, arms))
        self.n, self.tokens, self.seconds, self.sums, self.squares, self.gains = self._all

    def add(self, arm: int, tokens: float, seconds: float, discount: float) -> None:
        rate = tokens / seconds
        self._all *= discount
        self._all[:5, arm] += (1.0, tokens, seconds, rate, rate * rate)

    @property
    def mean(self) -> float:
        """Tokens a second over all arms."""
        return float(self.tokens.sum() / self.seconds.sum())

    @property
    def spread(self) -> float:
        """Standard deviation of a pass's rate around its arm's mean."""
        between = self.sums**2 / np.maximum(self.n, 1e-300)
        inside = (self.squares - between).sum() / self.n.sum()
        return max(math.sqrt(max(float(inside), 0.0)), _LEAST * self.mean)


@dataclass(slots=True)
class Block:
    """Passes for which an arm is kept."""

    evidence: Evidence
    arm: int
    left: int
    probability: float
    fresh: bool
    """Its first pass pays for a change of size, which is not the arm's fault."""
    passes: int = 0
    tokens: float = 0.0
    seconds: float = 0.0


class BanditController:
    """``kind``: ucb or exp3. ``c``: courage of ucb. ``eta``, ``mix``: learning rate and uniform share of exp3.

    ``stay``: passes for which an arm is kept (default: 16 where changing the size of a pass is dear, else 1); rows then hold
    their size, at least ``min_width``. ``seed`` is of this controller's own numbers, which no request sees.
    """

    def __init__(
        self,
        drafters: str | Sequence[str],
        costs: LiveCosts,
        *,
        max_draft: int = 8,
        min_width: int = 1,
        seed: int = 0,
        kind: str = "ucb",
        discount: float = 0.995,
        c: float = 0.5,
        eta: float = 0.05,
        mix: float = 0.05,
        stay: int | None = None,
    ) -> None:
        if kind not in KINDS:
            raise BadRequest(f"bandit: kind={kind!r}; give one of {', '.join(KINDS)}")
        self._kind = kind
        self._costs = costs
        lengths = ladder(whole("bandit", "max_draft", max_draft, 0))
        self.arms: list[tuple[str | None, int]] = [(None, 0)]
        """(drafter, draft length); the first one is plain decoding."""
        self.arms += [(name, k) for name in names("bandit", drafters) for k in lengths]
        self._min_width = whole("bandit", "min_width", min_width, 1)
        self._rng = np.random.default_rng(whole("bandit", "seed", seed, 0))
        self._discount = number("bandit", "discount", discount, 0.0, 1.0, above=True)
        self._c = number("bandit", "c", c, 0.0)
        self._eta = number("bandit", "eta", eta, 0.0, above=True)
        self._mix = number("bandit", "mix", mix, 0.0, 1.0, above=True)
        self._stay = stay_of("bandit", stay, costs.change)
        self._asked = Asked()
        self._evidence: dict[int, Evidence] = {}
        self._block: Block | None = None
        self._size = 0

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        if len(self.arms) == 1 or not rows:
            return [PLAIN] * len(rows)
        crowd = len(rows).bit_length()
        evidence = self._evidence.setdefault(crowd, Evidence(len(self.arms)))
        block = self._block
        if block is None or block.left < 1 or block.evidence is not evidence:
            self._close()
            block = self._block = self._open(evidence)
        block.left -= 1
        name, k = self.arms[block.arm]
        hold = max(k + 1, self._min_width) if self._costs.change > 0 else 0
        return [self._asked.plan(row, name, k, hold) for row in rows]

    def _open(self, evidence: Evidence) -> Block:
        probability = 1.0
        if self._kind == "exp3":
            law = self._law(evidence)
            arm = int(self._rng.choice(len(law), p=law))
            probability = float(law[arm])
        else:
            arm = self._bold(evidence)
        size = max(self.arms[arm][1] + 1, self._min_width)
        fresh = self._costs.change > 0 and size != self._size
        self._size = size
        return Block(evidence, arm, self._stay, probability, fresh)

    def _bold(self, evidence: Evidence) -> int:
        """The arm that may be the best one."""
        untried = np.flatnonzero(evidence.n < _WORTH)
        if len(untried):
            return int(self._rng.choice(untried))
        rates = evidence.tokens / evidence.seconds
        bonus = np.sqrt(math.log(max(float(evidence.n.sum()), math.e)) / evidence.n)
        return int((rates + self._c * evidence.spread * bonus).argmax())

    def _law(self, evidence: Evidence) -> Array:
        weights = np.exp(evidence.gains - evidence.gains.max())
        found: Array = (1.0 - self._mix) * weights / weights.sum() + self._mix / len(weights)
        return found

    def _close(self) -> None:
        """Give exp3 the reward of a block."""
        block = self._block
        if block is not None and block.seconds > 0:
            evidence = block.evidence
            z = (block.tokens / block.seconds - evidence.mean) / evidence.spread
            evidence.gains[block.arm] += self._eta * block.passes * min(max(z, -_FAR), _FAR) / block.probability

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        tried = self._asked.settle(rows, trees, verdicts)
        self._costs.learn(costs, drafted(tried))
        block, seconds = self._block, costs.draft + costs.score + costs.other
        if block is None or costs.prefill or not math.isfinite(seconds) or seconds <= 0:
            return
        fresh, block.fresh = block.fresh, False
        cut = {each.row.id for each in tried if each.cut}
        kept = [len(verdict.path) + 1 for row, verdict in zip(rows, verdicts, strict=True) if row.id not in cut]
        if fresh or not kept:
            return
        tokens = sum(kept) * len(rows) / len(kept)
        block.evidence.add(block.arm, tokens, seconds, self._discount)
        block.passes += 1
        block.tokens += tokens
        block.seconds += seconds

    def forget(self, rows: Sequence[Row]) -> None:
        self._asked.forget(rows)
