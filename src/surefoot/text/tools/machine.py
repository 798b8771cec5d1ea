"""The character machine under a stream of tool calls: content, markers, and what is held until it is known what it is.

Contract: every character is content, or belongs to a call, or is a marker or a blank beside a call; ``hold`` has those of
which that is not known yet. Characters are read a second time only where a marker or a call broke off, and never a third.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .events import Events
from .markers import BARE, FAMILIES
from .scan import SPACE

Options = dict[str, Callable[[], None]]

_PLAIN = re.compile(r"[^<\[]+")
"""Text in which no marker begins."""


class Machine:
    """``markers``: those that begin a call here; ``enter``: what to do after each."""

    def __init__(self, markers: tuple[str, ...], prefix: str) -> None:
        self.enter: Options = {}
        self.events = Events()
        self.calls = 0
        self.open = False
        """The last call was told and has not ended."""
        self.whole = False
        """Its arguments are complete."""
        self.family: tuple[str, ...] = ()
        self.hold: list[str] = []
        """What was read and told in no event."""
        self.match = ""
        """The beginning of a marker; outside of content a part of ``hold``."""
        self.mode: Callable[[str], None] = self.content
        self._markers = markers
        self._prefix = prefix
        self._edge = True
        self._options: Options = {}
        self._otherwise: Callable[[], None] = self.fail

    def read(self, text: str) -> None:
        at = 0
        while at < len(text):
            plain = self.mode == self.content and not self._edge and not self.match
            if plain and (found := _PLAIN.match(text, at)):
                self.events.content(found.group())
                at = found.end()
            else:
                self.mode(text[at])
                at += 1

    def finish(self) -> None:
        """The text has ended. What was withheld is content, but for blanks after a call."""
        broke = self.open and not self.whole
        if self.open:
            self.end(self.whole)
        rest = "".join(self.hold) + (self.match if self.mode == self.content else "")
        if rest.strip(SPACE) or broke or not self.calls:
            self.events.content(rest)

    def content(self, c: str) -> None:
        """Mode: outside of calls. At an edge (the beginning, after a call) blanks are held."""
        if self._edge and not self.match:
            if c in SPACE:
                self.hold.append(c)
                return
            if c == BARE and BARE in self._markers and not self.calls:
                self._enter(BARE)
                return
        self.match += c
        while self.match:
            if self.match in self._markers:
                self._enter(self.match)
                return
            if any(marker.startswith(self.match) for marker in self._markers if marker != BARE):
                return
            self._release(self.match[0])
            self.match = self.match[1:]

    def _enter(self, marker: str) -> None:
        self.hold.append(marker)
        self.match = ""
        self.family = FAMILIES[marker]
        self.enter[marker]()

    def _release(self, more: str = "") -> None:
        """What is held is content."""
        self.events.content("".join(self.hold) + more)
        self.hold.clear()
        self._edge = False

    def expect(self, options: Options, otherwise: Callable[[], None]) -> None:
        """After blanks: one of these texts, none of which begins another one."""
        self._options, self._otherwise, self.match = options, otherwise, ""
        self.mode = self.expecting

    def expecting(self, c: str) -> None:
        """Mode: see :meth:`expect`."""
        self.hold.append(c)
        if not self.match and c in SPACE:
            return
        self.match += c
        if (go := self._options.get(self.match)) is not None:
            self.match = ""
            go()
        elif not any(text.startswith(self.match) for text in self._options):
            self._otherwise()

    def fail(self) -> None:
        """What was taken for a call is none. It is content, but for ``match``, which may begin a marker."""
        again, self.match = self.match, ""
        held = "".join(self.hold)
        self.hold = [held[: len(held) - len(again)]]
        self._release()
        self.mode = self.content
        self.again(again)

    def leave(self) -> None:
        """A call is over, and what is held does not belong to it."""
        again, self.match = "".join(self.hold), ""
        self.closed()
        self.again(again)

    def closed(self) -> None:
        """A call is over, its end marker included."""
        self.hold.clear()
        self.mode, self._edge = self.content, True

    def broke(self) -> None:
        """A call that was told cannot go on; blanks are content from here on."""
        again, self.match = "".join(self.hold), ""
        self.end(False)
        self.closed()
        self._edge = False
        self.again(again)

    def again(self, text: str) -> None:
        """Read in a new mode the characters that told the modes apart."""
        for c in text:
            self.mode(c)

    def begin(self, name: str) -> None:
        """Tell a call; from the first one on, only markers of its family begin others."""
        self.events.begin(self.calls, f"{self._prefix}_{self.calls}", name)
        self.calls += 1
        self.open, self.whole = True, False
        self._markers = tuple(m for m in self._markers if m in self.family)

    def tell(self, arguments: str) -> None:
        self.events.arguments(self.calls - 1, arguments)
        self.hold.clear()

    def end(self, complete: bool) -> None:
        self.events.end(self.calls - 1, complete)
        self.open = False
