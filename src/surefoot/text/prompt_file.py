"""A prompt from a file or from standard input.

Contract: bytes are UTF-8 or refused with the offset of the first bad one; nothing is replaced silently.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from ..errors import BadRequest

_BOM = b"\xef\xbb\xbf"


def read_prompt(source: str | os.PathLike[str] | BinaryIO) -> str:
    """Text of a file, of a binary stream, or of standard input (``"-"``)."""
    if isinstance(source, str | os.PathLike):
        name = "standard input" if source == "-" else os.fspath(source)
        data = sys.stdin.buffer.read() if source == "-" else _file(Path(source))
    else:
        name, data = getattr(source, "name", "the input"), source.read()
    offset = len(_BOM) if data.startswith(_BOM) else 0
    try:
        return data[offset:].decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start + offset
        raise BadRequest(
            f"{name} is not valid UTF-8 (byte {at} is 0x{data[at]:02x}): save it as UTF-8, e.g. with iconv"
        ) from None


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"cannot read the prompt from {path} ({error.strerror}): check the path") from error
