"""Which format a head has, by its tensors and its config; formats that are not read are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.protocols import Ends
from ..errors import Unsupported
from .medusa_files import INSIDE, LAYER

Config = Mapping[str, Any]
Names = Sequence[str]

KINDS = ("medusa", "hydra", "eagle", "eagle3", "exit", "distilled")
OWN = {"surefoot-hydra": "hydra", "surefoot-exit": "exit", "surefoot-distilled": "distilled"}
"""Model types of our own formats."""


@dataclass(frozen=True, slots=True)
class _Other:
    """A format that is known, and not read."""

    name: str
    lacks: str
    fits: Callable[[Config, Names], bool]


def _called(*parts: str) -> Callable[[Config, Names], bool]:
    """Whether the config's model type or architecture has one of these in its name."""

    def fits(config: Config, names: Names) -> bool:
        given = config.get("architectures")
        said = [config.get("model_type"), config.get("spd_type"), *(given if isinstance(given, list) else [])]
        return any(part in str(each).lower().replace("-", "").replace("_", "") for each in said for part in parts)

    return fits


def _has(*parts: str) -> Callable[[Config, Names], bool]:
    """Whether a tensor has one of these in its name."""
    return lambda config, names: any(part in name for name in names for part in parts)


def _begins(*parts: str) -> Callable[[Config, Names], bool]:
    return lambda config, names: any(name.startswith(parts) for name in names)


def _says(*keys: str) -> Callable[[Config, Names], bool]:
    return lambda config, names: any(config.get(key) not in (None, False) for key in keys)


def _any(*tests: Callable[[Config, Names], bool]) -> Callable[[Config, Names], bool]:
    return lambda config, names: any(test(config, names) for test in tests)


_OTHERS = (
    _Other(
        "Hydra head in the layout of its authors",
        "their MLPs over all drafted tokens; train one of kind 'hydra'",
        _any(_says("hydra_num_heads", "hydra_num_layers", "hydra_head_arch"), _has("hydra_head.", "hydra_mlp")),
    ),
    _Other("FastMTP head", "its layer with input_proj", _any(_called("fastmtp"), _has("mtp_layers."))),
    _Other("DFlash draft", "drafting of whole blocks by diffusion", _any(_says("dflash_config"), _called("dflash"))),
    _Other("DSpark draft", "its blocks and its confidence head", _any(_says("dspark_config"), _called("dspark"))),
    _Other(
        "P-EAGLE head",
        "drafting in parallel with mask states",
        _any(_says("parallel_drafting"), _called("peagle"), _has("mask_hidden")),
    ),
    _Other("PARD draft", "drafting in parallel with mask tokens", _any(_says("pard_token", "ptd_token_id"), _called("pard"))),
    _Other("HASS head", "its name; where its layer is EAGLE's, call it 'llama' in the config", _called("hass")),
    _Other("MTP head", "its layer with eh_proj", _any(_has("eh_proj"), _begins("mtp.", "model.mtp"))),
    _Other("MLP speculator", "its layers", _called("mlpspeculator")),
    _Other(
        "recurrent drafter (ReDrafter)", "its recurrent layer", _any(_called("redrafter", "recurrentdraft"), _has("rnn_u."))
    ),
)


def recognise(path: Path, config: Config, names: Names, ends: Ends | None) -> str:
    """One of :data:`KINDS`, or a refusal, which compares the sizes with the target's if ``ends`` is given."""
    spoken = config.get("speculators_model_type")
    if spoken is not None:
        if spoken == "eagle3":
            return "eagle3"
        found = {"mtp": "MTP", "peagle": "P-EAGLE", "dflash": "DFlash", "dspark": "DSpark"}.get(spoken, repr(spoken))
        raise _refusal(path, config, ends, f"{found} head in the speculators format", "all but 'eagle3' of that format")
    if config.get("model_type") in OWN:
        return OWN[config["model_type"]]
    for other in _OTHERS:
        if other.fits(config, names):
            raise _refusal(path, config, ends, other.name, other.lacks)
    if any(LAYER.match(name) for name in names):
        return "medusa"
    plain = [name.removeprefix("model.") for name in names]
    layer = any("self_attn.q_proj.weight" in name for name in plain)
    if layer and any(name.startswith(("midlayer.", "layers.0.hidden_norm.")) or name == "d2t" for name in plain):
        return "eagle3"
    if layer and "fc.weight" in plain:
        return "eagle"
    if layer and any(name.startswith(("embed_tokens.", "layers.1.")) for name in plain):
        raise _refusal(path, config, ends, "whole language model", "a head; to draft with a model, use drafter 'model'")
    if layer:
        return "exit"
    begin = ", ".join(sorted(names)[:3]) or "none"
    raise _refusal(path, config, ends, f"head of an unknown format (tensors: {begin}, ...)", f"one of {', '.join(KINDS)}")


def wanted(names: list[str]) -> list[str]:
    """The head's own tensors; a whole model's are left in the file."""
    inside = [name for name in names if name.startswith(INSIDE) or name == "draft_ids"]
    return inside if any(name.startswith(INSIDE) for name in inside) else names


def _refusal(path: Path, config: Config, ends: Ends | None, name: str, lacks: str) -> Unsupported:
    inner = config.get("transformer_layer_config")
    said = {**(inner if isinstance(inner, Mapping) else {}), **{k: v for k, v in config.items() if v is not None}}
    vocab, hidden = ends.head.shape if ends is not None else (None, None)
    differs = [
        f"{what} {said[key]} against the target's {own}"
        for key, what, own in (("hidden_size", "hidden size", hidden), ("vocab_size", "vocabulary", vocab))
        if own is not None and isinstance(said.get(key), int) and said[key] != own
    ]
    more = f"; it is for another target as well: {', '.join(differs)}" if differs else ""
    return Unsupported(f"{path}: is a {name}, which is not read; missing: {lacks}{more}")
