"""The cache folder: where it is, locks between processes, whole-or-nothing writes, checked files.

Contract: whatever lies under its final name is complete (files and folders are renamed into place); two processes that
want the same thing wait for each other; a full disk is a one-line error that names ``SUREFOOT_CACHE``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import BackendError

Progress = Callable[[str, int, int | None], None]
"""``progress(label, done, total)`` in bytes; ``total`` is ``None`` where it is unknown."""

_SAMPLE = 1 << 20


def cache_root() -> Path:
    """``$SUREFOOT_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("SUREFOOT_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("surefoot", appauthor=False))


@contextlib.contextmanager
def disk_errors(where: Path, full_only: bool = False) -> Iterator[None]:
    """Turn a full or read-only disk into an error that names the fix."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(where) from error
        if not full_only and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise BackendError(f"cannot write to {where}: set SUREFOOT_CACHE to a folder that you may write to") from error
        raise


def disk_full(where: Path) -> BackendError:
    return BackendError(f"no space left on the disk of {where}: free some, or set SUREFOOT_CACHE to a larger disk")


@contextlib.contextmanager
def locked(target: Path, progress: Progress | None = None) -> Iterator[None]:
    """Hold the lock of ``target`` over all processes that share the cache."""
    from filelock import FileLock, Timeout

    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.parent / f".{target.name}.lock")
    with disk_errors(target.parent):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if progress is not None:
                progress(f"waiting for another process that prepares {target.name}", 0, None)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def building(target: Path, progress: Progress | None = None) -> Iterator[Path | None]:
    """Make the folder ``target`` once.

    Yields an empty staging folder to fill, which is renamed to ``target`` when the block ends well, or ``None`` if
    ``target`` is there already (perhaps made by another process meanwhile).
    """
    if target.is_dir():
        yield None
        return
    with locked(target, progress):
        if target.is_dir():
            yield None
            return
        staging = target.parent / f".{target.name}.part"
        # Left behind by a process that was killed; we hold the lock, so nobody is using it.
        shutil.rmtree(staging, ignore_errors=True)
        with disk_errors(target.parent):
            staging.mkdir(parents=True)
        try:
            with disk_errors(target.parent, full_only=True):
                yield staging
            os.replace(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def write_json(path: Path, value: object) -> None:
    """Write a small JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    os.replace(part, path)


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(_SAMPLE):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(f"checking {path.name}", done, total)
    return digest.hexdigest()


def _sidecar(path: Path, root: Path) -> Path:
    return root / "verified" / (hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:24] + ".json")


def _stamp(path: Path, sha256: str) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def record_verified(path: Path, sha256: str, root: Path) -> None:
    """Remember that the file had this checksum at its present size and time of change."""
    # Only a later start is slower without the note, so a folder that cannot be written to is no reason to fail.
    with contextlib.suppress(OSError):
        write_json(_sidecar(path, root), _stamp(path, sha256))


def known_verified(path: Path, sha256: str, root: Path) -> bool:
    """Whether the file was verified before and has not changed since; cheap."""
    try:
        return bool(json.loads(_sidecar(path, root).read_text(encoding="utf-8")) == _stamp(path, sha256))
    except (OSError, ValueError):
        return False


def verified(path: Path, sha256: str, root: Path, progress: Progress | None = None) -> bool:
    """Whether the file has this checksum; hashed once, then known by size and time of change."""
    if not path.is_file():
        return False
    if known_verified(path, sha256, root):
        return True
    if sha256_of(path, progress) != sha256:
        return False
    record_verified(path, sha256, root)
    return True


def fingerprint(source: Path) -> str:
    """Changes when the model at ``source`` (file or folder) does: names, sizes, times, samples of the content."""
    digest = hashlib.sha256()
    files = [source] if source.is_file() else sorted(path for path in source.iterdir() if path.is_file())
    for path in files:
        stat = path.stat()
        digest.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE))
            if stat.st_size > 2 * _SAMPLE:
                file.seek(-_SAMPLE, os.SEEK_END)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def content(source: Path) -> str:
    """Of what is in the model at ``source``, wherever and whenever it was stored: sizes and samples. 16 hex digits."""
    digest = hashlib.sha256()
    weights = {".safetensors", ".bin", ".gguf", ".xml"}
    files = [source] if source.is_file() else sorted(path for path in source.iterdir() if path.suffix in weights)
    for path in files:
        size = path.stat().st_size
        digest.update(f"{size}\0".encode())
        with path.open("rb") as file:
            for at in sorted({0, max(0, size // 2 - _SAMPLE), max(0, size - _SAMPLE)}):
                file.seek(at)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:16]


def label(source: Path) -> str:
    """What to call the model at ``source``. A folder's name has no ending, though it may have dots."""
    return source.stem if source.is_file() else source.name


def derived_dir(kind: str, source: Path, version: str, root: Path | None = None) -> Path:
    """Folder under the cache for something made from ``source`` by version ``version`` of its maker."""
    key = hashlib.sha256(f"{fingerprint(source)}\0{version}".encode()).hexdigest()[:16]
    return (root or cache_root()) / kind / f"{label(source)}-{key}"
