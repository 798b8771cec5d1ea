"""How each drafter is made for a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cascades import Cascades
from .drafter_spec import Spec
from .errors import BadRequest, Unsupported
from .models import shipped
from .registry import CASCADES, DRAFTERS, MERGED, OWN, UNMERGED, WHOLE, named, part_options
from .trained import LANES, find, lane

if TYPE_CHECKING:
    from .core.protocols import Drafter
    from .target import Target

GIVEN = (
    *("lane", "name", "vocab_size", "known", "paths", "fingerprint", "vocabulary", "target", "prompts", "identity"),
    *("progress", "source"),
)
"""Arguments of drafters that the target decides; they are no options."""


INFORMED = ("auto", "hybrid", "dytc", "ssr")
"""Drafters that estimate their reach, and let a controller cut by it."""


@dataclass(slots=True)
class Made:
    """Drafters of an engine; ``chosen``: those that the controller picks from; ``informed``: whether it estimates its reach.

    ``length``: tokens that a controller of fixed length drafts unless told otherwise.
    """

    drafters: list[Drafter]
    chosen: list[str]
    informed: bool = False
    length: int = 4


class Maker:
    """Makes the drafters of one engine; each gets a source number of its own."""

    def __init__(self, target: Target, draft: Target | None) -> None:
        self._target, self._draft = target, draft
        self._made: list[Drafter] = []
        self._length = 4

    def all(self, specs: Sequence[Spec]) -> Made:
        """The drafters that these specs name."""
        chosen = [self._one(spec).name for spec in specs]
        informed = len(specs) == 1 and specs[0].name in INFORMED
        return Made(self._made, chosen, informed, self._length)

    def _one(self, spec: Spec) -> Drafter:
        if spec.name == "auto":
            inner = self._hybrid(spec.options, [*MERGED.split("/"), *heads_of(self._target)])
            return self._add("grammar", {"inner": inner})
        if spec.name == "ssr":
            return self._thinking(spec)
        if spec.name == "hybrid":
            return self._hybrid({key: value for key, value in spec.options.items() if key != "of"}, named(spec))
        if spec.name in CASCADES:
            made, self._length = Cascades(self._target, self._named, self._add, heads_of(self._target)).one(spec)
            return made
        return self._named(spec.name, spec.options)

    def _thinking(self, spec: Spec) -> Drafter:
        """What ``auto`` is, with drafts of the answer beside."""
        given = spec.options
        names = named(spec) if "of" in given else [*named(spec), *heads_of(self._target)]
        own = {key: value for key, value in given.items() if key in OWN["ssr"] and key not in ("of", "ask")}
        for key in given:
            if key not in OWN["ssr"] and "." not in key:
                raise BadRequest(
                    f"drafter 'ssr' takes no option {key!r}; its own are {', '.join(OWN['ssr'])}, those of a part PART.OPTION"
                )
        rest = {key: value for key, value in given.items() if key == "ask" or key not in OWN["ssr"]}
        return self._add("grammar", {"inner": self._hybrid(rest, names, [self._named("ssr", own)])})

    def _hybrid(self, options: Mapping[str, Any], names: Sequence[str], before: Sequence[Drafter] = ()) -> Drafter:
        """``options``: of a part, as ``part.option``; without a name those of the first part, but for hybrid's own ``ask``.

        ``before``: sources that were made already.
        """
        from .drafters.head_source import HeadSource
        from .drafters.proposed import Proposed

        own_options = {"ask": options["ask"]} if "ask" in options else {}
        options = {key: value for key, value in options.items() if key not in own_options}
        of = "/".join(names)
        if not names:
            raise BadRequest(f"hybrid merges one source or more; name them as in of={MERGED}, or leave it out")
        for name in names:
            if name not in DRAFTERS or name in UNMERGED or names.count(name) > 1:
                able = ", ".join(n for n in DRAFTERS if n not in UNMERGED)
                raise BadRequest(
                    f"hybrid cannot merge {of!r}: {name!r} is twice there or no source; of these each once: {able}"
                )
        for key in options:
            name, dot, _ = key.partition(".")
            if dot and name not in names:
                raise BadRequest(f"hybrid: option {key!r} names no part of {of!r}; write PART.OPTION=VALUE")
        own = {name: part_options(options, name, first=name == names[0]) for name in names}
        sources: list[Any] = [*before]
        for name in names:
            deep = {"depth": own[name].pop("depth")} if name in WHOLE and "depth" in own[name] else {}
            made = self._named(name, own[name])
            sources.append(HeadSource(made) if name in LANES else Proposed(made, **deep) if name in WHOLE else made)  # type: ignore[arg-type]
        return self._add("hybrid", {"sources": sources, "paths": self._target.model.traits.paths, **own_options})

    def _named(self, name: str, options: Mapping[str, Any]) -> Drafter:
        _none(name, {key: value for key, value in options.items() if key in GIVEN})
        given = MAKERS.get(name, _plain)(self._target, self._draft, dict(options))
        return self._add(name, given)

    def _add(self, name: str, options: Mapping[str, Any]) -> Drafter:
        try:
            made: Drafter = _import(DRAFTERS[name])(**options, source=len(self._made) + 1)
        except TypeError as error:
            raise BadRequest(f"drafter {name!r}: {str(error).split(') ')[-1]}; see its documentation for the options") from None
        self._made.append(made)
        return made


def _plain(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    return options


def _suffix(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    named = "store" in options and target.codec is not None
    return {**options, "vocabulary": target.codec.fingerprint} if named else options


def _recycle(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    known = target.codec.vocab_size if target.codec is not None else None
    return {**options, "vocab_size": target.model.traits.vocab_size, "known": known}


def _lookahead(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    known = target.codec.vocab_size if target.codec is not None else None
    return {**options, "known": known, "paths": target.model.traits.paths}


def _retrieval(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "fingerprint": target.codec.fingerprint if target.codec is not None else None}


def _model(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    from .text.crossing import cross

    assert draft is not None
    found = cross(target.codec, draft.codec, options.pop("vocab", "auto")).require().told()
    _none("model", options)
    known = min(target.codec.vocab_size, draft.codec.vocab_size)
    return {"draft": draft.model, "vocab_size": target.model.traits.vocab_size, "known": known, "bridge": found.bridge}


def _layer_skip(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    from .skips import PROMPTS

    if target.codec is None:
        raise Unsupported("drafter 'layer_skip' needs the model's tokenizer; load the target with surefoot.load")
    chat = target.codec.has_template
    prompts = [target.codec.prompt([{"role": "user", "content": text}] if chat else text) for text in PROMPTS]
    own = {"target": target.model, "prompts": prompts, "identity": target.identity, "known": target.codec.vocab_size}
    return {**options, **own}


def _quantized(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    from .target import quantized

    made = quantized(target, options.pop("bits", None))
    _none("quantized", options)
    vocab = target.model.traits.vocab_size
    known = target.codec.vocab_size if target.codec is not None else None
    return {"draft": made, "vocab_size": vocab, "known": known, "name": "quantized"}


def _head(name: str, target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    known = target.codec.vocab_size if target.codec is not None else None
    made = lane(find(name, options, target.path), target)
    return {"lane": made, "vocab_size": target.model.traits.vocab_size, "known": known, "name": name}


def _ssr(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    from .ssr import ForkControl, SsrOptions, choose

    codec, traits = target.codec, target.model.traits
    if codec is None:
        raise Unsupported("drafter 'ssr' needs the model's tokenizer; load the target with surefoot.load")
    texts = {key: options.pop(key, None) for key in ("start", "end", "force")}
    family = choose(str(options.pop("family", "auto")), codec.special.template, **texts, names=lambda: traits.name)
    control = ForkControl(SsrOptions(**options), target.calibration.cost(target.model), traits.min_width)
    return {"family": family, "pieces": codec.pieces, "force": codec.encode(family.force, special=False), "control": control}


def heads_of(target: Target) -> tuple[str, ...]:
    """Trained heads that ``auto`` asks on this target."""
    path: Path | None = target.path  # None: a target that was made in Python
    found = shipped(path) if path is not None and path.exists() else None
    return found.auto if found is not None and set(found.taps) <= set(target.model.traits.hidden) else ()


def _script(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    raise BadRequest("drafter 'script' needs the answers; make a ScriptDrafter in Python and pass it as drafter=")


def _grammar(target: Target, draft: Target | None, options: dict[str, Any]) -> dict[str, Any]:
    _none("grammar", options)
    return {}


MAKERS: dict[str, Callable[[Target, Target | None, dict[str, Any]], dict[str, Any]]] = {
    "suffix": _suffix,
    "recycle": _recycle,
    "lookahead": _lookahead,
    "retrieval": _retrieval,
    "model": _model,
    "layer_skip": _layer_skip,
    "quantized": _quantized,
    **{name: partial(_head, name) for name in LANES},
    "ssr": _ssr,
    "script": _script,
    "grammar": _grammar,
}
"""Arguments of a drafter's class, from the options that were given."""


def _none(name: str, options: Mapping[str, Any]) -> None:
    if options:
        raise BadRequest(f"drafter {name!r} takes no option {next(iter(options))!r}; leave it out")


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
