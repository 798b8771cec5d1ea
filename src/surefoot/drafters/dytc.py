"""Dynamic tree cascade: the drafter changes from leaf to leaf, by what each is worth there (CAS-Spec, arXiv 2510.26843).

*Parts* are drafters that cost something (trained heads, exits, the model with layers left out or with less precision); the
*bottom* is a lookup that costs next to nothing. A draft grows from its leaf of largest accumulated acceptance P, the product of
calibrated chances along its path (:mod:`.dytc_growth`). The paper's objective for a part M and a length k is

    T_s(M, k) = G(M, k) / (c(k) + c_low),  G(M, k) = a + a^2 + ... + a^k + a^k a_low

tokens to expect of k drafted ones and one of the bottom behind them, per pass of the target that they cost; a and c are
measured as it runs (:mod:`.dytc_estimates`). What is chosen extends the leaf and its likeliest siblings in one call; where
nothing is worth that, the bottom extends the leaf. With ``width`` 1 in the plan the draft is a chain, so that drafters change
along it: a horizontal cascade without a schedule.

*What a leaf is worth.* T_s leaves out the target's own pass, which is paid for once however much is drafted: it prefers one
cheap token to four. Let decoding yield T tokens in the time of a pass, on average. Drafting for c passes more, and V for
verifying what it brings, is worth its while for D more tokens of this pass if D > T (c + V), as D / (c + V) > A / B is the same
as (A + D) / (B + c + V) > A / B. So what is chosen maximises the value D - T (c + V) (``objective``: ``value``), where

    D = P (G(M, k) - (b + b^2 + ... + b^(k+1)))

and b is the chance of what the bottom would name there: what is given up counts. T is measured; V is the plan's ``floor``, in
tokens, for each node that fits into no padding.

*When to stop.* Parts no longer extend a branch once no value is above zero: that is ``t_min`` = ``marginal``. A number stops
them where P T_s falls under it. The bottom's own nodes end by ``floor``, as any draft of points does, and ``plan.cut`` says how
much of all is verified.

Estimates must be found first, and kept fresh: while a part is new, and rarely when it goes unasked (after 8 passes, twice as
many after each time, up to 512), it is asked at the root where the bottom leaves doubt. A half percent of all seconds pays for
that. A part that has to read a row before it drafts is let in once the tokens that it would have gained exceed that price.

Proposals are points (q = None): greedy, coupled and sampled rows are exact by the verifier. Where points are verified by the
coupled rule, parts draft with the target's noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ..core.protocols import Drafter, Need, Plan, Scores, Verdict
from ..core.request import Row
from ..core.shadow import shadow
from ..core.tree import DraftTree, Forest
from ..core.verify import FRESH
from ..errors import BadRequest
from .calibration import UNASKED, Calibration
from .dytc_bottom import chain_of, lowest
from .dytc_choice import Chooser, Options
from .dytc_estimates import Account, Pace, Part, Rate
from .dytc_growth import WEIGHTS, Ask, Growth, Heard, Node

_LEAN, _FADE = 0.2, 0.99
"""How quickly a row leans, and forgets."""


class DytcDrafter:
    """``parts``, ``bottom``: also drafters of the engine, which tells them of passes. Options: :class:`~.dytc_choice.Options`.

    ``alphas``, ``costs``: what is believed at first of each part's acceptance, and of a drafted token's cost over a pass.
    ``paths``: the target computes a tree path by path. ``clock``: seconds.
    """

    def __init__(
        self,
        parts: Sequence[Drafter],
        bottom: Drafter,
        *,
        alphas: Sequence[float] | None = None,
        costs: Sequence[float] | None = None,
        paths: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        name: str = "dytc",
        source: int = 13,
        **options: object,
    ) -> None:
        self.name, self.source = name, source
        self.options = own = Options.of(name, options)
        numbers = [bottom.source, *(part.source for part in parts)]
        if len(set(numbers)) != len(numbers):
            raise BadRequest(f"{name}: two of its drafters share a source number; give each its own")
        believed = own.believed(name, "alphas", alphas, len(parts), 0.5, 1.0)
        prices = own.believed(name, "costs", costs, len(parts), 0.1, 100.0)
        self.needs = Need(tuple(sorted({layer for d in (bottom, *parts) for layer in d.needs.hidden})))
        rate = partial(Rate, decay=own.decay, window=own.window, warm_up=own.warm_up)
        self.parts = [Part(d, i, rate(a), c) for i, (d, a, c) in enumerate(zip(parts, believed, prices, strict=True))]
        for part in self.parts:
            part.learns = own.estimates
        self.low = rate(0.4)
        self.low_cost = 0.0
        """Of a token of the bottom, over a pass."""
        self.pace, self.account = Pace(), Account()
        self.calibration = Calibration([lowest(bottom).weights, *[WEIGHTS] * len(parts)])
        self.chooser = Chooser(self.parts, own, self.pace, self.account)
        self._bottom, self._numbers, self._paths, self._clock = lowest(bottom), numbers, paths, clock
        self._unasked = (UNASKED,) * len(parts)
        self._drafts: dict[int, Growth] = {}
        """By row, of the draft that is being scored."""
        self._leans: dict[int, float] = {}
        self._refused: set[int] = set()
        """Rows whose last draft was not wholly accepted."""
        self._began = self._ended = -1.0
        """When drafting for the pass under way began and ended; negative: there is none."""

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        start = self._clock()
        self.chooser.begin(self.low.value, self.low_cost)
        growing = {
            i: self._growth(row, plan)
            for i, (row, plan) in enumerate(zip(rows, plans, strict=True))
            if min(plan.depth, plan.nodes, plan.width) > 0
        }
        waiting: dict[int, tuple[Iterator[Ask], Ask]] = {}
        for i, growth in growing.items():
            going = growth.grow()
            if (ask := next(going, None)) is not None:
                waiting[i] = going, ask
        asking = 0.0
        while waiting:  # rows that want the same part share a call
            part = next(iter(waiting.values()))[1].part
            now = [i for i, (_, ask) in waiting.items() if ask.part is part]
            asking += self._call(part, [(growing[i], waiting[i][1]) for i in now])
            for i in now:
                going, _ = waiting.pop(i)
                if (ask := next(going, None)) is not None:
                    waiting[i] = going, ask
        trees = []
        for i, row in enumerate(rows):
            made = growing.get(i)
            trees.append(DraftTree.chain(row.tokens[-1:]) if made is None else made.tree(self._numbers))
            if made is not None and row.of is None:
                self._drafts[row.id] = made
        self._began, self._ended = start, self._clock()
        self._price(self._ended - start - asking, sum(len(growth.nodes) for growth in growing.values()))
        return trees

    def _growth(self, row: Row, plan: Plan) -> Growth:
        own = self.options
        return Growth(
            row,
            plan,
            plan.width if own.tree else 1,
            self.calibration,
            self._leans.get(row.id, 0.0),
            self._unasked,
            None if self.chooser.resting else self.chooser,
            Node(None, row.tokens[-1], 1.0, (), self._bottom.walk(row)),
            int(row.id not in self._refused),
            self._paths,
            len(row.tokens),
        )

    def _price(self, seconds: float, tokens: int) -> None:
        """What the bottom took, the choosing included."""
        if self.pace.unit > 0.0 and tokens and self.options.estimates:
            found = seconds / tokens / self.pace.unit
            self.low_cost += 0.1 * (min(found, 2.0 * self.low_cost or found) - self.low_cost)

    def _call(self, part: Part, asked: Sequence[tuple[Growth, Ask]]) -> float:
        """Have a part draft behind these nodes; returns the seconds that it took."""
        rows: list[Row] = []
        plans: list[Plan] = []
        heard: list[Heard] = []
        missed = 0
        for growth, ask in asked:
            for node in ask.nodes:
                said = Heard(part.number)
                node.ahead[part.number] = said, 0
                growth.heard.append(said)
                behind = _behind(growth.row, node)
                if behind is not None:
                    rows.append(behind)
                    plans.append(Plan(part.drafter.name, ask.k, 1, ask.k, stop=said))
                    heard.append(said)
            base = growth.row.base
            missed += part.missed(base.id, len(base.tokens))
            part.read(base.id, len(base.tokens))
        if not rows:
            return 0.0
        start = self._clock()
        trees = part.drafter.propose(rows, plans)
        seconds = self._clock() - start
        for said, tree in zip(heard, trees, strict=True):
            said.tokens = chain_of(tree.tokens.tolist(), tree.parents.tolist())
        k = max((len(said.tokens) for said in heard), default=0)
        if self.options.estimates:
            if k:
                part.cost.learn(seconds, k, len(rows), missed)
            self.chooser.asked(part, seconds, any(ask.exploring for _, ask in asked))
        return seconds

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Learn what each named first at the nodes that the target reached, and how long the pass took."""
        if self._began >= 0.0:
            if all(verdict is not None for verdict in verdicts):
                now = self._clock()
                tokens = sum(1 + len(verdict.path) for verdict in verdicts if verdict is not None)
                self.pace.add(tokens, now - self._began, now - self._ended)
                self.account.total += now - self._began
            self._began = -1.0
        for row, verdict in zip(rows, verdicts, strict=True):
            growth = self._drafts.pop(row.id, None)
            if growth is not None and verdict is not None:
                self._learn(row, growth, row.tokens[growth.begin :])

    def _learn(self, row: Row, growth: Growth, said: Sequence[int]) -> None:
        if growth.kept and len(said) > growth.kept:
            self._refused.discard(row.id)
        else:
            self._refused.add(row.id)
        if not self.options.estimates:
            return
        lean = moved = growth.lean
        node: Node | None = growth.root
        for token in said:
            if node is None or node.kinds is None:
                break
            for named, kind in node.kinds.items():
                error = self.calibration.learn(kind, named == token, lean)
                if named in node.kids:
                    moved += _LEAN * error
            if node.named:
                self.low.verified(node.named[0][0] == token)
            for number, (heard, at) in node.ahead.items():
                if at < len(heard.tokens):
                    self.parts[number].rate.verified(heard.tokens[at] == token, heard.claimed(at))
                    heard.reached = at + 1
                elif at == 0:  # it was asked for nothing
                    self.parts[number].rate.verified(False)
            node = node.kids.get(token)
        for heard in growth.heard:
            for at in range(heard.reached, len(heard.tokens)):
                self.parts[heard.part].rate.unverified(heard.claimed(at))
        self._leans[row.id] = moved * _FADE

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._drafts.pop(row.id, None)
            self._leans.pop(row.id, None)
            self._refused.discard(row.id)
            for part in self.parts:
                part.forget(row.id)


def _behind(row: Row, node: Node) -> Row | None:
    """The row with the tokens down to a node; None where its options leave no way there."""
    coupled = row.rule(has_q=False) == "coupled" and row.rule(has_q=True) in FRESH
    if node.parent is None and not coupled:
        return row
    try:
        made = shadow(row, node.path())
    except BadRequest:
        return None
    if coupled:  # points win most where they are drawn by the noise that the target is drawn by
        made.params = replace(row.params, verification="coupled")
    return made
