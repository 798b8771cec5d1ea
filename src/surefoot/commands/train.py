"""``surefoot train KIND``: train a draft head on what the target itself says.

Status 0: trained, or captured; 2: bad input, or no room on the disk. What was interrupted goes on when the same command is
given again: whole shards of captured text are kept, and training has checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .common import MODEL

if TYPE_CHECKING:
    from ..target import Target
    from ..train.evaluate import Evaluation
    from ..train.recipe import Recipe

_DOCUMENTS = 2000
KINDS = ("capture", "medusa", "hydra", "eagle", "eagle3", "exit", "distill")
_MARK = "unfinished.json"
"""In a folder of captured text while there is more to come."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=f"{', '.join(KINDS[1:])}; or capture: only the text")
    parser.add_argument("--target", "-m", default=MODEL, metavar="REF", help=f"the model to speed up (default: {MODEL})")
    parser.add_argument("--backend", default="auto", metavar="NAME", help="auto (default), openvino or torch")
    parser.add_argument("--out", "-o", metavar="DIR", help="folder for the head, its card and its log")
    group = parser.add_argument_group("captured text")
    group.add_argument("--data", metavar="DIR", help="folder of captured text, made where it is not there (OUT/data)")
    group.add_argument("--documents", type=int, metavar="N", help=f"conversations to capture ({_DOCUMENTS}, or one a prompt)")
    group.add_argument("--length", type=int, default=256, metavar="N", help="most tokens of an answer (256)")
    group.add_argument("--temperatures", default="0,0,0,0.7,1", metavar="T,…", help="drawn for each answer (0,0,0,0.7,1)")
    group.add_argument("--prompts", metavar="FILE", help="prompts to answer (JSON lines or one a line), not generated ones")
    group.add_argument("--taps", metavar="N/…", help="activations to keep, such as 15/27/31 (those that the kinds read)")
    group.add_argument("--rows", type=int, default=64, metavar="N", help="conversations at once (64)")
    group = parser.add_argument_group("training")
    group.add_argument("--vocabulary", type=int, default=8192, metavar="N", help="tokens that the head can say (8192)")
    group.add_argument("--epochs", type=int, default=4, metavar="N")
    group.add_argument("--lr", type=float, default=1e-3, metavar="X", help="highest learning rate (1e-3)")
    group.add_argument("--batch-tokens", type=int, default=4096, metavar="N", help="tokens of a step (4096)")
    group.add_argument("--average", type=float, default=0.0, metavar="X", help="decay of a moving average of weights (0: none)")
    group.add_argument("--amp", action="store_true", help="bfloat16 products, quick where the processor has them")
    group.add_argument(
        "--patience", type=int, default=8, metavar="N", help="evaluations without a better one (8; 0: never end)"
    )
    group.add_argument("--minutes", type=float, metavar="X", help="stop this run after so long; the next one goes on")
    group.add_argument("--threads", type=int, metavar="N")
    group.add_argument("--set", action="append", default=[], metavar="K=V", help="option of the kind, e.g. blocks=3")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the text and of the training (0)")
    parser.add_argument("--json", action="store_true", help="print the card as one JSON object")


def run(args: argparse.Namespace) -> int:
    from ..train.capture import Settings as CaptureSettings
    from ..train.run import every_tap, make_recipe
    from ..train.settings import Settings

    # what is wrong is told before anything is loaded
    recipe = None if args.kind == "capture" else make_recipe(args.kind, options(args.set))
    if recipe is None and args.data is None:
        raise BadRequest("capture needs --data, the folder for the text")
    if recipe is not None and args.out is None:
        raise BadRequest(f"{args.kind} needs --out, the folder for the head")
    if args.threads is not None and args.threads < 1:
        raise BadRequest(f"--threads {args.threads}: give a whole number from 1 up")
    data = Path(args.data) if args.data is not None else Path(args.out) / "data"
    left = _unfinished(data, args.kind)
    prompts = _prompts(args.prompts)
    wanted = CaptureSettings(
        documents=args.documents if args.documents is not None else left or len(prompts) or _DOCUMENTS,
        seed=args.seed,
        length=args.length,
        temperatures=_numbers(args.temperatures),
        rows=args.rows,
    )
    settings = Settings(
        epochs=args.epochs,
        seed=args.seed,
        lr=args.lr,
        batch_tokens=args.batch_tokens,
        average=args.average,
        amp=args.amp,
        patience=args.patience,
    )
    if args.documents is not None or left or not any(data.glob("shard-*.safetensors")):
        read = recipe.taps if recipe is not None else every_tap
        chosen = _taps(args.taps)
        _capture(args, data, wanted, read if chosen is None else lambda layers: chosen, prompts)
    if recipe is None:
        return 0
    return _train(args, data, recipe, settings)


def _capture(args: argparse.Namespace, data: Path, settings: Any, taps: Any, prompts: Sequence[Any]) -> None:
    from ..train.run import capture

    start = time.monotonic()

    def tell(documents: int, tokens: int) -> None:
        rate = tokens / max(time.monotonic() - start, 1e-9)
        print(f"surefoot: {documents} documents captured, {rate:.0f} answer tokens a second", file=sys.stderr, flush=True)

    target = _target(args, taps, args.rows)
    encoded = [target.codec.prompt(item.prompt) for item in prompts]
    data.mkdir(parents=True, exist_ok=True)
    (data / _MARK).write_text(json.dumps({"kind": args.kind, "documents": settings.documents}), "utf-8")
    capture(target, data, settings, taps(target.model.traits.n_layers), encoded, tell)
    (data / _MARK).unlink()


def _unfinished(data: Path, kind: str) -> int:
    """Documents that an interrupted capture for this kind has still to reach; 0: there is none."""
    try:
        found = json.loads((data / _MARK).read_text("utf-8"))
        return int(found["documents"]) if found["kind"] == kind else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _target(args: argparse.Namespace, taps: Any = None, rows: int = 1) -> Target:
    from ..target import open_target
    from .terminal import progress

    with progress() as tell:
        return open_target(args.target, args.backend, taps=taps or (), kv_tokens=rows * 1024, progress=tell)


def _train(args: argparse.Namespace, data: Path, recipe: Recipe, settings: Any) -> int:
    import dataclasses

    from ..train.card import write_card
    from ..train.loop import train
    from ..train.run import facts_of, shape_of, shards_for

    target = _target(args)
    shards = shards_for(data, target, recipe.taps(target.model.traits.n_layers))
    shape, words = shape_of(target, shards, args.vocabulary)
    facts = facts_of(target)
    seconds = None if args.minutes is None else 60.0 * args.minutes
    with _bar(args.kind) as progress:
        result = train(
            recipe,
            shards,
            shape,
            Path(args.out),
            settings,
            progress=progress,
            limit_seconds=seconds,
            threads=args.threads or len(os.sched_getaffinity(0)),
            facts={"target": facts},
        )
    card = write_card(
        result.folder,
        result,
        settings,
        target=facts | {"fingerprint": facts["content"]},
        data=shards.facts,
        recipe=dataclasses.asdict(recipe),  # type: ignore[call-overload]
        vocabulary={"size": len(words.ids), "coverage": round(words.coverage, 4)},
        command=shlex.join(["surefoot", *args.words]),
    )
    if args.json:
        print(json.dumps(card))
    else:
        best = result.best
        print(f"{result.folder}: {result.stopped} after {result.steps} of {result.total} steps, {result.seconds:.0f} s")
        print(f"held out: tau {best.tau:.3f}, acceptance {', '.join(f'{a:.3f}' for a in best.acceptance)}")
    return 0


def options(given: Sequence[str]) -> dict[str, Any]:
    """``KEY=VALUE`` texts: whole numbers, numbers, true and false, lists joined by ``/``, else text."""
    found: dict[str, Any] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise BadRequest(f"--set {item!r}: write KEY=VALUE")
        parts = [_value(part) for part in value.split("/")]
        found[key] = parts[0] if len(parts) == 1 else tuple(part for part in parts if part != "")
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadRequest(f"--temperatures {text!r}: give numbers joined by commas, such as 0,0.7,1") from None


def _taps(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(sorted({int(part) for part in text.split("/")}))
    except ValueError:
        raise BadRequest(f"--taps {text!r}: give whole numbers joined by /, such as 15/27/31") from None


def _prompts(path: str | None) -> Sequence[Any]:
    if path is None:
        return ()
    from ..audit.prompts import read

    return read(path)


@contextmanager
def _bar(kind: str) -> Iterator[Any]:
    """A bar with the acceptance so far, on a terminal; else a line for each evaluation."""
    if not sys.stderr.isatty():
        yield _Told(None, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[said]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Told(bar, bar.add_task(kind, total=None, said=""))


class _Told:
    """The loop's ``Progress``."""

    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task, self._said = bar, task, ""

    def start(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def step(self, step: int, loss: float, rate: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step, said=f"loss {loss:.3f} {self._said}")

    def evaluated(self, evaluation: Evaluation, best: bool) -> None:
        accepted = " ".join(f"{a:.3f}" for a in evaluation.acceptance)
        self._said = f"tau {evaluation.tau:.3f} ({accepted})"
        if self._bar is None:
            line = f"step {evaluation.step}, loss {evaluation.loss:.3f}, held out {self._said}{' best' if best else ''}"
            print(f"surefoot: {line}", file=sys.stderr, flush=True)
