"""The places of a batch from which a chain is drafted, for heads that read one activation and no context.

A root is a token t: the head reads the target's activation at t, token t + 1 is pending, and the head's word number k (from 0)
is for token t + 2 + k, whose law the target gives at t + 1 + k. Padding and prompts are never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..recipe import Batch, Shape


@dataclass(frozen=True, slots=True)
class Chains:
    """n roots and m label rows, as places in the flattened batch [B * T].

    roots   [n]: token t
    labels  [m]: token whose activation gives a law that is a label
    places  K of [m]: which root's word number k has this label; -1: none
    """

    roots: Tensor
    labels: Tensor
    places: tuple[Tensor, ...]


def chains(batch: Batch, depth: int) -> Chains:
    """A root where token t + 2 is the target's own."""
    width = batch.tokens.shape[1]
    flat = batch.answer.flatten()
    at = torch.arange(flat.numel(), device=flat.device)
    column = at % width
    # a label row j: the token behind it is to be learned, and a root before it is in the window
    labels = at[torch.cat([flat[1:], flat.new_zeros(1)]) & (column < width - 1) & (column > 0)]
    roots = labels - 1
    number = torch.full_like(at, -1)
    number[roots] = torch.arange(len(roots), device=flat.device)
    places = []
    for k in range(depth):
        root = labels - 1 - k
        found = number[root.clamp(min=0)]
        places.append(torch.where(labels % width > k, found, torch.full_like(found, -1)))
    return Chains(roots, labels, tuple(places))


def right(batch: Batch, shape: Shape, roots: Tensor, words: Sequence[Callable[[Tensor], Tensor]]) -> list[tuple[int, int]]:
    """Hits and places by word. ``words[k]``: rows of the roots [a] -> the head's logits [a, Vd] of word k there.

    Word k counts where the words before it were right and token t + 2 + k is the target's own.
    """
    width = batch.tokens.shape[1]
    tokens, own = batch.tokens.flatten(), batch.answer.flatten()
    ids = shape.draft_ids.to(tokens.device)
    alive = torch.arange(len(roots), device=tokens.device)
    found = []
    for k, word in enumerate(words):
        alive = alive[roots[alive] % width + 2 + k < width]
        alive = alive[own[roots[alive] + 2 + k]]
        said = torch.cat([ids[word(part).argmax(-1)] for part in alive.split(1024)]) if len(alive) else alive
        hit = said == tokens[roots[alive] + 2 + k]
        found.append((int(hit.sum()), len(alive)))
        alive = alive[hit]
    return found


def along(batch: Batch, own: Tensor, said: Tensor, words: int) -> list[tuple[int, int]]:
    """Hits and places by draft position, of heads that read the text: behind true tokens they say what they would draft.

    own   [B, T - 1] bool: places whose next token is the target's own
    said  [n] int64: the head's most likely token at each of these
    """
    hit = torch.zeros_like(own)
    hit[own] = said == batch.tokens[:, 1:][own]
    found, alive = [], own
    for k in range(words):
        alive = alive[:, : max(own.shape[1] - k, 0)] & own[:, k:]
        hits = alive & hit[:, k:]
        found.append((int(hits.sum()), int(alive.sum())))
        alive = hits
    return found
