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

    __slots__ = ("_offset", "counts", "ids", "n", "place")

    def __init__(self, prompt: Sequence[int]) -> None:
        distinct = list(dict.fromkeys(prompt))
        self.n = len(distinct)
        self.ids = np.zeros(2 * self.n + 64, np.int64)
        self.ids[: self.n] = distinct
        self.counts = np.zeros(2 * self.n + 64)
        self.place = {token: i for i, token in enumerate(distinct)}
        self._offset: Array | None = None

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
        self._offset = None

    def copy(self) -> _Seen:
        other = _Seen(())
        other.n, other.ids, other.counts, other.place = self.n, self.ids.copy(), self.counts.copy(), dict(self.place)
        return other

    def count(self, token: int) -> float:
        """Occurrences in the output."""
        at = self.place.get(token)
        return 0.0 if at is None else float(self.counts[at])

    def offset(self, presence: float, frequency: float) -> Array:
        """What is subtracted from each token's logit [n]; the same for all nodes of a pass."""
        if self._offset is None:
            counts = self.counts[: self.n]
            self._offset = presence * (counts > 0) + frequency * counts
        return self._offset


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
        seen, extra = self._seen, self._extra or ()
        repetition, presence, frequency = self._factors
        # tokens of the fork's own path, from the logits as they come
        fresh = {token: float(logits[token]) for token in extra}
        ids = seen.ids[: seen.n]
        x = logits[ids]
        if repetition != 1.0:
            x *= np.where(x > 0, x.dtype.type(1.0 / repetition), x.dtype.type(repetition))
        if presence or frequency:
            x -= seen.offset(presence, frequency).astype(x.dtype)
        logits[ids] = x
        for token, value in fresh.items():
            if repetition != 1.0:
                value = float(logits.dtype.type(value) * logits.dtype.type(1.0 / repetition if value > 0 else repetition))
            if presence or frequency:
                offset = presence + frequency * (seen.count(token) + extra.count(token))
                value = float(logits.dtype.type(value) - logits.dtype.type(offset))
            logits[token] = value

    def advance(self, token: int) -> None:
        if self._extra is None:
            self._seen.add(token)
        else:
            self._extra.append(token)

    def fork(self) -> Penalties:
        return Penalties((), *self._factors, _of=self)

    def moved(self) -> Penalties:
        """For another row, which goes on by itself: it does not see what this one says from here on."""
        made = Penalties((), *self._factors)
        made._seen = self._seen.copy()
        for token in self._extra or ():
            made._seen.add(token)
        return made
