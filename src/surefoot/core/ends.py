"""What trained heads need of a target: the tables at its two ends, and a way to leave it in the middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from .protocols import Slot


@dataclass(frozen=True, slots=True)
class Ends:
    """How a model reads tokens, and how it says them; of trained heads, which read and say with the same tables.

    embedding  [V, H] float32
    head       [V, H] float32; ``embedding`` itself where the two are tied
    bias       [V] of the head, or None
    norm       residual stream after the last layer [M, H] -> what the head reads [M, H]
    """

    embedding: Tensor
    head: Tensor
    bias: Tensor | None
    norm: Callable[[Tensor], Tensor]


@runtime_checkable
class Exits(Protocol):
    """A target that can stop a pass behind one of its layers, and go on from there when it verifies."""

    @property
    def cuts(self) -> tuple[int, ...]:
        """Layers behind which it can stop, rising; empty where it was loaded whole."""
        ...

    def prefix(
        self, slots: Sequence[Slot], chains: Sequence[Sequence[int]], layer: int, counts: Sequence[int] | None = None
    ) -> Tensor:
        """The stream [sum, H] float32 after ``layer``, one of ``cuts``, of the last ``counts[b]`` tokens of chain b; None: one.

        A chain are tokens behind the committed ones of its row, the pending one first; ``slots`` are different ones. Tokens
        with which an earlier chain since the last commit began as well are not run again: not here, not behind a deeper cut,
        not when chains are scored. Nothing is committed.
        """
        ...
