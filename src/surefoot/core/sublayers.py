"""Which sublayers (attention, MLP) of a target its own draft leaves out, and what a backend offers to choose them.

Layers count from 0. The first and the last layer always run: they read the embeddings and feed the head, and a draft
without either hardly agrees with its target.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from ..errors import BadRequest
from .protocols import TargetModel

ATTENTION = "attn"
MLP = "mlp"
Sublayer = tuple[str, int]
"""Kind (``attn`` or ``mlp``) and layer."""
Step = tuple[Sublayer, ...]
"""Sublayers that are skipped or run together: one, or both of a layer that computes them side by side."""

_ITEM = re.compile(r"(attn|mlp):(\d+)(?:-(\d+))?\Z")


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Layers whose attention, and layers whose MLP, are left out; each ascending, without repeats."""

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()

    @staticmethod
    def of(sublayers: Sequence[Sublayer]) -> SkipSet:
        kinds = [tuple(sorted({layer for kind, layer in sublayers if kind == each})) for each in (ATTENTION, MLP)]
        return SkipSet(kinds[0], kinds[1])

    @staticmethod
    def parse(text: str) -> SkipSet:
        """``attn:3,mlp:5-8``: items divided by commas, slashes, semicolons or spaces."""
        found: list[Sublayer] = []
        for item in filter(None, re.split(r"[,/;\s]+", str(text).strip())):
            match = _ITEM.match(item)
            if match is None or (match[3] and int(match[3]) < int(match[2])):
                raise BadRequest(f"skips: {item!r} names no sublayers; write them as attn:3,mlp:5-8")
            found += [(match[1], layer) for layer in range(int(match[2]), int(match[3] or match[2]) + 1)]
        if not found:
            raise BadRequest(f"skips={text!r} names no sublayer; write them as attn:3,mlp:5-8")
        return SkipSet.of(found)

    def __str__(self) -> str:
        return ",".join(f"{kind}:{layer}" for kind, layer in self.sublayers)

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return (*((ATTENTION, layer) for layer in self.attention), *((MLP, layer) for layer in self.mlp))

    def check(self, layers: int) -> None:
        """Refuse layers that the model lacks, or that have to run."""
        for kind, layer in self.sublayers:
            if not 0 < layer < layers - 1:
                raise BadRequest(f"skips: {kind}:{layer} cannot be left out; name layers 1 to {layers - 2} of {layers}")


def skippable(layers: int) -> tuple[Sublayer, ...]:
    """Sublayers that may be left out, in the order in which they run."""
    return tuple((kind, layer) for layer in range(1, layers - 1) for kind in (ATTENTION, MLP))


@dataclass(frozen=True, slots=True)
class Sample:
    """A text of the target's own: ``tokens[start:]`` is its greedy continuation of ``tokens[:start]``."""

    tokens: tuple[int, ...]
    start: int

    @property
    def read(self) -> tuple[int, ...]:
        """The tokens that a pass reads: all but the last, whose successor nobody knows."""
        return self.tokens[:-1]


class Trial(Protocol):
    """Scores skip sets on samples, each a teacher-forced pass without draft or cache."""

    @property
    def layers(self) -> int: ...

    def best(self, samples: Sequence[Sample], skips: SkipSet) -> list[int]:
        """With these sublayers left out, the argmax at each place of each continuation, in one list."""
        ...

    def steps(self) -> tuple[Step, ...]:
        """The sublayers of all layers in the order in which they run."""
        ...

    def embed(self, samples: Sequence[Sample]) -> Tensor:
        """[M, H] residual stream that enters the first layer, at every token that the samples read."""
        ...

    def run(self, step: int, samples: Sequence[Sample], streams: Tensor) -> Tensor:
        """[J, M, H] -> [J, M, H]: one step over J alternatives for the residual stream of the samples."""
        ...


@runtime_checkable
class Skippable(TargetModel, Protocol):
    """A target that can draft for itself with sublayers left out."""

    def without(self, skips: SkipSet, *, kv_tokens: int | None = None) -> TargetModel:
        """The model without these sublayers, on the same weights, with a cache of its own."""
        ...

    def trial(self) -> Trial: ...
