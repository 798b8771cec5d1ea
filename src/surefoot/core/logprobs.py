"""Log-probabilities of output and prompt tokens.

Two laws are told. ``logprob``: the model's own, softmax of its logits at temperature 1, before any option. ``asked``: the one
that the token was taken from, after penalties, biases, masks, temperature and filters; where decoding is greedy, after all
of these but temperature and filters, at temperature 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .laws import Laws

Array = np.ndarray[Any, Any]
Top = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token. ``top``, ``top_asked``: (token, log-probability) of the most probable ones, best first."""

    token: int
    logprob: float
    asked: float
    top: Top = ()
    top_asked: Top = ()


def logprob(laws: Laws, node: int, token: int, most: int) -> Logprob:
    """Of ``token`` after ``node``; ``most``: how many of the most probable tokens to list."""
    model, asked = laws.log_model(node), laws.log_asked(node)
    return Logprob(token, float(model[token]), float(asked[token]), _top(model, most), _top(asked, most))


def _top(logs: Array, most: int) -> Top:
    if not most:
        return ()
    most = min(most, logs.shape[0])
    ids = np.argpartition(-logs, most - 1)[:most]
    ids = ids[np.lexsort((ids, -logs[ids]))]
    return tuple((int(i), float(logs[i])) for i in ids if logs[i] > -np.inf)
