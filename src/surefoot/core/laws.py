"""The target's law at each node of one row's draft, computed when a verifier asks for it.

Every node is shaped by the options of the request with the node's own ancestors as history, so what a token's law is does
not depend on how many of the tokens before it were drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .law import host, row_law, support
from .noise import Noise
from .params import SamplingParams
from .shaping import State

Array = np.ndarray[Any, Any]
_PLAIN = SamplingParams(temperature=1.0)


class Laws:
    """``logits`` [N, V] of the nodes with these tokens and parents; ids from ``known`` on are padding and impossible.

    ``keep``: remember every row that was shaped, where each is asked for more than once.
    """

    __slots__ = ("_asked", "_keep", "_known", "_parents", "_rows", "_shaped", "_state", "_states", "_tokens", "params")

    def __init__(
        self,
        logits: Tensor,
        params: SamplingParams,
        state: State | None = None,
        tokens: Sequence[int] = (),
        parents: Sequence[int] = (),
        known: int | None = None,
        keep: bool = False,
    ) -> None:
        self._rows = host(logits)
        self.params = params
        self._state = state
        self._tokens = tokens
        self._parents = parents
        self._known = self._rows.shape[-1] if known is None else known
        self._keep = keep
        self._asked = 0
        self._states: dict[int, State] = {}
        self._shaped: dict[int, Array] = {}

    def __getitem__(self, node: int) -> Tensor:
        """The law [V] that the token after ``node`` is taken from; :class:`BadRequest` if no token is possible."""
        return torch.from_numpy(row_law(self.shaped(node), self.params))

    def draw(self, node: int, noise: Noise, position: int, lane: int, turn: int = 0) -> int:
        """A token drawn from the law after ``node``."""
        ids, weights = support(self.shaped(node), self.params)
        return noise.categorical(weights, position, lane, turn, ids)

    def best(self, node: int) -> int:
        """The most probable token; the smallest id wins a tie."""
        return int(self.shaped(node).argmax())

    def shaped(self, node: int) -> Array:
        """Logits [V] after the options that change logits, before temperature and filters. Not to be changed."""
        self._asked = node
        kept = self._shaped.get(node)
        if kept is not None:
            return kept
        if not self._keep:  # one row at a time: fresh memory for each costs more than half of all else
            self._shaped.clear()
        found: Array = self._rows[node]
        if self._state is not None:
            found = self._at(node).shape(found, self._known)
        elif self._known < found.shape[0]:
            found = found.copy()
            found[self._known :] = -np.inf
        self._shaped[node] = found
        return found

    def reached(self) -> tuple[int, ...]:
        """Path, without the root, of the node that was asked for last."""
        path: list[int] = []
        node = self._asked
        while node > 0:
            path.append(node)
            node = self._parents[node]
        return tuple(reversed(path))

    def model(self, node: int) -> Array:
        """The model's own logits [V]; ids that stand for nothing are -inf. Not to be changed."""
        if self._state is None:
            return self.shaped(node)
        row: Array = self._rows[node]
        if self._known < row.shape[0]:
            row = row.copy()
            row[self._known :] = -np.inf
        return row

    def asked(self, node: int) -> Array:
        """Logits [V] whose softmax is the law after all options; where decoding is greedy, without temperature and filters."""
        if self.params.temperature == 0:
            return self.shaped(node)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(row_law(self.shaped(node), self.params)))

    def told(self, node: int) -> Array:
        """The law [V] of the token after ``node``; where decoding is greedy, the softmax."""
        return row_law(self.shaped(node), _PLAIN if self.params.temperature == 0 else self.params)

    def _at(self, node: int) -> State:
        """The state after the node's path; the root's is the row's own."""
        assert self._state is not None
        if node == 0:
            return self._state
        found = self._states.get(node)
        if found is None:
            found = self._at(self._parents[node]).fork()
            found.advance(self._tokens[node])
            self._states[node] = found
        return found


class Argmaxes:
    """The most probable token at each node, for a greedy verifier."""

    __slots__ = ("_laws",)

    def __init__(self, laws: Laws) -> None:
        self._laws = laws

    def __getitem__(self, node: int) -> int:
        return self._laws.best(node)
