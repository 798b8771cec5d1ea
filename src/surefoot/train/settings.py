"""What a training run depends on beside the recipe, the captured text and the target. Equal settings give equal weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import BadRequest


@dataclass(frozen=True, slots=True)
class Settings:
    """``None`` for ``eval_every``: four times an epoch; for ``checkpoint_every``: with each evaluation."""

    epochs: int = 4
    seed: int = 0
    lr: float = 1e-3
    schedule: str = "cosine"
    """Of the learning rate after the warm-up: ``cosine`` or ``linear``, both down to 0."""
    warmup: float = 0.05
    """Share of all steps in which the learning rate rises."""
    batch_tokens: int = 4096
    """Tokens of a step, prompts and padding included."""
    window: int = 512
    context: int = 32
    clip: float = 1.0
    """Most that the norm of the gradient may be."""
    weight_decay: float = 0.01
    average: float = 0.0
    """Decay of a moving average of the weights, which is then what is evaluated and kept; 0: none."""
    amp: bool = False
    """bfloat16 products: quick where the machine has them, slow where not."""
    held: float = 0.02
    """Share of the documents that is held out."""
    eval_every: int | None = None
    patience: int = 8
    """Evaluations without a better one after which training ends; 0: never."""
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_tokens"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("eval_every", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadRequest(f"{name} must be at least 1, not {value}")
        for name in ("lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadRequest(f"{name} must be a number above 0, not {getattr(self, name)}")
        for name in ("warmup", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise BadRequest(f"{name} must be at least 0 and under 1, not {getattr(self, name)}")
        if self.schedule not in ("cosine", "linear"):
            raise BadRequest(f"there is no schedule {self.schedule!r}; use cosine or linear")
        if self.patience < 0 or self.weight_decay < 0:
            raise BadRequest("patience and weight_decay must be at least 0")

    def rate(self, step: int, total: int) -> float:
        """Learning rate of a step, counted from 0, of ``total``."""
        warm = max(1, round(self.warmup * total)) if self.warmup else 0
        if step < warm:
            return self.lr * (step + 1) / warm
        done = (step - warm) / max(1, total - warm)
        return self.lr * ((1 + math.cos(math.pi * done)) / 2 if self.schedule == "cosine" else 1 - done)
