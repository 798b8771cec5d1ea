"""A transformers model whose linear layers multiply in 8-bit integers: the target as its own, faster draft.

Weights are rounded once, each output row with a scale of its own, activations in each pass, each token with its own
(symmetric, to nearest). The sums are exact integers. Embeddings, norms and attention stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..errors import BadRequest, Unsupported
from .torch import TorchModel
from .torch_load import from_pretrained

CAPACITY = 16384
_MOST = 127.0
_LEAST_ROWS, _STEP = 32, 8
"""Other devices than CPUs multiply integers in blocks: least rows, and what all sizes must be multiples of."""


class Int8Linear(nn.Module):
    """``weight`` [O, I] and ``bias`` [O] of a linear layer, the weight as int8 and one scale a row."""

    numbers: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        wide = weight.detach().float()
        scale = wide.abs().amax(1) / _MOST
        scale[scale == 0.0] = 1.0
        self.register_buffer("numbers", (wide / scale[:, None]).round_().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.out_features, self.in_features = weight.shape
        self._dtype = weight.dtype

    @property
    def weight(self) -> Tensor:
        """The rounded weight [O, I], for models that look at it."""
        return (self.numbers * self.scale[:, None]).to(self._dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        rows = x.reshape(-1, self.in_features).float()
        scale = rows.abs().amax(1, keepdim=True).clamp_min_(1e-30) / _MOST
        sums = self._product((rows / scale).round_().to(torch.int8))
        out = sums.float().mul_(scale).mul_(self.scale).to(x.dtype)
        if self.bias is not None:
            out += self.bias
        return out.reshape(*x.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        """Exact sums [M, O] of int8 [M, I]."""
        if rows.device.type == "cpu":
            return torch._int_mm(rows, self.numbers.t())
        if self.in_features % _STEP or self.out_features % _STEP:
            return rows.double() @ self.numbers.t().double()
        count = len(rows)
        room = max(_LEAST_ROWS, -(-count // _STEP) * _STEP)
        return torch._int_mm(nn.functional.pad(rows, (0, 0, 0, room - count)), self.numbers.t())[:count]


def quantize(model: nn.Module) -> int:
    """Replace the linear layers of ``model`` in place; returns how many there were."""
    count = 0
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                new = Int8Linear(layer.weight, layer.bias)
            elif type(layer) is Conv1D:
                new = Int8Linear(layer.weight.t(), layer.bias)
            else:
                continue
            setattr(parent, name, new)
            count += 1
    return count


def quantized_model(
    path: str,
    *,
    bits: int = 8,
    device: str = "auto",
    dtype: str = "auto",
    attention: str | None = None,
    capacity_tokens: int | None = CAPACITY,
    **options: Any,
) -> TorchModel:
    """A second copy of the model at ``path``, with a cache of its own. ``options`` as for :class:`TorchModel`."""
    if bits != 8:
        raise BadRequest(f"the torch backend quantizes to 8 bits, not {bits}; leave bits out, or use backend='openvino'")
    model = from_pretrained(path, device, dtype, attention)
    if not quantize(model):
        raise Unsupported(f"'{path}' has no plain linear layers, so its weights are quantized already; choose another drafter")
    return TorchModel(model, **{"capacity_tokens": capacity_tokens, "name": f"{path}, {bits} bits", **options})
