"""What a model is and what can run it, from headers alone.

Contract: no weights are read; a broken file is a one-line error. Every backend that cannot run the model is listed in
``cannot`` with the reason.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..errors import BackendError
from .fetch import size_on_disk
from .gguf_header import read_header
from .reference import local

_GGUF_OPENVINO = frozenset({"llama", "qwen2", "qwen3"})
_GGUF_OPENVINO_TYPES = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"})
_RECURRENT = ("mamba", "rwkv", "jamba", "falcon_h1", "zamba", "recurrent_gemma", "lfm2", "qwen3_next")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts of a model; ``None`` where the headers do not say."""

    format: str
    architecture: str
    parameters: int | None
    layers: int | None
    hidden_size: int | None
    vocab_size: int | None
    context: int | None
    quantisation: str
    size: int
    """Bytes on disk."""
    backends: tuple[str, ...]
    cannot: tuple[str, ...]
    """One line for each backend that cannot run it: name, reason, fix."""


def describe(path: str | Path) -> Capabilities:
    """Capabilities of the model at a local path (a GGUF file or a folder)."""
    model = local(Path(path))
    assert model.path is not None
    return {"gguf": _gguf, "openvino": _openvino, "transformers": _transformers}[model.kind](model.path)


def _split(reasons: dict[str, str | None]) -> dict[str, Any]:
    return {
        "backends": tuple(name for name, reason in reasons.items() if reason is None),
        "cannot": tuple(f"{name}: {reason}" for name, reason in reasons.items() if reason is not None),
    }


def _gguf(path: Path) -> Capabilities:
    header = read_header(path)
    types = Counter[str]()
    for tensor in header.tensors:
        types[tensor.type] += tensor.elements
    arch = header.architecture
    odd = sorted(set(types) - _GGUF_OPENVINO_TYPES)
    openvino = None
    if arch not in _GGUF_OPENVINO:
        known = ", ".join(sorted(_GGUF_OPENVINO))
        openvino = f"GGUF files of {arch or 'unnamed'} models are not read (only {known}): give the transformers folder"
    elif odd:
        openvino = f"GGUF type {', '.join(odd)} is not read: give a Q4_0, Q4_1, Q8_0 or F16 file"
    torch = "packed GGUF weights are for the openvino backend: give the transformers folder"
    embedding = next((t.shape for t in header.tensors if t.name == "token_embd.weight"), ())
    return Capabilities(
        format="gguf",
        architecture=arch,
        parameters=sum(types.values()),
        layers=header.hyper("block_count"),
        hidden_size=header.hyper("embedding_length"),
        vocab_size=embedding[1] if len(embedding) == 2 else header.hyper("vocab_size"),
        context=header.hyper("context_length"),
        quantisation=types.most_common(1)[0][0] if types else "none",
        size=path.stat().st_size,
        **_split({"openvino": openvino, "torch": torch}),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model folder; ``{}`` if the file is missing, an error if it is broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} cannot be read as JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise BackendError(f"{path} is not a JSON object; download it again")
    return value


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a configuration that may nest it."""
    return {**config, **config.get("text_config", {})}


def _first(config: dict[str, Any], *names: str) -> int | None:
    return next((int(config[name]) for name in names if config.get(name) is not None), None)


def _common(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "architecture": str(config.get("model_type", "")),
        "layers": _first(config, "num_hidden_layers", "n_layer", "num_layers", "n_layers"),
        "hidden_size": _first(config, "hidden_size", "n_embd", "d_model", "dim"),
        "vocab_size": _first(config, "vocab_size"),
        "context": _first(config, "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"),
    }


def _transformers(path: Path) -> Capabilities:
    config = text_config(read_json(path / "config.json"))
    weights = sorted(path.glob("*.safetensors"))
    types = Counter[str]()
    for file in weights:
        types.update(safetensors_types(file))
    quantised = config.get("quantization_config", {}).get("quant_method")
    openvino = torch = None
    kind = str(config.get("model_type", ""))
    if config.get("is_encoder_decoder"):
        openvino = torch = "it is an encoder-decoder model: only causal language models can be run"
    elif not weights and not any(path.glob("*.bin")):
        openvino = torch = "the folder has no weights: download the .safetensors files"
    elif kind.startswith(_RECURRENT):
        openvino = torch = (
            f"{kind} layers carry a recurrent state, which cannot go back to an accepted prefix: give an attention model"
        )
    elif quantised:
        openvino = f"weights quantised with {quantised} cannot be exported: give the unquantised model"
    return Capabilities(
        format="transformers",
        parameters=sum(types.values()) or None,
        quantisation=str(quantised or (types.most_common(1)[0][0] if types else config.get("dtype", "unknown"))),
        size=size_on_disk(path),
        **_common(config),
        **_split({"openvino": openvino, "torch": torch}),
    )


def safetensors_types(path: Path) -> Counter[str]:
    """Data type -> number of elements, from the header of a safetensors file."""
    broken = BackendError(f"{path} is not a whole safetensors file; download it again")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise broken
            header = json.loads(file.read(length))
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        if 8 + length + max((entry["data_offsets"][1] for entry in entries), default=0) > size:
            raise broken
        types = Counter[str]()
        for entry in entries:
            types[entry["dtype"]] += prod(entry["shape"])
        return types
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise broken if not isinstance(error, BackendError) else error from error


def _openvino(path: Path) -> Capabilities:
    config = _common(text_config(read_json(path / "config.json")))
    graph = _graph(path / "openvino_model.xml")
    # what our own conversions leave beside the graph
    ours = path / "surefoot.json"
    facts = read_json(ours) if ours.is_file() else {}
    missing = not (path / "openvino_model.bin").is_file()
    openvino = None
    if missing:
        openvino = "openvino_model.bin is missing: copy it beside openvino_model.xml"
    elif not graph["stateful"]:
        openvino = "the model keeps no state: export it again as a stateful text-generation model"
    reasons = {"openvino": openvino, "torch": "an OpenVINO graph cannot be run: give the transformers folder"}
    return Capabilities(
        format="openvino",
        architecture=config["architecture"],
        parameters=graph["parameters"],
        layers=config["layers"] or graph["layers"],
        hidden_size=config["hidden_size"],
        vocab_size=graph["vocab"] or config["vocab_size"],
        context=config["context"] or facts.get("max_context"),
        quantisation=graph["type"],
        size=size_on_disk(path),
        **_split(reasons),
    )


def _graph(path: Path) -> dict[str, Any]:
    """Sizes from the graph's text; grouped weights are [out, groups, group], their scales [out, groups, 1]."""
    types, reads, kind, vocab = Counter[str](), 0, "", None
    try:
        for event, node in ElementTree.iterparse(path, events=("start", "end")):
            if event == "start" and node.tag == "layer":
                kind = node.get("type", "")
                reads += kind == "ReadValue"
            elif event == "start" and node.tag == "data" and kind == "Const":
                shape = [int(size) for size in (node.get("shape") or "").split(",") if size.strip()]
                if len(shape) >= 2 and shape[-1] > 1 and not node.get("element_type", "").startswith("i64"):
                    types[node.get("element_type", "")] += prod(shape)
            elif event == "end" and node.tag == "layer":
                dims = [int(dim.text or -1) for dim in node.findall("./input/port/dim")]
                if kind == "Result" and len(dims) == 3 and dims[-1] > 0 and vocab is None:
                    vocab = dims[-1]
                node.clear()
    except (ElementTree.ParseError, OSError, ValueError) as error:
        raise BackendError(f"{path} is not a whole OpenVINO model ({error}); export or download it again") from error
    return {
        "parameters": sum(types.values()) or None,
        "type": types.most_common(1)[0][0] if types else "unknown",
        "layers": reads // 2 or None,
        "stateful": reads > 0,
        "vocab": vocab,
    }
