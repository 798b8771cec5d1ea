"""What the training loop must know of a kind of head: how it is built, its loss, how often it is right, how it is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from ..core.protocols import Ends


@dataclass(frozen=True, slots=True)
class Batch:
    """Windows of captured text: B rows of T tokens, padded behind.

    tokens  [B, T] int64
    answer  [B, T] bool: the token is the target's own, so saying it is to be learned; False for prompts and padding
    hidden  tap -> [B, T, H] float32: the target's activations where it had read ``tokens[:, t]``
    length  [B] int64: tokens of the row that are no padding
    """

    tokens: Tensor
    answer: Tensor
    hidden: Mapping[int, Tensor]
    length: Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """The target as a recipe sees it. ``ends.head @ hidden[last]`` are its logits."""

    hidden_size: int
    n_layers: int
    vocab_size: int
    ends: Ends
    draft_ids: Tensor
    """[Vd] int64: the reduced vocabulary, ascending target ids."""
    name: str = ""
    folder: Path | None = None
    """The target's own files, for recipes that copy layers of it."""

    @property
    def last(self) -> int:
        return self.n_layers + 1


class Recipe(Protocol):
    """One kind of head. Options are the recipe's own constructor arguments."""

    @property
    def kind(self) -> str: ...

    def taps(self, n_layers: int) -> tuple[int, ...]:
        """Activations that the shards must hold; ``n_layers + 1``, from which the target's law is made, always."""
        ...

    def build(self, shape: Shape) -> nn.Module:
        """A new head; random numbers come from torch's global generator, which the loop seeds."""
        ...

    def loss(self, module: nn.Module, shape: Shape, batch: Batch) -> Tensor:
        """Scalar, a mean over the places that count."""
        ...

    def right(self, module: nn.Module, shape: Shape, batch: Batch) -> Sequence[tuple[int, int]]:
        """By draft position, of places where all earlier drafted tokens were right: (hits, places), hit meaning that the most
        likely token of the head is the one that the text goes on with."""
        ...

    def save(self, folder: Path, module: nn.Module, shape: Shape, facts: Mapping[str, Any]) -> None:
        """A folder that the drafter of this kind loads. ``facts`` go into the config under ``surefoot``."""
        ...
