"""Chat messages: checked, then rendered by the model's own jinja template in a sandbox.

Contract: the same text as ``transformers`` renders (trimmed blocks, ``raise_exception``, ``strftime_now``, ``tojson``
that keeps non-ASCII, loop controls, ``generation`` blocks); bad messages are a :class:`BadRequest` that names
the place.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import BadRequest

ROLES = ("system", "developer", "user", "assistant", "tool")


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's text for training; at inference it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - declared as an instance variable by jinja

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise BadRequest(f"the chat template refuses these messages: {message}")


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def compile_template(source: str) -> jinja2.Template:
    """The template, ready to render."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise BadRequest(f"the model's chat template is broken ({error}): pass a plain prompt, or mend the template") from error


def render(template: jinja2.Template, messages: Sequence[Mapping[str, Any]], **values: Any) -> str:
    """The text of a conversation."""
    try:
        return template.render(messages=check_messages(messages), **values)
    except jinja2.TemplateError as error:
        raise BadRequest(f"the chat template fails on these messages ({error}): check roles and content") from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(f"the chat template fails on these messages ({error}): check roles and content") from error


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with text content, ready for a template; ``developer`` is a ``system`` message to most of them."""
    if not messages:
        raise BadRequest("the list of messages is empty: give at least one {'role': 'user', 'content': …}")
    return [_check(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _check(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadRequest(f"{place} is a {type(message).__name__}: give a dict with 'role' and 'content'")
    role = message.get("role")
    if role not in ROLES:
        raise BadRequest(f"{place}.role is {role!r}: use one of {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{place}.content[{i}]") for i, part in enumerate(content))
    if content is None and role == "assistant" and message.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise BadRequest(f"{place}.content is {type(content).__name__}: give a string")
    return {**message, "role": "system" if role == "developer" else role, "content": content}


def _part(part: Any, place: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise BadRequest(f"{place} is {kind!r}: only parts {{'type': 'text', 'text': …}} are taken")
