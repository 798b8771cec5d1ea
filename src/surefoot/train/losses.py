"""How far a head's law q is from the target's law p. All take logits [n, Vd] of both and give a mean over the n rows.

    soft_ce     -sum p log q: the forward divergence KL(p‖q) and a constant
    reverse_kl  sum q log(q/p)
    tv          1/2 sum |p - q| = 1 - acceptance rate of a token that is drawn from q
    acceptance  -log sum min(p, q): the same rate itself, with a gradient that does not fade where q is poor

Logarithms of probabilities end at ``FLOOR``, so logits of -inf on either side give finite values and gradients.

:func:`through_head` computes such a loss of hidden states whose logits are never held all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..errors import BadRequest

FLOOR = -100.0

Loss = Callable[[Tensor, Tensor], Tensor]


def _log(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1, dtype=torch.float32).clamp(min=FLOOR)


def _soft_ce(logits: Tensor, target: Tensor) -> Tensor:
    return -(torch.softmax(target, -1, dtype=torch.float32) * _log(logits)).sum(-1)


def _reverse_kl(logits: Tensor, target: Tensor) -> Tensor:
    q = torch.softmax(logits, -1, dtype=torch.float32)
    return (q * (_log(logits) - _log(target))).sum(-1)


def _tv(logits: Tensor, target: Tensor) -> Tensor:
    p, q = (torch.softmax(x, -1, dtype=torch.float32) for x in (target, logits))
    return (p - q).abs().sum(-1) / 2


def _acceptance(logits: Tensor, target: Tensor) -> Tensor:
    return -torch.logsumexp(torch.minimum(_log(logits), _log(target)), -1)


ROWS: Mapping[str, Loss] = {"soft_ce": _soft_ce, "reverse_kl": _reverse_kl, "tv": _tv, "acceptance": _acceptance}
"""Loss of each row [n]."""


def row_loss(name: str) -> Loss:
    if name not in ROWS:
        raise BadRequest(f"there is no loss {name!r}; use one of {', '.join(ROWS)}")
    return ROWS[name]


def _mean(loss: Loss) -> Loss:
    def mean(logits: Tensor, target: Tensor) -> Tensor:
        return loss(logits, target).sum() / max(len(logits), 1)

    return mean


LOSSES: Mapping[str, Loss] = {name: _mean(loss) for name, loss in ROWS.items()}


class _ThroughHead(torch.autograd.Function):
    """The gradient is made in the forward pass, chunk by chunk, as the logits are at hand."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, states: int, *tensors: Tensor) -> Tensor:
        total, gradients = plan.run(tensors[:states], tensors[states:])
        ctx.save_for_backward(*(g for g in gradients if g is not None))
        ctx.kept = [g is not None for g in gradients]
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        saved = iter(ctx.saved_tensors)
        return None, None, *(next(saved) * grad if kept else None for kept in ctx.kept)


class _Plan:
    """What :func:`through_head` was asked; ``learn``: whether gradients are wanted."""

    def __init__(
        self,
        places: Sequence[Tensor],
        teacher: Tensor,
        teacher_head: Tensor,
        biases: Sequence[Tensor | None],
        weights: Sequence[float],
        loss: Loss,
        chunk: int,
        learn: bool,
    ) -> None:
        self.places, self.teacher, self.teacher_head, self.biases = places, teacher, teacher_head, biases
        self.loss, self.chunk, self.learn = loss, chunk, learn
        counts = [max(1, int((place >= 0).sum())) for place in places]
        self.weights = [weight / count for weight, count in zip(weights, counts, strict=True)]

    def run(self, states: Sequence[Tensor], heads: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Loss, and its gradient of each state and head. Heads are those of each depth, or one for all."""
        gradients = [torch.zeros_like(x) if self.learn and x.requires_grad else None for x in (*states, *heads)]
        total = torch.zeros((), device=self.teacher.device)
        for begin in range(0, len(self.teacher), self.chunk):
            part = slice(begin, begin + self.chunk)
            target = linear(self.teacher[part], self.teacher_head, self.biases[0])
            if self.loss is _soft_ce:
                target = torch.softmax(target, -1, dtype=torch.float32)
            for k, state in enumerate(states):
                at, said = self.places[k][part], target
                there = at >= 0
                if not bool(there.all()):
                    at, said = at[there], target[there]
                if not len(at):
                    continue
                h = min(k, len(heads) - 1)
                x, w = state[at].detach(), heads[h].detach()
                logits = linear(x, w, self.biases[-1])
                value, gradient = self._cross_entropy(logits, said) if self.loss is _soft_ce else self._any(logits, said)
                total += self.weights[k] * value
                if (whole := gradients[k]) is not None:
                    whole[at] = (gradient @ w).mul_(self.weights[k]).to(whole.dtype)
                if (whole := gradients[len(states) + h]) is not None:
                    whole += (gradient.T @ x).mul_(self.weights[k])
        return total, gradients

    def _any(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over rows, and its gradient."""
        with torch.enable_grad():
            logits.requires_grad_(self.learn)
            value = self.loss(logits, target).sum()
        return value.detach(), torch.autograd.grad(value, logits)[0] if self.learn else logits

    def _cross_entropy(self, logits: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """The same for soft_ce, with fewer passes over the logits, which are finite here: its gradient is q - p."""
        q = torch.softmax(logits, -1, dtype=torch.float32)
        constant = logits.amax(-1).float() - q.amax(-1).log()
        value = constant.sum() - torch.dot(p.flatten(), logits.float().flatten())
        return value, q.sub_(p)


def through_head(
    states: Sequence[Tensor],
    places: Sequence[Tensor],
    heads: Sequence[Tensor],
    teacher: Tensor,
    teacher_head: Tensor,
    *,
    weights: Sequence[float],
    loss: str = "soft_ce",
    bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    chunk: int = 1024,
) -> Tensor:
    """Sum over depths k of ``weights[k]`` times the mean loss of depth k; the target's law is made once for all depths.

    states   K of [n_k, H]: what the head's rows are multiplied with
    places   K of [m] int64: which row of ``states[k]`` speaks of label row j; -1: none. No row twice.
    heads    [Vd, H] of each depth, or one for all; learned too if they require a gradient
    teacher  [m, H]: what the target's head reads where its law is the label; ``teacher_head`` [Vd, H], frozen
    """
    plan = _Plan(places, teacher, teacher_head, (teacher_bias, bias), weights, row_loss(loss), chunk, torch.is_grad_enabled())
    out: Tensor = _ThroughHead.apply(plan, len(states), *states, *heads)
    return out
