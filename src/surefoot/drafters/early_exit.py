"""Early exit as a lane: the target's own first layers read each drafted token, and a small head says what comes next.

What the layers computed is the target's: it goes on from there when it verifies a chain (see
:class:`~surefoot.core.protocols.Exits`). The head's attention has a cache of its own. Of committed tokens it holds what the
target's pass showed, so it is exact after any partial acceptance; drafted tokens lie behind them for the length of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..core.protocols import Exits, Need, Scores, Slot, Verdict
from ..core.tree import Forest, integers
from ..errors import BadRequest, Unsupported
from ..heads.exit import Exit, ExitBack, ExitFront, ExitTable
from .eagle_row import EagleRow
from .features import Features
from .lane import Compile, Function

if TYPE_CHECKING:
    from ..core.request import Row

_MANY = 32
"""Tokens of a call that are too many for the compiled step, which is made for a few."""


class _Cache:
    """Keys and values of one row. ``fresh``: streams [m, H] of committed tokens, from ``begin``, whose are still missing."""

    __slots__ = ("begin", "end", "fresh", "store")

    def __init__(self, store: EagleRow) -> None:
        self.store = store
        self.begin = self.end = 0
        self.fresh: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ExitState:
    """Behind ``tokens``, the first of which is pending, of a row with ``seen`` committed ones; ``path``: their places."""

    cache: _Cache | None
    slot: Slot
    seen: int
    tokens: tuple[int, ...] = ()
    path: tuple[int, ...] = ()


class ExitLane:
    """``layer``: of the exit, where the head's file does not say. ``depth``: most tokens drafted in a row; ``context``: most
    committed tokens that the head's attention keeps. ``compile`` makes the head quick."""

    def __init__(
        self,
        head: Exit,
        target: Exits,
        *,
        layer: int | None = None,
        depth: int = 8,
        context: int = 2048,
        compile: Compile | None = None,
    ) -> None:
        for name, value, least in (("depth", depth, 1), ("context", context, 8)):
            if value < least:
                raise BadRequest(f"{name} is {value}; give at least {least}")
        found = layer if layer is not None else head.config.exit_layer
        if not found:
            raise BadRequest("the head's file does not name its exit layer; give layer=")
        if found not in target.cuts:
            raise Unsupported(
                f"the head exits behind layer {found}, the target is cut behind {list(target.cuts)}; load it with cut={found}"
            )
        self.layer = found
        self._head, self._target = head, target
        self._depth, self._context = depth, context
        attention = head.config.attention
        self._needs = Need((found,) if attention is not None else ())
        self._features = Features((found,))
        self._caches: dict[int, _Cache] = {}
        self._device = head.rows.device
        self._turns = torch.empty(0)
        size = head.hidden_size
        example = torch.zeros(2, size, device=self._device)
        if attention is None:
            table = cast(nn.Module, ExitTable(head).eval())
            self._table: Function = table if compile is None else compile(table, [example], [[0]])
            return
        self._shape = (2 * attention.kv_heads, attention.head_dim)
        front, back = ExitFront(head).eval(), ExitBack(head).eval()
        self._eager, self._quick = (
            cast("tuple[Function, Function]", (front, back)),
            cast("tuple[Function, Function]", (front, back)),
        )
        if compile is not None:
            turn = torch.zeros(2, 1, 2 * attention.head_dim, device=self._device)
            attended = torch.zeros(2, attention.heads * attention.head_dim, device=self._device)
            self._quick = compile(front, [example, turn], [[0], [0]]), compile(back, [attended, example], [[0], [0]])

    @property
    def needs(self) -> Need:
        return self._needs

    @property
    def draft_ids(self) -> Tensor | None:
        return self._head.draft_ids

    @property
    def depth(self) -> int:
        return self._depth

    @torch.no_grad()
    def root(self, row: Row) -> ExitState | None:
        seen = len(row.tokens) - 1
        if row.slot is None or row.slot.length != seen:
            return None
        if self._head.config.attention is None:
            return ExitState(None, row.slot, seen)
        found, cache = self._features.take(row), self._caches.get(row.id)
        if found is not None:
            begin, fresh = found
            if cache is None or begin < cache.end:
                cache = self._caches[row.id] = _Cache(EagleRow(self._shape, self._context, self._device))
            fresh = fresh.to(self._device)
            if cache.fresh is not None and cache.end == begin:  # asked for before, and not stepped from
                begin, fresh = cache.begin, torch.cat((cache.fresh, fresh))
            end, fresh = begin + len(fresh), fresh[-self._context :]
            cache.begin, cache.end, cache.fresh = end - len(fresh), end, fresh
        return ExitState(cache, row.slot, seen) if cache is not None and cache.end == seen else None

    @torch.no_grad()
    def step(self, states: Sequence[Any], tokens: Sequence[int]) -> tuple[list[Any], Tensor]:
        ours = cast("Sequence[ExitState]", states)
        chains = [(*state.tokens, token) for state, token in zip(ours, tokens, strict=True)]
        after, logits = self._say(ours, chains, [1] * len(ours))
        return [state for [state] in after], logits

    @torch.no_grad()
    def read(self, states: Sequence[Any], chains: Sequence[Sequence[int]]) -> tuple[list[list[Any]], list[Tensor]]:
        """As :meth:`.lane.Reads.read`: the target's layers read a chain in one pass."""
        ours = cast("Sequence[ExitState]", states)
        whole = [(*state.tokens, *chain) for state, chain in zip(ours, chains, strict=True)]
        counts = [len(chain) for chain in chains]
        after, logits = self._say(ours, whole, counts)
        return after, list(logits.split(counts))

    def _say(
        self, states: Sequence[ExitState], chains: Sequence[tuple[int, ...]], counts: Sequence[int]
    ) -> tuple[list[list[Any]], Tensor]:
        """States behind the last ``counts[i]`` tokens of each chain, which are new, and logits [sum, Vd]."""
        streams = self._streams([state.slot for state in states], chains, counts)
        if self._head.config.attention is not None:
            return self._speak(states, chains, counts, streams)
        after: list[list[Any]] = [
            [ExitState(None, state.slot, state.seen, chain[:end]) for end in range(len(chain) - count + 1, len(chain) + 1)]
            for state, chain, count in zip(states, chains, counts, strict=True)
        ]
        return after, _logits(self._table(self._head.final(streams)))

    def _streams(self, slots: Sequence[Slot], chains: Sequence[tuple[int, ...]], counts: Sequence[int]) -> Tensor:
        """[sum, H]; several chains of one row go one after the other."""
        if len({id(slot) for slot in slots}) == len(slots):
            return self._target.prefix(slots, chains, self.layer, counts).to(self._device)
        left = list(range(len(slots)))
        found: dict[int, Tensor] = {}
        while left:
            now: dict[int, int] = {}
            for i in left:
                now.setdefault(id(slots[i]), i)
            picked = list(now.values())
            many = [counts[i] for i in picked]
            streams = self._target.prefix([slots[i] for i in picked], [chains[i] for i in picked], self.layer, many)
            found |= dict(zip(picked, streams.split(many), strict=True))
            left = [i for i in left if i not in found]
        return torch.cat([found[i] for i in range(len(slots))]).to(self._device)

    def _speak(
        self, states: Sequence[ExitState], chains: Sequence[tuple[int, ...]], counts: Sequence[int], streams: Tensor
    ) -> tuple[list[list[Any]], Tensor]:
        """The head over streams of committed tokens that it has not read, and over those of the newest tokens [sum, H]."""
        caches = list(dict.fromkeys(state.cache for state in states if state.cache is not None))
        new = [cache for cache in caches if cache.fresh is not None]
        fresh = [cache.fresh for cache in new if cache.fresh is not None]
        positions = [p for cache in new for p in range(cache.begin, cache.end)]
        for state, chain, count in zip(states, chains, counts, strict=True):
            positions += range(state.seen + len(chain) - count, state.seen + len(chain))
        x = torch.cat([*fresh, streams]) if fresh else streams
        front, back = self._quick if len(x) <= _MANY else self._eager
        q, kv = front(x, self._turn(positions))
        at = 0
        for cache, part in zip(new, fresh, strict=True):
            place = cache.store.place(len(part), committed=True)
            cache.store.store[place : place + len(part)] = kv[at : at + len(part)]
            cache.fresh = None
            at += len(part)
        after: list[list[Any]] = []
        own: dict[_Cache, list[int]] = {cache: [] for cache in caches}
        paths: dict[_Cache, list[tuple[int, ...]]] = {cache: [] for cache in caches}
        first = at
        for state, chain, count in zip(states, chains, counts, strict=True):
            held, before = state.cache, len(chain) - count
            assert held is not None
            place = held.store.place(count, committed=False)
            held.store.store[place : place + count] = kv[at : at + count]
            path = (*state.path, *range(place, place + count))
            seen = [path[: len(state.path) + 1 + i] for i in range(count)]
            after.append([ExitState(held, state.slot, state.seen, chain[: before + 1 + i], p) for i, p in enumerate(seen)])
            own[held] += range(at - first, at - first + count)
            paths[held] += seen
            at += count
        attended = torch.empty(len(streams), q.shape[1] * q.shape[2], device=q.device)
        for cache in caches:
            kept = [cache.store.length] * len(own[cache])
            attended[own[cache]] = cache.store.attend(q[first:][own[cache]], kept, paths[cache])
        return after, _logits(back(attended, streams))

    def _turn(self, positions: list[int]) -> Tensor:
        """[n, 1, 2d]: cosine and sine."""
        most = max(positions) + 1
        if most > len(self._turns):
            at = torch.arange(max(2 * len(self._turns), most, 256), device=self._device)
            self._turns = torch.cat(self._head.self_attn.rotation(at), -1)[:, None]
        return self._turns[integers(positions).to(self._device)]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        if self._needs.hidden:
            self._features.observe(rows, forest, scores, verdicts)

    def forget(self, rows: Sequence[Row]) -> None:
        self._features.forget(rows)
        for row in rows:
            self._caches.pop(row.id, None)


def _logits(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    """[n, Vd] of a function's result, copied: the next call may overwrite it."""
    return found.clone() if isinstance(found, Tensor) else found[0].clone()
