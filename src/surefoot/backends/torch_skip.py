"""A transformers model without some of its sublayers: a clone that shares every parameter, with a gate around each sublayer.

A shut gate returns zeros instead of running the sublayer, so the residual stream passes it unchanged, and the layer's cache is
never filled. Sublayers are found by what they take (attention: a mask; MLP: the other module with weights), and every
layer is checked: with both gates shut it has to return what it was given.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.sublayers import ATTENTION, MLP, Sample, SkipSet, Step
from ..errors import BadRequest, Unsupported
from .torch_family import describe

_PROBE = (1, 2, 3, 4)


class Gate(nn.Module):
    """``inner``, or zeros of its shape while ``shut``. ``parts``: how many values it returns, 0 for a bare tensor."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.shut = False
        self.parts = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.shut:
            out = self.inner(*args, **kwargs)
            self.parts = len(out) if isinstance(out, tuple) else 0
            return out
        zeros = torch.zeros_like(args[0] if args else kwargs["hidden_states"])
        return (zeros, *[None] * (self.parts - 1)) if self.parts else zeros


@dataclass(frozen=True, slots=True)
class Call:
    """How the model called one of its layers, the residual stream aside."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, block: nn.Module, stream: Tensor) -> Tensor:
        named = {**self.kwargs, "hidden_states": stream} if "hidden_states" in self.kwargs else self.kwargs
        out = block(*((stream, *self.args[1:]) if self.args else ()), **named)
        return out[0] if isinstance(out, tuple) else out


class Gated:
    """``model``: the clone. ``sequential[l]``: whether the MLP of layer l reads what its attention added."""

    def __init__(self, model: Any) -> None:
        shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
        self.model: Any = copy.deepcopy(model, dict(shared))
        self.family = describe(self.model)
        if self.family.blocks is None:
            raise Unsupported(f"the layers of '{model.config.model_type}' were not found; choose another drafter")
        self.blocks = self.family.blocks
        self.gates = [_wrap(block, model.config.model_type) for block in self.blocks]
        calls, streams = self.calls(list(_PROBE))
        self.sequential = [self._check(i, calls[i], streams[i]) for i in range(len(self.blocks))]

    def shut(self, skips: SkipSet) -> None:
        for i, (attention, mlp) in enumerate(self.gates):
            attention.shut, mlp.shut = i in skips.attention, i in skips.mlp

    @torch.no_grad()
    def calls(self, tokens: Sequence[int]) -> tuple[list[Call], list[Tensor]]:
        """How each layer is called in a pass over these tokens, and the streams [1, T, H] that enter them."""
        found: list[Call] = []
        streams: list[Tensor] = []

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            streams.append(args[0] if args else kwargs["hidden_states"])
            found.append(Call(args, kwargs))

        handles = [block.register_forward_pre_hook(note, with_kwargs=True) for block in self.blocks]
        try:
            self.model(input_ids=self._ids(tokens), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return found, streams

    @torch.no_grad()
    def best(self, sample: Sample) -> list[int]:
        """Argmax at each place of the continuation."""
        more = {"logits_to_keep": len(sample.tokens) - sample.start} if self.family.keeps_logits else {}
        logits = self.model(input_ids=self._ids(sample.read), use_cache=False, **more).logits[0]
        best: list[int] = logits[-(len(sample.tokens) - sample.start) :].argmax(-1).tolist()
        return best

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([tokens], device=self.model.device)

    @torch.no_grad()
    def _check(self, i: int, call: Call, stream: Tensor) -> bool:
        block, (attention, mlp) = self.blocks[i], self.gates[i]
        whole = call(block, stream)
        attention.shut = mlp.shut = True
        same = call(block, stream)
        attention.shut = False
        halves = call(block, stream)
        attention.shut, mlp.shut = True, False
        halves = call(block, halves)
        attention.shut = False
        if not torch.allclose(same, stream, rtol=1e-3, atol=1e-5):
            raise Unsupported(
                f"layer {i} of '{self.model.config.model_type}' does more than add attention and MLP to its input; "
                "choose another drafter"
            )
        return torch.allclose(halves, whole, rtol=1e-3, atol=1e-5)


def _wrap(block: nn.Module, kind: str) -> tuple[Gate, Gate]:
    attention: list[str] = []
    others: list[str] = []
    for name, child in block.named_children():
        if any(p.ndim > 1 for p in child.parameters()):
            takes = inspect.signature(child.forward).parameters
            (attention if "attention_mask" in takes else others).append(name)
    if len(attention) != 1 or len(others) != 1:
        raise Unsupported(f"the layers of '{kind}' are not one attention and one MLP module each; choose another drafter")
    gates = []
    for name in (attention[0], others[0]):
        gate = Gate(getattr(block, name)).train(block.training)
        setattr(block, name, gate)
        gates.append(gate)
    return gates[0], gates[1]


def draft_of(model: Any, skips: SkipSet) -> Any:
    """The clone without these sublayers."""
    gated = Gated(model)
    skips.check(len(gated.blocks))
    gated.shut(skips)
    return gated.model


class TorchTrial:
    """A :class:`~surefoot.core.sublayers.Trial` over a gated clone."""

    def __init__(self, model: Any) -> None:
        self._gated = Gated(model)
        self._calls: dict[tuple[int, ...], list[Call]] = {}

    @property
    def layers(self) -> int:
        return len(self._gated.blocks)

    def best(self, samples: Sequence[Sample], skips: SkipSet) -> list[int]:
        skips.check(self.layers)
        self._gated.shut(skips)
        return [token for sample in samples for token in self._gated.best(sample)]

    def steps(self) -> tuple[Step, ...]:
        out: list[Step] = []
        for i, apart in enumerate(self._gated.sequential):
            pair = (ATTENTION, i), (MLP, i)
            out += [(pair[0],), (pair[1],)] if apart else [pair]
        return tuple(out)

    def embed(self, samples: Sequence[Sample]) -> Tensor:
        self._gated.shut(SkipSet())
        out = []
        for sample in samples:
            self._calls[sample.read], streams = self._gated.calls(sample.read)
            out.append(streams[0][0])
        return torch.cat(out)

    @torch.no_grad()
    def run(self, step: int, samples: Sequence[Sample], streams: Tensor) -> Tensor:
        sublayers = self.steps()[step]
        layer = sublayers[0][1]
        if any(sample.read not in self._calls for sample in samples):
            raise BadRequest("run follows embed on the same samples; call embed first")
        for gate, kind in zip(self._gated.gates[layer], (ATTENTION, MLP), strict=True):
            gate.shut = (kind, layer) not in sublayers
        parts = streams.split([len(sample.read) for sample in samples], dim=1)
        block = self._gated.blocks[layer]
        return torch.cat([self._calls[s.read][layer](block, part) for s, part in zip(samples, parts, strict=True)], dim=1)
