"""What a reader of tool calls tells: text outside calls, and calls piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is not part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call whose name is known and whose arguments have begun."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """``complete``: the arguments are a whole JSON object. Otherwise they broke off, and what follows is content."""

    index: int
    complete: bool


Event = Content | CallBegin | CallArguments | CallEnd


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments_json``: a JSON object as the model wrote it, or the part of one where ``complete`` is false."""

    name: str
    arguments_json: str
    index: int
    id: str
    complete: bool = True


class Events:
    """Events of one piece of text; neighbours of one kind become one event."""

    def __init__(self) -> None:
        self._found: list[Event] = []

    def content(self, text: str) -> None:
        last = self._found[-1] if self._found else None
        if isinstance(last, Content):
            self._found[-1] = Content(last.text + text)
        elif text:
            self._found.append(Content(text))

    def begin(self, index: int, id: str, name: str) -> None:
        self._found.append(CallBegin(index, id, name))

    def arguments(self, index: int, text: str) -> None:
        last = self._found[-1] if self._found else None
        if isinstance(last, CallArguments):
            self._found[-1] = CallArguments(index, last.text + text)
        elif text:
            self._found.append(CallArguments(index, text))

    def end(self, index: int, complete: bool) -> None:
        self._found.append(CallEnd(index, complete))

    def take(self) -> list[Event]:
        found, self._found = self._found, []
        return found


def collect(events: Iterable[Event]) -> tuple[str, tuple[ToolCall, ...]]:
    """Content and calls that a stream's events add up to."""
    content: list[str] = []
    begun: list[CallBegin] = []
    arguments: list[list[str]] = []
    complete: list[bool] = []
    for event in events:
        if isinstance(event, Content):
            content.append(event.text)
        elif isinstance(event, CallBegin):
            begun.append(event)
            arguments.append([])
            complete.append(False)
        elif isinstance(event, CallArguments):
            arguments[event.index].append(event.text)
        else:
            complete[event.index] = event.complete
    calls = tuple(
        ToolCall(call.name, "".join(pieces), call.index, call.id, whole)
        for call, pieces, whole in zip(begun, arguments, complete, strict=True)
    )
    return "".join(content), calls
