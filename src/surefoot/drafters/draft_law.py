"""What a draft model says at a node of one row's draft: its logits under the row's options, and tokens chosen from them.

Greedy rows get the most likely tokens. Rows verified by a rule that uses ``q`` get draws with noise of their own, each with
its own key, and the law that they were drawn from. Other rows get the tokens that the target's own noise would choose from the
draft's law: the winner of its race first, then the winners without it.

The chance that such a token is right: the winner's, if the target's log-probabilities are the draft's and an error like the
race's own noise, is about 1 / (2 - q), from one half for an unlikely token to 1 for a certain one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..core.law import host, row_law, support
from ..core.noise import DRAFT, TARGET
from ..core.params import SamplingParams
from ..core.protocols import Array
from ..core.request import Row
from ..core.shaping import State
from ..core.verify import FRESH

_PLAIN = SamplingParams(temperature=1.0)
_KEYS = 1 << 32
"""Distance of the keys of draws in one pass, more than a row has passes."""


class DraftLaw:
    """``vocab``: size of the target's vocabulary; ids from ``known`` on are never drafted."""

    __slots__ = ("_known", "_vocab", "fresh", "greedy", "row")

    def __init__(self, row: Row, vocab: int, known: int) -> None:
        self.row = row
        self.greedy = row.params.temperature == 0
        self.fresh = not self.greedy and row.rule(has_q=True) in FRESH
        """Whether the law of a draw is to be reported."""
        self._vocab = vocab
        self._known = known

    def shaped(self, state: State | None, logits: Tensor) -> Array:
        """Logits [V] over the target's vocabulary, under the request's options."""
        own = host(logits)
        x = np.full(self._vocab, -np.inf, own.dtype)
        x[: self._known] = own[: self._known]
        return x if state is None else state.shape(x)

    def law(self, x: Array) -> Array:
        """What a stop rule is told: the law that a token was drawn from; where drafting is greedy, the softmax."""
        return row_law(x, _PLAIN if self.greedy else self.row.params)

    def draw(self, weights: Array, depth: int, index: int = 0) -> int:
        """A draw of the drafter's own for a node below ``depth`` drafted tokens; ``index`` tells draws of a pass apart."""
        row = self.row
        return row.noise.categorical(weights, len(row.tokens) + depth, DRAFT, row.turn + index * _KEYS)

    def one(self, x: Array, depth: int) -> tuple[int, Tensor | None]:
        """The token of a chain, and its law if it has to be reported."""
        if self.greedy:
            return int(x.argmax()), None
        if self.fresh:
            q = row_law(x, self.row.params)
            return self.draw(q, depth), torch.from_numpy(q)
        return next(self._race(x, depth))[0], None

    def several(self, x: Array, depth: int, width: int) -> list[tuple[int, float]]:
        """At most ``width`` siblings, the likeliest to be right first, with the chance of each."""
        if self.greedy:
            return _best(x, width)
        found = []
        left = 1.0
        for token, share in self._race(x, depth):
            chance = agreement(share)
            found.append((token, left * chance))
            left *= 1.0 - chance
            if len(found) == width:
                break
        return found

    def _race(self, x: Array, depth: int) -> Iterator[tuple[int, float]]:
        """Tokens in the order in which the target's noise would choose them, each with its share of what was left."""
        ids, weights = support(x, self.row.params)
        total = 1.0 if ids is None else float(weights.sum())
        left = weights
        while True:
            token = self.row.noise.categorical(left, len(self.row.tokens) + depth, TARGET, ids=ids)
            at = token if ids is None else int(np.searchsorted(ids, token))
            own = float(left[at])
            yield token, min(own / total, 1.0)
            if left is weights:
                left = weights.copy()
            left[at] = 0.0
            total = float(left.sum())
            if total <= 0.0:
                return


def agreement(share: float) -> float:
    """Chance that a token drawn with probability ``share`` is right, the first to be drawn at its node."""
    return 1.0 / (2.0 - share)


def _best(x: Array, width: int) -> list[tuple[int, float]]:
    values, ids = torch.topk(torch.from_numpy(x), min(width, len(x)))
    most = float(values[0])
    total = float(np.exp(x - most).sum())
    return [
        (token, float(np.exp(value - most)) / total)
        for token, value in zip(ids.tolist(), values.tolist(), strict=True)
        if value > -np.inf
    ]
