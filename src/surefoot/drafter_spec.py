"""Drafters as text: ``NAME[:key=value,…]``, or several of them joined by ``+``, of which the controller picks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from .errors import BadRequest

ALONE = ("auto", "none")
TREES = (
    *("suffix", "recycle", "retrieval", "lookahead", "model", "quantized", "layer_skip", "ngram", "hybrid", "auto", "ssr"),
    *("medusa", "hydra", "eagle", "eagle3", "early_exit", "early_exit_deep", "distilled", "dytc"),
)
"""Drafters that branch."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One drafter by name, with its options."""

    name: str
    options: dict[str, Any]


def parse(text: str, known: Sequence[str], given: int | None = None) -> tuple[list[Spec], int | None]:
    """The drafters, and the draft length: ``given``, or an option of one of them. ``known``: names that exist."""
    specs = [_one(part, [*ALONE, *known]) for part in text.split("+")]
    names = [spec.name for spec in specs]
    for name in names:
        if name in ALONE and len(names) > 1:
            raise BadRequest(f"drafter {name!r} stands alone; leave it out of {text!r}, or leave the others out")
        if names.count(name) > 1:
            raise BadRequest(f"drafter {name!r} is named twice in {text!r}; name it once")
    for spec in specs:
        for key in ("num_speculative_tokens", "k"):
            if key in spec.options:
                if given is not None:
                    raise BadRequest(f"the draft length is given twice ({key} and num_speculative_tokens); give it once")
                given = spec.options.pop(key)
    return specs, length(given)


def shape(spec: Spec, able: bool) -> dict[str, int]:
    """The options ``width`` and ``nodes``, taken out: they shape trees. ``able``: whether the controller plans any."""
    found: dict[str, int] = {key: spec.options.pop(key) for key in ("width", "nodes") if key in spec.options}
    for key, value in found.items():
        if spec.name not in TREES or not able:
            raise BadRequest(
                f"{key}={value!r} makes drafts trees (width, nodes), which needs controller 'fixed' and one of "
                f"{', '.join(TREES)}; leave it out or name both"
            )
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadRequest(
                f"drafter option {key}={value!r} (of width and nodes) is not allowed; give a whole number from 1 up"
            )
    return found


def length(given: Any) -> int | None:
    """The draft length, checked."""
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
        raise BadRequest(f"num_speculative_tokens={given!r} is not allowed; give 0 (plain decoding) or a positive whole number")
    return given


def choose(name: str, known: Sequence[str]) -> str:
    """The hint for a name that is not known."""
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else "choose one of " + ", ".join(known)


def _one(text: str, known: Sequence[str]) -> Spec:
    name, _, rest = text.partition(":")
    name = name.strip().lower()
    if name not in known:
        raise BadRequest(f"unknown drafter {name!r}; {choose(name, known)}")
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise BadRequest(f"drafter option {item!r} is not key=value; write {name}:key=value,key=value")
        options[key.strip().replace("-", "_")] = _value(value.strip())
    return Spec(name, options)


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)
