"""Log-probabilities of output and prompt tokens.

Two laws are told. ``logprob``: the model's own, softmax of its logits at temperature 1, before any option. ``asked``: the one
that the token was taken from, after penalties, biases, masks, temperature and filters; where decoding is greedy, after all
of these but temperature and filters, at temperature 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .law import log_total
from .laws import Laws

Array = np.ndarray[Any, Any]
Top = tuple[tuple[int, float], ...]
_NEAR = 8.0
"""The most probable tokens are looked for this near to the best logit first."""


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
    model, asked = laws.model(node), laws.asked(node)
    own = _of(model, token, most)
    shaped = own if asked is model else _of(asked, token, most)
    return Logprob(token, own[0], shaped[0], own[1], shaped[1])


def _of(logits: Array, token: int, most: int) -> tuple[float, Top]:
    total = log_total(logits)
    if not most:
        return float(logits[token]) - total, ()
    near = np.flatnonzero(logits > logits.max() - _NEAR)
    if len(near) < most:
        near = np.flatnonzero(logits > -np.inf)
    own = logits[near]
    if len(near) > most:  # all that tie with the last one listed, so that the smallest ids win
        near = near[own >= np.partition(own, len(own) - most)[len(own) - most]]
    best = near[np.lexsort((near, -logits[near]))][:most]
    return float(logits[token]) - total, tuple((int(i), float(logits[i]) - total) for i in best)
