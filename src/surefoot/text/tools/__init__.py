"""Tool calls in the text that a model writes, found as the text comes."""

from .events import CallArguments, CallBegin, CallEnd, Content, Event, ToolCall, collect
from .markers import FORMATS
from .stream import ToolCallStream, parse_tool_calls

__all__ = [
    "FORMATS",
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "Content",
    "Event",
    "ToolCall",
    "ToolCallStream",
    "collect",
    "parse_tool_calls",
]
