"""Repetition, presence and frequency penalties.

Repetition (Keskar et al., 2019, section 4.1): the logit of a token that prompt or output holds is divided by the penalty if
positive, else multiplied. Presence and frequency, as OpenAI defines them: subtracted for tokens of the output, once and per
occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class _Seen:
    """Distinct tokens in arrays that grow, with their counts in the output."""

    __slots__ = ("counts", "ids", "n", "place")

    def __init__(self, prompt: Sequence[int]) -> None:
        distinct = list(dict.fromkeys(prompt))
        self.n = len(distinct)
        self.ids = np.zeros(2 * self.n + 64, np.int64)
        self.ids[: self.n] = distinct
        self.counts = np.zeros(2 * self.n + 64)
        self.place = {token: i for i, token in enumerate(distinct)}

    def add(self, token: int) -> None:
        at = self.place.get(token)
        if at is None:
            if self.n == len(self.ids):
                self.ids = np.concatenate([self.ids, np.zeros_like(self.ids)])
                self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
            at = self.place[token] = self.n
            self.ids[at] = token
            self.n += 1
        self.counts[at] += 1


class Penalties:
    """All three. ``prompt`` counts for repetition only; a fork holds its few tokens beside the row's own."""

    mask = ""

    def __init__(
        self, prompt: Sequence[int], repetition: float, presence: float, frequency: float, *, _of: Penalties | None = None
    ) -> None:
        self._factors = (repetition, presence, frequency)
        self._seen: _Seen = _Seen(prompt if repetition != 1.0 else ()) if _of is None else _of._seen
        self._extra: list[int] | None = None if _of is None else list(_of._extra or ())

    def apply(self, logits: Array, tokens: Sequence[int]) -> None:
        seen = self._seen
        extra = self._extra or []
        ids, counts = seen.ids[: seen.n], seen.counts[: seen.n]
        if extra:
            counts = counts.copy()
            fresh: dict[int, int] = {}
            for token in extra:
                at = seen.place.get(token)
                if at is None:
                    fresh[token] = fresh.get(token, 0) + 1
                else:
                    counts[at] += 1
            if fresh:
                ids = np.concatenate([ids, np.fromiter(fresh, np.int64, len(fresh))])
                counts = np.concatenate([counts, np.fromiter(fresh.values(), np.float64, len(fresh))])
        repetition, presence, frequency = self._factors
        x = logits[ids].astype(np.float64)
        if repetition != 1.0:
            x = np.where(x > 0, x / repetition, x * repetition)
        if presence or frequency:
            x -= presence * (counts > 0) + frequency * counts
        logits[ids] = x

    def advance(self, token: int) -> None:
        if self._extra is None:
            self._seen.add(token)
        else:
            self._extra.append(token)

    def fork(self) -> Penalties:
        return Penalties((), *self._factors, _of=self)
