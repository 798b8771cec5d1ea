"""Expected accepted length of one verification, exactly: all drafts and all acceptance tests are enumerated.

A world is a pair of random laws, p and q, for every path of drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from surefoot.core.noise import DRAFT, Enumerate
from surefoot.core.tree import DraftTree, children_of
from surefoot.core.verify import verify


class World:
    """``mix``: how much of p's logits q shares."""

    def __init__(self, vocab: int, seed: int, sharpness: float = 2.0, mix: float = 0.5) -> None:
        self.vocab, self.seed, self.sharpness, self.mix = vocab, seed, sharpness, mix
        self._known: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, path: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """(p, q) after a path."""
        if path not in self._known:
            rng = np.random.default_rng([self.seed, 99, *path])
            own, other = self.sharpness * rng.normal(size=(2, self.vocab))
            laws = [np.exp(x) / np.exp(x).sum() for x in (own, self.mix * own + (1 - self.mix) * other)]
            self._known[path] = torch.from_numpy(laws[0]), torch.from_numpy(laws[1])
        return self._known[path]


class _Lengths(Enumerate):
    """Which token the target adds does not change the length: no branches for it."""

    def categorical(self, weights, position, lane, turn=0, ids=None):
        return super().categorical(weights, position, lane, turn, ids) if lane == DRAFT else 0


def mean_length(world: World, parents: Sequence[int], rule: str, independent: bool = False) -> float:
    """Expected number of accepted tokens of a draft of this shape."""
    below = children_of(parents)
    inner = [node for node, children in enumerate(below) if children]
    chosen: list[int] = []
    total = 0.0
    while True:
        noise = _Lengths(chosen)
        tokens, paths = [0] * len(parents), [()] * len(parents)
        for node in inner:
            left = world(paths[node])[1]
            for child in below[node]:
                tokens[child] = noise.categorical(left, 0, DRAFT)
                paths[child] = (*paths[node], tokens[child])
                if not independent:
                    left = left.clone()
                    left[tokens[child]] = 0.0
        q = torch.stack([world(paths[node])[1] for node in inner])
        p = torch.stack([world(path)[0] for path in paths])
        made = DraftTree(
            torch.tensor(tokens), torch.tensor(parents), q, torch.zeros(len(parents), dtype=torch.int16), independent
        )
        total += len(verify(made, p, noise, rule, 0, 0).path) * noise.probability
        while chosen and chosen[-1] + 1 == len(noise.branches[len(chosen) - 1]):
            chosen.pop()
        if not chosen:
            return total
        chosen[-1] += 1
