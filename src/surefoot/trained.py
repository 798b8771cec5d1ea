"""Drafters with trained heads by name: where the head is, what it needs of the target, and the lane that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BadRequest, ModelNotFound, Unsupported
from .heads.reads import Reads, reads
from .models import Progress, fetch_head, label, shipped

if TYPE_CHECKING:
    from .drafters.lane import Compile, Lane
    from .target import Target

LANES = {
    "medusa": "surefoot.drafters.medusa:MedusaLane",
    "hydra": "surefoot.drafters.hydra:HydraLane",
    "eagle": "surefoot.drafters.eagle:EagleLane",
    "eagle3": "surefoot.drafters.eagle:EagleLane",
    "early_exit": "surefoot.drafters.early_exit:ExitLane",
    "early_exit_deep": "surefoot.drafters.early_exit:ExitLane",
    "distilled": "surefoot.drafters.distilled:DistilledLane",
}
"""By drafter."""
KINDS = {"early_exit": "exit", "early_exit_deep": "exit"}
"""The kind of head, where it is not called like its drafter."""
EXITS = ("early_exit", "early_exit_deep")
"""Drafters that leave the model early."""
_AS = {"early_exit": " (in two_exit shallow=FOLDER)", "early_exit_deep": " (in two_exit deep=FOLDER)"}
DEPTH = ("eagle", "eagle3", *EXITS, "distilled")
"""Drafters whose lane takes ``depth``, the most tokens that it looks ahead."""


@dataclass(frozen=True, slots=True)
class Head:
    """A head on disk, and the options that its drafter was given."""

    drafter: str
    folder: Path
    reads: Reads
    depth: int | None = None
    layer: int | None = None
    pickle: bool = False


def find(drafter: str, options: Mapping[str, Any], model: Path, progress: Progress | None = None) -> Head:
    """The head that ``options`` name (``path``: folder or hub id), or the one that comes with the package for this model.

    Further options: ``depth``; ``layer`` of an exit whose file does not say it; ``pickle``: read ``.bin`` and ``.pt`` files.
    """
    given = dict(options)
    path, depth, layer = given.pop("path", None), given.pop("depth", None), given.pop("layer", None)
    pickle = given.pop("pickle", False)
    if given:
        raise BadRequest(
            f"drafter {drafter!r} takes no option {next(iter(given))!r}; its options are path, depth, layer, pickle"
        )
    if not isinstance(pickle, bool):
        raise BadRequest(f"drafter option pickle={pickle!r} is not allowed; give true or false")
    for name, value, able in (("depth", depth, DEPTH), ("layer", layer, EXITS)):
        if value is None:
            continue
        if drafter not in able:
            raise BadRequest(f"drafter {drafter!r} takes no option {name!r}; its head decides that")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadRequest(f"drafter option {name}={value!r} is not allowed; give a whole number from 1 up")
    if path is None:
        folder = shipped(model).heads.get(drafter)
        if folder is None:
            raise ModelNotFound(
                f"no trained head {drafter!r} comes with Surefoot for {label(model)}; name one as {drafter}:path=FOLDER"
                f"{_AS.get(drafter, '')}, or "
                f"train it: surefoot train {_trained_as(drafter)} --target MODEL --out FOLDER"
            )
    else:
        folder = fetch_head(str(path), progress)
    found = reads(folder, layer=layer, pickle=pickle)
    wanted = KINDS.get(drafter, drafter)
    if found.kind != wanted:
        fits = next((name for name in LANES if KINDS.get(name, name) == found.kind), found.kind)
        raise BadRequest(f"{folder}: is a head of kind {found.kind!r}; use drafter {fits!r}")
    return Head(drafter, folder, found, depth, layer, pickle)


def _trained_as(drafter: str) -> str:
    return {**KINDS, "distilled": "distill"}.get(drafter, drafter)


def lane(head: Head, target: Target) -> Lane:
    """The head on this target, which must have been loaded with its taps."""
    from .heads.open import open_head

    model: Any = target.model
    traits = model.traits
    # a head that was made for another target is refused as such, whatever this one was loaded with
    _, module = open_head(head.folder, model.ends(), traits.n_layers, kind=head.reads.kind, pickle=head.pickle)
    missing = sorted(set(_taps(head, traits.n_layers)) - set(traits.hidden))
    if missing:
        raise Unsupported(
            f"drafter {head.drafter!r} reads the activations {missing}, and the model was loaded without them; "
            "load it with this drafter (surefoot.load), or open the target with these taps"
        )
    name, _, attribute = LANES[head.drafter].partition(":")
    make: Any = getattr(import_module(name), attribute)
    more: dict[str, Any] = {"compile": compiler(target)}
    if head.depth is not None:
        more["depth"] = head.depth
    if head.drafter == "medusa":
        made: Lane = make(module, model.ends(), layer=traits.last, **more)
    elif head.drafter == "hydra":
        made = make(module, model.ends(), layer=head.reads.taps(traits.n_layers), **more)
    elif head.drafter in EXITS:
        made = make(module, model, layer=head.reads.cut, **more)
    elif head.drafter == "distilled":
        made = make(module, **more)
    else:
        made = make(module, traits.n_layers, **more)
    return made


def _taps(head: Head, n_layers: int) -> Sequence[int]:
    return () if head.reads.cut is not None else head.reads.taps(n_layers)


def compiler(target: Target) -> Compile | None:
    """What makes heads quick on the target's backend; None: plain torch."""
    if target.backend != "openvino":
        return None
    from .backends.openvino.function import quick

    return partial(quick)


def wants(heads: Sequence[Head]) -> dict[str, Any]:
    """Arguments for :func:`~.target.open_target`: the taps and cuts of all of them."""
    cuts = sorted({head.reads.cut for head in heads if head.reads.cut is not None})
    found: dict[str, Any] = {"taps": lambda layers: sorted({tap for head in heads for tap in _taps(head, layers)})}
    if cuts:
        found["cut"] = cuts[0] if len(cuts) == 1 else tuple(cuts)
    return found
