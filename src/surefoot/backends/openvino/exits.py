"""Passes of a cut graph: section by section, each over the tokens that it has not read yet.

Where all rows are chains, what a drafter ran through the first sections (:meth:`Sections.prefix`) is not run again when the
chains are scored, and padding goes through the last section only. Trees are run whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from ...core.tree import DraftTree, Forest
from ..progress import Progress, Work
from .branches import Lines
from .cut import HIDDEN
from .paces import Paces
from .passes import arrays
from .pool import BlockPool, Slot
from .runner import Runner


class Sections:
    """``taps``: layers, without those of ``cuts``, whose streams come along anyway.

    ``min_width``, ``masked``, ``steady`` (attributes): the class of passes, see the model.
    """

    def __init__(self, runners: Sequence[Runner], cuts: Sequence[int], taps: Sequence[int], pool: BlockPool) -> None:
        bounds = [-1, *cuts, 1 << 30]
        self._paces = [Paces([runner]) for runner in runners]
        self._taps = [[t for t in taps if lo < t < hi] for lo, hi in pairwise(bounds)]
        self._pool = pool
        self.progress = Progress(cuts)
        self.min_width, self.masked, self.steady = 2, False, True

    def prefix(
        self, slots: Sequence[Slot], chains: Sequence[Sequence[int]], layer: int, counts: Sequence[int] | None = None
    ) -> Tensor:
        """See :meth:`surefoot.core.protocols.Exits.prefix`."""
        section = self.progress.section(layer)
        for slot in slots:
            slot.pending = 0
        self.progress.advance(slots, chains, section + 1, self._advance)
        return self.progress.at(slots, chains, section, counts)

    def size(self, need: int) -> int:
        """Tokens to run through the last section, at least ``need``."""
        return self._paces[-1].size(need)

    def score(
        self, slots: Sequence[Slot], forest: Forest, lines: Lines, inputs: dict[str, np.ndarray], rows: int
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits [rows, V], and the streams [L, H] at taps and cuts."""
        if all(forest.linear):
            streams = self._chains(slots, forest, lines)
        else:
            self.progress.forget(slots)
            streams = self._whole(inputs, lines)
        inputs[HIDDEN] = _fed(streams[self.progress.cuts[-1]])
        logits, *late = self._run(len(self._paces) - 1, inputs, lines, rows)
        return logits, streams | dict(zip(self._taps[-1], late, strict=True))

    def _chains(self, slots: Sequence[Slot], forest: Forest, lines: Lines) -> dict[int, Tensor]:
        tokens = forest.tokens.tolist()
        chains = [tokens[lo : lo + n] for lo, n in zip(forest.begins, forest.sizes, strict=False)]
        self.progress.advance(slots, chains, len(self.progress.cuts), self._advance)
        fill = torch.from_numpy(_fill(forest.sizes, np.diff(lines.begins).tolist()))
        streams = {}
        for section, layer in enumerate(self.progress.cuts):
            found = [self.progress.outputs(slot, section) for slot in slots]
            for tap, *parts in zip((layer, *self._taps[section]), *found, strict=True):
                own = [part[:n] for part, n in zip(parts, forest.sizes, strict=True)]
                streams[tap] = (torch.cat(own) if len(own) > 1 else own[0])[fill]
        return streams

    def _whole(self, inputs: dict[str, np.ndarray], lines: Lines) -> dict[int, Tensor]:
        streams: dict[int, Tensor] = {}
        for section, layer in enumerate(self.progress.cuts):
            found = self._run(section, inputs, lines, lines.size)
            streams |= dict(zip((layer, *self._taps[section]), found, strict=True))
            inputs[HIDDEN] = _fed(found[0])
        return streams

    def _advance(self, section: int, works: Sequence[Work]) -> list[Tensor]:
        slots, ahead = [work.slot for work in works], [work.ahead for work in works]
        sizes = [len(work.tokens) for work in works]
        forest = Forest.pack([DraftTree.chain(work.tokens) for work in works], min_width=self.min_width)
        for slot in slots:
            self._pool.prune(slot)
        self._pool.reserve(slots, [hi - lo + a for (lo, hi), a in zip(pairwise(forest.begins), ahead, strict=True)])
        lines = Lines(slots, None, None, forest.begins)
        if self.steady and not self.masked:
            lines = lines.padded(self._pool, self._paces[section].size(lines.size), ahead[-1])
        inputs, _ = arrays(lines, forest, self._pool.block, self.masked, ahead)
        if section:
            stream = torch.cat([work.stream for work in works if work.stream is not None])
            inputs[HIDDEN] = _fed(stream[torch.from_numpy(_fill(sizes, np.diff(lines.begins).tolist()))])
        found = self._run(section, inputs, lines, lines.size)
        if sum(sizes) == lines.size:
            return found
        real = torch.cat([torch.arange(lo, lo + n) for lo, n in zip(lines.begins, sizes, strict=False)])
        return [x[real] for x in found]

    def _run(self, section: int, inputs: Mapping[str, np.ndarray], lines: Lines, rows: int) -> list[Tensor]:
        paces, asked = self._paces[section], lines.size - lines.pad
        start = perf_counter()
        found = paces.run(inputs, asked, [rows] + [lines.size] * len(self._taps[section]))
        paces.ran(asked, lines.size, perf_counter() - start)
        return found


def _fill(sizes: Sequence[int], widths: Sequence[int]) -> np.ndarray:
    """Of packed rows of ``sizes``, the place to read for each of ``widths``: padding repeats the row's last."""
    out, at = [], 0
    for size, width in zip(sizes, widths, strict=True):
        out += [at + min(i, size - 1) for i in range(width)]
        at += size
    return np.array(out, np.int64)


def _fed(stream: Tensor) -> np.ndarray:
    """[M, H] -> float32 [M, 1, H]."""
    flat = stream.detach().to(torch.float32).contiguous().numpy()
    return flat.reshape(flat.shape[0], 1, -1)
