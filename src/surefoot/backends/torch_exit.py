"""A forward pass over some layers of a transformers model: it goes on from a given stream, or ends behind a layer.

Layers in front are switched off (the first returns the stream, the others what they are given); a pass that is to end early
is left by an exception of our own. Both are undone when the pass is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..core.protocols import Need
from ..core.tree import DraftTree, Forest
from ..errors import Unsupported
from .progress import Progress, Work, as_cuts
from .torch_batch import Batch


class _Over(Exception):
    """The pass has reached its last layer."""


class Part:
    """Context manager around a forward pass: the layers behind ``start``, up to ``stop`` (None: all).

    ``stream`` [B, W, H] is what layer ``start`` gave, if that is not 0; :attr:`reached` what layer ``stop`` gave.
    """

    def __init__(self, blocks: nn.ModuleList, tuples: bool, start: int, stream: Tensor | None, stop: int | None) -> None:
        self._blocks, self._tuples = blocks, tuples
        self._start, self._stream, self._stop = start, stream, stop
        self._before: list[tuple[nn.Module, Any]] = []
        self._handle: RemovableHandle | None = None
        self.reached: Tensor | None = None

    def __enter__(self) -> Part:
        for layer in range(self._start):
            block = self._blocks[layer]
            self._before.append((block, block.__dict__.get("forward")))
            block.forward = self._first if layer == 0 else self._passed
        if self._stop is not None:
            self._handle = self._blocks[self._stop - 1].register_forward_hook(self._reach)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        for block, before in self._before:
            if before is None:
                del block.forward
            else:
                block.forward = before
        self._before = []
        if self._handle is not None:
            self._handle.remove()
        return isinstance(error, _Over)

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        return (self._stream,) if self._tuples else self._stream

    def _passed(self, *args: Any, **kwargs: Any) -> Any:
        stream = args[0] if args else kwargs["hidden_states"]
        return (stream,) if self._tuples else stream

    def _reach(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.reached = output if isinstance(output, Tensor) else output[0]
        raise _Over


@torch.no_grad()
def gives_tuples(model: Any, blocks: nn.ModuleList) -> bool:
    """Whether the layers return tuples rather than tensors."""
    found: list[bool] = []
    handle = blocks[0].register_forward_hook(lambda module, args, output: found.append(isinstance(output, tuple)))
    try:
        model(input_ids=torch.tensor([[1, 2]], device=model.device), use_cache=False)
    finally:
        handle.remove()
    return found[0]


class Sections:
    """Passes by section, and how far provisional tokens have come through them.

    ``lay_out(slots, forest, ahead)``: the batch of a pass. ``forward(batch, columns, part)``: the pass.
    """

    def __init__(
        self,
        model: Any,
        blocks: nn.ModuleList | None,
        cut: int | Sequence[int] | None,
        lay_out: Callable[[list[Any], Forest, Sequence[int]], Batch],
        forward: Callable[[Batch, np.ndarray, Part | None], Tensor],
    ) -> None:
        cuts = as_cuts(cut)
        kind = model.config.model_type
        if cuts and blocks is None:
            raise Unsupported(f"the layers of '{kind}' were not found, so it cannot be cut for early exit")
        if cuts and blocks is not None and not 0 < cuts[0] <= cuts[-1] < len(blocks):
            raise Unsupported(f"cannot cut after layers {list(cuts)}; choose from 1..{len(blocks) - 1}")
        self.progress = Progress(cuts)
        self._blocks = blocks or nn.ModuleList()
        self._tuples = bool(cuts) and gives_tuples(model, self._blocks)
        self._lay_out, self._forward = lay_out, forward

    def prefix(self, slots: list[Any], chains: Sequence[Sequence[int]], layer: int, counts: Sequence[int] | None) -> Tensor:
        section = self.progress.section(layer)
        for slot in slots:
            slot.pending = None
        self.progress.advance(slots, chains, section + 1, self._advance)
        return self.progress.at(slots, chains, section, counts).float()

    def early(self, slots: list[Any], forest: Forest, need: Need) -> dict[int, Tensor]:
        """By cut, the streams [n, H] of the nodes that are not padding, where drafters ran some of them; else nothing."""
        progress, cuts = self.progress, self.progress.cuts
        told = bool(cuts) and all(layer in cuts or layer > cuts[-1] for layer in need.hidden)
        if not told or not all(forest.linear) or not any(progress.ahead(slot) for slot in slots):
            progress.forget(slots)
            return {}
        tokens = forest.tokens.tolist()
        chains = [tokens[lo : lo + n] for lo, n in zip(forest.begins, forest.sizes, strict=False)]
        progress.advance(slots, chains, len(cuts), self._advance)
        rows = list(zip(slots, forest.sizes, strict=True))
        return {layer: torch.cat([progress.outputs(s, i)[0][:n] for s, n in rows]) for i, layer in enumerate(cuts)}

    def resume(self, batch: Batch, forest: Forest, early: dict[int, Tensor]) -> tuple[dict[int, Tensor], Part | None]:
        """Streams [B, W, H] at the cuts, and the part of the model that is left to run; None: all of it."""
        if not early:
            return {}, None
        streams = {layer: _laid(batch, _real(forest), x) for layer, x in early.items()}
        start = self.progress.cuts[-1]
        return streams, Part(self._blocks, self._tuples, start, streams[start], None)

    def _advance(self, section: int, works: Sequence[Work]) -> list[Tensor]:
        cuts = self.progress.cuts
        forest = Forest.pack([DraftTree.chain(work.tokens) for work in works])
        batch = self._lay_out([work.slot for work in works], forest, [work.ahead for work in works])
        streams = [work.stream for work in works if work.stream is not None]
        stream = _laid(batch, np.arange(forest.nodes), torch.cat(streams)) if streams else None
        part = Part(self._blocks, self._tuples, cuts[section - 1] if section else 0, stream, cuts[section])
        self._forward(batch, np.arange(1), part)
        assert part.reached is not None
        rows, columns = (torch.from_numpy(x).to(part.reached.device) for x in (batch.row, batch.column))
        return [part.reached[rows, columns]]


def _laid(batch: Batch, nodes: np.ndarray, stream: Tensor) -> Tensor:
    """Streams [n, H] of these nodes of the forest -> [B, W, H]; zeros elsewhere, which is padding."""
    out = stream.new_zeros(*batch.ids.shape, stream.shape[-1])
    rows, columns = (torch.from_numpy(x[nodes]).to(stream.device) for x in (batch.row, batch.column))
    out[rows, columns] = stream
    return out


def _real(forest: Forest) -> np.ndarray:
    """Packed indices of the nodes that are not padding."""
    return np.concatenate([np.arange(lo, lo + n) for lo, n in zip(forest.begins, forest.sizes, strict=False)])
