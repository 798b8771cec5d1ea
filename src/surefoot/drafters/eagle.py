"""EAGLE heads as a lane: they read (feature, next token) pairs of the committed text, then pairs of their own making.

Of each row the keys and values of all committed pairs are kept; pairs that came since are read together with the first drafted
token's, so a round costs as many steps as it is deep. All states of a call, of whatever rows, go through the head's tables
together; attention alone is row by row, over the keys where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.protocols import Need, Scores, Verdict
from ..core.tree import Forest, integers
from ..errors import BadRequest, Unsupported
from ..heads.eagle_layer import EagleHead
from ..heads.eagle_step import Back, Front
from .eagle_row import EagleRow, EagleState
from .features import Features
from .lane import Compile, Function

if TYPE_CHECKING:
    from ..core.request import Row


class EagleLane:
    """``n_layers``: the target's, by which the head knows its taps. ``depth``: most tokens drafted in a row; ``context``: most
    committed pairs that a row keeps. ``compile`` makes the halves of a step quick."""

    def __init__(
        self, head: EagleHead, n_layers: int, *, depth: int = 7, context: int = 2048, compile: Compile | None = None
    ) -> None:
        if depth < 1:
            raise BadRequest(f"depth is {depth}; give at least 1 token to look ahead")
        if context < 8:
            raise BadRequest(f"context is {context}; give the head at least 8 tokens to read")
        self._head = head
        self._depth = depth
        self._context = context
        taps = head.taps(n_layers)
        if max(taps) > n_layers + 1:
            raise Unsupported(
                f"the head reads after layer {max(taps)}, the target has {n_layers}; give a head trained for this target"
            )
        self._needs = Need(tuple(sorted(set(taps))))
        self._features = Features(taps)
        self._rows: dict[int, EagleRow] = {}
        attention = head.layer.self_attn
        self._shape = (2 * attention.config.kv_heads, attention.config.head_dim)
        self._heads = attention.config.heads
        self._table = head.embedding
        self._device = head.embedding.device
        self._turns = torch.empty(0, 1, 2 * attention.config.head_dim)
        front, back = Front(head).eval(), Back(head).eval()
        self._step: tuple[Function, Function] = (front, back)
        self._copied = compile is not None
        """Whether results are buffers that the next call overwrites."""
        if compile is not None:
            size = attention.config.hidden_size
            pair = [torch.zeros(2, size, device=self._device), torch.zeros(2, size, device=self._device)]
            turn = torch.zeros(2, 1, self._turns.shape[-1], device=self._device)
            found = torch.zeros(2, self._heads * attention.config.head_dim, device=self._device)
            self._step = (
                compile(cast(nn.Module, front), [*pair, turn], [[0], [0], [0]]),
                compile(cast(nn.Module, back), [found, pair[0]], [[0], [0]]),
            )

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
    def root(self, row: Row) -> EagleState | None:
        found = self._features.take(row)
        own = self._rows.get(row.id)
        if found is not None:
            begin, features = found
            if own is None or begin < own.end:
                own = self._rows[row.id] = EagleRow(self._shape, self._context, self._device)
            fused = self._head.fuse(features[-self._context :].to(self._device))
            begin += len(features) - len(fused)
            tokens = row.tokens[begin + 1 : begin + 1 + len(fused)]
            if own.fresh is not None and own.end == begin:  # asked for before, and not stepped from
                begin, tokens, fused = own.begin, [*own.tokens, *tokens], torch.cat((own.fresh, fused))
            if len(tokens) == len(fused):
                own.add(begin, tokens, fused)
        return own.root if own is not None and own.end == len(row.tokens) - 1 else None

    @torch.no_grad()
    def step(self, states: Sequence[Any], tokens: Sequence[int]) -> tuple[list[Any], Tensor]:
        jobs, where = _jobs(states, tokens)
        if not jobs:
            known = [s.row.first for s in states]
            return [state for state, _ in known], torch.cat([logits for _, logits in known])
        features = jobs[0].features if len(jobs) == 1 else torch.cat([job.features for job in jobs])
        front, back = self._step
        ids = integers([t for job in jobs for t in job.tokens]).to(self._device)
        turn = self._turn([p for job in jobs for p in range(job.begin, job.begin + len(job.tokens))])
        q, kv, residual = front(F.embedding(ids, self._table), features, turn)
        asked, parts = self._place(jobs, kv)
        if asked != list(range(len(features))):
            q, residual = q[asked], residual[asked]
        found, at = [], 0
        for row, part in parts.items():
            found.append(row.attend(q[at : at + len(part)], [job.seen for job in part], [job.path for job in part]))
            at += len(part)
        hidden, logits = back(found[0] if len(found) == 1 else torch.cat(found), residual)
        if self._copied:
            hidden, logits = hidden.clone(), logits.clone()
        done = [job for part in parts.values() for job in part]
        for i, (job, feature) in enumerate(zip(done, hidden.split(1), strict=True)):
            job.result = EagleState(job.row, feature, job.begin + len(job.tokens), job.seen, job.path), i
            if job.state is None:
                job.row.fresh, job.row.first = None, (job.result[0], logits[i : i + 1])
        if where == done:
            return [job.result[0] for job in done], logits
        ends = [
            state.row.first if job is None else (job.result[0], logits[job.result[1] : job.result[1] + 1])
            for state, job in zip(states, where, strict=True)
        ]
        return [state for state, _ in ends], torch.cat([each for _, each in ends])

    def _place(self, jobs: Sequence[_Job], kv: Tensor) -> tuple[list[int], dict[EagleRow, list[_Job]]]:
        """Put keys and values [N, 2g, d] where they belong; the last pair of each job, row by row, and the jobs of each row."""
        parts: dict[EagleRow, list[_Job]] = {}
        last: dict[EagleRow, list[int]] = {}
        at = 0
        for job in jobs:
            m, row, state = len(job.tokens), job.row, job.state
            place = row.place(m, committed=state is None)
            row.store[place : place + m] = kv[at : at + m]
            at += m
            if state is None:
                job.seen = row.length
            else:
                job.seen = row.length - 1 if state is row.root else state.seen
                job.path = (*state.path, place)
            parts.setdefault(row, []).append(job)
            last.setdefault(row, []).append(at - 1)
        return [i for each in last.values() for i in each], parts

    def _turn(self, positions: list[int]) -> Tensor:
        """[n, 1, 2d]: cosine and sine."""
        most = max(positions) + 1
        if most > len(self._turns):
            at = torch.arange(max(2 * len(self._turns), most, 256), device=self._device)
            self._turns = torch.cat(self._head.layer.self_attn.rotation(at), -1)[:, None]
        if len(positions) == 1:
            return self._turns[most - 1 : most]
        return self._turns[integers(positions).to(self._device)]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        self._features.observe(rows, forest, scores, verdicts)

    def forget(self, rows: Sequence[Row]) -> None:
        self._features.forget(rows)
        for row in rows:
            self._rows.pop(row.id, None)


class _Job:
    """Pairs of one row to be read one behind the other: new committed ones (``state`` is None), or one behind a state."""

    __slots__ = ("begin", "features", "path", "result", "row", "seen", "state", "tokens")

    def __init__(self, row: EagleRow, state: EagleState | None, tokens: Sequence[int], begin: int, features: Tensor) -> None:
        self.row, self.state, self.tokens, self.begin, self.features = row, state, tokens, begin, features
        self.seen = 0
        self.path: tuple[int, ...] = ()
        self.result: tuple[EagleState, int]


def _jobs(states: Sequence[EagleState], tokens: Sequence[int]) -> tuple[list[_Job], list[_Job | None]]:
    """What there is to read, and which of it answers each state; None: its row remembers the answer."""
    jobs: list[_Job] = []
    where: list[_Job | None] = []
    opened: dict[EagleRow, _Job] = {}
    for state, token in zip(states, tokens, strict=True):
        row = state.row
        if row.fresh is not None and row not in opened:
            opened[row] = job = _Job(row, None, row.tokens, row.begin, row.fresh)
            jobs.append(job)
        if state is row.root and token == row.tokens[-1]:
            where.append(opened.get(row))
        else:
            jobs.append(job := _Job(row, state, [token], state.position, state.feature))
            where.append(job)
    return jobs, where
