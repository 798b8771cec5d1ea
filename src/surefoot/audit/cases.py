"""Which engines are audited: drafters by name and draft length, or an engine or drafter of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..control.fixed import FixedController
from ..core.engine import Engine
from ..core.protocols import Drafter
from ..drafter_spec import parse
from ..drafters.model import ModelDrafter
from ..errors import BadRequest, SurefootError, Unsupported
from ..loader import DRAFTERS, Target, assemble
from ..registry import parts
from .blurred import Blurred
from .subject import Subject
from .tracks import Shape

POINTS = ("ngram", "suffix", "grammar", "recycle", "retrieval", "lookahead", "hybrid")
"""Drafters whose drafts are functions of what came before, without a law."""
_NEEDS_MORE = ("script", "model", "retrieval", "layer_skip", "quantized", "cascade", "horizontal", "two_exit")
_ROWS = 64


@dataclass(frozen=True, slots=True)
class Case:
    """One engine to audit. ``shapes``: what its passes may look like."""

    name: str
    make: Callable[[], Engine]
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """What cannot be audited here, and why."""

    name: str
    why: str


def cases(
    subject: Subject, drafters: Sequence[str | Drafter], lengths: Sequence[int], draft: Target | None
) -> tuple[list[Case], list[Skipped]]:
    """The cases that ``drafters`` ask for. ``all`` leaves out what cannot run here; a name that is given must run."""
    if not lengths or not all(isinstance(k, int) and k >= 1 for k in lengths):
        raise BadRequest(f"draft lengths {list(lengths)} are not allowed; give whole numbers from 1 up")
    found: list[Case] = []
    skipped: list[Skipped] = []
    if subject.own is not None:
        own = subject.own
        found.append(Case("engine", lambda: own, tuple(Shape(k + 1) for k in lengths)))
    for given in drafters:
        names: list[str | Drafter] = [given]
        if given == "all":
            names = [n for n in DRAFTERS if n not in _NEEDS_MORE]
            names += ["suffix-tree", "self", "blurred", *(["model"] if draft is not None else []), "auto"]
        for name in names:
            try:
                made = _cases(subject, name, lengths, draft)
                for case in made:
                    _try(case)
            except SurefootError as error:
                if given != "all":
                    raise
                skipped.append(Skipped(str(name), str(error)))
            else:
                found += made
    return list({case.name: case for case in found}.values()), skipped


def _try(case: Case) -> None:
    """Make an engine once: what is missing is known before anything runs."""
    if case.name != "engine":
        case.make().close()


def _cases(subject: Subject, name: str | Drafter, lengths: Sequence[int], draft: Target | None) -> list[Case]:
    target, traits = subject.target, subject.model.traits

    def engine(drafter: str | Drafter, controller: Any, draft: Target | None = None, k: int | None = None) -> Engine:
        return assemble(target, drafter, draft, controller, k, _ROWS)

    if not isinstance(name, str):
        drafter = name
        return [
            Case(f"{drafter.name} k={k}", lambda k=k: engine(drafter, FixedController(drafter.name, k)), (Shape(k + 1),))  # type: ignore[misc]
            for k in lengths
        ]
    if name == "none":
        return [Case("none", lambda: subject.plain)]
    if name == "auto":
        if target.calibration is None:
            raise Unsupported("drafter 'auto' goes by measured costs; load the model with surefoot.load, or name drafters")
        return [Case("auto", lambda: engine("auto", "auto", draft), (Shape(17),))]
    if name == "suffix-tree":
        if not traits.tree:
            raise Unsupported("the backend takes no trees; leave suffix-tree out")
        return [
            Case(
                f"suffix-tree k={k}",
                lambda k=k: engine("suffix", FixedController("suffix", k, width=3, nodes=2 * k + 1)),  # type: ignore[misc]
                (Shape(1, 1), Shape(k + 1, 1)),
            )
            for k in lengths
        ]
    if name in ("self", "blurred"):
        own = Blurred(subject.model) if name == "blurred" else subject.model
        vocab, known = traits.vocab_size, subject.known
        return [
            Case(
                f"{name} k={k}",
                lambda k=k: engine(ModelDrafter(own, vocab, known=known), FixedController("model", k)),  # type: ignore[misc]
                (Shape(k + 1),),
            )
            for k in lengths
        ]
    specs, _ = parse(name, list(DRAFTERS))
    partner = draft if any("model" in parts(spec) for spec in specs) else None
    return [Case(f"{name} k={k}", lambda k=k: engine(name, "fixed", partner, k), (Shape(k + 1),)) for k in lengths]  # type: ignore[misc]
