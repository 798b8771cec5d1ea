"""Residual streams of one pass, read by hooks: l = after layer l, 0 = what enters the first, L + 1 = what the head reads.

Hooks rather than ``output_hidden_states``: its last entry is already normalized, and it keeps every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class Taps:
    """Context manager around a forward pass; ``streams[l]`` is [B, W, H] afterwards. ``decoder``: all but the head."""

    def __init__(self, blocks: nn.ModuleList | None, decoder: nn.Module | None, layers: Sequence[int]) -> None:
        self.blocks = blocks
        self.decoder = decoder
        self.layers = layers
        self.streams: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Taps:
        if self.blocks is not None:
            for layer in self.layers:
                if layer == 0:
                    handle = self.blocks[0].register_forward_pre_hook(self._enters, with_kwargs=True)
                elif layer <= len(self.blocks):
                    handle = self.blocks[layer - 1].register_forward_hook(self._leaves(layer))
                else:
                    assert self.decoder is not None
                    handle = self.decoder.register_forward_hook(self._leaves(layer))
                self._handles.append(handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()

    def _enters(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.streams[0] = args[0] if args else kwargs["hidden_states"]

    def _leaves(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.streams[layer] = output if isinstance(output, Tensor) else output[0]

        return hook
