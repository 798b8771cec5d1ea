"""A model reference becomes a target: fetched, converted where that has to be, opened, probed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BadRequest, Unsupported, VocabMismatch
from .models import DEFAULT, ModelRef, Progress, building, converted_dir, describe, fetch, fingerprint, resolve, shipped

if TYPE_CHECKING:
    from .calibrate import Calibration
    from .core.protocols import TargetModel
    from .text import Codec

BACKENDS = ("auto", "openvino", "torch")


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded model: the target, its tokenizer, and what was measured of it.

    ``folder``: what the backend opened, for drafts made of the same weights. ``identity``: model, backend and numerics.
    """

    model: TargetModel
    codec: Codec
    calibration: Calibration
    path: Path
    backend: str = ""
    folder: Path | None = None
    identity: str | None = None


Taps = Sequence[int] | Callable[[int], Sequence[int]]
"""Activations that drafters read (:attr:`Traits.hidden`); or what says them for a model of so many layers."""


def open_target(
    model: str | os.PathLike[str] | ModelRef = DEFAULT,
    backend: str = "auto",
    *,
    precision: str = "auto",
    kv_tokens: int | None = None,
    taps: Taps = (),
    cut: int | Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Target:
    """Load a model as a target, probed, with its tokenizer.

    ``taps``: activations that drafters read, beside those of the trained heads that come with the package for this model;
    ``cut``: the layers after which drafters leave the model for early exit.
    """
    if backend not in BACKENDS:
        raise BadRequest(f"unknown backend {backend!r}; choose {', '.join(BACKENDS)}")
    ref = resolve(model)
    path = fetch(ref, progress)
    always = shipped(path).taps
    extra = {"taps": lambda layers: {*always, *(taps(layers) if callable(taps) else taps)}, "cut": cut}
    kind = resolve(path).kind
    if backend == "auto":
        backend = _backend_for(kind)
        try:
            opened = _open(kind, path, backend, precision, kv_tokens, extra, progress)
            # a sliding window limits the context there, while the other backend goes beyond it
            whole = describe(path).context or 0
            if backend == "torch" or kind != "transformers" or opened.model.traits.max_context >= whole:
                return opened
        except Unsupported:
            if backend == "torch" or kind != "transformers":
                raise
        backend = "torch"
    return _open(kind, path, backend, precision, kv_tokens, extra, progress)


def _backend_for(kind: str) -> str:
    """The CPU backend, except for transformers models on a machine with a GPU."""
    if kind != "transformers":
        return "openvino"
    import torch

    return "torch" if torch.cuda.is_available() else "openvino"


def _open(
    kind: str, path: Path, backend: str, precision: str, kv_tokens: int | None, extra: dict[str, Any], progress: Progress | None
) -> Target:
    import torch

    from .calibrate import Calibration
    from .text import Codec

    codec = Codec.load(path)
    folder = path
    target: Any
    if backend == "torch":
        from .backends.torch import TorchModel

        if kind == "openvino":
            raise Unsupported(f"{path} is an OpenVINO model; use backend='openvino' or give the transformers folder")
        # on CPUs a class of equal bits exists for chains of moderate width, not for trees; there exactness comes first
        narrow: dict[str, Any] = {} if torch.cuda.is_available() else {"trees": False, "max_nodes": 64}
        target = TorchModel.load(str(path), dtype=precision, capacity_tokens=kv_tokens, **narrow, cut=extra["cut"])
    else:
        from .backends.openvino import OpenVINOModel

        # two pools of threads that spin for work on the same cores: a softmax between passes took 50 times as long
        torch.set_num_threads(1)
        folder = _openvino_folder(kind, path, progress)
        target = OpenVINOModel(folder, precision=precision, kv_tokens=kv_tokens, name=path.stem, **extra)
    traits = target.traits
    identity = f"{fingerprint(path)}\0{backend}\0{traits.device}\0{traits.dtype}\0{precision}"
    if backend == "openvino":  # another graph is compiled for these
        identity += f"\0taps {traits.hidden}" if traits.hidden else ""
        identity += f"\0cut {extra['cut']}" if extra["cut"] is not None else ""
    calibration = Calibration(identity, progress)
    target.adopt(calibration.report(target.probe))
    if codec.vocab_size > target.traits.vocab_size:
        raise VocabMismatch(
            f"the tokenizer has {codec.vocab_size} tokens, the model {target.traits.vocab_size}; give the model's own tokenizer"
        )
    return Target(target, codec, calibration, path, backend, folder, identity)


def quantized(target: Target, bits: int | None = None) -> TargetModel:
    """The target's own weights at ``bits`` a weight, as a draft model with a cache of its own; converted ones are kept."""
    if target.folder is None:
        raise Unsupported("drafter 'quantized' needs the model's files; load the target with surefoot.load")
    if target.backend == "torch":
        from .backends import torch_quantize

        return torch_quantize.quantized_model(str(target.folder), bits=8 if bits is None else bits)
    from .backends.openvino import quantize

    bits = 4 if bits is None else bits
    place = converted_dir(target.folder, f"{quantize.VERSION}-{bits}-bits")
    with building(place) as staging:
        if staging is not None:
            quantize.quantize(target.folder, staging / "model", bits)
    return quantize.OpenVINOModel(place / "model", kv_tokens=quantize.KV_TOKENS, name=f"{target.folder.name}, {bits} bits")


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
