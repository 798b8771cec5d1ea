"""Structured output: what a request may ask for, and what the engine asks of a grammar library.

A :class:`Constraint` is a plain value. A :class:`Grammars` turns it into a :class:`Matcher`, which is forked along a draft
and advanced once per kept token, like every other state of a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import BadRequest

KINDS = ("json_object", "json_schema", "regex", "grammar", "choice")


@dataclass(frozen=True, slots=True)
class Constraint:
    """``text``: the schema as JSON, the pattern, the EBNF grammar, or the choices as a JSON list; '' for ``json_object``."""

    kind: str
    text: str = ""

    @property
    def choices(self) -> list[str]:
        found: list[str] = json.loads(self.text)
        return found


class Matcher(Protocol):
    """Where a constraint stands after the tokens so far."""

    @property
    def ended(self) -> bool:
        """Nothing can follow, not even an end token: the output is complete."""
        ...

    def allowed(self) -> np.ndarray:
        """[V] bool: the tokens that may come next; end tokens where the output may end here."""
        ...

    def advance(self, token: int) -> None:
        """One token further. A token that is not allowed leaves a matcher that allows nothing."""
        ...

    def fork(self) -> Matcher:
        """An independent copy."""
        ...

    def forced(self, limit: int) -> list[int]:
        """At most ``limit`` tokens that spell what the constraint leaves no choice about; a guess at how they are cut."""
        ...


class Grammars(Protocol):
    """Compiles constraints for one vocabulary and keeps what it compiled."""

    def matcher(self, constraint: Constraint) -> Matcher:
        """A matcher at the beginning; :class:`BadRequest` names what is wrong with the schema, pattern or grammar."""
        ...


def from_response_format(value: object) -> Constraint | None:
    """OpenAI's ``response_format``, with the types ``regex``, ``grammar`` and ``choice`` beside OpenAI's own."""
    if value is None or isinstance(value, Constraint):
        return _checked("response_format", value)
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise _bad("response_format", value, 'an object with a "type", such as {"type": "json_object"}')
    kind = value["type"]
    if kind == "text":
        _only("response_format", value, ("type",))
        return None
    if kind == "json_schema":
        _only("response_format", value, ("type", "json_schema"))
        inner = value.get("json_schema")
        if not isinstance(inner, Mapping) or "schema" not in inner:
            raise _bad("response_format", value, '{"type": "json_schema", "json_schema": {"schema": {…}}}')
        _only("response_format.json_schema", inner, ("name", "description", "strict", "schema"))
        return _schema("response_format", inner["schema"])
    if kind not in KINDS:
        raise BadRequest(f"response_format type {kind!r} is unknown; give one of text, {', '.join(KINDS)}")
    _only("response_format", value, ("type",) if kind == "json_object" else ("type", kind))
    return _of("response_format", kind, value.get(kind, True if kind == "json_object" else None))


def from_structured_outputs(value: object) -> Constraint | None:
    """vLLM's ``structured_outputs``: one of ``json``, ``json_object``, ``regex``, ``grammar``, ``choice``."""
    if value is None or isinstance(value, Constraint):
        return _checked("structured_outputs", value)
    wanted = "one of json, json_object, regex, grammar, choice"
    if not isinstance(value, Mapping) or len(value) != 1:
        raise _bad("structured_outputs", value, wanted)
    ((kind, content),) = value.items()
    if kind == "json":
        return _schema("structured_outputs", content)
    if kind not in KINDS or kind == "json_schema":
        raise BadRequest(f"structured_outputs: {kind!r} is unknown; give {wanted}")
    return _of("structured_outputs", kind, content)


def _of(field: str, kind: str, content: object) -> Constraint:
    if kind == "json_object":
        if content is not True:
            raise _bad(f"{field}.json_object", content, "true, or leave it out")
        return Constraint(kind)
    if kind == "choice":
        listed = list(content) if isinstance(content, Sequence) and not isinstance(content, str) else []
        if not listed or not all(isinstance(c, str) and c for c in listed):
            raise _bad(f"{field}.choice", content, "a list of one or more strings, none of them empty")
        return Constraint(kind, json.dumps(listed, ensure_ascii=False))
    if not isinstance(content, str) or not content:
        raise _bad(f"{field}.{kind}", content, "a string that is not empty")
    return Constraint(kind, content)


def _schema(field: str, schema: object) -> Constraint:
    """Key order counts: a schema fixes the order of an object's members."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise BadRequest(f"{field}: the schema is not valid JSON ({error}); correct it") from None
    if not isinstance(schema, (Mapping, bool)):
        raise _bad(field, schema, "a JSON schema: an object")
    try:
        return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{field}: the schema cannot be written as JSON ({error}); use plain values") from None


def _checked(field: str, value: Constraint | None) -> Constraint | None:
    if value is not None and value.kind not in KINDS:
        raise _bad(field, value.kind, "one of " + ", ".join(KINDS))
    return value


def _only(field: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in value:
        if key not in known:
            raise BadRequest(f"{field}: unknown key {key!r}; known are {', '.join(known)}")


def _bad(field: str, value: object, wanted: str) -> BadRequest:
    return BadRequest(f"{field}={str(value)[:80]!r} is not allowed; give {wanted}")
