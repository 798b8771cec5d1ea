"""Tasks: of files in the layouts of HumanEval, ClassEval and LongProc, and our own prompts.

A task is what a user would write. Bad files are a :class:`BadRequest` that names file and place.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import BadRequest


@dataclass(frozen=True, slots=True)
class Item:
    """One task of a set."""

    set: str
    id: str
    text: str


def own() -> list[Item]:
    """The prompts that come with the package."""
    text = files(__package__).joinpath("prompts_ssr.jsonl").read_text("utf-8")
    found = [json.loads(line) for line in text.splitlines()]
    return [Item("own", entry["id"], entry["prompt"]) for entry in found]


def read(kind: str, path: str) -> list[Item]:
    """``kind``: humaneval (JSON lines, gzip or not), classeval or longproc (a JSON list)."""
    values = _lines(path) if kind == "humaneval" else _list(path)
    found = []
    for i, value in enumerate(values, 1):
        if not isinstance(value, Mapping):
            raise BadRequest(f"{path}, entry {i} is no object; give the file as it is published")
        found.append(_item(kind, value, Path(path), i))
    if not found:
        raise BadRequest(f"{path} has no tasks; give the file as it is published")
    return found


def some(items: Sequence[Item], limit: int | None) -> list[Item]:
    """The first ``limit`` of each set."""
    count: dict[str, int] = {}
    found = []
    for item in items:
        count[item.set] = count.get(item.set, 0) + 1
        if limit is None or count[item.set] <= limit:
            found.append(item)
    return found


def _item(kind: str, value: Mapping[str, Any], path: Path, place: int) -> Item:
    if kind == "longproc":
        task = next((name for name, keys in _LONGPROC.items() if all(key in value for key in keys)), None)
        if task is None:
            wanted = "; ".join(" and ".join(keys) for keys in _LONGPROC.values())
            raise BadRequest(f"{path}, entry {place}: of no task that is known; one of these is needed: {wanted}")
        name = str(value.get("problem_id", place - 1))
        return Item(f"longproc {task}", name, _MADE[task](value))
    for key in _KEYS[kind]:
        if not isinstance(value.get(key), str):
            raise BadRequest(f"{path}, entry {place}: there is no text {key!r}; give the file as it is published")
    return Item(kind, str(value["task_id"]), _MADE[kind](value))


_KEYS = {"humaneval": ("task_id", "prompt"), "classeval": ("task_id", "skeleton", "class_name")}
_LONGPROC = {
    "pseudocode": ("pseudocode_lines",),
    "countdown": ("nums", "target"),
    "beliefs": ("story", "question"),
}
"""What tells the tasks of LongProc apart."""


def _humaneval(value: Mapping[str, Any]) -> str:
    return f"Complete this Python function. Write the whole function.\n\n```python\n{value['prompt'].rstrip()}\n```"


def _classeval(value: Mapping[str, Any]) -> str:
    told = f"Write the Python class {value['class_name']}: fill in all methods of this skeleton and keep their docstrings."
    return f"{told}\n\n```python\n{value['skeleton'].rstrip()}\n```"


def _pseudocode(value: Mapping[str, Any]) -> str:
    lines = "\n".join(map(str, value["pseudocode_lines"]))
    return f"Translate this pseudocode line by line into a complete C++ program.\n\n{lines}"


def _countdown(value: Mapping[str, Any]) -> str:
    numbers = ", ".join(map(str, value["nums"]))
    told = f"Use each of the numbers {numbers} once, with +, -, * and /, to make {value['target']}."
    steps = "Search step by step: pick two numbers, write down what each operation gives, go on with the rest or go back."
    return f"{told} {steps} Then give the solution, one operation a line."


def _beliefs(value: Mapping[str, Any]) -> str:
    told = "Read this story. People see only what happens in the room where they are."
    steps = "For every step write down where the person is, where the thing is, and what the person sees and believes."
    return f"{told}\n\n{value.get('story_components', '')}\n{value['story']}\n\n{value['question']} {steps} Then answer."


_MADE: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "humaneval": _humaneval,
    "classeval": _classeval,
    "pseudocode": _pseudocode,
    "countdown": _countdown,
    "beliefs": _beliefs,
}


def _lines(path: str) -> list[Any]:
    found = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise BadRequest(f"{path}, line {number} is not JSON ({error}); give the file as it is published") from None
    return found


def _list(path: str) -> list[Any]:
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise BadRequest(f"{path} is not JSON ({error}); give the file as it is published") from None
    if not isinstance(found, list):
        raise BadRequest(f"{path} holds no list of tasks; give the file as it is published")
    return found


def _text(path: str) -> str:
    try:
        raw = Path(path).read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except (OSError, EOFError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadRequest(f"cannot read {path} ({why}); correct the path") from None
