"""What a training run tells while it goes, and what it says when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .evaluate import Evaluation


class Progress(Protocol):
    """Told of a run as it goes. ``total``: steps if training does not end early."""

    def start(self, done: int, total: int) -> None: ...

    def step(self, step: int, loss: float, rate: float) -> None: ...

    def evaluated(self, evaluation: Evaluation, best: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Result:
    """``stopped``: "epochs" (all done), "patience" or "time"; after the last a further run goes on. ``best``: what is kept."""

    folder: Path
    kind: str
    stopped: str
    steps: int
    total: int
    seconds: float
    best: Evaluation
    history: tuple[Evaluation, ...]
    parameters: int
    documents: tuple[int, int]
    """Trained on, and held out."""
    labels: tuple[int, int]
    """Answer tokens of these."""
