"""What a lane said behind drafted tokens, kept until the row goes on: in one round no path is read twice.

A path are tokens behind the committed ones of a row, the pending one first. A shadow's path begins with its own tokens, so all
that draft behind one request, and behind each other's drafts, share what the lane read for any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .lane import Lane, read

if TYPE_CHECKING:
    from ..core.request import Row

Path = tuple[int, ...]


def path(row: Row) -> Path:
    """The pending token of the request that the row is of, and what was drafted behind it."""
    return tuple(row.tokens[len(row.base.tokens) - 1 :])


def whole(lines: Sequence[Tensor], ids: Tensor | None, vocab: int) -> list[Tensor]:
    """Logits [Vd] over the words of a lane -> [V]; without a chance where it has none."""
    if ids is None or not lines:
        return list(lines)
    out = torch.full((len(lines), vocab), -torch.inf, dtype=lines[0].dtype, device=lines[0].device)
    out[:, ids] = torch.stack(list(lines))
    return list(out)


class _Round:
    """``count``: tokens that the row has in this round."""

    __slots__ = ("count", "logits", "row", "states")

    def __init__(self, row: Row, root: Any) -> None:
        self.row, self.count = row, len(row.tokens)
        self.states: dict[Path, Any] = {(): root}
        self.logits: dict[Path, Tensor] = {}

    @property
    def over(self) -> bool:
        return self.row.done or self.count != len(self.row.tokens)

    def read(self, path: Path) -> int:
        """How much of the path was read."""
        for n in range(len(path), 0, -1):
            if path[:n] in self.states:
                return n
        return 0


class Paths:
    """Rows may be shadows; they stand for the request that they are of."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._rounds: dict[int, _Round] = {}

    def knows(self, row: Row) -> bool:
        """Whether the lane has a state in front of the pending token."""
        return self._round(row) is not None

    def said(self, asked: Sequence[tuple[Row, Path]]) -> list[Tensor]:
        """Logits [Vd] behind each path, of rows that the lane knows. What was not read is, as much as possible in one call."""
        rounds = [self._known(row) for row, _ in asked]
        paths = [path for _, path in asked]
        while True:
            jobs: dict[tuple[int, Path], tuple[_Round, Path, int]] = {}
            for own, path in zip(rounds, paths, strict=True):
                n = own.read(path)
                if n == len(path):
                    continue
                # paths that go on with the same token wait for the longest of them
                key = id(own), path[: n + 1]
                if key not in jobs or len(path) > len(jobs[key][1]):
                    jobs[key] = own, path, n
            if not jobs:
                return [own.logits[path] for own, path in zip(rounds, paths, strict=True)]
            work = list(jobs.values())
            states = [own.states[path[:n]] for own, path, n in work]
            if all(len(path) == n + 1 for _, path, n in work):
                one, heard = self.lane.step(states, [path[-1] for _, path, _ in work])
                for (own, path, _), state, line in zip(work, one, heard, strict=True):
                    own.states[path], own.logits[path] = state, line
                continue
            after, logits = read(self.lane, states, [path[n:] for _, path, n in work])
            for (own, path, n), found, lines in zip(work, after, logits, strict=True):
                for end, (state, line) in enumerate(zip(found, lines, strict=True), n + 1):
                    own.states[path[:end]], own.logits[path[:end]] = state, line

    def forget(self, rows: Sequence[Row]) -> None:
        """The rows go on, or end. Where nobody says so, it shows when another round begins."""
        for row in rows:
            self._rounds.pop(row.id, None)

    def _round(self, row: Row) -> _Round | None:
        base = row.base
        own = self._rounds.get(base.id)
        if own is not None and own.row is base and not own.over:
            return own
        self._rounds = {id: other for id, other in self._rounds.items() if id != base.id and not other.over}
        root = self.lane.root(base)
        if root is None:
            return None
        own = self._rounds[base.id] = _Round(base, root)
        return own

    def _known(self, row: Row) -> _Round:
        own = self._round(row)
        assert own is not None
        return own
