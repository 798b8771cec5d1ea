"""The reduced vocabulary of a head: the tokens that the target says most, so that a draft step need not weigh them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadRequest, VocabMismatch
from .shards import Shards


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``ids`` [Vd] int64, ascending ids of the target; ``coverage``: share of the answer tokens that they are."""

    ids: Tensor
    coverage: float


def choose_vocabulary(shards: Shards, size: int, vocab_size: int, special: Iterable[int] = ()) -> Vocabulary:
    """The ``size`` most frequent answer tokens, the lower id first where two are as frequent.

    ``special`` ids that occur anywhere, in prompts too, are always in: a head that cannot say the end never drafts it. Tokens
    that never occur are out, so there may be fewer than ``size``, unless ``size`` is the whole vocabulary.
    """
    if size < 1:
        raise BadRequest(f"the draft vocabulary must hold at least 1 token, not {size}")
    said, seen = torch.zeros(vocab_size, dtype=torch.int64), torch.zeros(vocab_size, dtype=torch.int64)
    for i in range(len(shards)):
        document = shards.document(i)
        tokens = document.tokens.long()
        if len(tokens) and int(tokens.max()) >= vocab_size:
            raise VocabMismatch(f"the captured text has token {int(tokens.max())}, the target only {vocab_size} tokens")
        seen += torch.bincount(tokens, minlength=vocab_size)
        said += torch.bincount(tokens[document.answer :], minlength=vocab_size)
    total = int(said.sum())
    if not total:
        raise BadRequest("the captured text has no answer tokens; capture some first")
    if size >= vocab_size:
        return Vocabulary(torch.arange(vocab_size), 1.0)
    always = sorted({i for i in special if 0 <= i < vocab_size and int(seen[i])})[:size]
    rank = said.clone()
    rank[always] = total + 1  # above all others
    best = torch.sort(rank, descending=True, stable=True).indices[:size]
    ids = best[rank[best] > 0].sort().values
    return Vocabulary(ids, int(said[ids].sum()) / total)
