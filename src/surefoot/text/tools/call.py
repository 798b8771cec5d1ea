"""One call written as a JSON object: ``{"name": …, "arguments": {…}}``, with ``parameters`` for ``arguments`` too.

Contract: the arguments come out as they are written, as soon as the name is known. Arguments that are a JSON text inside a
string are taken out of it; none, ``null`` or an empty string are ``{}``; of other members nothing is kept.
"""

from __future__ import annotations

import json
import re

from .scan import BEGIN, END, KEY, NAMED, JsonScanner, is_json

NAME_LETTERS = re.compile(r"[\w.:/-]")
LONGEST_NAME = 256
_KNOWN = ("name", "arguments", "parameters", "id", "type")


def is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and all(NAME_LETTERS.fullmatch(c) for c in text)


class CallObject:
    """``strict``: an object with other members than a call has is not one."""

    def __init__(self, strict: bool = False) -> None:
        self.name: str | None = None
        self.whole = False
        """The arguments are complete."""
        self.closed = False
        self.broken = False
        self._strict = strict
        self._json = JsonScanner()
        self._key = ""
        self._role = ""
        self._seen = False
        self._text: list[str] | None = None
        self._raw = False
        self._ready: list[str] = []

    @property
    def begun(self) -> bool:
        """It is a call: there are a name and arguments."""
        return self.name is not None and self._seen

    def take(self) -> str:
        """Arguments that came since the last time; nothing while there is no name."""
        if self.name is None:
            return ""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def push(self, c: str) -> None:
        event = self._json.push(c)
        depth = self._json.depth
        if event == KEY and depth == 1:
            self._text = []
        elif event == BEGIN and depth - (c in "{[") == 1:
            self._begin(c)
        if self._text is not None:
            self._text.append(c)
        if self._raw:
            self._ready.append(c)
        if event == NAMED and depth == 1:
            self._key = self._string()
            self.broken |= self._strict and self._key not in _KNOWN
        elif event == END and depth == 1:
            self._end()
        elif event == END and depth == 0:
            self._close()
        self.broken |= self._json.broken

    def _begin(self, c: str) -> None:
        """A member's value begins."""
        self._role = {"name": "name", "arguments": "arguments", "parameters": "arguments"}.get(self._key, "")
        if self._role == "name":
            self.broken |= c != '"' or self.name is not None
            self._text = []
        elif self._role == "arguments":
            self.broken |= self._seen or c not in '{"n'
            self._raw = self._seen = c == "{"
            self._text = [] if c == '"' else None

    def _end(self) -> None:
        """A member's value ended: a string, an object or a list."""
        role, self._role = self._role, ""
        if role == "name":
            name = self._string()
            self.broken |= not is_name(name)
            self.name = name
        elif role == "arguments":
            if not self._raw:
                text = self._string().strip() or "{}"
                self.broken |= not (text.startswith("{") and is_json(text))
                self._ready.append(text)
            self._raw, self._seen, self.whole = False, True, True

    def _close(self) -> None:
        self.closed = True
        self.broken |= self.name is None or (self._strict and not self._seen)
        if not self._seen:
            self._ready.append("{}")
            self._seen = self.whole = True

    def _string(self) -> str:
        text, self._text = "".join(self._text or ()), None
        found: str = json.loads(text)
        return found
