"""From logits to the law that a request asks for.

The same function makes the target's ``p`` and every drafter's ``q``. Order: temperature, top-k, top-p, min-p (that of
Hugging Face's ``generate``). Every filter keeps all tokens that tie with its last one, so the law of a row depends on that
row's logits alone, never on a sort's choice or on neighbours.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_HEAD = 1024


class Shape(Protocol):
    """The options that shape a law; :class:`SamplingParams` has them."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...


def argmax(logits: Tensor) -> list[int]:
    """Index of the largest logit of each row of [R, V]; the smallest index wins a tie."""
    best = Best(logits)
    return [best[node] for node in range(logits.shape[0])]


def law(logits: Tensor, shape: Shape) -> Tensor:
    """Probabilities [R, V] of ``logits`` [R, V] under the request's temperature and filters.

    Temperature 0 gives a one-hot law. float64 stays float64, all else is computed in float32.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    if shape.temperature == 0.0:
        p = torch.zeros_like(logits)
        return p.scatter_(-1, torch.tensor(argmax(logits), device=logits.device).unsqueeze(-1), 1.0)
    vocab = logits.shape[-1]
    # shifted first, so that no temperature, however small, makes the largest logit infinite
    scaled = (logits - logits.amax(-1, keepdim=True)) / max(shape.temperature, 1e-30)
    if 0 < shape.top_k < vocab:
        kth = scaled.topk(shape.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, -torch.inf)
    p = scaled.softmax(-1)
    if shape.top_p < 1.0:
        p = torch.stack([_nucleus(row, shape.top_p) for row in p])
    if shape.min_p > 0.0:
        p = _normal(p.masked_fill(p < shape.min_p * p.amax(-1, keepdim=True), 0.0))
    return p


class Best:
    """The argmax at each node of a tree, computed when a verifier asks for it."""

    __slots__ = ("_rows",)

    def __init__(self, logits: Tensor) -> None:
        # numpy's argmax is ten times as fast as torch's on one row of a large vocabulary
        plain = logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64)
        self._rows = logits.detach().numpy() if plain else logits

    def __getitem__(self, node: int) -> int:
        return int(self._rows[node].argmax())


class Laws:
    """The law at each node of a tree, computed when a verifier asks for it; ``laws[node]`` is [V]."""

    __slots__ = ("_logits", "_shape")

    def __init__(self, logits: Tensor, shape: Shape) -> None:
        self._logits = logits
        self._shape = shape

    def __getitem__(self, node: int) -> Tensor:
        return law(self._logits[node : node + 1], self._shape)[0]


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Smallest set of most probable tokens whose mass reaches ``top_p`` (Holtzman et al., 2020); p [V]."""
    values = p.topk(min(_HEAD, p.shape[0])).values
    mass = values.cumsum(-1, dtype=torch.float64)
    if mass[-1] < top_p and values.shape[0] < p.shape[0]:
        values = p.sort(descending=True).values
        mass = values.cumsum(-1, dtype=torch.float64)
    last = int(torch.searchsorted(mass, torch.tensor(top_p, dtype=torch.float64, device=p.device)))
    return _normal(p.masked_fill(p < values[min(last, values.shape[0] - 1)], 0.0))


def _normal(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True)
