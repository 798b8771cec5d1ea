"""From names to a trained head: captured text of a target, its shape, a recipe with options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from ..models import content, label
from .capture import Capture, Settings, Tell
from .recipe import Recipe, Shape
from .recipes import RECIPES, recipe_class
from .shards import FACTS_FILE, Shards
from .vocabulary import Vocabulary, choose_vocabulary

if TYPE_CHECKING:
    from ..target import Target

Open = Callable[[Sequence[int]], "Target"]
"""Opens the target with these taps."""


def make_recipe(kind: str, options: Mapping[str, Any]) -> Recipe:
    """``options``: of the recipe's class. Raises :class:`BadRequest` that lists them for one that there is not."""
    cls = recipe_class(kind)
    known = {field.name: field for field in dataclasses.fields(cls)}
    for name in options:
        if name not in known:
            raise BadRequest(f"{kind} has no option {name!r}; its options are {', '.join(sorted(known))}")
        if not _suits(options[name], known[name].default, str(known[name].type)):
            raise BadRequest(f"{kind}: option {name}={options[name]!r} is not allowed; give {known[name].type}")
    try:
        made: Recipe = cls(**options)
    except TypeError as error:
        raise BadRequest(f"{kind}: {error}; its options are {', '.join(sorted(known))}") from None
    return made


def _suits(value: Any, default: Any, kind: str) -> bool:
    """Whether an option's value is of its kind, told by its default; ``kind``: its annotation."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, int) or default is None:
        return isinstance(value, int)
    if isinstance(default, str) or isinstance(value, str):
        return isinstance(value, str) and "str" in kind
    return isinstance(value, int) or all(isinstance(each, int) and not isinstance(each, bool) for each in value)


def every_tap(n_layers: int) -> tuple[int, ...]:
    """The taps that some kind of head reads by default: text captured with them serves all kinds."""
    found = {n_layers + 1}
    for kind in RECIPES:
        found.update(make_recipe(kind, {}).taps(n_layers))
    return tuple(sorted(found))


def facts_of(target: Target) -> dict[str, Any]:
    """What captured text and trained heads say about their target."""
    traits = target.model.traits
    return {"name": label(target.path), "content": content(target.path), "dtype": traits.dtype, "layers": traits.n_layers}


def capture(
    target: Target,
    folder: Path,
    settings: Settings,
    taps: Sequence[int],
    prompts: Sequence[Sequence[int]] = (),
    tell: Tell = lambda documents, tokens: None,
) -> None:
    """Text of the target's own into ``folder``. Rows are not padded: exactness is not needed, and it is twice as quick."""
    model: Any = target.model
    if hasattr(model, "set_passes"):
        model.set_passes(1, model.passes()[1])
    Capture(model, target.codec, folder, settings, taps, target=facts_of(target), prompts=prompts).run(tell)


def shards_for(folder: Path, target: Target, taps: Sequence[int]) -> Shards:
    """Captured text that is of this target and holds these taps."""
    shards = Shards(folder)
    said, own = shards.facts.get("target", {}), facts_of(target)
    if said.get("content") != own["content"]:
        raise BadRequest(f"{folder / FACTS_FILE}: the text is of {said.get('name')!r}, another model than {own['name']!r}")
    if missing := sorted(set(taps) - set(shards.taps)):
        raise BadRequest(f"{folder} holds the taps {list(shards.taps)}, and {missing} are needed; capture into another folder")
    return shards


def shape_of(target: Target, shards: Shards, size: int) -> tuple[Shape, Vocabulary]:
    """The target as recipes see it; ``size``: of the draft vocabulary, at most."""
    model: Any = target.model
    traits = model.traits
    words = choose_vocabulary(shards, size, traits.vocab_size, target.codec.eos_ids)
    shape = Shape(
        hidden_size=traits.hidden_size,
        n_layers=traits.n_layers,
        vocab_size=traits.vocab_size,
        ends=model.ends(),
        draft_ids=words.ids,
        name=label(target.path),
        folder=target.path,
    )
    return shape, words
