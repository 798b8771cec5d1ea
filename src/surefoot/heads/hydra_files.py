"""Sequential heads (:mod:`.hydra`) on disk: ``config.json`` with ``model_type`` "surefoot-hydra", ``model.safetensors``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.protocols import Ends
from ..errors import BadRequest
from .files import Checkpoint, write
from .fit import check_fit
from .hydra import Hydra, HydraConfig

MODEL_TYPE = "surefoot-hydra"


def load_hydra(checkpoint: Checkpoint, ends: Ends) -> Hydra:
    """Raises where the head was made for another target, or a tensor is missing."""
    path, said = checkpoint.path, checkpoint.config
    taps, scale = said.get("taps"), said.get("embedding_scale")
    if not isinstance(taps, list) or not taps or not all(isinstance(t, int) and t >= 0 for t in taps):
        raise BadRequest(f"{path / 'config.json'}: 'taps' must list layers of the target, got {taps!r}")
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        raise BadRequest(f"{path / 'config.json'}: 'embedding_scale' must be a number, got {scale!r}")
    config = HydraConfig(
        hidden_size=checkpoint.integer("hidden_size", least=1),
        vocab_size=checkpoint.integer("vocab_size", least=1),
        taps=tuple(taps),
        blocks=checkpoint.integer("blocks"),
        inner=checkpoint.integer("inner", least=1),
        scale=float(scale),
        depth=checkpoint.integer("depth", 8, least=1),
    )
    check_fit(path, ends, hidden=config.hidden_size, vocab=config.vocab_size)
    module = Hydra(config, ends, checkpoint.draft_ids(config.vocab_size))
    module.load_state_dict({name: checkpoint.take(name, tuple(own.shape)) for name, own in module.state_dict().items()})
    return module.to(ends.head.device).eval()


def save_hydra(folder: Path, module: Hydra, *, facts: Mapping[str, Any] | None = None) -> None:
    """``facts`` go into the config under ``surefoot``."""
    config = module.config
    said: dict[str, Any] = {
        "model_type": MODEL_TYPE,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "taps": list(config.taps),
        "blocks": config.blocks,
        "inner": config.inner,
        "embedding_scale": config.scale,
        "depth": config.depth,
    }
    if facts:
        said["surefoot"] = dict(facts)
    tensors = dict(module.state_dict())
    if module.draft_ids is not None:
        tensors["draft_ids"] = module.draft_ids
    write(folder, said, tensors)
