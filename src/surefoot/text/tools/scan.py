"""JSON read one character at a time: where values begin and end, and the first character that cannot belong to one.

Contract: strict JSON (RFC 8259), no recursion, constant work a character; a number is judged when it ends.
"""

from __future__ import annotations

import re

KEY, NAMED, BEGIN, END = "key", "named", "begin", "end"
"""What a character did: it began a key, ended a key, began a value, ended a container or a string."""

SPACE = " \t\n\r"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = frozenset("+-.0123456789eEtrufalsn")
_LITERALS = ("true", "false", "null")
_HEX = frozenset("0123456789abcdefABCDEF")


class JsonScanner:
    """One value. After ``done`` nothing may be pushed but the character that ends a number."""

    __slots__ = ("_left", "_stack", "_state", "_word")

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._state = "value"
        self._word: list[str] = []
        self._left = 0

    @property
    def depth(self) -> int:
        """Containers that are open."""
        return len(self._stack)

    @property
    def done(self) -> bool:
        return self._state == "done"

    @property
    def broken(self) -> bool:
        return self._state == "broken"

    @property
    def ended(self) -> bool:
        """The value is whole if no character follows."""
        return self.done or (self._state == "word" and not self._stack and _is_word("".join(self._word)))

    def push(self, c: str) -> str:
        """What the character did, '' for nothing of note."""
        state = self._state
        if state in ("string", "key"):
            return self._in_string(c)
        if state.startswith("escape"):
            return self._in_escape(c)
        if state == "word":
            if c in _WORD:
                self._word.append(c)
                return ""
            if not _is_word("".join(self._word)):
                return self._break()
            self._state = state = "after" if self._stack else "done"
        if c in SPACE and state != "broken":
            return ""
        if state in ("value", "first value"):
            return self._value(c)
        if state in ("first key", "next key") and c == '"':
            self._state = "key"
            return KEY
        if state == "colon" and c == ":":
            self._state = "value"
            return ""
        if state == "after" and c == ",":
            self._state = "next key" if self._stack[-1] == "{" else "value"
            return ""
        if (state in ("after", "first key") and c == "}" and self._stack[-1] == "{") or (
            state == "after" and c == "]" and self._stack[-1] == "["
        ):
            return self._close()
        return self._break()

    def _value(self, c: str) -> str:
        if c == "]" and self._state == "first value":
            return self._close()
        if c in "{[":
            self._stack.append(c)
            self._state = "first key" if c == "{" else "first value"
        elif c == '"':
            self._state = "string"
        elif c in "-0123456789tfn":
            self._state, self._word = "word", [c]
        else:
            return self._break()
        return BEGIN

    def _in_string(self, c: str) -> str:
        if c == '"':
            key = self._state == "key"
            self._state = "colon" if key else "after" if self._stack else "done"
            return NAMED if key else END
        if c == "\\":
            self._state = "escape " + self._state
            self._left = 0
        elif c < " ":
            return self._break()
        return ""

    def _in_escape(self, c: str) -> str:
        """``_left``: hexadecimal digits that still have to come."""
        if self._left:
            if c not in _HEX:
                return self._break()
            self._left -= 1
        elif c == "u":
            self._left = 4
        elif c not in '"\\/bfnrt':
            return self._break()
        if not self._left:
            self._state = self._state.removeprefix("escape ")
        return ""

    def _close(self) -> str:
        self._stack.pop()
        self._state = "after" if self._stack else "done"
        return END

    def _break(self) -> str:
        self._state = "broken"
        return ""


def _is_word(text: str) -> bool:
    return text in _LITERALS or _NUMBER.fullmatch(text) is not None


def is_json(text: str) -> bool:
    """Whether the text is one JSON value."""
    scanner = JsonScanner()
    for c in text:
        if scanner.done and c not in SPACE:
            return False
        if not scanner.done:
            scanner.push(c)
        if scanner.broken:
            return False
    return scanner.ended
