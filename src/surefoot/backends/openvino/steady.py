"""How many tokens to run when a pass needs n: changing the number costs more than a few tokens do.

When the number of tokens of a pass differs from the last one, OpenVINO infers shapes and prepares kernels anew in every
layer (measured: 4 ms on a pass of 9, where one more token costs 0.6). So a smaller pass is padded to the last size until
the padding since that size was last needed has cost as much as a change: at most twice the cost of knowing the future
(the ski-rental argument). Both costs are measured on the passes themselves.
"""

from __future__ import annotations

from statistics import median

_CHANGE_IN_TOKENS = 7.0
"""Cost of a change, in tokens, until it is measured."""
_MEASURED = 32
"""Sizes beyond this are prefill: not measured, and never worth padding to."""


class Steady:
    """State: the size of the last pass, the padding since it was needed, the largest need in that time."""

    def __init__(self) -> None:
        self.size = 0
        self._waste = 0.0
        self._peak = 0
        self._change = _CHANGE_IN_TOKENS
        self._same: dict[int, float] = {}
        self._fresh: dict[int, float] = {}

    def choose(self, need: int) -> int:
        """Tokens to run, at least ``need``. Does not change the state."""
        if max(need, self.size) > _MEASURED:  # prefill, or the first pass after it
            return need
        if need >= self.size or self._waste + self.size - need > self._change:
            return max(need, self._peak) if need < self.size else need
        return self.size

    def ran(self, need: int, size: int, seconds: float) -> None:
        """A pass that needed ``need`` tokens ran ``size``."""
        if size <= _MEASURED:
            book = self._same if size == self.size else self._fresh
            if seconds < book.get(size, float("inf")):
                book[size] = seconds
                self._update()
        if size != self.size or need == size or size > _MEASURED:
            self.size, self._waste, self._peak = size, 0.0, 0
        else:
            self._waste += size - need
            self._peak = max(self._peak, need)

    def _update(self) -> None:
        both = self._same.keys() & self._fresh.keys()
        few, many = min(self._same, default=0), max(self._same, default=0)
        if not both or many - few < 4:
            return
        token = (self._same[many] - self._same[few]) / (many - few)
        change = median(self._fresh[n] - self._same[n] for n in both)
        if token > 0:
            self._change = min(max(change / token, 0.0), float(_MEASURED))
