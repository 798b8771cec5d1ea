"""What some models and drafters can do beyond their protocols; asked for with ``isinstance``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .engine import Engine
    from .protocols import Slot
    from .request import Row


@runtime_checkable
class Follows(Protocol):
    """A model without a cache of its own: it reads what the passes of the real target showed of a row."""

    @property
    def depth(self) -> int:
        """Most tokens that it can say behind those of a request, drafted ones included."""
        ...

    def follow(self, slot: Slot, row: Row) -> bool:
        """Set the slot to the place in front of ``row.tokens[-1]``; False where the model has not seen what it needs there."""
        ...


@runtime_checkable
class Attaches(Protocol):
    """A drafter that has rows of its own run in the engine's passes."""

    def attach(self, engine: Engine) -> None:
        """Called once, by the engine that the drafter belongs to."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A drafter that keeps something beyond the process, or holds something that it can give back."""

    def close(self) -> None:
        """Put it away. The drafter stays usable."""
        ...
