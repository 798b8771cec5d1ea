"""What an EAGLE lane keeps of one row: keys and values of the committed pairs, and room behind them for drafted ones.

``store`` [capacity, 2g, d]: places 0..length are pairs of committed tokens and the target's own features; the places from there
on hold drafted pairs of the present round, each written once, and a state names those of its own path. With the next round's
committed pairs they are gone, so there is nothing to roll back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True, eq=False)
class EagleState:
    """Behind some tokens of a row.

    feature  [1, H]: what stands in the next pair
    position of the next pair
    seen     committed places that it reads; of a root, all but the last
    path     drafted places that it reads
    """

    row: EagleRow
    feature: Tensor
    position: int
    seen: int
    path: tuple[int, ...]


class EagleRow:
    """``shape``: (2g, d). ``context``: most committed pairs that are kept; the oldest make room."""

    def __init__(self, shape: tuple[int, int], context: int, device: torch.device) -> None:
        self.store = torch.empty(0, *shape, device=device)
        self.length = 0
        self.used = 0
        """Places behind ``length`` that hold drafted pairs."""
        self.end = -1
        """Position behind the last feature that is known."""
        self.begin = 0
        self.tokens: Sequence[int] = ()
        """Next tokens of the newest pairs, the first of them at ``begin``."""
        self.fresh: Tensor | None = None
        """[m, H]: their features, fused, until they are read."""
        self.root: EagleState | None = None
        self.first: tuple[EagleState, Tensor] | None = None
        """The state behind the row's last token, and its logits [1, Vd], once they were asked for."""
        self._context = context

    def add(self, begin: int, tokens: Sequence[int], fresh: Tensor) -> None:
        """Pairs of committed tokens that come next; those between the last ones and ``begin``, if any, stay unknown."""
        over = len(tokens) - self._context
        if over > 0:
            begin, tokens, fresh = begin + over, tokens[over:], fresh[over:]
        self.begin, self.tokens, self.fresh = begin, tokens, fresh
        self.end = begin + len(tokens)
        self.first = None
        self.root = EagleState(self, fresh[-1:], self.end - 1, -1, ())

    def place(self, m: int, committed: bool) -> int:
        """First of ``m`` places in a row, behind all that is held. Committing them ends the round: what was drafted is gone."""
        if committed:
            self._forget_oldest(m)
            at, self.used = self.length, 0
            self.length += m
        else:
            at = self.length + self.used
            self.used += m
        if at + m > len(self.store):
            grown = self.store.new_empty(max(2 * len(self.store), at + m, 64), *self.store.shape[1:])
            grown[:at] = self.store[:at]
            self.store = grown
        return at

    def _forget_oldest(self, m: int) -> None:
        """Positions are in the keys already, so what stays may move."""
        if self.length + m > self._context:
            kept = max(self._context // 2 - m, 0)
            self.store[:kept] = self.store[self.length - kept : self.length].clone()
            self.length = kept

    def attend(self, q: Tensor, seen: Sequence[int], paths: Sequence[Sequence[int]]) -> Tensor:
        """q [n, h, d] of queries that read the first ``seen`` places and those of their paths -> [n, h * d]."""
        n, h, d = q.shape
        g = self.store.shape[1] // 2
        end = max(max(s, *path) + 1 if path else s for s, path in zip(seen, paths, strict=True))
        held = self.store[:end]
        k, v = held[:, :g].transpose(0, 1), held[:, g:].transpose(0, 1)
        mask = None
        if any(s + len(path) != end for s, path in zip(seen, paths, strict=True)):
            see = np.zeros((n, end), bool)
            for line, s, path in zip(see, seen, paths, strict=True):
                line[:s] = True
                line[list(path)] = True
            mask = torch.from_numpy(np.repeat(see, h // g, 0)).to(q.device)
        by_key = q.view(n, g, h // g, d).transpose(0, 1).reshape(1, g, -1, d)
        out = F.scaled_dot_product_attention(by_key, k[None], v[None], mask)
        return out.view(g, n, -1).transpose(0, 1).reshape(n, h * d)
