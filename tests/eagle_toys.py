"""Random EAGLE heads, and rows that are fed activations by hand."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from surefoot.core.protocols import Ends, Scores, Verdict
from surefoot.core.tree import DraftTree, Forest
from surefoot.heads.eagle import Eagle
from surefoot.heads.eagle3 import Eagle3
from surefoot.heads.eagle_layer import LayerConfig

V, H, LAYERS = 31, 24, 6
IDS = torch.tensor([0, 2, 3, 5, 7, 8, 11, 13, 17, 20, 21, 29])


def ends(vocab: int = V, size: int = H, seed: int = 0, bias: bool = False) -> Ends:
    g = torch.Generator().manual_seed(seed)
    weight = 1 + 0.3 * torch.randn(size, generator=g)
    return Ends(
        torch.randn(vocab, size, generator=g),
        torch.randn(vocab, size, generator=g),
        torch.randn(vocab, generator=g) if bias else None,
        lambda x: torch.nn.functional.rms_norm(x, (size,), weight),
    )


def config(reads: int, size: int = H, **changes) -> LayerConfig:
    said = {
        "hidden_size": size, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 40,
        "rope_theta": 100.0, "max_position_embeddings": 512,
    }  # fmt: skip
    return LayerConfig.of(said | changes, reads)


def eagle(own: Ends, ids: torch.Tensor | None = None, seed: int = 1, **options) -> Eagle:
    torch.manual_seed(seed)
    return _rough(Eagle(config(1, own.head.shape[1]), own, ids, **options))


def eagle3(own: Ends, ids: torch.Tensor | None = IDS, seed: int = 1, **options) -> Eagle3:
    torch.manual_seed(seed)
    return _rough(Eagle3(config(2, own.head.shape[1]), own, ids, **options))


def _rough(head):
    """Weights that let every part be felt."""
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(2)
    return head.eval()


class Fed:
    """A row whose activations are given: tap -> [n, H] for as many tokens as there will ever be."""

    def __init__(self, lane, tokens, hidden, id: int = 0) -> None:
        self.lane, self.every, self.hidden = lane, list(tokens), hidden
        self.row = SimpleNamespace(id=id, tokens=[], n_prompt=0, done=False, slot=SimpleNamespace(length=0))

    def see(self, n: int, prefill: bool = False, skipped: int = 0) -> None:
        """The target reads the next n tokens in one pass, some of them as an accepted draft beside a rejected branch.

        ``skipped`` tokens before them came from another request's cache.
        """
        at = self.row.slot.length + skipped
        part = self.every[at : at + n]
        hidden = {tap: x[at : at + n] for tap, x in self.hidden.items()}
        if prefill:
            forest, verdict = Forest.pack([DraftTree.chain(part)], wanted=[False]), None
        else:  # the path's nodes are every second one: each has a sibling that is refused
            tokens, parents, keep, last = [part[0]], [-1], [0], 0
            for token in part[1:]:
                parents += [last, last]
                tokens += [0, token]
                last = len(tokens) - 1
                keep.append(last)
            tree = DraftTree(torch.tensor(tokens), torch.tensor(parents), None, torch.zeros(len(tokens), dtype=torch.int16))
            forest, verdict = Forest.pack([tree], min_width=4), Verdict(tuple(keep[1:]), self.every[at + n])
            wide = {tap: torch.full((forest.nodes, x.shape[1]), 7.0) for tap, x in hidden.items()}
            for tap, x in hidden.items():
                wide[tap][keep] = x
            hidden = wide
        self.row.slot.length = at + n
        self.row.tokens = self.every[: at + n + 1]
        self.lane.observe([self.row], forest, Scores(torch.zeros(0, V), hidden), [verdict])
