"""A folder that appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import BackendError


def need_room(folder: Path, size: int) -> None:
    """Refuse before the work when the disk cannot take its result."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < size:
        raise BackendError(
            f"disk full: {folder} needs {size >> 20} MB and has {free >> 20} MB; free some space or set another cache folder"
        )


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``out``; on success it becomes ``out``, on failure nothing is left of it."""
    temporary: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        yield temporary
        old = None
        if out.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}-old-", dir=out.parent))
            os.replace(out, old / out.name)
        os.replace(temporary, out)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BackendError(f"disk full while writing {out}; free some space or set another cache folder") from None
        raise BackendError(f"cannot write {out}: {e.strerror or e}; choose a folder that is writable") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
