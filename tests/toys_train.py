"""Captured text of a toy target whose activations say the next token outright, so that heads can learn what comes later."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from surefoot.core.protocols import Ends
from surefoot.train.recipe import Shape
from surefoot.train.shards import FACTS_FILE, Document, Shards, write_shard

VOCAB, HIDDEN, LAYERS = 24, 32, 2
LAST = LAYERS + 1


def table() -> torch.Tensor:
    """[V, H] orthogonal rows of length 3: the head, and the embedding."""
    generator = torch.Generator().manual_seed(5)
    return 3 * torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=generator))[0][:VOCAB].contiguous()


def following(token: int) -> int:
    """What the toy target thinks comes next; a single cycle through the vocabulary."""
    return (5 * token + 7) % VOCAB


def document(n: int, answer: int, generator: torch.Generator, noise: float = 0.05, taps: tuple[int, ...] = (LAST,)) -> Document:
    tokens = [int(torch.randint(VOCAB, (1,), generator=generator))]
    while len(tokens) < n:
        odd = float(torch.rand((), generator=generator)) < noise
        tokens.append(int(torch.randint(VOCAB, (1,), generator=generator)) if odd else following(tokens[-1]))
    said = table()[torch.tensor([following(t) for t in tokens])]
    hidden = {tap: said if tap == LAST else said.roll(1, -1) for tap in taps}
    return Document(torch.tensor(tokens, dtype=torch.int32), answer, hidden)


def capture(
    folder: Path, documents: int = 40, *, seed: int = 0, longest: int = 40, per_shard: int = 16, taps: tuple[int, ...] = (LAST,)
) -> Shards:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS_FILE).write_text(json.dumps({"target": {"name": "toy"}, "settings": {"seed": seed}}), "utf-8")
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(documents):
        n = int(torch.randint(longest // 2, longest + 1, (1,), generator=generator))
        made.append(document(n, int(torch.randint(2, 7, (1,), generator=generator)), generator, taps=taps))
    for number in range(0, documents, per_shard):
        write_shard(folder, number // per_shard, made[number : number + per_shard])
    return Shards(folder)


def shape(draft_ids: torch.Tensor | None = None) -> Shape:
    ends = Ends(table(), table(), None, lambda x: x)
    return Shape(HIDDEN, LAYERS, VOCAB, ends, torch.arange(VOCAB) if draft_ids is None else draft_ids, "toy")
