"""Toys for trained heads: tiny targets that have hidden states, and heads with random weights."""

from __future__ import annotations

from contract.conftest import VOCAB, tiny
from toys import fixed, run
from torch import nn

from surefoot.backends.torch import TorchModel
from surefoot.core.engine import Engine
from surefoot.drafters.head import HeadDrafter

IDS = (1, 2, 3, 5, 8, 13, 21, 30, 34, 40, 44, 47, 50, 52)
"""A reduced vocabulary of the tiny models."""
PROMPTS = ([3, 9, 27], [5], [40, 2, 40, 2, 40, 2, 40, 2, 7], [11, 12, 13, 14, 15, 16, 17, 18])


def torch_target(kind: str = "LlamaConfig") -> TorchModel:
    target = TorchModel(tiny(kind), max_rows=24)
    target.adopt(target.probe())
    return target


def shaken(module: nn.Module, by: float = 0.3) -> nn.Module:
    """Random weights, so that nothing is zero and no two heads agree."""
    import torch

    torch.manual_seed(17)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.randn(parameter.shape))
    return module.eval()


def agrees_with_plain(target, lane, *, lengths=(1, 2, 3, 5, 8), width: int = 1, **options) -> float:
    """Runs ragged rows, plain and with the lane's drafts; the outputs must be equal. Share of drafted tokens kept."""
    requests = [(prompt, {"max_tokens": 24 + 3 * i, **options}) for i, prompt in enumerate(PROMPTS)]
    plain = [c.token_ids for c in run(Engine(target), *requests)]
    drafted = accepted = 0
    for k in lengths:
        engine = fixed(target, HeadDrafter(lane, VOCAB, name="head"), k, width, k if width == 1 else k + width)
        found = run(engine, *requests)
        assert [c.token_ids for c in found] == plain, k
        drafted += sum(c.stats.drafted for c in found)
        accepted += sum(c.stats.accepted for c in found)
        engine.close()
    assert drafted, "nothing was drafted"
    return accepted / drafted
