"""Refuses what a JSON schema says and the grammar made from it would not hold to.

Contract: what passes here, and the grammar library accepts, is held to by every output. The converse is not promised: a
schema allows documents that are never written (other orders of members, members that an object does not list). The library
leaves out silently what it cannot express; this list is what it leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import BadRequest

_NEVER = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentSchemas", "dependencies"),
    *("$dynamicRef", "$recursiveRef", "unevaluatedItems"),
)
_OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "unevaluatedProperties"),
    ),
}
_ASSERTING = ("type", *(key for keys in _OF_TYPE.values() for key in keys))
_WHOLE = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")
"""The library reads the first of these that is there, and nothing beside it."""
_IMPLYING = ("properties", "items", "prefixItems", "additionalProperties", "patternProperties", "propertyNames")
"""Without a type, these say which one is meant."""
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties", "propertyNames", "unevaluatedProperties")


def check_schema(schema: Any) -> None:
    """:class:`BadRequest` names the keyword and its place."""
    for place, part in _parts(schema, ""):
        for key in part:
            if key in _NEVER or (key == "uniqueItems" and part[key]):
                raise _refused(key, place, "cannot be enforced; leave it out and check the answer")
        _check_ref(part, place)
        whole = [key for key in _WHOLE if key in part]
        if whole:
            _check_beside(part, whole, place)
        else:
            _check_plain(part, place)


def _parts(schema: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All schemas in a schema, with their places."""
    if not isinstance(schema, Mapping):
        return
    yield place, schema
    for key in _MAPS:
        if isinstance(schema.get(key), Mapping):
            for name, part in schema[key].items():
                yield from _parts(part, f"{place}/{key}/{name}")
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            for i, part in enumerate(schema[key]):
                yield from _parts(part, f"{place}/{key}/{i}")
    for key in _ONE:
        yield from _parts(schema.get(key), f"{place}/{key}")


def _check_ref(part: Mapping[str, Any], place: str) -> None:
    ref = part.get("$ref")
    if ref is not None and not (isinstance(ref, str) and (ref == "#" or ref.startswith("#/"))):
        raise _refused("$ref", place, f"is {ref!r}; only references into the schema itself (#/…) are followed")


def _check_beside(part: Mapping[str, Any], whole: Sequence[str], place: str) -> None:
    if len(whole) > 1:
        raise _refused(whole[1], place, f"beside {whole[0]} cannot be enforced; give one of them")
    key = whole[0]
    if key == "allOf" and len(part[key]) > 1:
        raise _refused(key, place, "with several schemas cannot be enforced; merge them into one")
    if key == "oneOf" and not _apart(part[key]):
        raise _refused(key, place, "has schemas that may hold together; use anyOf, or tell them apart by type or a constant")
    for other in _ASSERTING:
        if other not in part:
            continue
        if other == "type" and key in ("enum", "const"):
            values = part[key] if key == "enum" else [part[key]]
            if all(_is(value, part["type"]) for value in values):
                continue
            raise _refused(key, place, f"has values that are not of type {json.dumps(part['type'])}; leave them out")
        raise _refused(other, place, f"beside {key} cannot be enforced; put it inside")


def _check_plain(part: Mapping[str, Any], place: str) -> None:
    named = place.endswith("/propertyNames")  # which are strings anyway
    if "type" not in part and not named and not any(key in part for key in _IMPLYING):
        for kind, keys in _OF_TYPE.items():
            for key in keys:
                if key in part:
                    raise _refused(key, place, f'needs "type": "{kind}" beside it; add it')
    if any(key in part for key in ("pattern", "format")) and any(key in part for key in ("minLength", "maxLength")):
        raise _refused("minLength or maxLength", place, "beside pattern or format cannot be enforced; put it into the pattern")
    if "multipleOf" in part and part.get("type") != "integer":
        raise _refused("multipleOf", place, 'needs "type": "integer"')
    for name in part.get("required") or ():
        if name not in (part.get("properties") or {}):
            raise _refused("required", place, f"names {name!r}, which properties lacks; add it there")


def _apart(parts: Sequence[Any]) -> bool:
    """Whether no document fits two of these schemas, as far as types and constants tell."""
    return all(_pair_apart(a, b) for i, a in enumerate(parts) for b in parts[i + 1 :])


def _pair_apart(a: Any, b: Any) -> bool:
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return False
    ours, theirs = _values(a), _values(b)
    if ours is not None and theirs is not None:
        return not any(x == y for x in ours for y in theirs)
    kinds = [set(k if isinstance(k, list) else [k]) for k in (a.get("type"), b.get("type")) if k is not None]
    if len(kinds) == 2 and not kinds[0] & kinds[1] and not {"integer", "number"} <= kinds[0] | kinds[1]:
        return True
    common = set(a.get("required") or ()) & set(b.get("required") or ())
    return any(_pair_apart((a.get("properties") or {}).get(key), (b.get("properties") or {}).get(key)) for key in common)


def _values(part: Mapping[str, Any]) -> list[Any] | None:
    return [part["const"]] if "const" in part else part.get("enum")


def _is(value: Any, kinds: Any) -> bool:
    names = {
        bool: ("boolean",), int: ("integer", "number"), float: ("number",), str: ("string",),
        list: ("array",), dict: ("object",), type(None): ("null",),
    }[type(value)]  # fmt: skip
    return any(kind in names for kind in (kinds if isinstance(kinds, list) else [kinds]))


def _refused(key: str, place: str, why: str) -> BadRequest:
    return BadRequest(f"json_schema: {key} at {place or 'the top'} {why}")
