"""The tables that a transformers model reads and says tokens with, and its final norm, found by what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.protocols import Ends
from ..errors import Unsupported
from .torch_family import Family


@torch.no_grad()
def ends(model: Any, family: Family) -> Ends:
    """Float32 copies on the model's device; a tied table is one copy. Raises :class:`Unsupported` where a part is not found."""
    kind = model.config.model_type
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(embed, nn.Embedding) or not isinstance(head, nn.Linear):
        raise Unsupported(
            f"the embedding and the head of '{kind}' are not plain tables; choose a drafter without trained heads"
        )
    wide = head.in_features
    if embed.embedding_dim != wide:
        raise Unsupported(
            f"'{kind}' reads tokens with {embed.embedding_dim} numbers and says them with {wide}; choose another drafter"
        )
    stream, read = _final(model, family)
    table = (embed(torch.arange(embed.num_embeddings, device=embed.weight.device))).float()
    tied = head.weight is embed.weight and torch.equal(table, embed.weight.float())
    bias = None if head.bias is None else head.bias.float()
    norm = _norm(family, stream, read, kind)
    return Ends(table, table if tied else head.weight.float().clone(), bias, norm)


def _final(model: Any, family: Family) -> tuple[Tensor, Tensor]:
    """The stream after the last layer, and what the head reads, of a short pass."""
    if family.blocks is None or family.decoder is None:
        raise Unsupported(f"the layers of '{model.config.model_type}' were not found; choose a drafter without trained heads")
    found: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            found[name] = output if isinstance(output, Tensor) else output[0]

        return hook

    handles = [family.blocks[-1].register_forward_hook(note("stream")), family.decoder.register_forward_hook(note("read"))]
    try:
        model(input_ids=torch.tensor([[1, 2, 3]], device=model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return found["stream"], found["read"]


@dataclass(frozen=True, slots=True)
class _Norm:
    module: nn.Module
    dtype: torch.dtype

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x.to(self.dtype)).float()
        return out


def _norm(family: Family, stream: Tensor, read: Tensor, kind: str) -> Any:
    """The module of the decoder that makes ``read`` of ``stream``."""
    assert family.decoder is not None
    if torch.equal(stream, read):
        return lambda x: x
    for module in family.decoder.modules():
        weight = next(module.parameters(recurse=False), None)
        if weight is None or weight.ndim != 1 or weight.shape[0] != stream.shape[-1]:
            continue
        if torch.allclose(module(stream), read, rtol=1e-4, atol=1e-5):
            return _Norm(module, stream.dtype)
    raise Unsupported(f"the final norm of '{kind}' was not found; choose a drafter without trained heads")
