"""A toy target with an exit: a table, and the streams of a second, poorer table in front of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from surefoot.backends.table import TableModel
from surefoot.core.protocols import Ends, Need, Scores
from surefoot.heads.attention import AttentionConfig
from surefoot.heads.exit import Exit, ExitConfig

LAYER = 2


class ExitTarget(TableModel):
    """``early``: its logits are the streams [V] behind layer 2 of 4. ``ran``: tokens of each call of ``prefix``, by row."""

    def __init__(self, late: TableModel, early: TableModel) -> None:
        super().__init__(late.logits, late.order)
        self.early = early
        self.cuts = (LAYER,)
        self.traits = replace(self.traits, n_layers=4, hidden=(LAYER,), exits=(LAYER,))
        self.ran: list[list[tuple[int, ...]]] = []

    def prefix(self, slots, chains, layer, counts=None):
        assert layer == LAYER
        assert len({id(slot) for slot in slots}) == len(slots)
        self.ran.append([tuple(chain) for chain in chains])
        found = []
        for slot, chain, count in zip(slots, chains, counts or [1] * len(slots), strict=True):
            ends = range(len(chain) - count + 1, len(chain) + 1)
            found += [self.early.next_logits([*slot.tokens, *chain[:end]]) for end in ends]
        return torch.stack(found).float()

    def score(self, slots, forest, need):
        scores = super().score(slots, forest, Need())
        if not need.hidden:
            return scores
        streams = []
        for b, slot in enumerate(slots):
            lo, hi = forest.begins[b], forest.begins[b + 1]
            paths: list[list[int]] = []
            for token, parent in zip(forest.tokens[lo:hi].tolist(), forest.parents[lo:hi].tolist(), strict=True):
                paths.append([*(slot.tokens if parent < 0 else paths[parent]), token])
                streams.append(self.early.next_logits(paths[-1]))
        return Scores(scores.logits, {layer: torch.stack(streams).float() for layer in need.hidden})

    def ends(self) -> Ends:
        """The table of logits is the identity, and the final norm doubles."""
        one = torch.eye(self.traits.vocab_size)
        return Ends(one, one, None, lambda x: 2.0 * x)


def exit_target(vocab: int, late: TableModel | None = None, seed: int = 8) -> ExitTarget:
    late = late or TableModel.random(vocab, order=2, seed=seed)
    return ExitTarget(late, TableModel.random(vocab, order=2, seed=seed + 1, sharpness=1.2))


def exit_head(target, kind: str, ids: torch.Tensor | None = None, layer: int = LAYER, seed: int = 3) -> Exit:
    """One that has learned nothing."""
    size = target.ends().head.shape[1]
    d = 8 if size % 8 == 0 else 2
    attention = None if kind == "bare" else AttentionConfig(size, 4, 2, d)
    torch.manual_seed(seed)
    return Exit(ExitConfig(kind, layer, attention, 12 if kind == "eesd" else 0), target.ends(), ids).eval()
