"""A distilled draft (:mod:`surefoot.heads.distilled`) as a lane: it reads the row's tokens alone, all of them, with a cache.

A state is a path of drafted tokens behind what the row has committed. As the draft's keys and values depend on tokens only,
those of accepted tokens stay (:mod:`.distilled_cache`); after a round at most the last accepted token is still to be read,
together with the pending one. Prompts are read in chunks, when the row first drafts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.protocols import Need, Scores, Verdict
from ..core.tree import Forest
from ..errors import BadDraft
from ..heads.distilled import HIDDEN, Distilled, DistilledStep
from .distilled_cache import Held, Joint, common
from .lane import Compile, Function

if TYPE_CHECKING:
    from ..core.request import Row

KEPT = 4
"""Rows that ended, whose beginnings are kept for others: the next turn of a chat repeats the last."""
LEAST = 16
"""Fewest common tokens that are worth a copy."""
_LEAD = 8
"""Most committed tokens that are read in one call with the pending one."""


@dataclass(frozen=True, slots=True)
class State:
    """``path``: places of the drafted tokens read so far; ``lead``: committed ones still to be read, before the path begins."""

    held: Held
    turn: int
    path: tuple[int, ...] = ()
    lead: tuple[int, ...] = ()


@dataclass(slots=True)
class _Part:
    """One row of a call. ``sees``: of each new token, the places of drafted tokens before it, and its first new one."""

    held: Held
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sees: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def add(self, path: tuple[int, ...], tokens: Sequence[int], asked: int = 1) -> int:
        """Tokens one behind the other behind ``path``, logits of the last ones being asked for. Returns where they begin."""
        begin, at = len(self.tokens), self.held.length + len(path)
        self.tokens += tokens
        self.positions += range(at, at + len(tokens))
        self.sees += [(path, begin)] * len(tokens)
        self.asked += range(len(self.tokens) - asked, len(self.tokens))
        return begin


class DistilledLane:
    """``depth``: most tokens of a draft. ``compile``: makes the steps quick; None: plain torch. ``chunk``: of a prompt."""

    needs = Need()

    def __init__(self, module: Distilled, *, depth: int = 16, compile: Compile | None = None, chunk: int = 256) -> None:
        self.draft_ids = module.draft_ids
        self.depth = depth
        self._module, self._chunk = module, chunk
        attention = module.config.attention
        self._form = (2 * len(module.layers), attention.kv_heads, attention.head_dim)
        self._device = next(module.parameters()).device
        self._even = compile is not None
        """A compiled function is slow the first time that it meets a shape, so shapes are rounded up to a few."""
        self._rows: dict[int, Held] = {}
        self._roots: dict[int, tuple[int, State]] = {}
        """Tokens that the row had, and the root that was made."""
        self._ended: deque[Held] = deque(maxlen=KEPT)
        self._joint = Joint()
        step = DistilledStep(module).eval()
        self._run: Function = step.__call__
        if compile is not None:
            part = _Part(Held(self._form, self._device))
            part.add((), [0, 0])
            self._run = compile(step, self._inputs([part]), [[0, 1], [0, 1], [0, 1, 2], [0, 1], *[[0, 2]] * self._form[0]])

    @torch.no_grad()
    def root(self, row: Row) -> State | None:
        count = len(row.tokens)
        if count + self.depth > self._module.config.context:
            return None
        seen, state = self._roots.get(row.id, (0, None))
        if state is not None and seen == count:
            return state
        read = row.tokens[:-1]
        held = self._rows.get(row.id)
        if held is None:
            held = self._rows[row.id] = self._begin(read)
        held.settle(read)
        if count - 1 - held.length > _LEAD:
            for begin in range(held.length, count - 1, self._chunk):
                part = _Part(held)
                part.add((), read[begin : begin + self._chunk])
                held.commit(self._call([part])[1][0, :, :, : len(part.tokens)])
        state = State(held, held.turn, lead=tuple(read[held.length :]))
        self._roots[row.id] = count, state
        return state

    def step(self, states: Sequence[State], tokens: Sequence[int]) -> tuple[list[State], Tensor]:
        after, logits = self._say(states, [[token] for token in tokens])
        return [state for [state] in after], logits

    def read(self, states: Sequence[State], chains: Sequence[Sequence[int]]) -> tuple[list[list[State]], list[Tensor]]:
        """As :meth:`.lane.Reads.read`."""
        after, logits = self._say(states, chains)
        return after, list(logits.split([len(chain) for chain in chains]))

    @torch.no_grad()
    def _say(self, states: Sequence[State], chains: Sequence[Sequence[int]]) -> tuple[list[list[State]], Tensor]:
        """The states behind each token of the chains, and logits [sum, Vd]."""
        parts: dict[int, _Part] = {}
        where = []
        for state, chain in zip(states, chains, strict=True):
            if state.turn != state.held.turn:
                raise BadDraft("a state of an earlier round was asked to go on; take a new root")
            part = parts.setdefault(id(state.held), _Part(state.held))
            begin = part.add(state.path, [*(() if state.path else state.lead), *chain], len(chain))
            where.append((part, begin, range(len(part.asked) - len(chain), len(part.asked))))
        rows = list(parts.values())
        logits, made = self._call(rows)
        number = {id(part): b for b, part in enumerate(rows)}
        after = []
        for state, (part, begin, ks) in zip(states, where, strict=True):
            end = part.asked[ks[-1]] + 1
            own, place = made[number[id(part)], :, :, begin:end], state.held.used
            path = state.held.draft(state.path, part.tokens[begin:end], own)
            self._joint.draft(state.held, place, own)
            after.append([replace(state, path=path[: len(path) - more]) for more in reversed(range(len(ks)))])
        return after, logits[[number[id(part)] for part, _, ks in where for _ in ks], [k for _, _, ks in where for k in ks]]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: committed tokens are read from the rows when they next draft."""

    def forget(self, rows: Sequence[Row]) -> None:
        self._joint.clear()
        for row in rows:
            self._roots.pop(row.id, None)
            held = self._rows.pop(row.id, None)
            if held is not None and held.length >= LEAST:
                held.settle(row.tokens)
                self._ended.append(held)

    def _begin(self, tokens: Sequence[int]) -> Held:
        """What another row, or one that ended, has read of the same beginning."""
        others = [*self._rows.values(), *self._ended]
        lengths = [common(tokens, other.tokens[: other.length]) for other in others]
        longest = max(lengths, default=0)
        return others[lengths.index(longest)].copy(longest) if longest >= LEAST else Held(self._form, self._device)

    def _call(self, parts: Sequence[_Part]) -> tuple[Tensor, Tensor]:
        logits, made = self._run(*self._inputs(parts))
        return logits, made

    def _inputs(self, parts: Sequence[_Part]) -> list[Tensor]:
        """Arguments of :class:`DistilledStep`, rows padded to the longest."""
        new, many = max(len(p.tokens) for p in parts), max(len(p.asked) for p in parts)
        for part in parts:
            part.held.reserve(max(part.held.used, 1))
        if len(parts) == 1:
            held = parts[0].held
            seen = held.capacity if self._even else held.used
            past = [each[None] for each in held.buffer[:, :, :seen]]
        else:
            past = list(self._joint.of([p.held for p in parts]))
            seen = past[0].shape[2]
        if self._even:
            # two at least: after a draft that was right to its end there are two to read, else one
            new, many = max(2, 1 << (new - 1).bit_length()), 1 << (many - 1).bit_length()
        tokens, positions = np.zeros((2, len(parts), new), np.int64)
        asked = np.zeros((len(parts), many), np.int64)
        mask = np.full((len(parts), new, seen + new), HIDDEN, np.float32)
        for b, part in enumerate(parts):
            n = len(part.tokens)
            tokens[b, :n], positions[b, :n], asked[b, : len(part.asked)] = part.tokens, part.positions, part.asked
            mask[b, :, : part.held.length] = 0.0
            for t, (path, begin) in enumerate(part.sees):
                mask[b, t, list(path)] = 0.0
                mask[b, t, seen + begin : seen + t + 1] = 0.0
        ids, at, wanted, hidden = (torch.from_numpy(x).to(self._device) for x in (tokens, positions, asked, mask))
        return [self._module.embed(ids), at, hidden, wanted, *past]
