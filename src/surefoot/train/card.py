"""The card of a trained head: ``card.json`` in plain data, and ``README.md`` made of it, beside the weights.

What the head gains in speed is measured later: :func:`update` fills it in.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..errors import BadRequest, ModelNotFound
from .checkpoint import replace_file
from .result import Result
from .settings import Settings

CARD_FILE, PAGE_FILE = "card.json", "README.md"


def machine() -> dict[str, Any]:
    """What the training ran on."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"cpu": name, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": gpu, "torch": torch.__version__}


def write_card(
    folder: Path,
    result: Result,
    settings: Settings,
    *,
    target: Mapping[str, Any],
    data: Mapping[str, Any],
    recipe: Mapping[str, Any] | None = None,
    vocabulary: Mapping[str, Any] | None = None,
    command: str = "",
) -> dict[str, Any]:
    """``target``: at least name and fingerprint. ``data``: what ``set.json`` says. ``vocabulary``: size and coverage."""
    card: dict[str, Any] = {
        "kind": result.kind,
        "target": dict(target),
        "sizes": {
            "trained parameters": result.parameters,
            "bytes on disk": sum(f.stat().st_size for f in Path(folder).glob("*.safetensors")),
            **({f"draft vocabulary {k}": v for k, v in vocabulary.items()} if vocabulary else {}),
        },
        "data": {
            "documents": {"trained on": result.documents[0], "held out": result.documents[1]},
            "answer tokens": {"trained on": result.labels[0], "held out": result.labels[1]},
            "capture": dict(data),
        },
        "recipe": dict(recipe or {}),
        "training": asdict(settings),
        "command": command,
        "machine": machine(),
        "seconds": round(result.seconds, 1),
        "steps": result.steps,
        "stopped": result.stopped,
        "best": result.best.facts(),
        "curve": [e.facts() for e in result.history],
        "measured": {},
    }
    _put(folder, card)
    return card


def update(folder: Path, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Puts measured figures, such as the speed-up by task, into the card. Figures of the same name are replaced."""
    path = Path(folder) / CARD_FILE
    try:
        card = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelNotFound(f"{path} does not exist; train a head into this folder first") from None
    except ValueError:
        card = None
    if not isinstance(card, dict) or not isinstance(card.get("measured"), dict):
        raise BadRequest(f"{path} is damaged; train the head again or restore the file")
    card["measured"].update(figures)
    _put(folder, card)
    return card


def _put(folder: Path, card: Mapping[str, Any]) -> None:
    text = json.dumps(card, indent=1, default=str) + "\n"
    replace_file(Path(folder) / CARD_FILE, lambda file: file.write(text.encode()))
    replace_file(Path(folder) / PAGE_FILE, lambda file: file.write(_page(card).encode()))


def _page(card: Mapping[str, Any]) -> str:
    best, target = card["best"], card["target"]
    documents, tokens = card["data"]["documents"], card["data"]["answer tokens"]
    lines = [
        f"# {card['kind']} head for {target.get('name', 'an unnamed target')}",
        "",
        f"Drafts for this target alone (fingerprint `{target.get('fingerprint', 'unknown')}`). What the target says does not",
        "depend on the head: it only changes how fast it is said.",
        "",
        "## Acceptance on documents held out",
        "",
        "Share of places at which the drafted token is right, given that those before it were; greedy drafts.",
        "",
        *_table(["position", *map(str, range(len(best["acceptance"])))], [["acceptance", *map(_number, best["acceptance"])]]),
        "",
        f"Tokens a pass (tau): **{best['tau']:.2f}**, if that many are drafted each time.",
        "",
        "## Measured speed",
        "",
        *(_pairs(card["measured"]) if card["measured"] else ["Not measured yet."]),
        "",
        "## Data",
        "",
        f"Text that the target wrote itself: {documents['trained on']:,} documents, {tokens['trained on']:,} answer tokens;",
        f"held out {documents['held out']:,} documents with {tokens['held out']:,}.",
        "",
        *_pairs(card["data"]["capture"]),
        "",
        "## Training",
        "",
        f"{card['steps']:,} steps in {card['seconds'] / 60:.1f} minutes; ended by {card['stopped']}.",
        *(["", "```", card["command"], "```"] if card["command"] else []),
        "",
        *_pairs({**card["sizes"], **card["recipe"], **card["training"], **card["machine"]}),
        "",
        "## Curve",
        "",
        *_table(
            ["step", "epoch", "seconds", "training loss", "held-out loss", "tau", "acceptance"],
            [
                [
                    *(_number(e[k]) for k in ("step", "epoch", "seconds", "loss", "held_loss", "tau")),
                    " ".join(map(_number, e["acceptance"])),
                ]
                for e in card["curve"]
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.1 else f"{value:.3g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(each) + " |" for each in (head, ["---"] * len(head), *rows)]


def _pairs(values: Mapping[str, Any], under: str = "") -> list[str]:
    lines: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += _pairs(value, f"{under}{name} / ")
        else:
            lines.append(f"- {under}{name}: {_number(value)}")
    return lines
