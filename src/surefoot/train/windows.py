"""Batches of windows of captured text, the same ones in the same order for the same seed and epoch.

A document that is no longer than ``length`` is one window. A longer one is cut so that each answer token is a label in
exactly one window: a window after the first begins ``context`` tokens before its first label, and those tokens are no
labels. Only places are kept in memory; text and activations are read when a batch is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import BadRequest
from .recipe import Batch
from .shards import Shards

LEAST = 64
"""Fewest answer tokens that are worth a training run."""
_POOL = 16
"""Batches whose windows are sorted by length among themselves."""


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens [begin, end) of a document; those from ``label`` on are labels."""

    document: int
    begin: int
    end: int
    label: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def cut(document: int, size: int, answer: int, length: int, context: int) -> list[Window]:
    """Windows of a document of ``size`` tokens whose own begin at ``answer``. The first token of all is nobody's label."""
    answer = max(answer, 1)
    if answer >= size:
        return []
    if size <= length:
        return [Window(document, 0, size, answer)]
    found = []
    while answer < size:
        begin = max(0, answer - context)
        end = min(size, begin + length)
        found.append(Window(document, begin, end, answer))
        answer = end
    return found


def split(shards: Shards, seed: int, share: float = 0.02, least: int = LEAST) -> tuple[list[int], list[int]]:
    """Documents to train on, and documents held out: ``share`` of all, at least one.

    Documents with the same prompt stay on one side, as their answers are much alike.
    """
    if not 0 < share < 1:
        raise BadRequest(f"the held-out share must lie between 0 and 1, not {share}")
    groups: dict[bytes, list[int]] = {}
    tokens = 0
    for i in range(len(shards)):
        document = shards.document(i)
        own = len(document.tokens) - max(document.answer, 1)
        if own > 0:
            tokens += own
            groups.setdefault(document.tokens[: document.answer].numpy().tobytes(), []).append(i)
    usable = sum(map(len, groups.values()))
    if usable < 2 or tokens < least:
        raise BadRequest(
            f"too little captured text: {usable} documents with {tokens} answer tokens, needed are at least 2 with {least}; "
            "capture more"
        )
    wanted = max(1, round(share * usable))

    def place(key: bytes) -> bytes:
        return hashlib.sha256(b"%d " % seed + key).digest()

    held: list[int] = []
    for key in sorted(groups, key=place):
        if len(held) + len(groups[key]) <= wanted:
            held += groups[key]
    if not held:  # a few prompts, each answered often
        held = sorted((i for group in groups.values() for i in group), key=lambda i: place(b"%d" % i))[:wanted]
    out = set(held)
    return sorted(i for group in groups.values() for i in group if i not in out), sorted(held)


class Windows:
    """``batch_tokens``: most tokens of a batch, padding included; a single window is always allowed."""

    def __init__(
        self,
        shards: Shards,
        documents: Sequence[int],
        taps: Sequence[int],
        *,
        length: int = 512,
        context: int = 32,
        batch_tokens: int = 4096,
        seed: int = 0,
    ) -> None:
        if context < 1 or length < 2 * context:
            raise BadRequest(
                f"a window of {length} tokens must be at least twice its context of {context}, which is at least 1"
            )
        if batch_tokens < 1:
            raise BadRequest(f"batch tokens must be at least 1, not {batch_tokens}")
        missing = [tap for tap in taps if tap not in shards.taps]
        if missing:
            raise BadRequest(
                f"the captured text lacks the activations of tap {missing[0]}; capture again with the taps it needs"
            )
        self._shards, self._taps, self._most, self._seed = shards, tuple(taps), batch_tokens, seed
        self._windows: list[Window] = []
        for i in documents:
            size = shards.size(i)
            self._windows += cut(i, size, shards.answer(i), length, context)

    @property
    def labels(self) -> int:
        """Answer tokens of an epoch."""
        return sum(window.end - window.label for window in self._windows)

    def order(self, epoch: int | None) -> list[list[Window]]:
        """The batches of an epoch; None: by length, for evaluation."""
        if epoch is None:
            return self._fill(sorted(self._windows, key=lambda w: (w.size, w.document, w.begin)))
        rng = np.random.default_rng([self._seed, epoch])
        windows = [self._windows[i] for i in rng.permutation(len(self._windows))]
        batches: list[list[Window]] = []
        for pool in self._pools(windows):
            batches += self._fill(sorted(pool, key=lambda w: w.size))
        return [batches[i] for i in rng.permutation(len(batches))]

    def _pools(self, windows: Sequence[Window]) -> Iterator[list[Window]]:
        pool: list[Window] = []
        size = 0
        for window in windows:
            pool.append(window)
            size += window.size
            if size >= _POOL * self._most:
                yield pool
                pool, size = [], 0
        if pool:
            yield pool

    def _fill(self, windows: Sequence[Window]) -> list[list[Window]]:
        """Windows by length into batches as full as the limit lets them be."""
        batches: list[list[Window]] = []
        for window in windows:
            if batches and window.size * (len(batches[-1]) + 1) <= self._most:
                batches[-1].append(window)
            else:
                batches.append([window])
        return batches

    def batch(self, windows: Sequence[Window], device: torch.device | str = "cpu") -> Batch:
        n = max(window.size for window in windows)
        tokens = torch.zeros(len(windows), n, dtype=torch.int64)
        answer = torch.zeros(len(windows), n, dtype=torch.bool)
        hidden: dict[int, torch.Tensor] = {}
        for b, window in enumerate(windows):
            found = self._shards.document(window.document, self._taps, window.begin, window.end)
            tokens[b, : window.size] = found.tokens
            answer[b, window.label - window.begin : window.size] = True
            for tap, values in found.hidden.items():
                if tap not in hidden:
                    hidden[tap] = torch.zeros(len(windows), n, values.shape[1])
                hidden[tap][b, : window.size] = values  # half to float
        length = torch.tensor([window.size for window in windows])
        moved = {tap: values.to(device) for tap, values in hidden.items()}
        return Batch(tokens.to(device), answer.to(device), moved, length.to(device))
