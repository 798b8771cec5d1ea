"""The training loop: AdamW on windows of captured text until the head stops getting better on documents held out.

The same recipe, text, target, settings and number of threads give the same weights, bit for bit, whether the run was killed
and went on from its checkpoint or not. The folder always holds the best head so far, ``log.jsonl`` with every evaluation, and
while there is more to do ``checkpoint.pt``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import BackendError
from .average import Average
from .checkpoint import CHECKPOINT_FILE, load_checkpoint, replace_file, same_run, save_checkpoint
from .evaluate import Evaluation, evaluate, tau
from .interrupt import interrupts
from .recipe import Batch, Recipe, Shape
from .result import Progress, Result
from .settings import Settings
from .shards import Shards
from .windows import Windows, split

LOG_FILE = "log.jsonl"


def train(
    recipe: Recipe,
    shards: Shards,
    shape: Shape,
    out: Path,
    settings: Settings,
    *,
    progress: Progress | None = None,
    limit_seconds: float | None = None,
    threads: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Result:
    """Goes on from the checkpoint in ``out`` if there is one of the same run. On Ctrl-C it leaves one and raises.

    ``limit_seconds``: of this call. ``facts``: into the saved head's config, beside those of the training.
    """
    device = shape.ends.embedding.device
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            return _Run(recipe, shards, shape, Path(out), settings, progress, dict(facts or {})).run(limit_seconds)
    finally:
        torch.set_num_threads(before)


class _Run:
    def __init__(
        self,
        recipe: Recipe,
        shards: Shards,
        shape: Shape,
        out: Path,
        settings: Settings,
        progress: Progress | None,
        facts: dict[str, Any],
    ) -> None:
        self.recipe, self.shape, self.out, self.settings, self.progress = recipe, shape, out, settings, progress
        self.facts = facts
        self.device = shape.ends.embedding.device
        taps = sorted({*recipe.taps(shape.n_layers), shape.last})
        self.documents = split(shards, settings.seed, settings.held)
        own, held = (
            Windows(
                shards,
                documents,
                taps,
                length=settings.window,
                context=settings.context,
                batch_tokens=settings.batch_tokens,
                seed=settings.seed,
            )
            for documents in self.documents
        )
        self.windows, self.held = own, held
        lengths = [len(own.order(epoch)) for epoch in range(settings.epochs)]
        self.total = sum(lengths)
        self.eval_every = settings.eval_every or max(1, lengths[0] // 4)
        self.checkpoint_every = settings.checkpoint_every or self.eval_every
        self.identity = _identity(recipe, shards, shape, settings)

        torch.manual_seed(settings.seed)
        self.module = recipe.build(shape).to(self.device).train()
        self.weights = [w for w in self.module.parameters() if w.requires_grad]
        groups = [
            {"params": [w for w in self.weights if w.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [w for w in self.weights if w.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.lr, betas=(0.9, 0.95), fused=True)
        self.average = Average(self.module, settings.average) if settings.average else None
        self.done, self.epoch, self.place = 0, 0, 0
        self.losses: list[float] = []
        self.seconds = 0.0
        self.history: list[Evaluation] = []
        self.best: tuple[Evaluation, dict[str, torch.Tensor]] | None = None
        self.worse = 0
        if (state := load_checkpoint(out)) is not None:
            self._restore(state)

    def run(self, limit: float | None) -> Result:
        began = time.monotonic()
        earlier = self.seconds
        stopped = "patience" if self._patient_no_more() else "epochs"
        if self.progress is not None:
            self.progress.start(self.done, self.total)
        order = self.windows.order(self.epoch)
        with interrupts() as interrupted:
            while self.done < self.total and stopped != "patience":
                if self.place == len(order):
                    self.epoch, self.place = self.epoch + 1, 0
                    order = self.windows.order(self.epoch)
                self._step(self.windows.batch(order[self.place], self.device))
                self.place += 1
                self.seconds = earlier + time.monotonic() - began
                if self.done % self.eval_every == 0 or self.done == self.total:
                    self._evaluate(len(order))
                    self.seconds = earlier + time.monotonic() - began
                if self._patient_no_more():
                    stopped = "patience"
                elif limit is not None and time.monotonic() - began >= limit and self.done < self.total:
                    stopped = "time"
                last = self.done == self.total or stopped == "patience"
                if interrupted() or stopped == "time" or (self.done % self.checkpoint_every == 0 and not last):
                    self._checkpoint()
                if interrupted():
                    raise KeyboardInterrupt
                if stopped == "time":
                    break
            if self.best is None or (stopped == "time" and self.history[-1].step != self.done):
                self._evaluate(len(order))
        assert self.best is not None
        # a run that stopped at a limit may have left a head in the folder that this one never judged
        self.module.load_state_dict(self.best[1])
        self._save(self.best[0])
        if stopped != "time":
            (self.out / CHECKPOINT_FILE).unlink(missing_ok=True)
        return self._result(stopped)

    def _step(self, batch: Batch) -> None:
        rate = self.settings.rate(self.done, self.total)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        with warnings.catch_warnings(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.amp):
            warnings.filterwarnings("ignore", "Mismatch dtype")  # norms take half the bits and float weights, as they should
            loss = self.recipe.loss(self.module, self.shape, batch)
        self.optimiser.zero_grad(set_to_none=True)
        value = float(loss.detach())
        norm = math.nan
        if math.isfinite(value) and loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
            norm = float(torch.nn.utils.clip_grad_norm_(self.weights, self.settings.clip))
        if not math.isfinite(norm):
            what = "loss" if not math.isfinite(value) else "gradient"
            raise BackendError(
                f"the {what} of step {self.done + 1} is not a finite number; train anew, in another folder, with a smaller lr "
                f"(now {self.settings.lr:g}) or clip (now {self.settings.clip:g})"
            )
        self.optimiser.step()
        self.done += 1
        if self.average is not None:
            self.average.update(self.done)
        self.losses.append(value)
        if self.progress is not None:
            self.progress.step(self.done, value, rate)

    def _evaluate(self, batches: int) -> None:
        if self.average is None:
            self._judge(batches)
        else:
            with self.average.used():
                self._judge(batches)

    def _judge(self, batches: int) -> None:
        held_loss, acceptance = evaluate(self.recipe, self.module, self.shape, self.held)
        now = Evaluation(
            step=self.done,
            epoch=round(self.epoch + self.place / max(batches, 1), 3),
            seconds=round(self.seconds, 1),
            rate=self.settings.rate(max(0, self.done - 1), self.total),
            loss=sum(self.losses) / max(len(self.losses), 1),
            held_loss=held_loss,
            acceptance=acceptance,
            tau=tau(acceptance),
        )
        self.losses.clear()
        self.history.append(now)
        better = self.best is None or now.tau > self.best[0].tau
        if better:
            self.worse = 0
            self.best = now, {name: w.detach().cpu().clone() for name, w in self.module.state_dict().items()}
            self._save(now)
        else:
            self.worse += 1
        lines = "".join(json.dumps(e.facts()) + "\n" for e in self.history).encode()
        replace_file(self.out / LOG_FILE, lambda file: file.write(lines))
        if self.progress is not None:
            self.progress.evaluated(now, better)

    def _save(self, best: Evaluation) -> None:
        facts = self.facts | {"training": dataclasses.asdict(self.settings), "best": best.facts()}
        self.recipe.save(self.out, self.module, self.shape, facts)

    def _patient_no_more(self) -> bool:
        return bool(self.settings.patience) and self.worse >= self.settings.patience

    def _checkpoint(self) -> None:
        state = {
            "identity": self.identity,
            "module": self.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "average": None if self.average is None else self.average.state,
            "rng": torch.get_rng_state(),
            "device_rng": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
            "place": [self.done, self.epoch, self.place],
            "losses": self.losses,
            "seconds": self.seconds,
            "history": [dataclasses.asdict(e) for e in self.history],
            "best": None if self.best is None else [dataclasses.asdict(self.best[0]), self.best[1]],
            "worse": self.worse,
        }
        save_checkpoint(self.out, state)

    def _restore(self, state: dict[str, Any]) -> None:
        same_run(self.out / CHECKPOINT_FILE, state.get("identity", {}), self.identity)
        self.module.load_state_dict(state["module"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.average is not None:
            self.average.state = {name: w.to(self.device) for name, w in state["average"].items()}
        torch.set_rng_state(state["rng"])
        if state["device_rng"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["device_rng"], self.device)
        self.done, self.epoch, self.place = state["place"]
        self.losses, self.seconds, self.worse = state["losses"], state["seconds"], state["worse"]
        self.history = [_evaluation(e) for e in state["history"]]
        if state["best"] is not None:
            self.best = _evaluation(state["best"][0]), state["best"][1]

    def _result(self, stopped: str) -> Result:
        assert self.best is not None
        return Result(
            folder=self.out,
            kind=self.recipe.kind,
            stopped=stopped,
            steps=self.done,
            total=self.total,
            seconds=self.seconds,
            best=self.best[0],
            history=tuple(self.history),
            parameters=sum(w.numel() for w in self.weights),
            documents=(len(self.documents[0]), len(self.documents[1])),
            labels=(self.windows.labels, self.held.labels),
        )


def _evaluation(facts: dict[str, Any]) -> Evaluation:
    return Evaluation(**(facts | {"acceptance": tuple(facts["acceptance"])}))


def _identity(recipe: Recipe, shards: Shards, shape: Shape, settings: Settings) -> dict[str, Any]:
    """What must be equal for a run to go on. Recipes are frozen dataclasses, so that their options are seen."""
    options: dict[str, Any] = (
        dataclasses.asdict(recipe) if dataclasses.is_dataclass(recipe) and not isinstance(recipe, type) else {}
    )
    return {
        "kind of head": recipe.kind,
        "recipe": json.dumps(options, sort_keys=True, default=str),
        **dataclasses.asdict(settings),
        "target": [shape.name, shape.hidden_size, shape.n_layers, shape.vocab_size],
        "draft vocabulary": hashlib.sha256(shape.draft_ids.cpu().numpy().tobytes()).hexdigest()[:16],
        "captured text": json.dumps(shards.facts, sort_keys=True) + f" {len(shards)} documents",
    }
