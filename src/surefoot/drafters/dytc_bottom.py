"""Any drafter as one that can be asked token by token, also behind what others drafted: the bottom of a dynamic cascade.

Where it is asked it drafts a chain behind the place, which is followed while the draft goes the same way. Levels: how far into
its chain a token stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ..core.protocols import Drafter, Plan
from ..core.shadow import shadow
from ..errors import BadRequest
from .evidence import Candidate, Source

if TYPE_CHECKING:
    from ..core.request import Row

_LEVELS = (0.4, 0.55, 0.65, 0.75, 0.8, 0.8)


def lowest(drafter: Drafter) -> Source:
    """The drafter itself where it can be asked token by token."""
    return cast(Source, drafter) if hasattr(drafter, "walk") else Asked(drafter)


class Asked:
    """``inner``, asked for chains of ``depth`` tokens."""

    levels: Sequence[float] = _LEVELS
    weights: Sequence[float] = (-0.9, -0.1, 0.4, 0.8, 1.0, 1.0, -0.8, 0.0)

    def __init__(self, inner: Drafter, depth: int = 16) -> None:
        self.inner = inner
        self.name, self.source = inner.name, inner.source
        self._plan = Plan(inner.name, depth, 1, depth)

    def walk(self, row: Row) -> AskedWalk:
        return AskedWalk(self, row, (), None, 0)

    def chain(self, row: Row, path: tuple[int, ...]) -> list[int]:
        try:
            behind = shadow(row, path) if path else row
        except BadRequest:  # the options leave no way on
            return []
        (tree,) = self.inner.propose([behind], [self._plan])
        return chain_of(tree.tokens.tolist(), tree.parents.tolist())


class AskedWalk:
    """Behind ``path``; the next token is that at ``at`` of the chain, which is asked for when first needed."""

    __slots__ = ("_at", "_chain", "_of", "_path", "_row")

    def __init__(self, of: Asked, row: Row, path: tuple[int, ...], chain: list[int] | None, at: int) -> None:
        self._of, self._row, self._path, self._chain, self._at = of, row, path, chain, at

    def candidates(self, width: int) -> list[Candidate]:
        if self._chain is None or (self._at and self._at >= len(self._chain)):
            self._chain, self._at = self._of.chain(self._row, self._path), 0
        if self._at >= len(self._chain):
            return []
        return [(self._chain[self._at], min(self._at, len(_LEVELS) - 1))]

    def after(self, token: int) -> AskedWalk:
        chain, at = self._chain, self._at
        path = (*self._path, token)
        if chain is not None and at < len(chain) and chain[at] == token:
            return AskedWalk(self._of, self._row, path, chain, at + 1)
        return AskedWalk(self._of, self._row, path, None, 0)


def chain_of(tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The drafted tokens of a tree, down its first children."""
    found: list[int] = []
    node = 0
    for child in range(1, len(tokens)):
        if parents[child] == node:
            found.append(tokens[child])
            node = child
    return found
