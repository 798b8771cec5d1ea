"""The shared store of the drafter ``suffix`` on disk: the token text of finished rows, kept from run to run.

The file holds text, not the structure built from it: the latest ``capacity`` positions (tokens, and one break a sequence),
and ahead of them the few tokens that their contexts reach back to. Frame, the same in every version::

    magic 8 | version u32 | length of the body u64 | SHA-256 of version, length and body | body

The body of version 1 is a line of JSON (``vocabulary``: fingerprint of the tokenizer, ``depth``, ``context``: tokens that are
only looked back at, ``count``: all tokens) and ``count`` int32, little-endian, -1 being a break.

Nothing is trusted that does not match its checksum: such a file is renamed to ``*.broken`` and written anew. Writing replaces
the file in one step, readable by its owner only, under a lock, and adds to what other processes wrote meanwhile; of all, the
text written last stays. A file that was deleted meanwhile is begun anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import warnings
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from filelock import FileLock, Timeout

from ..errors import BackendError, BadRequest, VocabMismatch
from .suffix_store import BREAK

MAGIC = b"SFSUFFIX"
VERSION = 1

_HEAD = Struct("<IQ")
_DIGEST = 32
_FRAME = len(MAGIC) + _HEAD.size + _DIGEST
_WAIT = 10.0
"""Seconds to wait for another process that is writing."""


class StoreFile:
    """``kept`` is the text last read or written, ``context`` of its first tokens only looked back at."""

    def __init__(self, path: str | os.PathLike[str], vocabulary: str, capacity: int, depth: int) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise BadRequest(f"suffix: store={path!r} is not the path of a file; give one, or leave it out")
        if not isinstance(vocabulary, str) or not vocabulary:
            raise BadRequest("suffix: store= needs vocabulary=, the tokenizer's fingerprint; give any text that names it")
        self.path = Path(path).expanduser()
        if self.path.is_dir():
            raise BadRequest(f"suffix: store={os.fspath(path)!r} is a folder; give the path of a file in it")
        self.kept = array("i")
        self.context = 0
        self._vocabulary, self._capacity, self._depth = vocabulary, capacity, depth
        self._stamp = b""  # checksum of the file whose text is kept
        self._new = array("i")
        self._due = self._every = max(1, min(max(4096, capacity // 16), capacity // 4))
        self._owner = os.getpid()

    def load(self) -> None:
        """Read the file, if there is one."""
        with self._locked("read"):  # also where there is none: a path that cannot be used is told at once
            self._read()

    def add(self, tokens: Sequence[int]) -> None:
        """Note a sequence; now and then (so that a crash loses little) what was noted is written. Warns where that fails."""
        self._new.append(BREAK)
        self._new.extend(tokens[max(0, len(tokens) - self._capacity + 1) :])
        if len(self._new) >= self._due:
            self.flush()

    def flush(self) -> None:
        """:meth:`save`, but a failure is a warning: no request may fail for it."""
        if os.getpid() != self._owner:
            return  # a forked process would write what its parent writes
        try:
            self.save()
        except (BackendError, VocabMismatch) as error:
            del self._new[: -self._capacity]
            self._due = len(self._new) + self._every
            warnings.warn(f"the suffix store is not saved: {error}", RuntimeWarning, stacklevel=2)

    def save(self) -> None:
        """Write what was noted since the last time."""
        if not self._new:
            return
        with self._locked("write"):
            self._read()
            text = self.kept + self._new
            first = max(self.context, len(text) - self._capacity)
            cut = max(0, first - self._depth)
            text = text[cut:]
            self._stamp = self._write(text, first - cut)
        self.kept, self.context = text, first - cut
        self._new = array("i")
        self._due = self._every

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return 4 * (len(self.kept) + len(self._new))

    def _read(self) -> None:
        """Take over what is in the file unless it is what is kept already; set the file aside if it is broken."""
        try:
            with self.path.open("rb") as file:
                frame = file.read(_FRAME)
                if self._stamp and frame[-_DIGEST:] == self._stamp:
                    return
                data = frame + file.read()
        except FileNotFoundError:
            if self._stamp:
                self.kept, self.context, self._stamp = array("i"), 0, b""
            return
        version, body = _opened(data)
        if version > VERSION:
            raise BackendError(
                f"the suffix store {self.path} has format {version}, this release reads {VERSION}; "
                "update surefoot or give another path"
            )
        found = _decoded(body) if version == VERSION else None
        if found is None:
            self._set_aside()
            return
        vocabulary, context, text = found
        if vocabulary != self._vocabulary:
            raise VocabMismatch(
                f"the suffix store {self.path} holds tokens of another tokenizer; give another path (one file a tokenizer)"
            )
        self.kept, self.context, self._stamp = text, context, frame[-_DIGEST:]

    def _set_aside(self) -> None:
        aside = self.path.with_name(self.path.name + ".broken")
        os.replace(self.path, aside)
        warnings.warn(
            f"the suffix store {self.path} is damaged; it was renamed to {aside.name} and is built anew",
            RuntimeWarning,
            stacklevel=2,
        )

    def _write(self, text: array[int], context: int) -> bytes:
        about = {"vocabulary": self._vocabulary, "depth": self._depth, "context": context, "count": len(text)}
        body = json.dumps(about).encode() + b"\n" + _swapped(text).tobytes()
        head = _HEAD.pack(VERSION, len(body))
        digest = hashlib.sha256(head + body).digest()
        number, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)  # mode 0600
        try:
            with os.fdopen(number, "wb") as out:
                out.write(MAGIC + head + digest + body)
                out.flush()
                os.fsync(out.fileno())
            os.replace(name, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        return digest

    @contextlib.contextmanager
    def _locked(self, what: str) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=_WAIT, mode=0o600):
                yield
        except Timeout:
            raise BackendError(f"another process holds the suffix store {self.path}; try again or give another path") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise BackendError(
                f"cannot {what} the suffix store {self.path} ({reason}); free the path or give another"
            ) from None


def _opened(data: bytes) -> tuple[int, bytes]:
    """Version and body; version 0 if the frame or its checksum is wrong."""
    if len(data) < _FRAME or not data.startswith(MAGIC):
        return 0, b""
    head, body = data[len(MAGIC) : len(MAGIC) + _HEAD.size], data[_FRAME:]
    version, length = _HEAD.unpack(head)
    if length != len(body) or hashlib.sha256(head + body).digest() != data[_FRAME - _DIGEST : _FRAME]:
        return 0, b""
    return version, body


def _decoded(body: bytes) -> tuple[str, int, array[int]] | None:
    """Vocabulary, context and text; ``None`` where they contradict each other."""
    line, _, rest = body.partition(b"\n")
    try:
        about: dict[str, Any] = json.loads(line)
        vocabulary, context, count = str(about["vocabulary"]), int(about["context"]), int(about["count"])
    except (ValueError, KeyError, TypeError):
        return None
    if len(rest) != 4 * count or not 0 <= context <= count:
        return None
    text = array("i")
    text.frombytes(rest)
    text = _swapped(text)
    if count and min(text) < BREAK:
        return None
    return vocabulary, context, text


def _swapped(text: array[int]) -> array[int]:
    """Little-endian from the machine's order and back."""
    if sys.byteorder == "big":
        text = text[:]
        text.byteswap()
    return text
