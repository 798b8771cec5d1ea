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
"""Logits this far below the best rarely belong to the most probable ones: looked at in a second try."""
_COLD = 1e-3


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
    ids, weights = support(logits, shape)
    weights = weights / weights.sum()
    if ids is None:
        return np.asarray(weights)
    p = np.zeros_like(logits)
    p[ids] = weights
    return p


def support(logits: Row, shape: Shape) -> tuple[Row | None, Row]:
    """The tokens that the law of one row gives a chance, ascending (``None``: all), and their weights (after filters, their sum
    is below 1).

    Between two passes an operation on a whole row costs 10 to 30 microseconds, so a filtered law is made of few of them.
    """
    if shape.temperature == 0.0:
        return np.array([int(logits.argmax())]), np.ones(1, logits.dtype)
    ids: Row | None = None
    x = logits
    if 0 < shape.top_k < logits.shape[0]:
        ids = _best(logits, shape.top_k, shape.temperature)
        x = logits[ids]
    if shape.temperature != 1.0:
        if shape.temperature < _COLD:  # shifted first, so that no temperature, however small, makes the largest logit infinite
            x = x - x.max()
        x = x * x.dtype.type(1.0 / max(shape.temperature, 1e-30))
    weights: Row = torch.softmax(torch.from_numpy(x), -1).numpy()
    if shape.top_p < 1.0:
        ids, weights = _nucleus(ids, weights, shape.top_p)
    if shape.min_p > 0.0:
        ids, weights = _kept(ids, weights, shape.min_p * weights.max())
    if shape.typical_p < 1.0:
        ids, weights = _typical(ids, weights, shape.typical_p)
    return ids, weights


def log_total(logits: Row) -> float:
    """log of the sum of exp(``logits``) [V]: what a logit exceeds its log-probability by."""
    most = logits.max()
    return float(most) + float(np.log(np.exp(logits - most).sum()))


class Best:
    """The argmax at each node of a tree: where numpy can read the logits, computed when a verifier asks for it."""

    __slots__ = ("_all", "_rows")

    def __init__(self, logits: Tensor) -> None:
        self._rows: Row | None = None
        self._all: list[int] = []
        if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
            # numpy's argmax is ten times as fast as torch's on one row of a large vocabulary
            self._rows = logits.detach().numpy()
        else:
            # another device answers once for all nodes: each question costs more than the answer. Its argmax may take any of
            # equal logits, and another one for another number of nodes; the smallest index is always the same
            places = torch.arange(logits.shape[-1], device=logits.device)
            best = logits == logits.amax(-1, keepdim=True)
            self._all = torch.where(best, places, logits.shape[-1] - 1).amin(-1).tolist()

    def __getitem__(self, node: int) -> int:
        return self._all[node] if self._rows is None else int(self._rows[node].argmax())


def _best(logits: Row, k: int, temperature: float) -> Row:
    """The tokens whose logit is at least the k-th largest."""
    near = np.flatnonzero(logits > logits.max() - _NEAR * max(temperature, 1.0))
    if len(near) < k:
        near = np.flatnonzero(logits > -np.inf)
    if len(near) <= k:
        return near
    own = logits[near]
    return np.asarray(near[own >= np.partition(own, len(own) - k)[len(own) - k]])


def _kept(ids: Row | None, weights: Row, least: Any) -> tuple[Row, Row]:
    """The tokens whose weight is at least ``least`` and not 0."""
    kept = np.flatnonzero(weights >= (least if least > 0 else np.nextafter(weights.dtype.type(0), weights.dtype.type(1))))
    return kept if ids is None else ids[kept], weights[kept]


def _nucleus(ids: Row | None, weights: Row, top_p: float) -> tuple[Row, Row]:
    """The smallest set of heaviest tokens whose share reaches ``top_p`` (Holtzman et al., 2020); ``weights`` sum to 1."""
    for least in (1e-4, 0.0):
        near = np.flatnonzero(weights > least)
        own = weights[near]
        if least == 0.0 or float(own.sum()) > top_p:
            break
    heaviest = np.sort(own)[::-1]
    last = int(np.searchsorted(heaviest.cumsum(dtype=np.float64), top_p))
    kept = own >= heaviest[min(last, len(own) - 1)]
    near = near[kept]
    return near if ids is None else ids[near], own[kept]


def _typical(ids: Row | None, weights: Row, mass: float) -> tuple[Row, Row]:
    """Locally typical sampling (Meister et al., 2022, section 4): the tokens whose information is nearest to the entropy."""
    ids, weights = _kept(ids, weights, 0.0)
    p = weights.astype(np.float64)
    p /= p.sum()
    information = -np.log(p)
    distance = np.abs(information - float((p * information).sum()))
    order = np.argsort(distance, kind="stable")
    last = int(np.searchsorted(p[order].cumsum(), mass))
    kept = np.flatnonzero(distance <= distance[order[min(last, order.shape[0] - 1)]])
    return ids[kept], weights[kept]
