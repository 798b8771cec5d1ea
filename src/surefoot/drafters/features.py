"""Activations of each row's committed tokens, gathered from the passes of the target.

After a pass the nodes that stay are the row's pending tokens and the accepted path below them; the last of them is at
position ``len(row.tokens) - 2``, and the token that follows it, ``row.tokens[-1]``, is the next pass's pending one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.protocols import Scores, Verdict
from ..core.tree import Forest

if TYPE_CHECKING:
    from ..core.request import Row


def kept(forest: Forest, b: int, verdict: Verdict | None) -> list[int]:
    """Local nodes of row b that are committed, of a row that goes on: those before the draft, and the accepted path."""
    if verdict is None:
        return list(range(forest.sizes[b]))
    root = forest.roots[b]
    return [*range(root + 1), *(root + node for node in verdict.path)]


class Features:
    """``layers``: taps, side by side in this order. ``last_only``: keep the newest token's alone.

    The last token of a row that ended is not kept apart: rows that are done are left out.
    """

    def __init__(self, layers: Sequence[int], *, last_only: bool = False) -> None:
        self._layers = tuple(layers)
        self._last_only = last_only
        self._rows: dict[int, tuple[int, list[Tensor]]] = {}
        """Row -> position of the first activation that was not taken yet, and the activations [n, D] from there on."""

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        for b, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
            if row.done or row.slot is None:
                continue
            # no draft hangs below a prompt, and where the logits of its tokens are wanted too, its root is not its last token
            prompt = verdict is None or len(row.tokens) == row.n_prompt + 1
            nodes = kept(forest, b, None if prompt else verdict)
            end = row.slot.length
            if self._last_only:
                nodes = nodes[-1:]
            first = forest.begins[b] + nodes[0]
            together = nodes[-1] - nodes[0] + 1 == len(nodes)
            at = slice(first, first + len(nodes)) if together else [forest.begins[b] + node for node in nodes]
            found = torch.cat([scores.hidden[layer][at] for layer in self._layers], 1)
            start, before = self._rows.get(row.id, (end - len(nodes), []))
            if self._last_only or start + sum(len(x) for x in before) != end - len(nodes):
                start, before = end - len(nodes), []
            before.append(found.to(torch.float32))
            self._rows[row.id] = start, before

    def take(self, row: Row) -> tuple[int, Tensor] | None:
        """Position of the first, and the activations [n, D] gathered since the last call; None: nothing new.

        A gap (a prefix shared with another request was never scored for this row) shows in the position.
        """
        start, found = self._rows.pop(row.id, (0, []))
        return (start, torch.cat(found) if len(found) > 1 else found[0]) if found else None

    def last(self, row: Row) -> Tensor | None:
        """The newest activations [1, D], which stay; None where there are none, or they are not of ``row.tokens[-2]``."""
        start, found = self._rows.get(row.id, (0, []))
        if not found or start + sum(len(x) for x in found) != len(row.tokens) - 1:
            return None
        return found[-1][-1:]

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rows.pop(row.id, None)
