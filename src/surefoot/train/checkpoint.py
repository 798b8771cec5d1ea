"""Files of a training run, each written whole and renamed into place, so a killed run leaves the last one as it was."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..errors import BackendError, BadRequest

CHECKPOINT_FILE = "checkpoint.pt"


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """``write`` fills a file that then takes the place of ``path``. Raises :class:`BackendError` where it cannot."""
    staging = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with staging.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except (OSError, RuntimeError) as error:  # torch wraps what the system said
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackendError(
            f"{path} cannot be written ({reason}); free some space and run the same command again: "
            "training goes on from the last checkpoint"
        ) from None
    finally:
        staging.unlink(missing_ok=True)


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    replace_file(folder / CHECKPOINT_FILE, lambda file: torch.save(state, file))


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """None where there is none."""
    path = folder / CHECKPOINT_FILE
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError):
        raise BadRequest(f"{path} is damaged; delete it to begin anew") from None
    return state


def same_run(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuses to go on with another run than the one that was begun."""
    for key in now:
        if before.get(key) != now[key]:
            raise BadRequest(
                f"{path} holds a training run with another {key} ({before.get(key)}, now {now[key]}); "
                "give the same to go on, or another folder to begin anew"
            )
