"""Which requests run: admission by cache capacity, and reuse of the cache of ended requests.

A request is admitted when the cache can hold it to its last token, so a running request never starves. Ended requests
keep their slot for a while; a new prompt that begins like one of them (or like a running one) forks it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..errors import BackendError, BadRequest
from .protocols import Follows, TargetModel
from .request import Row

_SLACK = 128
"""Tokens a request may need beyond its own: drafted nodes, padding, rounding to cache blocks."""
_WORTH = 16
"""Shortest common prefix that is worth a fork."""


class Pool:
    """Waiting and running rows of one target. ``reuse``: share the cache of common prefixes."""

    def __init__(self, target: TargetModel, max_rows: int, reuse: bool, kept_rows: int = 8) -> None:
        self.target = target
        self.running: list[Row] = []
        self.waiting: deque[Row] = deque()
        self._max_rows = max_rows
        self.reuse = reuse
        self._kept_rows = kept_rows
        self._ended: deque[Row] = deque()
        self._parents: dict[int, Row] = {}

    def check(self, row: Row, n: int) -> None:
        """Refuse a request of ``n`` rows like this one that can never fit."""
        capacity = self.target.traits.capacity
        if _size(row) > capacity:
            raise BadRequest(
                f"prompt and max_tokens need room for {_size(row)} tokens but the cache holds {capacity}; "
                "lower max_tokens or load the model with a larger kv_tokens"
            )
        if n > 1 and (wanted := row.n_prompt + n * (row.limit + _SLACK)) > capacity:
            raise BadRequest(
                f"n={n} answers of up to {row.limit} tokens need room for {wanted} tokens but the cache holds {capacity}; "
                "lower n or max_tokens, or load the model with a larger kv_tokens"
            )

    def enqueue(self, row: Row, parent: Row | None = None) -> None:
        """Queue a row that was checked."""
        if parent is not None:
            self._parents[row.id] = parent
        self.waiting.append(row)

    def admit(self) -> list[Row]:
        """Start waiting rows in order while they fit; returns the running rows."""
        while self.waiting and len(self.running) < self._max_rows:
            row = self.waiting[0]
            if self._too_early(row):
                break
            if not self._room(_size(row)):
                break
            try:
                self._start(row)
            except BackendError:  # fewer rows than the capacity suggests: give back ended ones, else wait for a running one
                if self._ended:
                    self._drop()
                    continue
                if not self.running:
                    raise
                break
            self.waiting.popleft()
            self._parents.pop(row.id, None)
            self.running.append(row)
        return self.running

    def spawn(self, row: Row, parent: Row) -> bool:
        """Start a row on the cache of a running one at once, if there is room and nobody waits for it."""
        running = sum(not other.done for other in self.running)
        if self.waiting or running >= self._max_rows or parent.slot is None or not self._room(_size(row)):
            return False
        try:
            row.slot = self.target.fork(parent.slot, min(parent.slot.length, len(row.tokens) - 1))
        except BackendError:
            return False
        self.running.append(row)
        return True

    def yields(self) -> Row | None:
        """A hidden row that is to end because a request waits for its room; None where there is none."""
        if not self.waiting or self._too_early(self.waiting[0]):
            return None
        return next((row for row in reversed(self.running) if row.hidden), None)

    def succeed(self, old: Row, new: Row) -> None:
        """``new`` runs in place of ``old``, with its cache as far as their tokens agree."""
        slot = old.slot
        assert slot is not None  # running rows have one
        if not isinstance(self.target, Follows):  # one of those is told where the row is by other means
            same = _common(new.tokens, old.tokens, min(slot.length, len(new.tokens) - 1))
            if same < slot.length:
                cut = self.target.fork(slot, same)
                self.target.close([slot])
                slot = cut
        new.slot, old.slot = slot, None
        self.running[self.running.index(old)] = new

    def end(self, rows: Sequence[Row]) -> None:
        """Take rows out of service; their cache may serve later prompts."""
        for row in rows:
            self._parents.pop(row.id, None)
            if row in self.waiting:
                self.waiting.remove(row)
            if row in self.running:
                self.running.remove(row)
            if row.hidden and row.slot is not None:  # no prompt will ever begin like it
                self.target.close([row.slot])
                row.slot = None
            if row.slot is not None and row not in self._ended:
                self._ended.append(row)
        while len(self._ended) > (self._kept_rows if self.reuse else 0):
            self._drop()

    def clear(self) -> None:
        """Give back the cache of ended rows."""
        while self._ended:
            self._drop()

    def _drop(self) -> None:
        old = self._ended.popleft()
        if old.slot is not None:
            self.target.close([old.slot])
            old.slot = None

    def _room(self, size: int) -> bool:
        capacity = self.target.traits.capacity
        used = sum(_size(r) for r in self.running if not r.done)
        while self._ended and used + sum(r.cached + _SLACK for r in self._ended) + size > capacity:
            self._drop()
        return used + size <= capacity

    def _too_early(self, row: Row) -> bool:
        """Whether the row's parent runs and still has to fill the cache that the two will share."""
        parent = self._parents.get(row.id)
        return parent in self.running and parent.cached < min(parent.n_prompt, row.n_prompt) - 1

    def _start(self, row: Row) -> None:
        """Give the row a slot: a fork of the longest common prefix in the cache, or an empty one."""
        parent = self._parents.get(row.id)
        candidates = [parent] if parent is not None else [*self._ended, *self.running] if self.reuse else []
        best, length = None, 0
        if row.prompt_logprobs is not None:  # every prompt token has to be scored
            candidates = []
        for other in candidates:
            n = _common(row.tokens, other.tokens, min(other.cached, row.n_prompt - 1))
            if n > length:
                best, length = other, n
        if best is not None and best.slot is not None and (length >= _WORTH or parent is not None):
            row.slot = self.target.fork(best.slot, length)
            row.stats.cached_tokens = length
            if best in self._ended:  # recently useful: last to be dropped
                self._ended.remove(best)
                self._ended.append(best)
        else:
            row.slot = self.target.open(1)[0]


def _size(row: Row) -> int:
    return row.n_prompt + row.limit + _SLACK


def _common(a: list[int], b: list[int], most: int) -> int:
    """Length of the longest common prefix, at most ``most``."""
    lo, hi = 0, max(0, most)
    if a[:hi] == b[:hi]:
        return hi
    while lo < hi:
        mid = (lo + hi + 1) // 2
        if a[lo:mid] == b[lo:mid]:
            lo = mid
        else:
            hi = mid - 1
    return lo
