"""From a reference to local files, and what is local already.

Contract: :func:`fetch` returns a GGUF file or a model folder that exists; :func:`list_cached` only looks
at folders and never downloads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelNotFound
from .cache import Progress, cache_root, derived_dir
from .hub import fetch_hub, has_weights
from .packaged import PACKAGED, cached_path, fetch_packaged
from .reference import ModelRef, resolve


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model on this machine. ``ref`` is what to give to :func:`resolve`; ``kind`` also has "converted"."""

    ref: str
    kind: str
    path: Path
    size: int


def fetch(ref: str | os.PathLike[str] | ModelRef, progress: Progress | None = None) -> Path:
    """Local path of the model, downloaded if need be."""
    model = resolve(ref)
    if model.kind == "packaged":
        return fetch_packaged(model.name, progress)
    if model.hub_id is not None:
        return fetch_hub(model.hub_id, model.hub_file, progress)
    assert model.path is not None
    return model.path


def fetch_head(ref: str, progress: Progress | None = None) -> Path:
    """Local folder of a trained head: a folder, or a hub id."""
    path = Path(ref).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ModelNotFound(f"{ref} is a file; give the folder of the head, with config.json and its tensors")
    model = resolve(ref)
    if model.hub_id is None or model.hub_file is not None:
        raise ModelNotFound(f"{ref} is no head; give the folder of a head, or a hub id")
    return fetch_hub(model.hub_id, None, progress)


def converted_dir(source: str | os.PathLike[str] | ModelRef, version: str) -> Path:
    """Where the OpenVINO form of ``source`` belongs, made by version ``version`` of the converter.

    Only the place; fill it through :func:`surefoot.models.building`.
    """
    return derived_dir("converted", fetch(source), version)


def list_cached() -> list[CachedModel]:
    """Packaged models, converted models and usable hub snapshots on this machine."""
    root = cache_root()
    found = [
        CachedModel(name, "packaged", path, path.stat().st_size)
        for name in PACKAGED
        if (path := cached_path(name, root)).is_file()
    ]
    converted = root / "converted"
    if converted.is_dir():
        folders = [path for path in sorted(converted.iterdir()) if path.is_dir() and not path.name.startswith(".")]
        found += [CachedModel(str(path), "converted", path, size_on_disk(path)) for path in folders]
    return found + _hub_models()


def _hub_models() -> list[CachedModel]:
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    found = []
    for folder in sorted(cache.glob("models--*--*")) if cache.is_dir() else []:
        repo = folder.name.removeprefix("models--").replace("--", "/")
        for snapshot in sorted(folder.glob("snapshots/*")):
            if has_weights(snapshot):
                found.append(CachedModel(repo, "hub", snapshot, size_on_disk(snapshot)))
                continue
            found += [
                CachedModel(f"{repo}/{file.relative_to(snapshot).as_posix()}", "hub", file, size_on_disk(file))
                for file in sorted(snapshot.glob("**/*.gguf"))
            ]
    return found


def size_on_disk(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
