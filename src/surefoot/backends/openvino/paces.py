"""The compiled copies of one graph, and how many tokens each runs when a pass needs n.

Changing the number of tokens between passes is dear (see :mod:`.steady`). Two copies of the graph, one for narrow passes and
one for wide ones, keep a size of their own each, so that going to and fro between a short draft and a long one costs less
than a change (``CostModel.switch`` against ``CostModel.change``). The copies run the same kernels on the same weights: their
logits are equal bit for bit. A copy costs its packed weights once more, so large models get one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from .runner import Runner
from .steady import Steady

NARROW = 6
"""Tokens of a pass up to which it is narrow."""
SMALL_WEIGHTS = 400 << 20
"""Bytes of weights on disk up to which a graph is compiled twice."""


class Paces:
    """One copy, or a narrow and a wide one. ``hold``: pad a pass rather than change its size."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self.runners = tuple(runners)
        self._steady = [Steady() for _ in runners]

    @property
    def narrow(self) -> int:
        """Tokens up to which passes run on a copy of their own; 0: there is one copy."""
        return NARROW if len(self.runners) > 1 else 0

    def size(self, need: int) -> int:
        """Tokens to run, at least ``need``."""
        return self._steady[self._which(need)].choose(need)

    def run(self, inputs: Mapping[str, np.ndarray], need: int, rows: Sequence[int]) -> list[Tensor]:
        """One pass; see :meth:`Runner.run`."""
        return self.runners[self._which(need)].run(inputs, rows)

    def ran(self, need: int, size: int, seconds: float) -> None:
        """A pass that needed ``need`` tokens ran ``size``."""
        self._steady[self._which(need)].ran(need, size, seconds)

    def _which(self, need: int) -> int:
        return int(len(self.runners) > 1 and need > NARROW)
