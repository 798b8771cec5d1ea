"""The file of a datastore: its header, and what is done with one that is damaged.

A fixed prefix (magic, version, length and SHA-256 of the header), the header as JSON, then the arrays, each from a new
page on. Only a file that begins with the magic is ever moved: others are not ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from shlex import quote
from typing import Any

from ..errors import BadRequest, Unsupported

MAGIC = b"SUREFOOT"
VERSION = 1
DTYPE = f"int32-{sys.byteorder}"
ITEM = 4
PAGE = 4096
DEPTH = 32
"""Tokens of context by which places are sorted: no longer match is told from this one."""
BREAK = -1
"""Separates documents; smaller than every token, and no query holds it."""
PARTS = ("text", "order", "starts")

_PREFIX = struct.Struct("<8sII32s")  # magic, version, bytes of the header, their checksum
LONGEST_HEADER = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """What a store says of itself. ``sums``: SHA-256 of each array."""

    fingerprint: str
    """Of the tokenizer: its id -> token table."""
    vocab_size: int
    tokens: int
    documents: int
    text: int
    """Entries of each array."""
    order: int
    starts: int
    sums: dict[str, str]
    model: str
    """As named to the builder; for the message that says how to build anew."""
    folder: str
    depth: int = DEPTH
    dtype: str = DTYPE

    def offsets(self) -> dict[str, tuple[int, int]]:
        """Array -> (first byte, bytes); each starts on a page."""
        found, at = {}, pages(_PREFIX.size + len(self.encoded()))
        for name in PARTS:
            size = ITEM * int(getattr(self, name))
            found[name] = at, size
            at = pages(at + size)
        return found

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        at, size = self.offsets()[PARTS[-1]]
        return pages(at + size)

    def encoded(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    def prefixed(self) -> bytes:
        """The first bytes of the file."""
        data = self.encoded()
        return _PREFIX.pack(MAGIC, VERSION, len(data), hashlib.sha256(data).digest()) + data


def pages(size: int) -> int:
    """``size`` rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


class Damaged(Exception):
    """Why a file that says it is a datastore cannot be trusted."""


def is_datastore(path: Path) -> bool:
    """Whether a file begins like a store, of whatever version and in whatever state."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def rebuild(path: Path, header: Header | None = None, model: str | None = None) -> str:
    """The command that makes a store anew, from the same folder where it is known."""
    folder = header.folder if header is not None else "FOLDER"
    model = model or (header.model if header is not None else "MODEL")
    return f"build it anew: surefoot datastore build {quote(folder)} --model {quote(model)} --out {quote(str(path))}"


def read_header(data: bytes, path: Path) -> Header:
    if data[: len(MAGIC)] != MAGIC:
        raise BadRequest(f"{path} is not a datastore; make one: surefoot datastore build FOLDER --model MODEL --out {path}")
    if len(data) < _PREFIX.size:
        raise Damaged("it ends within its header")
    _, version, length, digest = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise Unsupported(f"datastore {path} has format {version}, this Surefoot reads {VERSION}; {rebuild(path)}")
    encoded = data[_PREFIX.size : _PREFIX.size + length]
    if len(encoded) != length or hashlib.sha256(encoded).digest() != digest:
        raise Damaged("the checksum of its header is wrong")
    values: dict[str, Any] = json.loads(encoded)
    header = Header(**{field.name: values[field.name] for field in fields(Header)})
    if header.dtype != DTYPE:
        raise Unsupported(f"datastore {path} holds {header.dtype}, this machine reads {DTYPE}; {rebuild(path, header)}")
    return header


def set_aside(path: Path) -> str:
    broken = path.with_name(path.name + ".broken")
    try:
        os.replace(path, broken)
    except OSError as error:
        return f"it could not be set aside ({error.strerror})"
    return f"it was set aside as {broken.name}"
