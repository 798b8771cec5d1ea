"""How good a head is on documents that it was not trained on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from .recipe import Recipe, Shape
from .windows import Windows


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``acceptance[k]``: share of the places where k drafted tokens were right at which the next one is, too.

    tau = 1 + a0 + a0 a1 + ...: tokens a pass of the target if all of these are drafted each time, greedily.
    """

    step: int
    epoch: float
    seconds: float
    rate: float
    loss: float
    """Mean loss of the training steps since the last evaluation."""
    held_loss: float
    acceptance: tuple[float, ...]
    tau: float

    def facts(self) -> dict[str, Any]:
        return asdict(self) | {"acceptance": [round(a, 4) for a in self.acceptance], "tau": round(self.tau, 4)}


def tau(acceptance: tuple[float, ...]) -> float:
    total, reach = 1.0, 1.0
    for a in acceptance:
        reach *= a
        total += reach
    return total


@torch.no_grad()
def evaluate(recipe: Recipe, module: nn.Module, shape: Shape, held: Windows) -> tuple[float, tuple[float, ...]]:
    """Loss and acceptance. The module's mode and the random numbers of training stay as they were."""
    device = shape.ends.embedding.device
    was = module.training
    module.eval()
    loss, weight = 0.0, 0
    counts: list[list[int]] = []
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            for windows in held.order(None):
                batch = held.batch(windows, device)
                n = int(batch.answer.sum())
                loss += float(recipe.loss(module, shape, batch)) * n
                weight += n
                for k, (hits, places) in enumerate(recipe.right(module, shape, batch)):
                    if k == len(counts):
                        counts.append([0, 0])
                    counts[k][0] += hits
                    counts[k][1] += places
    finally:
        module.train(was)
    return loss / max(weight, 1), tuple(hits / places if places else 0.0 for hits, places in counts)
