"""Arguments written as ``<parameter=KEY>VALUE</parameter>``, as the pieces of a JSON object.

A value's type is that of the tool's schema. Without one, what is JSON but not a string stands for itself, and the rest is a
string. One line end on each side of a value belongs to the notation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .scan import is_json

_CLOSE = "</parameter>"


class Parameters:
    """``schema``: the tool's ``properties``, if known."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._schema = schema or {}
        self._sent = False
        self._key: str | None = None
        self._text: list[str] = []
        self.whole = False
        self.broken = False

    @staticmethod
    def of(name: str, tools: Iterable[Mapping[str, Any]]) -> Parameters:
        """For the tool of this name among OpenAI's ``tools``."""
        for tool in tools:
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and function.get("name") == name:
                schema = function.get("parameters")
                found = schema.get("properties") if isinstance(schema, Mapping) else None
                return Parameters(found if isinstance(found, Mapping) else None)
        return Parameters(None)

    def begin(self) -> None:
        """``<parameter=`` was read."""
        self._key, self._text, self.whole = None, [], False

    def push(self, c: str) -> None:
        """A character of key, value or end marker."""
        if self._key is None:
            if c == ">" and self._text:
                self._key, self._text = "".join(self._text), []
            elif c in "<>\n":
                self.broken = True
            else:
                self._text.append(c)
            return
        self._text.append(c)
        self.whole = c == ">" and "".join(self._text[-len(_CLOSE) :]) == _CLOSE

    def take(self) -> str:
        """The piece of the parameter that is whole."""
        key = self._key or ""
        value = "".join(self._text[: -len(_CLOSE)]).removeprefix("\n").removesuffix("\n")
        piece = ("," if self._sent else "{") + json.dumps(key, ensure_ascii=False) + ":" + self._value(key, value)
        self._sent = True
        return piece

    def close(self) -> str:
        """The last piece."""
        return "}" if self._sent else "{}"

    def _value(self, key: str, text: str) -> str:
        declared = self._schema.get(key)
        kind = declared.get("type") if isinstance(declared, Mapping) else None
        bare = text.strip()
        if kind != "string" and not (kind is None and bare.startswith('"')) and is_json(bare):
            return bare
        return json.dumps(text, ensure_ascii=False)
