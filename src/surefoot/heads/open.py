"""Opens a head of any format that is read. The module's kind is told by what the folder holds, not by its name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from ..core.protocols import Ends
from ..errors import BadRequest, Unsupported
from .files import peek, read
from .recognise import KINDS, recognise, wanted

LOADERS = {
    "medusa": "medusa_files:load_medusa",
    "hydra": "hydra_files:load_hydra",
    "eagle": "eagle_files:load_eagle",
    "eagle3": "eagle_files:load_eagle3",
    "exit": "exit_files:load_exit",
    "distilled": "distilled_files:load_distilled",
}


def open_head(
    folder: Path, ends: Ends, n_layers: int, *, kind: str | None = None, pickle: bool = False
) -> tuple[str, nn.Module]:
    """Kind and module. ``kind``: the one that is expected. ``pickle``: read ``.bin`` and ``.pt`` files too.

    ``n_layers``: the target's; a head that reads taps beyond them is refused.
    """
    if kind is not None and kind not in KINDS:
        raise BadRequest(f"unknown kind of head {kind!r}; choose one of {', '.join(KINDS)}")
    config, names = peek(folder, pickle=pickle)
    found = recognise(Path(folder), config, names, ends)
    if kind is not None and found != kind:
        raise BadRequest(f"{folder}: is a head of kind {found!r}, not {kind!r}; use the drafter of its kind or another folder")
    module, _, function = LOADERS[found].partition(":")
    load: Any = getattr(import_module(f".{module}", __package__), function)
    head: nn.Module = load(read(folder, pickle=pickle, choose=wanted), ends)
    reads: Any = getattr(head, "taps", None)
    taps = reads(n_layers) if reads is not None else getattr(head.config, "taps", ())
    if max(taps, default=0) > n_layers + 1:
        raise Unsupported(
            f"{folder}: the head reads after layer {max(taps)}, the target has {n_layers}; give a head trained for this target"
        )
    return found, head
