"""From logits to the law that a request asks for.

The same function makes the target's ``p`` and every drafter's ``q``. Order: temperature, top-k, top-p, min-p, typical-p
(that of Hugging Face's ``generate``). Every filter keeps all tokens that tie with its last one, so the law of a row depends
on that row's logits alone, never on a sort's choice or on neighbours. What changes logits before this is
:mod:`surefoot.core.shaping`.

Computed row by row in numpy: between two passes (cold caches) that takes a fraction of the time of torch's operators.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Row = np.ndarray[Any, Any]
_NEAR = 16.0
"""Logits this far below the best, after the temperature, rarely belong to what a filter keeps: looked at in a second try."""


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
    @property
    def typical_p(self) -> float: ...


def argmax(logits: Tensor) -> list[int]:
    """Index of the largest logit of each row of [R, V]; the smallest index wins a tie."""
    best = Best(logits)
    return [best[node] for node in range(logits.shape[0])]


def law(logits: Tensor, shape: Shape) -> Tensor:
    """Probabilities [R, V] of ``logits`` [R, V] under the request's temperature and filters, on the device of ``logits``.

    Temperature 0 gives a one-hot law. float64 stays float64, all else is computed in float32.
    """
    rows = host(logits)
    out = np.empty_like(rows)
    for i, row in enumerate(rows):
        out[i] = row_law(row, shape)
    return torch.from_numpy(out).to(logits.device)


def host(logits: Tensor) -> Row:
    """The same numbers for numpy, as float32 or float64; shares memory where it can."""
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    found: Row = logits.detach().cpu().numpy()
    return found


def row_law(logits: Row, shape: Shape) -> Row:
    """Probabilities [V] of one row of logits [V]."""
    if shape.temperature == 0.0:
        p = np.zeros_like(logits)
        p[int(logits.argmax())] = 1.0
        return p
    # shifted first, so that no temperature, however small, makes the largest logit infinite
    scaled = logits - logits.max()
    scaled *= scaled.dtype.type(1.0 / max(shape.temperature, 1e-30))
    if 0 < shape.top_k < scaled.shape[0]:
        scaled[scaled < _kth(scaled, shape.top_k)] = -np.inf
    p = np.exp(scaled, out=scaled)
    if shape.top_p < 1.0:
        p[p < _nucleus(p, shape.top_p)] = 0.0
    if shape.min_p > 0.0:
        p[p < shape.min_p * p.max()] = 0.0
    p /= p.sum()
    return p if shape.typical_p >= 1.0 else _typical(p, shape.typical_p)


def log_law(logits: Row) -> Row:
    """log softmax [V] in float64; impossible tokens are -inf."""
    x = logits.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    return x


class Best:
    """The argmax at each node of a tree, computed when a verifier asks for it."""

    __slots__ = ("_rows",)

    def __init__(self, logits: Tensor) -> None:
        # numpy's argmax is ten times as fast as torch's on one row of a large vocabulary
        plain = logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64)
        self._rows = logits.detach().numpy() if plain else logits

    def __getitem__(self, node: int) -> int:
        return int(self._rows[node].argmax())


def _kth(scaled: Row, k: int) -> Any:
    """The k-th largest of ``scaled`` [V], whose largest is 0."""
    near = scaled[scaled > -_NEAR]
    if near.shape[0] < k:
        near = scaled
    return np.partition(near, near.shape[0] - k)[near.shape[0] - k]


def _nucleus(e: Row, top_p: float) -> Any:
    """Smallest weight of the smallest set of heaviest tokens whose share reaches ``top_p`` (Holtzman et al., 2020).

    ``e`` [V]: weights, the largest of them 1.
    """
    wanted = top_p * float(e.sum(dtype=np.float64))
    for least in (1e-2, 1e-4, 0.0):
        near = e[e > least]
        if least == 0.0 or float(near.sum(dtype=np.float64)) > wanted:
            break
    near = np.sort(near)[::-1]
    last = int(np.searchsorted(near.cumsum(dtype=np.float64), wanted))
    return near[min(last, near.shape[0] - 1)]


def _typical(p: Row, mass: float) -> Row:
    """Locally typical sampling (Meister et al., 2022, section 4): the tokens whose information is nearest to the entropy."""
    support = np.flatnonzero(p)
    own = p[support].astype(np.float64)
    information = -np.log(own)
    distance = np.abs(information - float((own * information).sum()))
    order = np.argsort(distance, kind="stable")
    last = int(np.searchsorted(own[order].cumsum(), mass))
    kept = support[distance <= distance[order[min(last, order.shape[0] - 1)]]]
    out = np.zeros_like(p)
    out[kept] = p[kept]
    out /= out.sum()
    return out
