"""Tool calls in a stream of text, in the forms that open models write.

    hermes, qwen   <tool_call>{"name": …, "arguments": {…}}</tool_call>, or a list of such objects inside
    function       <function=NAME>{…}</function>
    qwen3_coder    <function=NAME><parameter=KEY>VALUE</parameter>…</function>, in <tool_call> or alone
    mistral        [TOOL_CALLS][{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]NAME{…}
    llama3_json    {"name": …, "parameters": {…}} and nothing before it, or after <|python_tag|>; more of them after ';'

Contract: text is read one character at a time, so how it is cut changes nothing. What may begin a marker is withheld until it
does or cannot. Nothing that a model writes raises: a call that breaks before its arguments begin is content as it stands; one
that breaks later ends incomplete, and the rest is content. Only markers, and blanks beside calls, are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from ...errors import BadRequest
from .events import Event, ToolCall, collect
from .machine import Machine
from .markers import BARE, FORMATS, FUNCTION, HERMES, MISTRAL, PYTHON
from .named import Named
from .objects import Objects


class ToolCallStream:
    """``format``: ``auto`` takes that of the first call. ``tools``: OpenAI's list; tells the types of XML parameters.

    ``prefix``: ids are ``prefix_0``, ``prefix_1``, …
    """

    def __init__(self, format: str = "auto", tools: Iterable[Mapping[str, Any]] | None = None, prefix: str = "call") -> None:
        if format not in FORMATS:
            near = get_close_matches(str(format), FORMATS, 1)
            hint = f"did you mean {near[0]!r}?" if near else "give one of " + ", ".join(FORMATS)
            raise BadRequest(f"unknown tool call format {format!r}; {hint}")
        machine = self._machine = Machine(FORMATS[format], prefix)
        objects, named = Objects(machine), Named(machine, list(tools or ()))
        machine.enter = {
            HERMES: lambda: objects.tagged("</tool_call>", {FUNCTION: named.function}),
            FUNCTION: named.function,
            MISTRAL: lambda: objects.tagged(None, {}, named.mistral),
            PYTHON: objects.python,
            BARE: objects.bare,
        }
        self._finished = False

    def feed(self, text: str) -> list[Event]:
        """Read more text; returns what became certain."""
        if self._finished:
            raise BadRequest("this stream of tool calls is finished; make a new ToolCallStream")
        self._machine.read(text)
        return self._machine.events.take()

    def finish(self) -> list[Event]:
        """The text has ended; returns what was withheld."""
        if not self._finished:
            self._finished = True
            self._machine.finish()
        return self._machine.events.take()


def parse_tool_calls(
    text: str, format: str = "auto", tools: Iterable[Mapping[str, Any]] | None = None, prefix: str = "call"
) -> tuple[str, tuple[ToolCall, ...]]:
    """The content and the calls of a whole text; options as those of :class:`ToolCallStream`."""
    stream = ToolCallStream(format, tools, prefix)
    return collect([*stream.feed(text), *stream.finish()])
