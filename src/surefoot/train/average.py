"""A moving average of a module's weights: steadier than the weights of any one step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """``state`` holds the averaged weights by name; early on they follow faster than ``decay`` says."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._module, self._decay = module, decay
        self.state: dict[str, Tensor] = {name: w.detach().clone() for name, w in module.named_parameters()}

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """After step number ``steps``, counted from 1."""
        share = 1 - min(self._decay, (1 + steps) / (10 + steps))
        for name, weight in self._module.named_parameters():
            self.state[name].lerp_(weight.detach(), share)

    @contextmanager
    def used(self) -> Iterator[None]:
        """The module has the averaged weights inside, and its own ones again behind."""
        own = {name: w.detach().clone() for name, w in self._module.named_parameters()}
        self._put(self.state)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, state: dict[str, Tensor]) -> None:
        for name, weight in self._module.named_parameters():
            weight.copy_(state[name])
