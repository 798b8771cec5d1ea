"""Several sources in one draft: their candidates are merged at every node and ranked by calibrated chances.

At a place each source names tokens with the level of its evidence; equal tokens are one candidate, whose kind is the tuple of
levels. :class:`~.calibration.Calibration` says how often candidates of that kind have been right, and each row leans to the
better or the worse. A source may be *dear*: it is asked only where the cheap ones leave doubt that is worth its cost (see
:mod:`.asking`). Along a path the chances multiply: the estimated probability that a node is
reached. A chain follows the best candidate; a tree takes the nodes of largest reach. How much of that is worth its cost,
``plan.cut`` says. Proposals are points (q = None), and each node is marked with the source that was surest of it.

Every candidate at a place that the target reached teaches, drafted or not, so no source is starved by another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.tree import PENDING, DraftTree, Forest
from ..errors import BadRequest
from .asking import Asking, best
from .calibration import OTHER, SILENT, UNASKED, Calibration, Kind, depth_class
from .evidence import Source, Walk
from .grow import tree
from .proposed import Proposed

if TYPE_CHECKING:
    from ..core.request import Row

_LOOK = 3
"""Candidates that each source is asked for at a node of a chain."""
_CROWD = 0.25
"""How much more a dear source must promise for each further row: rows share a pass, so a token of one saves less time."""
_BEHIND = depth_class(0.7)
"""Depth class of the first token behind others' drafts: these are as a rule accepted, or nobody would draft behind them."""
_LEAN, _FADE = 0.2, 0.99
"""How quickly a row leans, and forgets."""


_Heard = tuple[int, float, int | None]
"""A dear source that was asked, the doubt there, and the token that would have been drafted without."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A node of the draft under way: where each source stands there, and what they name."""

    walks: tuple[Walk, ...]
    kinds: dict[int, Kind]
    heard: tuple[_Heard, ...] = ()


class HybridDrafter:
    """Drafter ``hybrid``. ``sources``: each is also a drafter of the engine, which tells them of passes.

    ``paths``: the target computes a tree path by path, so that a branch costs its ancestors again. ``ask``: the doubt from
    which on a dear source is asked; None: from where that pays.
    """

    name = "hybrid"

    def __init__(self, sources: Sequence[Source], *, paths: bool = False, ask: float | None = None, source: int = 8) -> None:
        numbers = [s.source for s in sources]
        if not sources or len(set(numbers)) != len(numbers):
            raise BadRequest(
                "hybrid merges one source or more, each with a number of its own; name them, as in of=suffix/recycle"
            )
        self.source = source
        self._sources = tuple(sources)
        self._whole = [s for s in sources if isinstance(s, Proposed)]
        self.needs = Need(tuple(sorted({layer for s in self._whole for layer in s.needs.hidden})))
        self._paths = paths
        dear = [getattr(s, "dear", False) for s in sources]
        self._cheap = [i for i, own in enumerate(dear) if not own]
        self._dear = [i for i, own in enumerate(dear) if own]
        if ask is not None and (isinstance(ask, bool) or not isinstance(ask, int | float) or not 0 <= ask <= 1):
            raise BadRequest(f"hybrid: ask={ask!r} must be a number from 0 to 1")
        self._asking = {i: Asking(sources[i], ask) for i in self._dear}  # type: ignore[arg-type]
        self._crowd = 1.0
        self._blank = [UNASKED if own else SILENT for own in dear]
        self.calibration = Calibration([s.weights for s in sources])
        self._drafts: dict[int, tuple[list[dict[int, Kind]], list[int]]] = {}
        """By row, of the draft that is being scored: what was named at each node, as far as it was looked; and its tokens.

        Of shadows nothing is kept: their drafts may never be scored.
        """
        self._heard: dict[int, list[tuple[_Heard, ...]]] = {}
        """The same of dear sources."""
        self._leans: dict[int, float] = {}
        self._refused: set[int] = set()
        """Rows whose last draft was not wholly accepted."""

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        for each in self._whole:
            each.prepare(rows, plans)
        self._crowd = 1.0 + _CROWD * (len({row.id for row in rows}) - 1)
        return [self._one(row, plan) for row, plan in zip(rows, plans, strict=True)]

    def _one(self, row: Row, plan: Plan) -> DraftTree:
        if min(plan.depth, plan.nodes, plan.width) < 1:
            return DraftTree.chain(row.tokens[-1:])
        depth = int(row.id not in self._refused) if row.base is row else _BEHIND
        root = self._look(tuple(s.walk(row) for s in self._sources), row, plan, depth, 1.0, True)
        if plan.width == 1:
            return self._chain(row, plan, root)
        return self._tree(row, plan, root)

    def _look(self, walks: tuple[Walk, ...], row: Row, plan: Plan, depth: int, reach: float, first: bool = False) -> _Place:
        kinds: dict[int, list[int]] = {}
        blank = [*self._blank]
        for s in self._cheap:
            self._hear(s, walks[s], kinds, blank, plan.width)
        asked: list[tuple[int, float, int | None]] = []
        if self._dear:
            chance, lean = self.calibration.chance, self._leans.get(row.id, 0.0)
            for s in self._dear:
                sure, token = best([(chance((*kind, depth), lean), -token) for token, kind in kinds.items()])
                doubt = reach * (1.0 - sure)
                if not self._asking[s].pays(doubt, first, plan.rate, self._crowd):
                    continue
                asked.append((s, doubt, token))
                blank[s] = SILENT
                for kind in kinds.values():
                    kind[s] = SILENT
                self._hear(s, walks[s], kinds, blank, plan.width)
        return _Place(walks, {token: (*kind, depth) for token, kind in kinds.items()}, tuple(asked))

    @staticmethod
    def _hear(s: int, walk: Walk, kinds: dict[int, list[int]], blank: list[int], width: int) -> None:
        """What source s names joins ``kinds``, by token the levels of all sources; ``blank``: those of a new token."""
        named = walk.candidates(max(width, _LOOK))
        if named:
            blank[s] = OTHER
            for kind in kinds.values():
                kind[s] = OTHER
            for token, level in named:
                if token in kinds:
                    kinds[token][s] = level
                else:
                    kind = kinds[token] = [*blank]
                    kind[s] = level

    def _chain(self, row: Row, plan: Plan, place: _Place) -> DraftTree:
        tokens, sources = [row.tokens[-1]], [PENDING]
        reaches: list[float] = []
        places = [place]
        reach, limit = 1.0, min(plan.depth, plan.nodes)
        chance, lean = self.calibration.chance, self._leans.get(row.id, 0.0)
        while len(reaches) < limit and place.kinds:
            sure, token = max([(chance(kind, lean), -token) for token, kind in place.kinds.items()])
            token = -token
            reach *= sure
            if reach < plan.floor and len(reaches) >= plan.free:
                break
            tokens.append(token)
            sources.append(self._surest(place.kinds[token]))
            reaches.append(reach)
            if len(reaches) < limit:
                place = self._look(tuple([walk.after(token) for walk in place.walks]), row, plan, depth_class(reach), reach)
                places.append(place)
        n = len(reaches) if plan.cut is None else plan.cut(reaches, [1] * len(reaches))
        self._keep(row, places[: n + 1], tokens[: n + 1])
        return tree(tokens[: n + 1], list(range(-1, n)), sources[: n + 1])

    def _tree(self, row: Row, plan: Plan, place: _Place) -> DraftTree:
        tokens, parents, sources = [row.tokens[-1]], [-1], [PENDING]
        reaches: list[float] = []
        work: list[int] = []
        depth, inner, size = [0], [False], 1
        places = [place]
        heap: list[tuple[float, int, int, int, _Place]] = []
        node, reach, order = 0, 1.0, 0
        chance, lean = self.calibration.chance, self._leans.get(row.id, 0.0)
        while True:
            if depth[node] < plan.depth:
                named = sorted(((chance(kind, lean), -token) for token, kind in place.kinds.items()), reverse=True)
                for sure, negative in named[: plan.width]:
                    if reach * sure >= plan.floor or len(reaches) < plan.free:
                        heappush(heap, (-reach * sure, order, -negative, node, place))
                        order += 1
            if not heap or len(reaches) >= plan.nodes:
                break
            cost, _, token, parent, before = heappop(heap)
            extra = depth[parent] + 2 if self._paths and inner[parent] else 1
            if -cost < plan.floor * extra and size + extra > plan.free + 1:
                node, reach = parent, 0.0
                place = _Place((), {})
                continue
            node, reach = len(tokens), -cost
            tokens.append(token)
            parents.append(parent)
            sources.append(self._surest(before.kinds[token]))
            depth.append(depth[parent] + 1)
            inner[parent] = True
            inner.append(False)
            reaches.append(reach)
            work.append(extra)
            size += extra
            place = self._look(tuple([walk.after(token) for walk in before.walks]), row, plan, depth_class(reach), reach)
            places.append(place)
        n = len(reaches) if plan.cut is None else plan.cut(reaches, work)
        self._keep(row, places[: n + 1], tokens[: n + 1])
        return tree(tokens[: n + 1], parents[: n + 1], sources[: n + 1])

    def _keep(self, row: Row, places: list[_Place], tokens: list[int]) -> None:
        if row.base is row:
            self._drafts[row.id] = [place.kinds for place in places], tokens
            if self._dear:
                self._heard[row.id] = [place.heard for place in places]

    def _surest(self, kind: Kind) -> int:
        """The number of the source that is surest of a token of this kind."""
        own = [(self.calibration.alone(s, level), -s) for s, level in enumerate(kind[:-1]) if level >= 0]
        return self._sources[-max(own)[1]].source

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Learn from every candidate at the nodes that the target reached."""
        for row, verdict in zip(rows, verdicts, strict=True):
            draft = self._drafts.pop(row.id, None)
            if draft is not None and verdict is not None:
                self._learn(row, verdict, *draft)

    def _learn(self, row: Row, verdict: Verdict, places: list[dict[int, Kind]], tokens: list[int]) -> None:
        if len(verdict.path) + 1 < len(tokens) or len(tokens) == 1:
            self._refused.add(row.id)
        else:
            self._refused.discard(row.id)
        heard = self._heard.pop(row.id, None)
        lean = self._leans.get(row.id, 0.0)
        moved = lean
        path = (0, *verdict.path)
        for depth, node in enumerate(path):
            if node >= len(places):
                break
            said = tokens[path[depth + 1]] if depth + 1 < len(path) else verdict.token
            drafted = tokens[node + 1] if node + 1 < len(tokens) else -1
            for s, doubt, without in heard[node] if heard else ():
                right = (len(verdict.path) - depth) * (drafted == said != without)
                self._asking[s].learn(doubt, right if drafted in (-1, said) else -int(without == said))
            for token, kind in places[node].items():
                error = self.calibration.learn(kind, token == said, lean)
                if token == drafted:
                    moved += _LEAN * error
        self._leans[row.id] = moved * _FADE

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._drafts.pop(row.id, None)
            self._heard.pop(row.id, None)
            self._leans.pop(row.id, None)
            self._refused.discard(row.id)
