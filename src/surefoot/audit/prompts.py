"""Prompts from a file: JSON lines, or plain text with one prompt a line.

A JSON line is a string, or an object with one of ``prompt``, ``messages``, ``turns`` (the first turn is taken) and
``prompt_token_ids``; other keys are ignored, except ``id``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import BadRequest
from ..text.prompt_file import read_prompt
from .item import Item

_KEYS = ("prompt_token_ids", "messages", "turns", "prompt")


def read(path: str) -> list[Item]:
    """The prompts of a file; :class:`BadRequest` names the line that is wrong."""
    if Path(path).suffix.lower() in (".jsonl", ".json", ".ndjson"):
        found = [item_of(line, where) for line, where in json_lines(path)]
    else:
        found = [Item(line) for line in read_prompt(path).splitlines() if line.strip()]
    if not found:
        raise BadRequest(f"{path} has no prompts; give one a line")
    return found


def json_lines(path: str) -> Iterator[tuple[Any, str]]:
    """Each line's value, and where it stands."""
    # not splitlines: JSON strings may hold separators that it would cut at
    for number, line in enumerate(read_prompt(path).split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield json.loads(line), where
            except ValueError as error:
                raise BadRequest(f"{where} is not JSON ({error}); write one object a line") from None


def item_of(value: Any, where: str) -> Item:
    """The prompt that a JSON value holds."""
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, Mapping):
        raise BadRequest(f"{where}: give a string or an object with one of {', '.join(_KEYS)}")
    key = next((k for k in _KEYS if value.get(k) is not None), None)
    if key is None:
        raise BadRequest(f"{where}: there is no prompt; give one of {', '.join(_KEYS)}")
    content = value[key]
    if key == "turns":
        content = content[0] if isinstance(content, list) and content else None
    fine = {
        "prompt_token_ids": lambda: ids(content),
        "messages": lambda: isinstance(content, list) and content and all(isinstance(m, Mapping) for m in content),
    }.get(key, lambda: isinstance(content, str) and content)()
    if not fine:
        wanted = {"prompt_token_ids": "token ids", "messages": "a list of messages", "turns": "a list of texts"}.get(
            key, "a text"
        )
        raise BadRequest(f"{where}: {key} must be {wanted}, not empty")
    name = value.get("id", value.get("question_id"))
    return Item(content, str(value.get("category", "given")), id=None if name is None else str(name))


def ids(value: Any) -> bool:
    """Whether it is a list of token ids, not empty."""
    return isinstance(value, list) and bool(value) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
