"""Draft as many tokens as measured cost says, zero included: the cost-aware cut.

Of the rows of a pass the controller picks the drafters and lengths k_b that maximise

    (B + sum_b sum_{i<=k_b} reach_bi) / (V(sum of sizes) + sum of draft costs)

where V is the time of a pass and reach is learned by row and drafter (see :mod:`.reach`). Where changing the size of a pass
is dear, a change is paid off over ``stay`` passes, and rows hold their size: a shorter draft is padded, so that what fits is
free. Where nothing pays, one token is asked for now and then, the more rarely the more often that was in vain and the more it
costs: drafts that are always wrong cost a fixed few passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..core.protocols import PLAIN, Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest
from .costs import LiveCosts
from .reach import Reach, allocate, products

_MARGIN = 0.004
"""A longer draft must promise this much more: less is within the error of the cost curve."""
_SWITCH = 0.01
"""Another drafter must promise this much more."""
_LONGEST = 512
"""Passes between retries, at most."""
_SPEND = 0.002
"""What retries may cost: they come more rarely until they cost less than this share of the time."""
_TRIAL = 4
"""Passes in a row for which a drafter that was not chosen is tried: the first of them is dearer, it has to catch up."""


@dataclass(slots=True)
class _State:
    """What is known of one row."""

    reach: list[Reach | None]
    """By drafter; None: not yet asked for this row."""
    wait: int
    """Passes between retries."""
    drafter: int = -1
    size: int = 0
    """Nodes of its last pass."""
    asked: int = 0
    """Tokens asked for in the pass under way."""
    idle: int = 0
    drafting: bool = False
    """In a bout of drafting: passes in a row that drafted."""
    again: bool = False
    """Whether a retry was accepted, so that the next comes at once."""
    balance: float = 0.0
    """What this bout has gained, in tokens of plain decoding."""
    turn: int = 0


class GoodputController:
    """``cost(nodes, context)``: seconds of a pass, taken at its word; or :class:`LiveCosts`, which this controller corrects.

    ``drafters``: one name or several, of which each row gets the best. ``min_width``: rows are padded to it, so filling it is
    free. ``change``: seconds that a pass of another size than the last one takes longer (default: what the costs say).
    ``prior``: what to believe of every depth at first. ``retry``: where drafting does not pay, ask for one token after so
    many passes; where that is in vain, after twice as many, up to 512.
    """

    def __init__(
        self,
        drafters: str | Sequence[str],
        cost: Callable[[int, int], float] | LiveCosts,
        *,
        max_draft: int = 16,
        width: int = 1,
        min_width: int = 1,
        change: float | None = None,
        stay: float = 16.0,
        prior: float = 0.6,
        retry: int = 16,
    ) -> None:
        names = (drafters,) if isinstance(drafters, str) else tuple(drafters)
        if not names or len(set(names)) != len(names):
            raise BadRequest(f"goodput takes one drafter or several different ones, not {list(names)}")
        if max_draft < 0 or width < 1 or retry < 1 or stay < 1 or (change is not None and change < 0):
            raise BadRequest("goodput takes max_draft and change from 0 up, width, retry and stay from 1 up")
        self._names = names
        self._live = isinstance(cost, LiveCosts)
        self.costs = cost if isinstance(cost, LiveCosts) else LiveCosts(cost)
        self._max = max_draft
        self._width = width
        self._min_width = min_width
        self._move = (self.costs.change if change is None else change) / stay
        self._retry = retry
        self._prior = prior
        self._all = [Reach(max_draft, 0.995) for _ in names]
        self._rows: dict[int, _State] = {}
        self._wait = retry
        """With which new rows begin: what the last retry taught."""
        self._since = [0] * len(names)
        self._waits = [retry] * len(names)
        self._trial: tuple[int, int, int] = (0, 0, -1)
        """Drafter that is being tried, passes left, row."""
        self._forced = -1
        """The row that must draft in this pass, to try a drafter."""

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        if not self._max or not rows:
            return [PLAIN] * len(rows)
        states = [self._state(row.id) for row in rows]
        context = max(row.cached for row in rows)
        shared = [reach.alone(self._prior, 2.0) for reach in self._all]
        prices = [self.costs.draft(name) for name in self._names]
        chosen = self._choose(rows, states, shared, prices, context)
        now = sum(state.size for state in states) if all(state.size for state in states) else 0

        def seconds(size: int) -> float:
            return self.costs.score(size, context) + (self._move if now and size != now else 0.0)

        reaches = [self._reach(state, d, shared) for state, d in zip(states, chosen, strict=True)]
        own = [prices[d] for d in chosen]
        opened = [self.costs.opening(self._names[d]) for d in chosen]
        lengths, rate = allocate(reaches, own, seconds, floor=self._min_width, margin=_MARGIN, openings=opened)
        return [
            self._one(row.id, state, d, k, reach, rate * price, context)
            for row, state, d, k, reach, price in zip(rows, states, chosen, lengths, reaches, own, strict=True)
        ]

    def _state(self, row: int) -> _State:
        if row not in self._rows:
            self._rows[row] = _State([None] * len(self._names), min(self._wait, 4 * self._retry))
        return self._rows[row]

    def _reach(self, state: _State, drafter: int, shared: Sequence[Sequence[float]]) -> list[float]:
        """The row's own evidence, shrunk towards that of all rows."""
        own = state.reach[drafter]
        return products(shared[drafter] if own is None else own.chances(shared[drafter], 4.0))

    def _choose(
        self,
        rows: Sequence[Row],
        states: Sequence[_State],
        shared: Sequence[Sequence[float]],
        prices: Sequence[float],
        context: int,
    ) -> list[int]:
        """The drafter of each row: that of the best rate, with the other rows drafting nothing."""
        if len(self._names) == 1:
            return [0] * len(rows)
        floor, others = self._min_width, len(rows) - 1
        chosen: list[int] = []
        drafting: list[bool] = []
        for state in states:
            found = [
                allocate(
                    [self._reach(state, d, shared)],
                    [price],
                    lambda size: self.costs.score(size, context),
                    floor=floor,
                    margin=_MARGIN,
                    beside=others,
                    openings=[self.costs.opening(self._names[d])],
                )
                for d, price in enumerate(prices)
            ]
            best = max(range(len(found)), key=lambda d: found[d][1])
            stays = state.drafter
            if stays >= 0 and found[stays][1] * (1.0 + _SWITCH) >= found[best][1] and found[stays][0][0]:
                best = stays
            chosen.append(best)
            drafting.append(found[best][0][0] > 0)
        self._forced = -1
        self._try(rows, chosen, drafting)
        return chosen

    def _try(self, rows: Sequence[Row], chosen: list[int], drafting: Sequence[bool]) -> None:
        """Let one row try a drafter that has not been chosen for long."""
        for d in range(len(self._names)):
            if any(c == d and on for c, on in zip(chosen, drafting, strict=True)):
                self._since[d], self._waits[d] = 0, self._retry
            else:
                self._since[d] += 1
        drafter, left, row = self._trial
        if not left:
            due = [d for d in range(len(self._names)) if self._since[d] >= self._waits[d]]
            able = [r.id for r, on in zip(rows, drafting, strict=True) if on]
            if not due or not able:
                return
            drafter, left, row = due[0], _TRIAL, able[self._since[due[0]] % len(able)]
            self._since[drafter], self._waits[drafter] = 0, min(2 * self._waits[drafter], max(_LONGEST, self._retry))
        places = [i for i, r in enumerate(rows) if r.id == row]
        for i in places:
            chosen[i], self._forced = drafter, row
        self._trial = (drafter, left - 1, row) if places else (0, 0, -1)

    def _one(self, row: int, state: _State, drafter: int, k: int, reach: Sequence[float], price: float, context: int) -> Plan:
        """The plan of one row. ``price``: tokens of this pass that a drafted token costs."""
        state.asked = 0
        if not k and row == self._forced:
            k = 1
        elif not k:
            if state.drafting and not state.again:
                self._rest(state, context)
            if not state.again:
                state.idle += 1
                if state.idle < state.wait:
                    state.size = self._min_width
                    return PLAIN
                state.turn += 1
            k, drafter = 1, (state.turn - 1) % len(self._names)
            state.again = True
        nodes = k
        while nodes < min(self._min_width - 1, self._max) and reach[nodes] >= price:
            nodes += 1
        state.drafting = True
        state.drafter, state.asked, state.size = drafter, nodes, max(nodes + 1, self._min_width)
        return Plan(self._names[drafter], nodes, self._width, nodes, hold=nodes + 1 if self._move else 0)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        drafted: dict[str, int] = {}
        catching_up = False
        for row, tree, verdict in zip(rows, trees, verdicts, strict=True):
            state = self._rows.get(row.id)
            if state is None or not state.asked:
                continue
            name = self._names[state.drafter]
            drafted[name] = drafted.get(name, 0) + len(tree) - 1
            catching_up = catching_up or state.reach[state.drafter] is None
            # the last draft of a row may have been cut by its budget, which is no miss
            if not row.done:
                self._learn(state, len(verdict.path), costs.context)
            state.asked = 0
        # a drafter may read a row's whole prompt before its first draft, which is no price of a token
        self.costs.learn(costs if self._live else replace(costs, nodes=0), {} if catching_up else drafted)

    def _learn(self, state: _State, accepted: int, context: int) -> None:
        own = state.reach[state.drafter]
        if own is None:
            own = state.reach[state.drafter] = Reach(self._max, 0.98)
        own.rest(state.idle)
        for reach in (self._all[state.drafter], own):
            reach.update(accepted, state.asked)
        state.idle = 0
        plain = self.costs.score(self._min_width, context)
        name = self._names[state.drafter]
        drafts = self.costs.opening(name) + state.asked * self.costs.draft(name)
        state.balance += 1 + accepted - (self.costs.score(state.size, context) + drafts) / plain
        # a retry may show that drafts have turned right: again at once, while that loses no more than a pass
        state.again = state.again and accepted > 0 and state.balance > -1.0

    def _rest(self, state: _State, context: int) -> None:
        """A bout of drafting is over: how long to wait until the next retry."""
        size = max(2, self._min_width)
        name = self._names[state.drafter]
        took = self.costs.score(size, context) + self.costs.opening(name) + self.costs.draft(name)
        extra = took / self.costs.score(self._min_width, context) - 1.0
        longest = min(max(_LONGEST, self._retry), max(self._retry, int(extra / _SPEND)))
        self._wait = state.wait = self._retry if state.balance > 0 else min(2 * state.wait, longest)
        state.idle, state.balance, state.drafting = 0, 0.0, False

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rows.pop(row.id, None)
