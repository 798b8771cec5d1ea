"""Layers of the target, read from its own files in float32, under the names and in the order of a Llama's checkpoint.

From a transformers folder they come as they are. A GGUF file holds them quantized and, for Llamas, with the rows of q and k in
another order: there the two numbers that the rotation turns together stand side by side, here half a head apart. A backend may
round quantized weights once more (OpenVINO's importer does so with the offsets of Q4_1): training makes up for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BackendError, BadRequest, ModelNotFound, Unsupported
from ..heads.attention import AttentionConfig, frequencies
from ..heads.distilled import DistilledConfig
from ..heads.files import read

FOLDERS = ("llama", "mistral", "qwen2")
"""``model_type`` of transformers models whose layers have a Llama's parts and no others."""
FILES = ("llama", "qwen2")
"""The same of GGUF files; there Mistral's are called Llama."""
_BIASED = ("qwen2",)

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class Layers:
    """``tensors``: ``layers.{i}.*``, i counting the chosen ones from 0, and ``norm.weight``, the final norm."""

    config: DistilledConfig
    tensors: Mapping[str, Tensor]


def read_layers(source: Path, chosen: Sequence[int]) -> Layers:
    """``source``: a transformers folder or a GGUF file. ``chosen``: layers from 0; negative ones count from the end."""
    source = Path(source)
    if source.is_dir():
        return _folder(source, chosen)
    if source.suffix == ".gguf":
        return _file(source, chosen)
    raise ModelNotFound(f"{source}: layers are copied from a transformers folder or a GGUF file; give one as the target")


def _folder(folder: Path, chosen: Sequence[int]) -> Layers:
    if not (folder / "config.json").is_file() and any(folder.glob("openvino_*.xml")):
        raise Unsupported(
            f"{folder}: layers cannot be copied from an OpenVINO model; give its transformers folder or GGUF file"
        )
    facts = read(folder, choose=lambda names: [])
    config = facts.config
    kind = config.get("model_type")
    if kind not in FOLDERS or config.get("mlp_bias") or config.get("hidden_act", "silu") != "silu":
        raise _other(folder, kind, FOLDERS)
    for name in ("hidden_size", "num_attention_heads"):
        facts.integer(name, least=1)
    attention = AttentionConfig.of(config)
    if kind in _BIASED:
        attention = replace(attention, bias=True, out_bias=False)
    layers = _resolve(chosen, facts.integer("num_hidden_layers", least=1))
    prefixes = {f"model.layers.{layer}.": f"layers.{i}." for i, layer in enumerate(layers)}

    def choose(names: list[str]) -> list[str]:
        return [name for name in names if name == "model.norm.weight" or name.startswith(tuple(prefixes))]

    found = {}
    for name, tensor in read(folder, choose=choose).tensors.items():
        start = next((old for old in prefixes if name.startswith(old)), None)
        found["norm.weight" if start is None else prefixes[start] + name[len(start) :]] = tensor.to(torch.float32)
    made = DistilledConfig(
        facts.integer("intermediate_size", least=1),
        layers,
        attention,
        float(config.get("rms_norm_eps", 1e-6)),
        facts.integer("max_position_embeddings", 2048, least=1),
    )
    return _whole(folder, made, {name: x for name, x in found.items() if not name.endswith("rotary_emb.inv_freq")})


def _file(path: Path, chosen: Sequence[int]) -> Layers:
    import gguf

    try:
        reader: Any = gguf.GGUFReader(path)
    except FileNotFoundError:
        raise ModelNotFound(f"no such file: {path}") from None
    except (ValueError, IndexError, KeyError, OSError) as e:
        raise BackendError(f"{path} is not a complete GGUF file ({e}); download it again") from None

    def fact(name: str, default: Any = None) -> Any:
        field = reader.get_field(name)
        value = default if field is None else field.contents()
        if value is None:
            raise BackendError(f"{path} lacks {name}; download it again")
        return value

    kind = fact("general.architecture")
    if kind not in FILES or fact(f"{kind}.expert_count", 0):
        raise _other(path, kind, FILES)
    size, heads = int(fact(f"{kind}.embedding_length")), int(fact(f"{kind}.attention.head_count"))
    d = int(fact(f"{kind}.attention.key_length", size // heads))
    kv_heads, context = int(fact(f"{kind}.attention.head_count_kv", heads)), int(fact(f"{kind}.context_length", 2048))
    if int(fact(f"{kind}.rope.dimension_count", d)) != d:
        raise Unsupported(f"{path}: only a part of each head is rotated; layers of such models cannot be copied")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    rope: dict[str, Any] = {}
    if (scaling := fact(f"{kind}.rope.scaling.type", "none")) not in ("none", ""):
        rope = {"rope_type": scaling, "factor": float(fact(f"{kind}.rope.scaling.factor", 1.0))}
        rope["original_max_position_embeddings"] = int(fact(f"{kind}.rope.scaling.original_context_length", context))
    layers = _resolve(chosen, int(fact(f"{kind}.block_count")))
    biased, out = (f"blk.0.attn_{part}.bias" in tensors for part in ("q", "output"))
    attention = AttentionConfig(size, heads, kv_heads, d, 0, biased, out, float(fact(f"{kind}.rope.freq_base", 10000.0)), rope)
    if "rope_freqs.weight" in tensors:
        factors = _numbers(tensors["rope_freqs.weight"])
        attention = replace(attention, rope=_llama3(path, replace(attention, rope={}), factors))
    found = {}
    for i, layer in enumerate(layers):
        for name, tensor in tensors.items():
            if not name.startswith(f"blk.{layer}."):
                continue
            part, _, what = name.split(".", 2)[2].rpartition(".")
            numbers = _numbers(tensor)
            if kind == "llama" and part in ("attn_q", "attn_k"):
                numbers = _apart(numbers, heads if part == "attn_q" else kv_heads)
            found[f"layers.{i}.{_NAMES.get(part, part)}.{what}"] = numbers
    if "output_norm.weight" in tensors:
        found["norm.weight"] = _numbers(tensors["output_norm.weight"])
    eps = float(fact(f"{kind}.attention.layer_norm_rms_epsilon", 1e-5))
    made = DistilledConfig(int(fact(f"{kind}.feed_forward_length")), layers, attention, eps, context)
    return _whole(path, made, found)


def _numbers(tensor: Any) -> Tensor:
    """Float32, [out, in]."""
    from gguf import quants

    try:
        return torch.from_numpy(quants.dequantize(tensor.data, tensor.tensor_type).astype("float32", copy=True))
    except RuntimeError as e:  # what gguf raises for a kind that it does not know is one
        raise Unsupported(
            f"tensor {tensor.name!r} is of a kind that cannot be read ({e}); give the transformers folder"
        ) from None


def _apart(x: Tensor, heads: int) -> Tensor:
    """Rows (or biases) of each head from pairs side by side to pairs half a head apart."""
    return x.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def _llama3(path: Path, plain: AttentionConfig, factors: Tensor) -> dict[str, Any]:
    """The scaling that such factors of the wave lengths come from; its numbers are not in the file, Llama 3's own are tried."""
    for context in (8192, 4096):
        rope = {
            "rope_type": "llama3",
            "factor": float(factors.max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": context,
        }
        if torch.allclose(frequencies(plain)[0] / factors, frequencies(replace(plain, rope=rope))[0], rtol=1e-3, atol=0.0):
            return rope
    raise Unsupported(f"{path}: its rotary scaling is not that of Llama 3; give the transformers folder as the target")


def _resolve(chosen: Sequence[int], count: int) -> tuple[int, ...]:
    layers = tuple(i + count if i < 0 else i for i in chosen)
    if not layers or not all(0 <= i < count for i in layers):
        raise BadRequest(f"layers must name one or more of the target's {count} layers, 0..{count - 1}, got {list(chosen)}")
    return layers


def _whole(source: Path, config: DistilledConfig, found: dict[str, Tensor]) -> Layers:
    """Nothing missing, and nothing that would be left out silently."""
    attention = config.attention
    biased = {"self_attn.o_proj": attention.out_bias} | dict.fromkeys(
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), attention.bias
    )
    wanted = {"norm.weight"}
    for i in range(len(config.layers)):
        wanted |= {f"layers.{i}.{name}.weight" for name in _NAMES.values()}
        wanted |= {f"layers.{i}.{name}.bias" for name, there in biased.items() if there}
    if missing := sorted(wanted - set(found)):
        raise BackendError(f"{source} lacks {missing[0]!r}; give a complete model")
    if other := sorted(set(found) - wanted):
        raise Unsupported(f"{source}: its layers have {other[0]!r}, which a Llama's have not, so they cannot be copied")
    return Layers(config, found)


def _other(source: Path, kind: Any, known: Sequence[str]) -> Unsupported:
    return Unsupported(
        f"{source}: layers of {kind!r} models cannot be copied, only those of plain {', '.join(known)} models; "
        "train another kind of head for it"
    )
