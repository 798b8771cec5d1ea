"""Header of a GGUF file: metadata and tensor table, without touching the weights.

Contract: a file that is not GGUF, is cut short or lies about its own sizes raises a one-line :class:`BackendError`.
The reader of the ``gguf`` package maps every array element to an object, which takes two seconds for a vocabulary of
49,152 tokens; this one takes a few hundredths.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..errors import BackendError

MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor. ``shape`` is in GGUF order, fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    path: Path
    fields: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", ""))

    def hyper(self, name: str, default: Any = None) -> Any:
        """The metadata value ``<architecture>.<name>``."""
        return self.fields.get(f"{self.architecture}.{name}", default)


class _Cut(Exception):
    """The header points past the end of the file."""


class _Cursor:
    """Reads little-endian values from a buffer, never past its end."""

    __slots__ = ("at", "data", "size")

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.size = data, 0, len(data)

    def take(self, size: int) -> int:
        start = self.at
        if size > self.size - start:
            raise _Cut
        self.at = start + size
        return start

    def scalar(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self.data, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        length = self.scalar("Q")
        start = self.take(length)
        return self.data[start : start + length].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        raise _Cut

    def array(self) -> list[Any]:
        kind, length = self.scalar("I"), self.scalar("Q")
        if kind in _SCALARS:
            code = _SCALARS[kind]
            start = self.take(length * struct.calcsize("<" + code))
            return list(struct.unpack_from(f"<{length}{code}", self.data, start))
        return [self.value(kind) for _ in range(length)]


def is_gguf(path: Path) -> bool:
    """Whether the file begins with the GGUF magic."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> GgufHeader:
    """Read and check the header; the weights must lie wholly inside the file."""
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise BackendError(f"{path} is not a GGUF file (bad magic); download it again or give another file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, _Cursor(data))
    except _Cut:
        raise BackendError(f"{path} is cut short or corrupted; download it again") from None
    except OSError as error:
        raise BackendError(f"cannot read {path}: {error.strerror or error}; check the file and its permissions") from error


def _parse(path: Path, cursor: _Cursor) -> GgufHeader:
    cursor.take(4)
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise BackendError(f"{path} has GGUF version {version}; versions 2 and 3 (little-endian) are read: convert it again")
    n_tensors, n_fields = cursor.scalar("Q"), cursor.scalar("Q")
    fields: dict[str, Any] = {}
    for _ in range(n_fields):
        key = cursor.string()
        fields[key] = cursor.value(cursor.scalar("I"))
    raw = [_tensor(cursor) for _ in range(n_tensors)]
    alignment = int(fields.get("general.alignment", 32)) or 32
    start = -(-cursor.at // alignment) * alignment
    tensors = tuple(_sized(path, entry) for entry in raw)
    if any(start + tensor.offset + tensor.size > cursor.size for tensor in tensors):
        raise _Cut
    return GgufHeader(path, fields, tensors)


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    rank = cursor.scalar("I")
    shape = tuple(cursor.scalar("Q") for _ in range(rank))
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


def _sized(path: Path, entry: tuple[str, tuple[int, ...], int, int]) -> GgufTensor:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name, shape, code, offset = entry
    try:
        kind = GGMLQuantizationType(code)
    except ValueError:
        raise BackendError(f"{path}: tensor {name} has unknown type {code}; update the gguf package") from None
    block, size = GGML_QUANT_SIZES[kind]
    return GgufTensor(name, shape, kind.name, offset, prod(shape) // block * size)
