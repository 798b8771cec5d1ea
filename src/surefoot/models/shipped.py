"""Trained heads that come with the package, by what they were trained for.

``weights/index.json`` maps the content of a model (:func:`~.cache.content`) to the folders of its heads, and says which of
them ``auto`` asks, and which activations the model is always loaded with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .cache import content

_INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class Shipped:
    """``heads``: drafter -> folder. ``auto``: those that ``auto`` merges with drafters without weights. ``taps``: theirs."""

    heads: Mapping[str, Path]
    auto: tuple[str, ...] = ()
    taps: tuple[int, ...] = ()


def root() -> Path | None:
    """The folder of the weights: in the installed package, or beside the sources."""
    package = Path(__file__).resolve().parents[1]
    return next((place for place in (package / "weights", package.parents[1] / "weights") if (place / _INDEX).is_file()), None)


def shipped(model: Path, place: Path | None = None) -> Shipped:
    """The heads for the model at this path; none for most."""
    place = root() if place is None else place
    if place is None or not model.exists():  # a target that was made in Python has no file
        return Shipped({})
    found = _index(place).get(content(model))
    if found is None:
        return Shipped({})
    heads = {name: place / folder for name, folder in found["heads"].items()}
    return Shipped(heads, tuple(found.get("auto", ())), tuple(found.get("taps", ())))


@cache
def _index(place: Path) -> dict[str, dict]:  # type: ignore[type-arg]
    found: dict[str, dict] = json.loads((place / _INDEX).read_text("utf-8"))  # type: ignore[type-arg]
    return found
