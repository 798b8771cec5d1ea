"""The composition root: names become an Engine. Nothing else knows concrete backends, drafters and controllers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .drafter_spec import Spec, choose, length, parse, shape
from .errors import BadRequest
from .making import INFORMED, Made, Maker
from .models import DEFAULT, Progress, fetch, resolve
from .registry import DRAFTERS, MERGED, leaves, parts
from .steering import CONTROLLERS, SHAPED, SINGLE, steer
from .target import BACKENDS, Target, open_target
from .trained import LANES, Head, find, wants

if TYPE_CHECKING:
    from .core.engine import Engine
    from .core.protocols import Controller, Drafter


def load(
    model: str | os.PathLike[str] = DEFAULT,
    drafter: str | Drafter | None = "auto",
    backend: str = "auto",
    *,
    controller: str | Controller = "auto",
    num_speculative_tokens: int | None = None,
    draft_model: str | os.PathLike[str] | None = None,
    precision: str = "auto",
    kv_tokens: int | None = None,
    max_rows: int = 64,
    progress: Progress | None = None,
) -> Engine:
    """An engine for ``model``, whose output is that of plain decoding, sooner.

    model        ``smollm2-135m-instruct`` (default), a GGUF file, an OpenVINO or transformers folder, a hub id
    drafter      ``auto`` (what a grammar forces, else ``hybrid``; with a draft model that or ``model``, by measured speed),
                 ``none``, or one of :data:`DRAFTERS`, with options as ``"ngram:max_n=3,k=5"``, several as ``"ngram+model"``,
                 merged as ``"hybrid:of=suffix/recycle"``; or a drafter of your own
    backend      ``auto``, ``openvino``, ``torch``
    controller   ``auto`` (by measured cost, guarded by a breaker), ``fixed``, ``window``, ``goodput``, ``marginal``,
                 ``confidence``, ``thompson``, ``bandit``, ``breaker`` (``fixed``, guarded), or a controller
    num_speculative_tokens  draft length: with ``fixed`` and ``breaker`` always, else the most
    draft_model  reference of the draft model (drafter ``model``)
    precision    openvino: ``auto``, ``bf16``, ``f32``, ``fast`` (not exact); torch: ``auto``, ``float32``, ``bfloat16``, …
    kv_tokens    tokens that the cache holds over all requests

    Raises :class:`~surefoot.errors.SurefootError` subclasses that name the fix.
    """
    # what is wrong is told, and what is off is known, before anything is loaded
    specs, most, _ = _parse(drafter, draft_model is not None, controller, num_speculative_tokens)
    extra = wants(_heads(specs, model, progress))
    target = open_target(model, backend, precision=precision, kv_tokens=kv_tokens, progress=progress, **extra)
    if most == 0 and draft_model is not None:  # off is off: the draft model is not loaded
        return assemble(target, "none", max_rows=max_rows)
    draft = None if draft_model is None else open_target(draft_model, backend, precision=precision, progress=progress)
    return assemble(target, drafter, draft, controller, num_speculative_tokens, max_rows)


def needs(drafters: Iterable[str], model: str | os.PathLike[str] = DEFAULT, progress: Progress | None = None) -> dict[str, Any]:
    """Arguments by which :func:`open_target` loads a model so that these drafters, as in :func:`load`, can run on it."""
    found = []
    for drafter in drafters:
        found += _heads(parse(drafter, list(DRAFTERS))[0], model, progress)
    return wants(found)


def _heads(specs: Sequence[Spec], model: str | os.PathLike[str], progress: Progress | None) -> list[Head]:
    """The trained heads that these specs name, which say how the target has to be loaded."""
    named = [leaf for spec in specs for leaf in leaves(spec) if leaf.name in LANES]
    return [find(leaf.name, leaf.options, fetch(resolve(model), progress), progress) for leaf in named]


def assemble(
    target: Target,
    drafter: str | Drafter | None = "auto",
    draft: Target | None = None,
    controller: str | Controller = "auto",
    num_speculative_tokens: int | None = None,
    max_rows: int = 64,
) -> Engine:
    """An engine on a loaded target, which several may share; ``draft``: the loaded draft model. Options as in :func:`load`."""
    from .core.engine import Engine
    from .text.grammar import XGrammars

    specs, most, tree = _parse(drafter, draft is not None, controller, num_speculative_tokens)
    if drafter is not None and not isinstance(drafter, str):
        made = Made([drafter], [drafter.name])
    else:
        made = Maker(target, draft).all(specs)
    return Engine(
        target.model,
        made.drafters,
        steer(controller, made, most, tree, target) if made.drafters else None,
        codec=target.codec,
        grammars=XGrammars(target.codec, target.model.traits.vocab_size),
        max_rows=max_rows,
    )


def _parse(
    drafter: str | Drafter | None, draft: bool, controller: str | Controller, given: int | None
) -> tuple[list[Spec], int | None, dict[str, int]]:
    """The drafters to make (none: plain decoding, or one of your own), the draft length, the shape of trees.

    ``draft``: whether there is a draft model.
    """
    specs, most = parse(drafter, list(DRAFTERS), given) if isinstance(drafter, str) else ([], length(given))
    if draft and drafter is not None and [spec.name for spec in specs] == ["auto"]:
        model = Spec("model", {})
        if controller == "marginal":
            specs = [Spec("hybrid", {**specs[0].options, "of": f"{MERGED}/model"})]
        else:
            specs = [Spec("model", specs[0].options)] if controller in SINGLE else [model, *specs]
    if any("model" in parts(spec) for spec in specs) != draft:
        raise BadRequest("drafter 'model' and draft_model belong together; give both or neither")
    if isinstance(controller, str) and controller not in ("auto", *CONTROLLERS):
        raise BadRequest(f"unknown controller {controller!r}; {choose(controller, ['auto', *CONTROLLERS])}")
    if controller in SINGLE and len(specs) > 1:
        raise BadRequest(f"controller {controller!r} takes one drafter, not {drafter!r}; name one, or use controller 'auto'")
    if controller == "marginal" and (len(specs) != 1 or specs[0].name not in INFORMED):
        raise BadRequest(f"controller 'marginal' needs a drafter that estimates its reach (hybrid, dytc), not {drafter!r}")
    off = [spec for spec in specs if spec.name == "none"]
    if (drafter is None or off) and (most or any(spec.options for spec in off) or controller != "auto"):
        raise BadRequest("drafter 'none' is plain decoding; leave out its options, the draft length and the controller")
    if most is not None and not isinstance(controller, str):
        raise BadRequest("a controller of your own decides the draft length; leave num_speculative_tokens out")
    trees = [tree for spec in specs if (tree := shape(spec, controller in SHAPED))]
    return [spec for spec in specs if spec.name != "none"], most, trees[0] if trees else {}


__all__ = ["BACKENDS", "CONTROLLERS", "DRAFTERS", "Target", "assemble", "load", "needs", "open_target"]
