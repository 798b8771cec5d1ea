"""Token recycling: the best candidates that the target last saw after a token are the draft the next time it comes up.

Every pass yields the target's logits at each of its nodes, and all but one of their candidates are thrown away. Here the top
:data:`TOP` after each token are kept (arXiv 2408.08696: an adjacency of 8 candidates a token), and, more precise and forgotten
sooner, those after each pair of tokens. A chain follows the best candidate, a tree the candidates in the order of their
estimated chance. Proposals are points (q = None).

Memory is fixed: about ``36 x vocab_size`` bytes and 48 bytes for each pair. What one row taught helps the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.protocols import Need, Plan, Scores, Verdict
from ..core.tree import DraftTree, Forest
from .evidence import Candidate
from .grow import grow
from .ngram import whole_number

if TYPE_CHECKING:
    from ..core.request import Row

TOP = 8
_BLOCK = 128
_GAPS = (0.7, 1.6, 3.2)
"""Bounds of the classes of certainty: the lead of the best logit over the second."""
_RANKS = 4
"""Ranks from the last of these on are one level."""
_SINGLE = ((0.25, 0.13, 0.07, 0.02), (0.38, 0.13, 0.05, 0.015), (0.5, 0.1, 0.04, 0.01), (0.65, 0.06, 0.02, 0.008))
_PAIR = ((0.35, 0.16, 0.08, 0.03), (0.5, 0.14, 0.06, 0.02), (0.66, 0.1, 0.04, 0.01), (0.85, 0.04, 0.015, 0.005))
_LEVELS = tuple(chance for table in (_SINGLE, _PAIR) for row in table for chance in row)
WEIGHTS = (
    *(0.0, 0.0, -0.2, -0.5, 0.5, -0.5, -1.0, -1.3, 0.85, -0.65, -1.1, -1.4, 0.9, -0.95, -1.2, -1.5),
    *(-0.1, 0.25, -0.5, -1.0, 0.5, -0.2, -1.1, -1.5, 0.9, -0.75, -1.05, -1.5, 1.4, -1.05, -1.85, -2.0),
    *(-1.35, 0.0),
)
"""Log-odds beside other sources: behind one token and behind two, by certainty and rank."""
_MIX = 0x9E3779B1


class RecycleDrafter:
    """Drafter ``recycle``. ``vocab_size``: the target's; ids from ``known`` on are never drafted.

    ``pairs``: entries for pairs of tokens (a power of two, 0: none). ``nodes``: nodes of a row learned from in a pass, at most.
    """

    name = "recycle"
    needs = Need()
    levels: Sequence[float] = _LEVELS
    weights: Sequence[float] = WEIGHTS

    def __init__(
        self, vocab_size: int, *, known: int | None = None, pairs: int = 1 << 16, nodes: int = 6, source: int = 3
    ) -> None:
        whole_number(self.name, "pairs", pairs, 0, 1 << 26)
        self._most = whole_number(self.name, "nodes", nodes, 1, 1024)
        self._known = vocab_size if known is None else min(known, vocab_size)
        self._top = min(TOP, self._known)
        self.source = source
        self._next = np.full((vocab_size, self._top), -1, np.int32)
        self._certain = np.zeros(vocab_size, np.uint8)
        size = 1 << max(0, (pairs - 1).bit_length()) if pairs else 0
        self._slots = size
        self._keys = np.full(size, -1, np.int64)
        self._pair_next = np.full((size, self._top), -1, np.int32)
        self._pair_certain = np.zeros(size, np.uint8)

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [grow(self, row, plan) for row, plan in zip(rows, plans, strict=True)]

    def walk(self, row: Row) -> RecycleWalk:
        tokens = row.tokens
        return RecycleWalk(self, tokens[-2] if len(tokens) > 1 else -1, tokens[-1])

    def candidates(self, before: int, token: int, width: int) -> list[Candidate]:
        """What may follow ``token`` behind ``before`` (-1: nothing)."""
        slot = self._slot(before, token)
        if slot >= 0 and self._keys[slot] == (before << 32 | token):
            base, found = _RANKS * len(_SINGLE), self._pair_next[slot].tolist()
            base += _RANKS * int(self._pair_certain[slot])
        else:
            base, found = _RANKS * int(self._certain[token]), self._next[token].tolist()
        if found[0] < 0:
            return []
        return [(x, base + min(rank, _RANKS - 1)) for rank, x in enumerate(found[:width])]

    def _slot(self, before: int, token: int) -> int:
        if not self._slots or before < 0:
            return -1
        mixed = (before * _MIX ^ token) * _MIX
        return (mixed >> 7) & (self._slots - 1)

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Keep the best candidates at the last nodes that were kept, and at the first ones that were not."""
        begin = 0
        picked: list[int] = []
        keys: list[tuple[int, int]] = []
        for b, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
            root, size, lo = forest.roots[b], forest.sizes[b], forest.begins[b]
            if verdict is not None:
                # of a prompt that is scored whole, only the last token is followed by what the verdict says
                whole = row.prompt_logprobs is not None and len(row.tokens) == row.n_prompt + 1
                first = size - 1 if whole else root
                tokens = forest.tokens[lo + first : lo + size].tolist()
                parents = forest.parents[lo + first : lo + size].tolist()
                # the row has grown by what was kept; where it ended, how much that was is not worth finding out
                at = -1 if row.done else len(row.tokens) - len(verdict.path) - 3
                for node in self._worth(verdict, len(tokens)):
                    above = parents[node] - first
                    before = tokens[above] if node else row.tokens[at] if at >= 0 else -1
                    picked.append(begin + first - root + node)
                    keys.append((before, tokens[node]))
            begin += size - root
        if picked:
            run = picked[-1] - picked[0] + 1 == len(picked)  # the rule in chains; a view, where a choice of rows is a copy
            logits = scores.logits[picked[0] : picked[-1] + 1] if run else scores.logits[picked]
            self._learn(keys, *top(logits[:, : self._known], self._top))

    def _worth(self, verdict: Verdict, n: int) -> list[int]:
        path = [0, *verdict.path]
        last = path[-1]
        return [*path[-self._most :], *range(last + 1, min(n, last + 1 + max(0, self._most - len(path))))]

    def _learn(self, keys: Sequence[tuple[int, int]], ids: list[list[int]], values: list[list[float]]) -> None:
        for (before, token), best, value in zip(keys, ids, values, strict=True):
            gap = value[0] - value[1] if len(value) > 1 else _GAPS[-1]
            certain = sum(gap >= bound for bound in _GAPS)
            self._next[token] = best
            self._certain[token] = certain
            slot = self._slot(before, token)
            if slot >= 0:
                self._keys[slot] = before << 32 | token
                self._pair_next[slot] = best
                self._pair_certain[slot] = certain

    def forget(self, rows: Sequence[Row]) -> None:
        """Nothing is kept for a row."""

    def stats(self) -> dict[str, int]:
        """Bytes held, whatever was learned."""
        arrays = (self._next, self._certain, self._keys, self._pair_next, self._pair_certain)
        return {"bytes": sum(array.nbytes for array in arrays)}


class RecycleWalk:
    """Behind two tokens."""

    __slots__ = ("_before", "_of", "_token")

    def __init__(self, of: RecycleDrafter, before: int, token: int) -> None:
        self._of, self._before, self._token = of, before, token

    def candidates(self, width: int) -> list[Candidate]:
        return self._of.candidates(self._before, self._token, width)

    def after(self, token: int) -> RecycleWalk:
        return RecycleWalk(self._of, self._token, token)


def top(logits: Tensor, k: int) -> tuple[list[list[int]], list[list[float]]]:
    """The k largest of each row of [n, V], the largest first: ids and values.

    The k largest lie in the k blocks of largest maximum, so the row is read once; a whole top-k takes three times as long.
    """
    n, vocab = logits.shape
    blocks = vocab // _BLOCK
    if blocks <= 2 * k:
        values, ids = logits.topk(k)
        return ids.tolist(), values.tolist()
    body = logits[:, : blocks * _BLOCK].view(n, blocks, _BLOCK)
    which = body.amax(-1).topk(k, sorted=False).indices
    near = body.gather(1, which.unsqueeze(-1).expand(-1, -1, _BLOCK)).view(n, -1)
    rest = logits[:, blocks * _BLOCK :]
    values, at = (torch.cat([near, rest], 1) if rest.shape[1] else near).topk(k)
    ids = which.gather(1, (at // _BLOCK).clamp_max_(k - 1)) * _BLOCK + at % _BLOCK
    if rest.shape[1]:
        ids = torch.where(at >= k * _BLOCK, at - k * _BLOCK + blocks * _BLOCK, ids)
    return ids.tolist(), values.tolist()
