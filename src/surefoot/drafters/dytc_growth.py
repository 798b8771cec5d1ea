"""One row's draft, grown leaf by leaf: at each leaf the bottom goes on, or a dearer drafter is asked first (see :mod:`.dytc`).

A leaf's candidates are what the bottom names there and what parts that were asked have drafted so far, merged by calibrated
chance as ``hybrid`` does. A part tells the law that it took each token from, if it has one: so it also says what it thinks of
the others' tokens, and in a tree what else may come there.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import log

import numpy as np

from ..core.protocols import Array, Plan
from ..core.request import Row
from ..core.tree import PENDING, DraftTree
from .calibration import OTHER, SILENT, Calibration, Kind, depth_class
from .dytc_estimates import Part, likely
from .evidence import Candidate, Walk
from .grow import tree

_LOOK = 3
"""Candidates that the bottom is asked for at a node of a chain."""
_BOUNDS = (0.06, 0.2, 0.4, 0.6, 0.8, 0.95)
_MIDDLES = (0.03, 0.12, 0.3, 0.5, 0.7, 0.88, 0.97)
_CLASSES = len(_MIDDLES)
_PLAIN = 2 * _CLASSES
"""Levels of a part: classes of its probability for the token that it drafted, then for others; then without a probability."""
WEIGHTS = (*(log(trust * m / (1.0 - trust * m)) - 0.3 for trust in (0.9, 0.7) for m in _MIDDLES), 0.2, -1.2, 0.0)


class Heard:
    """What a part drafted behind one node. ``laws``: as far as it told them."""

    __slots__ = ("laws", "part", "reached", "tokens")

    def __init__(self, part: int) -> None:
        self.part = part
        self.tokens: list[int] = []
        self.laws: list[Array] = []
        self.reached = 0
        """Places of it that the target reached."""

    def __call__(self, law: Array, token: int, depth: int) -> bool:
        self.laws.append(law)
        return False

    def claimed(self, at: int, token: int | None = None) -> float | None:
        """The probability of a token (default: of the drafted one) ``at`` tokens behind the node."""
        return float(self.laws[at][self.tokens[at] if token is None else token]) if at < len(self.laws) else None


class Node:
    """A drafted token, or a candidate for one; ``at``: where in the draft it stands."""

    __slots__ = ("ahead", "at", "depth", "kids", "kinds", "kind", "named", "parent", "reach", "token", "walk")

    def __init__(self, parent: Node | None, token: int, reach: float, kind: Kind, walk: Walk | None) -> None:
        self.parent, self.token, self.reach, self.kind, self.walk = parent, token, reach, kind, walk
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.at = -1
        self.kids: dict[int, Node] = {}
        self.kinds: dict[int, Kind] | None = None
        self.named: Sequence[Candidate] = ()
        self.ahead: dict[int, tuple[Heard, int]] = {}
        """By part, what it drafted, and how far into that this node stands."""
        if parent is not None:
            for part, (heard, at) in parent.ahead.items():
                if at < len(heard.tokens) and heard.tokens[at] == token:
                    self.ahead[part] = heard, at + 1

    def path(self) -> list[int]:
        found: list[int] = []
        node = self
        while node.parent is not None:
            found.append(node.token)
            node = node.parent
        return found[::-1]

    def covered(self) -> bool:
        """Whether a part has said what comes here."""
        return any(at < len(heard.tokens) or at == 0 for heard, at in self.ahead.values())


@dataclass(frozen=True, slots=True)
class Ask:
    """``part`` is to draft ``k`` tokens behind each of these nodes."""

    part: Part
    nodes: Sequence[Node]
    k: int
    exploring: bool = False
    """Whether this is for the sake of estimates that are new or old."""


@dataclass(slots=True, eq=False)
class Growth:
    """``choose(growth, node, chance)``: what is worth being asked at a node where the bottom's best has this chance."""

    row: Row
    plan: Plan
    width: int
    calibration: Calibration
    lean: float
    unasked: tuple[int, ...]
    """What all parts say where none is asked."""
    choose: Callable[[Growth, Node, float], Ask | None] | None
    root: Node
    first: int
    """Depth class of the first drafted token."""
    paths: bool = False
    begin: int = 0
    """Tokens of the row before the draft."""
    nodes: list[Node] = field(default_factory=list)
    reaches: list[float] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    size: int = 1
    kept: int = 0
    """Nodes that are verified."""
    heap: list[tuple[float, int, Node]] = field(default_factory=list)
    chances: dict[Kind, float] = field(default_factory=dict)

    @property
    def room(self) -> int:
        return self.plan.nodes - len(self.reaches)

    def paid(self, k: int) -> int:
        """Of k more nodes those that do not fit into padding."""
        return max(0, min(k, self.size + k - 1 - self.plan.free))

    def beside(self, node: Node, most: int) -> list[Node]:
        """Siblings of a node that are candidates for the draft too, the likeliest first."""
        found = [(cost, order, other) for cost, order, other in self.heap if other.parent is node.parent and not other.ahead]
        return [other for _, _, other in sorted(found)[:most]]

    def grow(self) -> Iterator[Ask]:
        """Yields what is to be asked; the answers are then to be in the nodes' ``ahead``."""
        plan, node = self.plan, self.root
        node.at = 0
        self.nodes.append(node)
        inner, order = [False], 0
        while True:
            if self.choose is None and self.width == 1 and not node.ahead:
                return self._follow(node)
            if node.depth < plan.depth and self.room > 0:
                self._see(node)
                if self.choose is not None and not node.covered():
                    ask = self.choose(self, node, self._best(node))
                    if ask is not None:
                        yield ask
                self._merge(node)
                order = self._push(node, order)
            found = None
            while self.heap and self.room > 0 and found is None:
                cost, _, node = heappop(self.heap)
                assert node.parent is not None
                extra = node.parent.depth + 2 if self.paths and inner[node.parent.at] else 1
                if -cost >= plan.floor * extra or self.size + extra <= plan.free + 1:
                    found = node
            if found is None:
                return
            assert found.parent is not None
            inner[found.parent.at] = True
            inner.append(False)
            self._keep(found, extra)

    def _follow(self, node: Node) -> None:
        """Go on with what the bottom names, one token after the other."""
        plan = self.plan
        while node.depth < plan.depth and self.room > 0:
            self._see(node)
            self._merge(node)
            assert node.kinds is not None
            found = [(self._chance(kind), -token) for token, kind in node.kinds.items()]
            if not found:
                return
            sure, token = max(found)
            reach, token = node.reach * sure, -token
            if reach < plan.floor and len(self.reaches) >= plan.free:
                return
            child = node.kids[token] = Node(node, token, reach, node.kinds[token], None)
            self._keep(child, 1)
            node = child

    def _keep(self, node: Node, work: int) -> None:
        node.at = len(self.nodes)
        self.nodes.append(node)
        self.reaches.append(node.reach)
        self.work.append(work)
        self.size += work

    def _see(self, node: Node) -> None:
        if node.walk is None:
            assert node.parent is not None
            assert node.parent.walk is not None
            node.walk = node.parent.walk.after(node.token)
        # where no part will speak, there is nothing to weigh what comes second against
        node.named = node.walk.candidates(self.width if self.choose is None else max(self.width, _LOOK))

    def _best(self, node: Node) -> float:
        """The chance of the bottom's likeliest candidate, by what it says alone."""
        own = self._class(node)
        return max([self._chance((level, *self.unasked, own)) for _, level in node.named], default=0.0)

    def _chance(self, kind: Kind) -> float:
        found = self.chances.get(kind)
        if found is None:
            found = self.chances[kind] = self.calibration.chance(kind, self.lean)
        return found

    def _class(self, node: Node) -> int:
        return self.first if node.parent is None else depth_class(node.reach)

    def _merge(self, node: Node) -> None:
        """What everyone names at the node, by kind."""
        own = self._class(node)
        if not node.ahead:
            node.kinds = {token: (level, *self.unasked, own) for token, level in node.named}
            return
        blank = [OTHER if node.named else SILENT, *self.unasked]
        kinds = {token: [level, *blank[1:]] for token, level in node.named}
        for part, (heard, at) in node.ahead.items():
            if at >= len(heard.tokens):
                if at == 0:  # it was asked, and said nothing
                    for kind in (blank, *kinds.values()):
                        kind[part + 1] = SILENT
                continue
            blank[part + 1] = OTHER
            law = heard.laws[at] if at < len(heard.laws) else None
            more = [] if law is None or self.width == 1 else _likeliest(law, self.width)
            for token in (heard.tokens[at], *more):
                kinds.setdefault(token, [*blank])
            for token, kind in kinds.items():
                kind[part + 1] = OTHER if law is None else _CLASSES + bisect(_BOUNDS, float(law[token]))
            drafted = heard.tokens[at]
            kinds[drafted][part + 1] = _PLAIN if law is None else bisect(_BOUNDS, float(law[drafted]))
        node.kinds = {token: (*kind, own) for token, kind in kinds.items()}

    def _push(self, node: Node, order: int) -> int:
        assert node.kinds is not None
        plan = self.plan
        found = [(self._chance(kind), -token) for token, kind in node.kinds.items()]
        if len(found) > 1:
            found.sort(reverse=True)
        for sure, negative in found[: self.width]:
            reach = node.reach * sure
            if reach >= plan.floor or len(self.reaches) < plan.free:
                child = node.kids[-negative] = Node(node, -negative, reach, node.kinds[-negative], None)
                heappush(self.heap, (-reach, order, child))
                order += 1
        return order

    def tree(self, sources: Sequence[int]) -> DraftTree:
        """The draft, cut to what its reach is worth. ``sources``: numbers of the bottom and of the parts."""
        n = self.kept = len(self.reaches) if self.plan.cut is None else self.plan.cut(self.reaches, self.work)
        kept = self.nodes[1 : n + 1]
        parents = [node.parent.at for node in kept if node.parent is not None]
        marks = [self._surest(node.kind, sources) for node in kept]
        tokens = [self.row.tokens[-1], *[node.token for node in kept]]
        return tree(tokens, [-1, *parents], [PENDING, *marks])

    def _surest(self, kind: Kind, sources: Sequence[int]) -> int:
        own = [(self.calibration.alone(s, level), -s) for s, level in enumerate(kind[:-1]) if level >= 0]
        return sources[-max(own)[1]]

    def gained(self, node: Node, total: float, chance: float, k: int) -> float:
        """What a part's ``total`` adds at a node to what the bottom would reach there with as many tokens."""
        return node.reach * max(0.0, total - likely(chance, k + 1))


def _likeliest(law: Array, width: int) -> list[int]:
    found = np.argpartition(law, -width)[-width:] if width < len(law) else np.arange(len(law))
    return [int(token) for token in found if law[token] > 0.0]
