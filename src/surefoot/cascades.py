"""Drafters that are made of others: vertical and horizontal cascades, and the two exits of one model, by their specs.

``of`` names the parts, the heaviest first. Each part is a drafter of the engine too, which tells it of passes, and marks its
tokens with its own source; where several parts of a spec name one drafter, they share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .drafter_spec import Spec, choose
from .errors import BadRequest, Unsupported
from .registry import DRAFTERS, EXITS, OWN, UNMERGED, named, options_of
from .trained import LANES

if TYPE_CHECKING:
    from .core.protocols import Controller, Drafter, TargetModel
    from .target import Target

MIDDLES = ("model", "quantized", "layer_skip", *LANES)
"""Drafters whose model can review what others drafted."""
INNER = ("fixed", "goodput")
"""Controllers of the engines inside a cascade."""
_LONG = 8
"""Draft length of a cascade that drafts as long as its plan says."""


@dataclass(slots=True)
class Cascades:
    """``make``: a drafter by name and options; ``add``: one by name and the arguments of its class, with its own source."""

    target: Target
    make: Callable[[str, Mapping[str, Any]], Drafter]
    add: Callable[[str, Mapping[str, Any]], Drafter]
    heads: tuple[str, ...] = ()
    """Trained heads that are asked where nothing else is said."""
    _shared: dict[str, tuple[Mapping[str, Any], Drafter]] = field(default_factory=dict)

    def one(self, spec: Spec) -> tuple[Drafter, int]:
        """The drafter, and the draft length that suits it."""
        if spec.name == "horizontal":
            return self._horizontal(spec)
        if spec.name == "dytc":
            return self._dynamic(spec)
        if spec.name == "two_exit":
            _known(spec, list(EXITS))
            defaults = {"confidence": 0.6, "inner_k": 3}
            return self._vertical(spec, {**defaults, **_own(spec)})
        return self._vertical(spec, _own(spec))

    def _vertical(self, spec: Spec, own: Mapping[str, Any]) -> tuple[Drafter, int]:
        from .core.engine import Engine
        from .drafters.cascade import Below

        names = named(spec)
        _check(spec, names)
        levels = len(names) - 1
        sizes = _each(spec, "inner_k", own.get("inner_k", 4), levels)
        steps = _each(spec, "steps", own.get("steps"), levels)
        kind = own.get("inner", INNER[0])
        if kind not in INNER:
            raise BadRequest(f"{spec.name}: inner={kind!r} is no controller of a cascade; give one of {', '.join(INNER)}")
        if spec.name == "two_exit":
            self._exits(spec)
        drafter = self._part(names[-1], options_of(spec, names[-1]))
        below = [drafter]
        for i in range(levels - 1, -1, -1):
            part = self._part(names[i], options_of(spec, names[i]))
            model = self._model(names[i], part)
            engine = Engine(
                model,
                [Below(d) for d in below],
                self._controller(kind, drafter.name, sizes[i] or 4, model),
                reuse=False,
                known=self._words,
            )
            given = {"engine": engine, "vocab_size": self.target.model.traits.vocab_size, "steps": steps[i], "part": part}
            given["confidence"] = own.get("confidence", 0.0)
            given["name"] = spec.name if i == 0 else f"{spec.name}_{names[i]}"
            drafter = self.add(spec.name, given)
            below += [part, drafter]
        long = _LONG if steps[0] is None else min(_LONG, steps[0] * ((sizes[0] or 4) + 1))
        return drafter, long

    def _horizontal(self, spec: Spec) -> tuple[Drafter, int]:
        names = named(spec)
        able = [name for name in DRAFTERS if name not in UNMERGED] + ["cascade", "two_exit"]
        _names(spec, names, able)
        if len(names) < 2:
            raise BadRequest("horizontal takes two drafters or more; name them as in of=hydra/suffix, the best one first")
        _known(spec, names)
        given = spec.options.get("lengths", "/".join(str(2 * (i + 1)) for i in range(len(names))))
        lengths = _numbers(spec, "lengths", given)
        if len(lengths) != len(names):
            raise BadRequest(
                f"horizontal: lengths={given!r} are not one for each of {'/'.join(names)}; "
                f"give {len(names)}, as in lengths={'/'.join(str(2 * (i + 1)) for i in range(len(names)))}"
            )
        parts = [self._part(name, options_of(spec, name)) for name in names]
        return self.add("horizontal", {"parts": parts, "lengths": lengths}), sum(lengths)

    def _dynamic(self, spec: Spec) -> tuple[Drafter, int]:
        names = named(spec) if "of" in spec.options else [*self.heads, *named(spec)]
        simple = [name for name in DRAFTERS if name not in UNMERGED]
        _names(spec, names, [*simple, "cascade", "two_exit"])
        if not names or names[-1] not in simple:
            raise BadRequest("dytc: its last part is a cheap drafter, asked where no other is worth it; write of=hydra/suffix")
        _known(spec, names)
        own = {key: value for key, value in _own(spec).items() if key != "of"}
        if "top" in own:  # the spec's width is that of the plan
            own["width"] = own.pop("top")
        for key in ("alphas", "costs"):
            if key in own:
                own[key] = _fractions(spec, key, own[key])
        *parts, bottom = [self._part(name, options_of(spec, name)) for name in names]
        given = {"parts": parts, "bottom": bottom, "paths": self.target.model.traits.paths, **own}
        return self.add("dytc", given), _LONG

    def _part(self, name: str, options: Mapping[str, Any]) -> Drafter:
        """The drafter of this name, made once."""
        if name in self._shared:
            before, made = self._shared[name]
            if options and options != before:
                raise BadRequest(f"the options of {name!r} are given twice and differ; give them once, or twice the same")
            return made
        made = self.one(Spec(name, dict(options)))[0] if name in OWN else self.make(name, options)
        self._shared[name] = options, made
        return made

    @property
    def _words(self) -> int | None:
        return self.target.codec.vocab_size if self.target.codec is not None else None

    def _model(self, name: str, part: Any) -> TargetModel:
        """The model that a part drafts with."""
        traits = self.target.model.traits
        if name in LANES:
            from .drafters.lane_target import LaneTarget

            return LaneTarget(
                part.lane,
                traits.vocab_size,
                known=self._words,
                name=name,
                max_context=traits.max_context,
                paths=part.paths,
            )
        if getattr(part, "bridge", None) is not None:
            raise Unsupported(
                "the draft model has a vocabulary of its own and cannot review others' drafts; "
                "give one with the target's tokenizer, or use drafter 'model' by itself"
            )
        found: TargetModel = part.draft
        return found

    def _controller(self, kind: str, drafter: str, most: int, model: TargetModel) -> Controller:
        if kind == "fixed":
            from .control.fixed import FixedController

            # what the target's pass kept is caught up with in the pass that reviews the next draft: one token more as a rule
            return FixedController(drafter, most, hold=most + 2 if model.traits.steady else 0)
        from .control.costs import LiveCosts
        from .control.goodput import GoodputController

        # the target's curve is where it begins; what the lighter model's passes take corrects it
        measured = self.target.calibration.cost(self.target.model)
        costs = LiveCosts(measured, change=measured.change if model.traits.steady else 0.0)
        return GoodputController((drafter,), costs, max_draft=most, min_width=model.traits.min_width)

    def _exits(self, spec: Spec) -> None:
        """Refuse exits in the wrong order before anything is made."""
        from .trained import find

        deep, shallow = (find(name, options_of(spec, name), self.target.path).reads.cut or 0 for name in EXITS.values())
        if shallow >= deep:
            raise BadRequest(
                f"two_exit: the shallow exit is after layer {shallow}, the deep one after layer {deep}; "
                "give an earlier exit as shallow, or a later one as deep"
            )


def _own(spec: Spec) -> dict[str, Any]:
    return {key: value for key, value in spec.options.items() if key in OWN[spec.name]}


def _known(spec: Spec, names: Sequence[str]) -> None:
    """Refuse options that are neither the drafter's own nor of one of its parts."""
    for key in spec.options:
        part, dot, _ = key.partition(".")
        if dot and part not in names:
            raise BadRequest(f"{spec.name}: option {key!r} names no part of {'/'.join(names)!r}; write PART.OPTION=VALUE")
        if not dot and key not in OWN[spec.name]:
            own = ", ".join(OWN[spec.name])
            raise BadRequest(f"drafter {spec.name!r} takes no option {key!r}; its own are {own}, those of a part PART.OPTION")


def _names(spec: Spec, names: Sequence[str], able: Sequence[str]) -> None:
    for name in names:
        if name not in able:
            raise BadRequest(f"{spec.name}: {name!r} (of {'/'.join(names)!r}) cannot be part of one; {choose(name, able)}")
        if names.count(name) > 1:
            raise BadRequest(f"{spec.name}: {name!r} is twice in {'/'.join(names)!r}; name it once")


def _check(spec: Spec, names: Sequence[str]) -> None:
    """The parts of a vertical cascade."""
    if spec.name == "two_exit":
        return
    _names(spec, names, [name for name in DRAFTERS if name not in UNMERGED])
    if len(names) < 2:
        raise BadRequest("cascade takes two drafters or more; name them as in of=quantized/suffix, the heaviest first")
    for name in names[:-1]:
        if name not in MIDDLES:
            raise BadRequest(
                f"cascade: {name!r} cannot review the drafts of {names[names.index(name) + 1]!r}; "
                f"only the last part may be one without a model, the others are of {', '.join(MIDDLES)}"
            )
    _known(spec, names)


def _each(spec: Spec, key: str, given: Any, levels: int) -> list[int | None]:
    """A number for each level, the heaviest first; one for all."""
    if given is None:
        return [None] * levels
    found = _numbers(spec, key, given)
    if len(found) not in (1, levels):
        raise BadRequest(f"{spec.name}: {key}={given!r} gives {len(found)} numbers for {levels} levels; give one, or one each")
    return [*found] * (levels if len(found) == 1 else 1)


def _fractions(spec: Spec, key: str, given: Any) -> list[float]:
    """Numbers joined by ``/``."""
    try:
        return [float(part) for part in (given.split("/") if isinstance(given, str) else [given])]
    except (TypeError, ValueError):
        raise BadRequest(f"{spec.name}: {key}={given!r} is not allowed; give numbers, as in {key}=0.5/0.3") from None


def _numbers(spec: Spec, key: str, given: Any) -> list[int]:
    """Whole numbers from 1 up, joined by ``/``."""
    parts = given.split("/") if isinstance(given, str) else [given]
    found: list[Any] = [int(part) if isinstance(part, str) and part.strip().isdecimal() else part for part in parts]
    for number in found:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise BadRequest(f"{spec.name}: {key}={given!r} is not allowed; give whole numbers from 1 up, as in {key}=4/3")
    return found
