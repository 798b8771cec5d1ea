"""Draft as much as its estimated reach is worth: for drafters that know how sure they are of each node.

A pass that keeps E tokens and takes t seconds is worth E - rate x t, where rate is the tokens a second that decoding reaches
at present: seconds cost what they would bring elsewhere (the rule of Dinkelbach, 1967, for a ratio of two sums over many
passes). Of a draft whose nodes have reach r_1, r_2, ... the first n are kept that maximise

    sum_{i<=n} r_i - rate x V(size of n)

zero included. Where changing the size of a pass is dear, rows keep to a few ``sizes``; what fits into one is free, and a
larger one must be worth ``margin`` times its cost more: the best of many estimates is too good on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.protocols import PLAIN, Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest
from .costs import LiveCosts
from .options import names, number, whole

_FADE = 0.97
_BELIEF = 10.0
"""Passes that the rate of all rows counts for in that of one."""
_FIRST = 1.3
"""Speed-up that is believed before anything is known."""
_SWITCHED = 0.1
"""Share of the last change of size in what a change is believed to cost."""
_IDLE = 8
"""Passes without a draft after which a row no longer keeps its size."""


@dataclass(slots=True)
class _Rate:
    """Fading sums of tokens and seconds."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float, fade: float) -> None:
        self.tokens = fade * self.tokens + tokens
        self.seconds = fade * self.seconds + seconds


@dataclass(slots=True)
class _State:
    """One row: how fast it has been, nodes of its last pass, passes since its last draft."""

    rate: _Rate
    size: int = 0
    idle: int = 0


class _Cut:
    """The choice for one row in one pass."""

    __slots__ = ("_context", "_of", "_others", "_rate", "_state")

    def __init__(self, of: MarginalController, state: _State, rate: float, others: int, context: int) -> None:
        self._of, self._state, self._rate = of, state, rate
        self._others, self._context = others, context

    def __call__(self, reach: Sequence[float], work: Sequence[int]) -> int:
        of, rate, context = self._of, self._rate, self._context
        state, others = self._state, self._others
        took = of.seconds(state, 1, others, context)
        best, kept, paid = -rate * took, 0, took
        total, nodes, size, took_size = 0.0, 1, 0, 0.0
        for n, (r, w) in enumerate(zip(reach, work, strict=True), 1):
            total += r
            nodes += w
            if (found := of.size(nodes)) != size:
                size, took_size = found, of.seconds(state, found, others, context)
            worth = total - rate * took_size
            if worth - best > of.margin * rate * max(0.0, took_size - paid):
                best, kept, paid = worth, n, took_size
        return kept


class MarginalController:
    """``drafter``: one that estimates its reach (``hybrid``, or ``grammar`` around it). ``costs`` are learned here.

    ``sizes``: nodes that a row's pass keeps to (see :func:`surefoot.core.cost.sizes`), rising; none: any. ``switch``: seconds
    that going from one to another adds. ``min_width``: rows are padded to it. ``width``: children a node, above 1 for trees.
    """

    def __init__(
        self,
        drafter: str | Sequence[str],
        costs: LiveCosts,
        *,
        sizes: Sequence[int] = (),
        switch: float = 0.0,
        min_width: int = 1,
        max_draft: int = 16,
        width: int = 1,
        margin: float = 0.5,
    ) -> None:
        given = names("marginal", drafter)
        if len(given) > 1:
            raise BadRequest(
                f"marginal takes one drafter that estimates its reach, not {list(given)}; use controller 'goodput'"
            )
        self._drafter = given[0]
        self.costs = costs
        self._max = whole("marginal", "max_draft", max_draft, 0)
        self._sizes = tuple(sorted(size for size in sizes if size > min_width))
        if self._sizes:
            self._max = min(self._max, self._sizes[-1] - 1)
        self._switch = number("marginal", "switch", switch, 0.0)
        self._min_width = whole("marginal", "min_width", min_width, 1)
        self._width = whole("marginal", "width", width, 1)
        self.margin = number("marginal", "margin", margin, 0.0)
        self._all = _Rate()
        self._rows: dict[int, _State] = {}

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        if not self._max or not rows:
            return [PLAIN] * len(rows)
        states = [self._rows.setdefault(row.id, _State(_Rate())) for row in rows]
        context = max(row.cached for row in rows)
        plain = self.costs.score(self._min_width * len(rows), context)
        rate = sum(self._speed(state, plain) for state in states)
        size = sum(state.size or self._min_width for state in states)
        return [self._one(state, rate, size - (state.size or self._min_width), context) for state in states]

    def _speed(self, state: _State, plain: float) -> float:
        """Tokens a second of one row."""
        everyone = (self._all.tokens + _FIRST * _BELIEF) / (self._all.seconds + plain * _BELIEF)
        return (state.rate.tokens + everyone * plain * _BELIEF) / (state.rate.seconds + plain * _BELIEF)

    def _one(self, state: _State, rate: float, others: int, context: int) -> Plan:
        free = (self._sizes[0] if self._sizes else self._min_width) - 1
        beyond = self._sizes[-1] if self._sizes else free + 2
        extra = self.seconds(state, beyond, others, context) - self.seconds(state, free + 1, others, context)
        floor = rate * (1.0 + self.margin) * max(0.0, extra) / max(1, beyond - free - 1)
        hold = self._sizes[0] if self._sizes and not others and state.idle < _IDLE else 0
        return Plan(
            self._drafter,
            self._max,
            self._width,
            self._max,
            floor=min(floor, 1.0),
            free=free,
            rate=rate,
            hold=hold,
            sizes=self._sizes,
            cut=_Cut(self, state, rate, others, context),
        )

    def size(self, nodes: int) -> int:
        """Nodes of a row's pass with a draft, padding included."""
        return next((size for size in self._sizes if nodes <= size), max(nodes, self._min_width))

    def seconds(self, state: _State, size: int, others: int, context: int) -> float:
        """Of a pass in which the row has this size and the others have ``others`` nodes; size 1: it drafts nothing."""
        if size <= 1:
            size = self._sizes[0] if self._sizes and not others and state.idle < _IDLE else self._min_width
        moved = self._sizes and state.size and size != state.size
        return self.costs.score(others + size, context) + (self._switch if moved else 0.0)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None:
        took = self.costs.score(max(1, costs.nodes), costs.context)
        took += min(costs.draft + costs.other, took)
        drafted = 0
        for row, tree, verdict in zip(rows, trees, verdicts, strict=True):
            state = self._rows.get(row.id)
            if state is None:
                continue
            drafted += len(tree) - 1
            state.idle = 0 if len(tree) > 1 else state.idle + 1
            held = self._sizes[0] if self._sizes and len(rows) == 1 and state.idle < _IDLE else self._min_width
            before, state.size = state.size, self.size(len(tree)) if len(tree) > 1 else held
            if self._sizes and len(rows) == 1 and before and before != state.size and not costs.prefill:
                self._learn_switch(costs)
            if not costs.prefill:
                kept = 1 + len(verdict.path)
                state.rate.add(kept, took, _FADE)
                self._all.add(kept, took, 1.0 - (1.0 - _FADE) / 4)
        self.costs.learn(costs, {self._drafter: drafted} if drafted else {})

    def _learn_switch(self, costs: Costs) -> None:
        """What going to another size added to a pass: more behind a long context than was measured."""
        usual = self.costs.score(max(1, costs.nodes), costs.context)
        extra = min(max(0.0, costs.score - usual), usual)
        self._switch += _SWITCHED * (extra - self._switch)

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rows.pop(row.id, None)
