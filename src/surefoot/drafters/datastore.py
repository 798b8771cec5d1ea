"""A datastore of token texts on disk, and the search for the places whose context is nearest to a row's tail.

One file, memory-mapped: a header, then three arrays of 32-bit integers.

text    the documents' tokens, :data:`BREAK` before, between and behind them
order   *places*: positions of ``text`` that hold a token with a token of the same document before it, sorted by that
        context read backwards (last token first), by up to :data:`DEPTH` tokens of it
starts  where in ``order`` the contexts that end in token t begin: ``order[starts[t]:starts[t + 1]]``

Read backwards, contexts that share a longer end stand closer together: one binary search finds the longest match, and
shorter matches are found by going outwards from there. Sizes and the header's checksum are tested at every opening; the
arrays' checksums where that is cheap (under :data:`SMALL` bytes) or asked for. A damaged store is set aside and refused.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path

from ..errors import BackendError, BadRequest
from .datastore_format import BREAK, DEPTH, LONGEST_HEADER, PARTS, Damaged, Header, read_header, rebuild, set_aside

__all__ = ["BREAK", "DEPTH", "SMALL", "Datastore", "Ring"]

SMALL = 64 << 20
"""Stores up to this size are read and checked whole when they are opened."""

Ring = tuple[int, list[int]]
"""Length of the match, and places that match as far and no farther."""


class Datastore:
    """An open store. The file may be replaced while it is open (a rename); this one keeps reading the old bytes."""

    __slots__ = ("_buffer", "_order", "_starts", "_text", "header", "path")

    def __init__(self, path: Path, header: Header, buffer: mmap.mmap) -> None:
        self.path = path
        self.header = header
        self._buffer = buffer
        # items of a memoryview come as plain ints, in a fraction of the time that items of a numpy array take
        whole = memoryview(buffer)
        parts = {name: whole[at : at + size].cast("i") for name, (at, size) in header.offsets().items()}
        self._text, self._order, self._starts = (parts[name] for name in PARTS)

    @staticmethod
    def open(path: str | os.PathLike[str], verify: bool = False) -> Datastore:
        """Map a store; ``verify``: test the checksums of the arrays whatever their size."""
        place = Path(path).expanduser()
        header: Header | None = None
        try:
            with place.open("rb") as file:
                header, size = read_header(file.read(LONGEST_HEADER), place), os.fstat(file.fileno()).st_size
                if size != header.size:
                    raise Damaged(f"{size} bytes instead of {header.size}")
                buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            store = Datastore(place, header, buffer)
            store._sane()
            if verify or size <= SMALL:
                store._verify()
            return store
        except Damaged as error:
            raise BackendError(
                f"datastore {place} is damaged ({error}); {set_aside(place)}; {rebuild(place, header)}"
            ) from None
        except OSError as error:
            raise BadRequest(
                f"datastore {place} cannot be read ({error.strerror or error}); {rebuild(place, header)}"
            ) from error

    def rings(self, tail: list[int], longest: int, least: int, most: int, shells: int) -> list[Ring]:
        """Places by length of their match with the end of ``tail``, the longest first: at most ``shells`` lengths.

        Lengths are those from ``least`` to ``longest`` at which there are places, and ``most`` bounds the places over all of
        them; of a ring that is larger than what is left, places are taken at even distances.
        """
        try:
            return self._rings(tail[: -longest - 1 : -1], least, most, shells)
        except IndexError:  # only a store damaged since it was checked points out of itself
            return []

    def _rings(self, back: list[int], least: int, most: int, shells: int) -> list[Ring]:
        if len(back) < least or not 0 <= back[0] < self.header.vocab_size:
            return []
        low, high = self._starts[back[0]], self._starts[back[0] + 1]
        left, right, on_left, on_right = self._search(back, low, high)
        found: list[Ring] = []
        while (n := max(on_left, on_right)) >= least:
            if n == 1:
                first, last = low, high
            else:
                forward = back[n - 1 :: -1]
                first = left - self._run(forward, left - 1, left - low, -1) if on_left == n else left
                last = right + self._run(forward, right, high - right, 1) if on_right == n else right
            size, room = left - first + last - right, most
            if size <= room:
                places = [*self._order[first:left], *self._order[right:last]]
            else:
                inner = right - left
                chosen = [first + i * size // room for i in range(room)]
                places = [self._order[i if i < left else i + inner] for i in chosen]
            if max(places) >= len(self._text):
                raise IndexError
            found.append((n, places))
            most -= len(places)
            shells -= 1
            if n == 1 or most <= 0 or shells <= 0:
                break
            on_left = self._shared(back, first - 1, n) if first > low else 0
            on_right = self._shared(back, last, n) if last < high else 0
            left, right = first, last
        return found

    def tokens(self, place: int, count: int) -> list[int]:
        """At most ``count`` tokens from a place on, to the end of its document."""
        found = self._text[place : place + count].tolist()
        return found[: found.index(BREAK)] if BREAK in found else found

    @property
    def text(self) -> memoryview:
        """All tokens; an item is an int, :data:`BREAK` between documents."""
        return self._text

    def close(self) -> None:
        """Give the map back; the store cannot be used any more."""
        for view in (self._text, self._order, self._starts):
            view.release()
        self._buffer.close()

    def _search(self, back: list[int], low: int, high: int) -> tuple[int, int, int, int]:
        """The place in ``order`` where ``back`` belongs, twice, and the matches of the entries before and behind it."""
        text, order, m = self._text, self._order, len(back)
        a, b, on_a, on_b = low, high, 1, 1
        while a < b:
            middle = (a + b) >> 1
            place = order[middle] - 1
            n = on_a if on_a < on_b else on_b  # as much is common to all entries in between
            while n < m and text[place - n] == back[n]:
                n += 1
            if n == m or text[place - n] > back[n]:
                b, on_b = middle, n
            else:
                a, on_a = middle + 1, n
        return a, a, on_a if a > low else 0, on_b if a < high else 0

    def _run(self, forward: list[int], entry: int, most: int, way: int) -> int:
        """How many entries from ``entry`` on, which is one of them, in direction ``way`` end in ``forward``."""
        text, order, n = self._text, self._order, len(forward)
        good, bad, step = 1, most + 1, 1
        while bad - good > 1:  # double the step until it misses, then halve
            middle = good + step if good + step < bad else (good + bad) >> 1
            place = order[entry + way * (middle - 1)]
            if text[place - n : place].tolist() == forward:
                good = middle
                step += step
            else:
                bad = middle
        return good

    def _shared(self, back: list[int], entry: int, stop: int) -> int:
        """Tokens, fewer than ``stop``, that the context of an entry shares with ``back``."""
        text, place, n = self._text, self._order[entry] - 1, 1
        while n < stop and text[place - n] == back[n]:
            n += 1
        return n

    def _sane(self) -> None:
        """What lookups rely on to stay inside the arrays."""
        text, starts = self._text, self._starts
        if text[0] != BREAK or text[-1] != BREAK or starts[0] != 0 or starts[-1] != len(self._order):
            raise Damaged("its arrays contradict each other")

    def _verify(self) -> None:
        for name, view in zip(PARTS, (self._text, self._order, self._starts), strict=True):
            if hashlib.sha256(view).hexdigest() != self.header.sums.get(name):
                raise Damaged(f"the checksum of its {name} is wrong")
