"""What a trained head offers to drafters: it steps from the target's own activations, token by token.

A lane follows each row: from the passes of the target it takes the activations (taps) that its head reads. Its ``root`` of a
row is the state in front of the row's last token, which is pending. ``step`` reads one token behind each state and says what
it believes comes next. States are values: stepping from one leaves it as it was, so drafts may branch.

A lane may read several tokens behind a state in one call (:class:`Reads`); :func:`read` does without, level by level.

:class:`~.head.HeadDrafter` drafts with a lane alone, :class:`~.head_source.HeadSource` lets ``hybrid`` ask it, and
:class:`~.lane_target.LaneTarget` makes it the middle of a cascade.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..core.protocols import Need, Scores, Verdict
from ..core.tree import Forest

if TYPE_CHECKING:
    from ..core.request import Row

Function = Callable[..., tuple[Tensor, ...]]
"""Takes and returns float32 or int64 tensors on one device. The results may be buffers that the next call overwrites."""


class Compile(Protocol):
    """Makes a module quick where it runs. The result computes what ``module.forward`` does, up to rounding."""

    def __call__(self, module: nn.Module, example: Sequence[Tensor], dynamic: Sequence[Sequence[int]] = ()) -> Function:
        """``example``: arguments of a call. ``dynamic[i]``: dimensions of argument i that vary between calls.

        ``module.forward`` returns a tensor or a tuple of tensors.
        """
        ...


class Lane(Protocol):
    """A trained head that follows rows. ``State`` is whatever the lane likes."""

    @property
    def needs(self) -> Need:
        """The taps that its head reads."""
        ...

    @property
    def draft_ids(self) -> Tensor | None:
        """[Vd] int64: the target's id of each token that the head can say; None: it says all V."""
        ...

    @property
    def depth(self) -> int:
        """Most tokens that it can look ahead."""
        ...

    def root(self, row: Row) -> Any | None:
        """The state in front of ``row.tokens[-1]``; None where the lane has not seen what it needs, or has no room."""
        ...

    def step(self, states: Sequence[Any], tokens: Sequence[int]) -> tuple[list[Any], Tensor]:
        """States behind these tokens, and logits [n, Vd] float32 of what comes next. ``states`` may be of several rows."""
        ...

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """As :meth:`surefoot.core.protocols.Drafter.observe`."""
        ...

    def forget(self, rows: Sequence[Row]) -> None: ...


@runtime_checkable
class Reads(Protocol):
    """A lane that reads several tokens behind each state in one call."""

    def read(self, states: Sequence[Any], chains: Sequence[Sequence[int]]) -> tuple[list[list[Any]], list[Tensor]]:
        """For each state, those behind each token of its chain (one or more), and logits [k, Vd] of what comes next."""
        ...


def read(lane: Lane, states: Sequence[Any], chains: Sequence[Sequence[int]]) -> tuple[list[list[Any]], list[Tensor]]:
    """As :meth:`Reads.read`, with any lane."""
    longest = max(map(len, chains), default=0)
    if longest > 1 and isinstance(lane, Reads):
        return lane.read(states, chains)
    now = list(states)
    after: list[list[Any]] = [[] for _ in chains]
    said: list[list[Tensor]] = [[] for _ in chains]
    for level in range(longest):
        going = [i for i, chain in enumerate(chains) if level < len(chain)]
        found, logits = lane.step([now[i] for i in going], [chains[i][level] for i in going])
        for i, state, line in zip(going, found, logits.split(1), strict=True):
            now[i] = state
            after[i].append(state)
            said[i].append(line)
    return after, [torch.cat(lines) for lines in said]
