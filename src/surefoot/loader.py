"""The composition root: names become an Engine. Nothing else knows concrete backends, drafters and controllers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .drafter_spec import Spec, choose, length, parse, shape
from .errors import BadRequest, Unsupported, VocabMismatch
from .models import DEFAULT, ModelRef, Progress, building, converted_dir, describe, fetch, fingerprint, resolve

if TYPE_CHECKING:
    from .calibrate import Calibration
    from .core.engine import Engine
    from .core.protocols import Controller, Drafter, TargetModel
    from .text import Codec

DRAFTERS = {
    "ngram": "surefoot.drafters.ngram:NgramDrafter",
    "suffix": "surefoot.drafters.suffix:SuffixDrafter",
    "model": "surefoot.drafters.model:ModelDrafter",
    "script": "surefoot.drafters.script:ScriptDrafter",
    "grammar": "surefoot.drafters.grammar:GrammarDrafter",
}
CONTROLLERS = {
    "fixed": "surefoot.control.fixed:FixedController",
    "window": "surefoot.control.window:WindowController",
    "goodput": "surefoot.control.goodput:GoodputController",
    "confidence": "surefoot.control.confidence:ConfidenceController",
    "thompson": "surefoot.control.thompson:ThompsonController",
    "bandit": "surefoot.control.bandit:BanditController",
    "breaker": "surefoot.control.breaker:Breaker",
}
SINGLE = ("fixed", "window", "confidence", "breaker")
"""Controllers that know one drafter."""
TREES = ("fixed", "breaker")
"""Controllers that plan trees."""
BACKENDS = ("auto", "openvino", "torch")


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded model: the target, its tokenizer, and what was measured of it."""

    model: TargetModel
    codec: Codec
    calibration: Calibration
    path: Path


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
    drafter      ``auto`` (what a grammar forces, else ``suffix``; with a draft model both, by measured speed), ``none``,
                 ``ngram``, ``suffix``, ``model``, ``grammar``, with options as ``"ngram:max_n=3,k=5"``, several as
                 ``"ngram+model"``, or a drafter
    backend      ``auto``, ``openvino``, ``torch``
    controller   ``auto`` (by measured cost, guarded by a breaker), ``fixed``, ``window``, ``goodput``, ``confidence``,
                 ``thompson``, ``bandit``, ``breaker`` (``fixed``, guarded), or a controller
    num_speculative_tokens  draft length: with ``fixed`` and ``breaker`` always, else the most
    draft_model  reference of the draft model (drafter ``model``)
    precision    openvino: ``auto``, ``bf16``, ``f32``, ``fast`` (not exact); torch: ``auto``, ``float32``, ``bfloat16``, …
    kv_tokens    tokens that the cache holds over all requests

    Raises :class:`~surefoot.errors.SurefootError` subclasses that name the fix.
    """
    # what is wrong is told, and what is off is known, before anything is loaded
    _, most, _ = _parse(drafter, draft_model is not None, controller, num_speculative_tokens)
    target = open_target(model, backend, precision=precision, kv_tokens=kv_tokens, progress=progress)
    if most == 0 and draft_model is not None:  # off is off: the draft model is not loaded
        return assemble(target, "none", max_rows=max_rows)
    draft = None if draft_model is None else open_target(draft_model, backend, precision=precision, progress=progress)
    return assemble(target, drafter, draft, controller, num_speculative_tokens, max_rows)


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
    made: list[Drafter] = []
    chosen: list[str] = []
    """Of the drafters made, those that the controller picks from."""
    if drafter is not None and not isinstance(drafter, str):
        made, chosen = [drafter], [drafter.name]
    for spec in specs:
        if spec.name != "auto":
            made.append(_drafter(spec, target, draft, {"source": len(made) + 1} if len(specs) > 1 else {}))
            chosen.append(spec.name)
        else:
            inner = _drafter(Spec("suffix", spec.options), target, draft, {})
            made += [_import(DRAFTERS["grammar"])(inner), inner]
            chosen.append("grammar")
    return Engine(
        target.model,
        made,
        _controller(controller, chosen, most, tree, target) if made else None,
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
        specs = [Spec("model", specs[0].options)] if controller in SINGLE else [model, *specs]
    if any(spec.name == "model" for spec in specs) != draft:
        raise BadRequest("drafter 'model' and draft_model belong together; give both or neither")
    if isinstance(controller, str) and controller not in ("auto", *CONTROLLERS):
        raise BadRequest(f"unknown controller {controller!r}; {choose(controller, ['auto', *CONTROLLERS])}")
    if controller in SINGLE and len(specs) > 1:
        raise BadRequest(f"controller {controller!r} takes one drafter, not {drafter!r}; name one, or use controller 'auto'")
    off = [spec for spec in specs if spec.name == "none"]
    if (drafter is None or off) and (most or any(spec.options for spec in off) or controller != "auto"):
        raise BadRequest("drafter 'none' is plain decoding; leave out its options, the draft length and the controller")
    if most is not None and not isinstance(controller, str):
        raise BadRequest("a controller of your own decides the draft length; leave num_speculative_tokens out")
    trees = [tree for spec in specs if (tree := shape(spec, controller in TREES))]
    return [spec for spec in specs if spec.name != "none"], most, trees[0] if trees else {}


def open_target(
    model: str | os.PathLike[str] | ModelRef = DEFAULT,
    backend: str = "auto",
    *,
    precision: str = "auto",
    kv_tokens: int | None = None,
    progress: Progress | None = None,
) -> Target:
    """Load a model as a target, probed, with its tokenizer."""
    if backend not in BACKENDS:
        raise BadRequest(f"unknown backend {backend!r}; choose {', '.join(BACKENDS)}")
    ref = resolve(model)
    path = fetch(ref, progress)
    kind = resolve(path).kind
    if backend == "auto":
        backend = _backend_for(kind)
        try:
            opened = _open(kind, path, backend, precision, kv_tokens, progress)
            # a sliding window limits the context there, while the other backend goes beyond it
            whole = describe(path).context or 0
            if backend == "torch" or kind != "transformers" or opened.model.traits.max_context >= whole:
                return opened
        except Unsupported:
            if backend == "torch" or kind != "transformers":
                raise
        backend = "torch"
    return _open(kind, path, backend, precision, kv_tokens, progress)


def _backend_for(kind: str) -> str:
    """The CPU backend, except for transformers models on a machine with a GPU."""
    if kind != "transformers":
        return "openvino"
    import torch

    return "torch" if torch.cuda.is_available() else "openvino"


def _open(kind: str, path: Path, backend: str, precision: str, kv_tokens: int | None, progress: Progress | None) -> Target:
    import torch

    from .calibrate import Calibration
    from .text import Codec

    codec = Codec.load(path)
    target: Any
    if backend == "torch":
        from .backends.torch import TorchModel

        if kind == "openvino":
            raise Unsupported(f"{path} is an OpenVINO model; use backend='openvino' or give the transformers folder")
        # on CPUs a class of equal bits exists for chains of moderate width, not for trees; there exactness comes first
        narrow: dict[str, Any] = {} if torch.cuda.is_available() else {"trees": False, "max_nodes": 64}
        target = TorchModel.load(str(path), dtype=precision, capacity_tokens=kv_tokens, **narrow)
    else:
        from .backends.openvino import OpenVINOModel

        # two pools of threads that spin for work on the same cores: a softmax between passes took 50 times as long
        torch.set_num_threads(1)
        target = OpenVINOModel(_openvino_folder(kind, path, progress), precision=precision, kv_tokens=kv_tokens, name=path.stem)
    traits = target.traits
    calibration = Calibration(f"{fingerprint(path)}\0{backend}\0{traits.device}\0{traits.dtype}\0{precision}", progress)
    target.adopt(calibration.report(target.probe))
    if codec.vocab_size > target.traits.vocab_size:
        raise VocabMismatch(
            f"the tokenizer has {codec.vocab_size} tokens, the model {target.traits.vocab_size}; give the model's own tokenizer"
        )
    return Target(target, codec, calibration, path)


def _openvino_folder(kind: str, path: Path, progress: Progress | None) -> Path:
    """The model in OpenVINO form, converted once into the cache."""
    if kind == "openvino":
        return path
    from .backends.openvino import convert

    folder = converted_dir(path, convert.VERSION)
    with building(folder, progress) as staging:
        if staging is not None:
            (convert.from_gguf if kind == "gguf" else convert.from_transformers)(path, staging / "model", progress)
            for made in (staging / "model").iterdir():
                made.rename(staging / made.name)
            (staging / "model").rmdir()
    return folder


def _drafter(spec: Spec, target: Target, draft: Target | None, more: Mapping[str, Any]) -> Drafter:
    """``more``: options that the loader decides."""
    name, options = spec.name, spec.options
    if name == "model":
        assert draft is not None
        _refuse_rest(name, options)
        target.codec.compare(draft.codec).require()
        known = min(target.codec.vocab_size, draft.codec.vocab_size)
        made: Drafter = _import(DRAFTERS[name])(draft.model, target.model.traits.vocab_size, known=known, **more)
        return made
    if name == "script":
        raise BadRequest("drafter 'script' needs the answers; make a ScriptDrafter in Python and pass it as drafter=")
    if name == "grammar":
        _refuse_rest(name, options)
    try:
        made = _import(DRAFTERS[name])(**{**options, **more})
    except TypeError as error:
        raise BadRequest(f"drafter {name!r}: {str(error).split(') ')[-1]}; see its documentation for the options") from None
    return made


def _controller(
    controller: str | Controller, drafters: Sequence[str], given: int | None, tree: Mapping[str, int], target: Target
) -> Controller:
    if not isinstance(controller, str):
        return controller
    traits = target.model.traits
    if given is not None and given > (most := traits.max_nodes - 1):
        raise BadRequest(f"num_speculative_tokens={given} is more than the backend takes in a pass ({most}); lower it")
    made: Controller
    if controller == "window":
        high = 8 if given is None else given
        made = _import(CONTROLLERS["window"])(drafters[0], high, min(2, high), min(4, high))
        return made
    fixed: Controller = _import(CONTROLLERS["fixed"])(drafters[0], 4 if given is None else given, **tree)
    if controller == "fixed":
        return fixed
    from .control.costs import LiveCosts

    measured = target.calibration.cost(target.model)
    costs = LiveCosts(measured, change=measured.change if traits.steady else 0.0)
    if controller == "breaker":
        made = fixed
    else:
        name = "goodput" if controller == "auto" else controller
        longest = {} if given is None else {"max_draft": given}
        made = _import(CONTROLLERS[name])(tuple(drafters), costs, min_width=traits.min_width, **longest)
    if controller in ("auto", "breaker"):
        made = _import(CONTROLLERS["breaker"])(made, costs, min_width=traits.min_width)
    return made


def _refuse_rest(name: str, options: Mapping[str, Any]) -> None:
    if options:
        raise BadRequest(f"drafter {name!r} takes no option {next(iter(options))!r}; leave it out")


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
