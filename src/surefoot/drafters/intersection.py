"""Drafting in the intersection of two vocabularies (token-level intersection, arXiv 2502.05202, algorithm 4).

The draft model's logits of tokens that both sides have are laid onto the target's vocabulary, all other tokens being
impossible; the request's options shape them there as they shape the target's. The law that comes out is one on the target's
vocabulary, so everything that holds of a draft model with the same tokenizer holds here: it is reported as q under rules
that use it, and drawn from with the target's own noise under the others.

A greedy draft ends where the draft model's best token is none of the intersection: the second best is not what it said.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.law import row_law, support
from ..core.noise import DRAFT, TARGET
from ..core.params import SamplingParams
from ..core.protocols import Array, Plan
from ..core.request import Row
from ..core.shaping import State
from ..core.tree import DraftTree
from ..core.verify import FRESH
from ..errors import BadRequest
from .bridge import Bridge

_PLAIN = SamplingParams(temperature=1.0)


class Intersection:
    """One draft in the making. ``vocab``: size of the target's vocabulary; ``room``: most tokens."""

    __slots__ = ("_bridge", "_depth", "_fresh", "_greedy", "_laws", "_plan", "_reach", "_row", "_said", "_state", "_vocab")

    def __init__(self, bridge: Bridge, row: Row, plan: Plan, vocab: int, room: int) -> None:
        self._bridge = bridge
        self._row = row
        self._plan = plan
        self._vocab = vocab
        self._depth = min(plan.depth, plan.nodes, room)
        self._greedy = row.params.temperature == 0
        self._fresh = not self._greedy and row.rule(has_q=True) in FRESH
        self._state: State | None = None
        self._said: list[int] = []
        self._laws: list[Tensor] = []
        self._reach = 1.0

    def say(self, logits: Array) -> int | None:
        """Choose the next token; the draft model's one to go on with, or ``None`` at the end of the draft."""
        bridge, row = self._bridge, self._row
        if self._greedy and bridge.back[int(logits[: len(bridge.back)].argmax())] < 0:
            return None
        their, our = bridge.common
        x = np.full(self._vocab, -np.inf, logits.dtype)
        x[our] = logits[their]
        try:
            if row.state is not None:
                self._state = row.state.fork() if self._state is None else self._state
                x = self._state.shape(x)
            if not float(x.max()) > -np.inf:
                return None
            token = self._choose(x)
            self._said.append(token)
            if self._state is not None:
                self._state.advance(token)
        except BadRequest:  # the options leave no token here, or none after this one
            return None
        if len(self._said) >= self._depth or token in row.stop_ids or self._stops(x, token):
            return None
        return bridge.there[token]

    def tree(self, source: int) -> DraftTree:
        q = torch.stack(self._laws) if self._laws else None
        return DraftTree.chain([self._row.tokens[-1], *self._said], q, source)

    def _choose(self, x: Array) -> int:
        row = self._row
        if self._greedy:
            return int(x.argmax())
        position = len(row.tokens) + len(self._said)
        if self._fresh:
            q = torch.from_numpy(row_law(x, row.params))
            token = row.noise.categorical(q, position, DRAFT, row.turn)
            self._laws.append(q)
            return token
        ids, weights = support(x, row.params)
        return row.noise.categorical(weights, position, TARGET, ids=ids)

    def _stops(self, x: Array, token: int) -> bool:
        """Whether the draft ends after ``token``: it is kept, so that what was drawn from q stays drawn from q."""
        plan = self._plan
        if plan.stop is None and plan.floor <= 0.0:
            return False
        law = row_law(x, _PLAIN if self._greedy else self._row.params)
        self._reach *= float(law[token])
        return self._reach < plan.floor or (plan.stop is not None and plan.stop(law, token, len(self._said)))
