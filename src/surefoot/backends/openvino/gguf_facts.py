"""The few numbers of a GGUF header that the graph does not carry: architecture, name, context length, sliding window."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from ...errors import BackendError, ModelNotFound

_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


def scalars(path: Path) -> dict[str, Any]:
    """Metadata that are numbers or strings; arrays are skipped. A file cut short or of another kind is refused."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(data)
    except FileNotFoundError:
        raise ModelNotFound(f"no such file: {path}") from None
    except (struct.error, ValueError, IndexError, KeyError):
        raise BackendError(f"{path} is not a complete GGUF file; download it again") from None
    except OSError as e:
        raise BackendError(f"cannot read {path}: {e.strerror or e}; check its permissions") from None


def _parse(data: mmap.mmap) -> dict[str, Any]:
    if data[:4] != b"GGUF":
        raise ValueError
    count = struct.unpack_from("<Q", data, 16)[0]
    at, out = 24, {}
    for _ in range(count):
        name, at = _string(data, at)
        kind = struct.unpack_from("<I", data, at)[0]
        value, at = _value(data, at + 4, kind)
        if value is not None:
            out[name] = value
    return out


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind != _ARRAY:
        return struct.unpack_from(_FORMATS[kind], data, at)[0], at + struct.calcsize(_FORMATS[kind])
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in _FORMATS:
        return None, at + count * struct.calcsize(_FORMATS[inner])
    for _ in range(count):
        _, at = _value(data, at, inner)
    return None, at


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    size = struct.unpack_from("<Q", data, at)[0]
    end = at + 8 + size
    if end > len(data):
        raise ValueError
    return data[at + 8 : end].decode("utf-8", "replace"), end
