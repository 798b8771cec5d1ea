"""Trying skip sets: one graph whose sublayers are scaled by gates, so that a set is tried without compiling anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.sublayers import Sample, SkipSet, Step
from ...core.tree import DraftTree, Forest
from . import graph
from .branches import Lines
from .caches import make_pool
from .cut import HIDDEN
from .hardware import shared_core
from .passes import arrays
from .pool import Slot
from .runner import Runner
from .skip import GATES, gate, segments


class OpenVINOTrial:
    """A :class:`~surefoot.core.sublayers.Trial`. Every pass starts from an empty cache."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._folder, self._options = folder, options
        model, structure = gate(*self._load())
        graph.gather_rows(model, structure)
        graph.tap(model, structure, (0,), False)
        self._layers = len(structure.attention)
        self._runner = Runner(shared_core(), model, options)
        self._steps: tuple[Step, ...] = ()
        self._parts: list[Any] = []

    @property
    def layers(self) -> int:
        return self._layers

    def best(self, samples: Sequence[Sample], skips: SkipSet) -> list[int]:
        logits, _ = self._gated(samples, skips)
        best: list[int] = logits.argmax(-1).tolist()
        return best

    def steps(self) -> tuple[Step, ...]:
        if not self._parts:
            steps, self._parts = segments(*self._load())
            self._steps = tuple(steps)
        return self._steps

    def embed(self, samples: Sequence[Sample]) -> Tensor:
        return self._gated(samples, SkipSet())[1].clone()

    def run(self, step: int, samples: Sequence[Sample], streams: Tensor) -> Tensor:
        self.steps()
        runner = Runner(shared_core(), self._parts[step], self._options)
        chains = [sample.read for sample in samples] * len(streams)
        forest = Forest.pack([DraftTree.chain(chain) for chain in chains])
        flat = streams.to(torch.float32).reshape(-1, 1, streams.shape[-1]).contiguous().numpy()
        return _pass(runner, forest, {HIDDEN: flat}, lambda rows: [forest.nodes])[0].reshape(streams.shape).clone()

    def _gated(self, samples: Sequence[Sample], skips: SkipSet) -> tuple[Tensor, Tensor]:
        """Logits [R, V] at the places of the continuations, and embeddings [M, H]."""
        skips.check(self._layers)
        forest = Forest.pack(
            [DraftTree.chain(s.read[s.start - 1 :]) for s in samples],
            [s.tokens[: s.start - 1] for s in samples],
        )
        gates = np.ones((self._layers, 2), np.float32)
        gates[list(skips.attention), 0] = gates[list(skips.mlp), 1] = 0
        out = _pass(self._runner, forest, {GATES: gates.reshape(-1)}, lambda rows: [rows, forest.nodes])
        return out[0][: len(forest.scored())], out[1]

    def _load(self) -> tuple[Any, Any]:
        model, structure = graph.load(shared_core(), self._folder)
        graph.slide(model, structure, graph.facts(self._folder).windows)
        return model, structure


def _pass(runner: Runner, forest: Forest, more: Mapping[str, np.ndarray], rows: Callable[[int], list[int]]) -> list[Tensor]:
    """One pass from an empty cache of its own; ``rows(scored)`` gives the rows of each output."""
    widths = [hi - lo for lo, hi in pairwise(forest.begins)]
    slots, block, caches = [Slot() for _ in widths], 1, runner.caches()
    if caches:
        block = next(iter(caches.values()))[0][1]
        pool = make_pool((runner,), sum(-(-w // block) * block for w in widths))
        pool.reserve(slots, widths)
    inputs, scored = arrays(Lines(slots, None, None, forest.begins), forest, block, masked=False)
    return runner.run({**inputs, **more}, rows(scored))
