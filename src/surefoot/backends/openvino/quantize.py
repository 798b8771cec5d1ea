"""A copy of a model folder whose matrix products have weights of fewer bits: the target as its own, faster draft.

A weight w of a group is stored as an unsigned integer n with w = (n - zero) * scale; zero and scale are the group's own
(asymmetric rounding to nearest). In the graph that is Convert, Subtract, Multiply and Reshape over constants, the form that
the CPU plugin keeps compressed and unpacks within the product. The language-model head, to whose errors the choice of tokens
is most sensitive, keeps 8 bits. Embeddings stay as they are.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op

from ...core.protocols import Array
from ...errors import BackendError, BadRequest, ModelNotFound, Unsupported
from .graph import FACTS_FILE, MODEL_FILE
from .hardware import shared_core
from .model import OpenVINOModel
from .publish import need_room, whole
from .runner import first_line

VERSION = "1"
"""Changes whenever folders made by an older version should be made anew."""
BITS = (4, 8)
KV_TOKENS = 16384
_WORTH = 0.75
"""A copy with more than this share of the bits would hardly be faster."""
_GROUPS = (64, 32)
_SMALLEST = float(np.finfo(np.float16).tiny)
_STORED = {"u4": 4, "i4": 4, "nf4": 4, "f4e2m1": 4, "u8": 8, "i8": 8, "f8e4m3": 8, "f8e5m2": 8, "u2": 2, "u1": 1}
_KINDS = {4: ov.Type.u4, 8: ov.Type.u8}


@dataclass(frozen=True, slots=True)
class Weight:
    """The constant side of one matrix product; ``stored``: bits of a number as it is."""

    product: Any
    size: int
    stored: int
    bits: int


def quantized_model(
    folder: Path, out: Path | None = None, *, bits: int = 4, kv_tokens: int | None = KV_TOKENS, **options: Any
) -> OpenVINOModel:
    """The model of ``folder`` with ``bits`` a weight. ``options`` as for :class:`OpenVINOModel`.

    out  where to keep the copy, used if it is there already; without it the copy is temporary
    """
    folder = Path(folder)
    options.setdefault("name", f"{folder.name}, {bits} bits")
    if out is not None:
        made = out if (out / MODEL_FILE).is_file() else quantize(folder, out, bits)
        return OpenVINOModel(made, kv_tokens=kv_tokens, **options)
    with tempfile.TemporaryDirectory(prefix="surefoot-", ignore_cleanup_errors=True) as place:
        return OpenVINOModel(quantize(folder, Path(place) / "model", bits), kv_tokens=kv_tokens, **options)


def quantize(folder: Path, out: Path, bits: int = 4) -> Path:
    """Write the copy; returns ``out``. :class:`Unsupported` where the weights have no more bits than that already."""
    if bits not in BITS:
        raise BadRequest(f"bits must be {' or '.join(map(str, BITS))}, not {bits}")
    path = Path(folder) / MODEL_FILE
    if not path.is_file():
        raise ModelNotFound(f"no {MODEL_FILE} in {folder}; convert the model first or name the folder that holds it")
    try:
        model = shared_core().read_model(path)
    except RuntimeError as e:
        raise BackendError(f"{path} cannot be read by OpenVINO ({first_line(e)}); convert it again") from None
    weights = matrices(model, bits)
    before = sum(w.size * w.stored for w in weights)
    after = sum(w.size * min(w.stored, w.bits) for w in weights)
    if not before or after > _WORTH * before:
        held = before / max(sum(w.size for w in weights), 1)
        raise Unsupported(
            f"the target's weights have {held:.1f} bits already, so a draft of {bits} bits would be no faster; "
            "choose another drafter, or a target of more bits"
        )
    need_room(out, path.with_suffix(".bin").stat().st_size)
    compress(model, weights)
    with whole(out) as staging:
        ov.save_model(model, staging / MODEL_FILE, compress_to_fp16=False)
        for name in (FACTS_FILE, "config.json"):
            if (path.parent / name).is_file():
                shutil.copyfile(path.parent / name, staging / name)
    return out


def compress(model: ov.Model, weights: Sequence[Weight]) -> None:
    """Round the graph's weights in place, those of more bits than wanted."""
    for weight in weights:
        if weight.stored > weight.bits:
            _replace(weight)
    model.validate_nodes_and_infer_types()


def groups(width: int) -> int:
    """Numbers that share a scale, in rows of ``width``."""
    return next((size for size in _GROUPS if width % size == 0), width)


def pack(w: Array, bits: int) -> tuple[Array, Array, Array]:
    """float32 [O, G, n] -> uint8 numbers [O, G, n], zeros [O, G, 1] and scales [O, G, 1] (float16, or float32 if too small)."""
    most = (1 << bits) - 1
    low = np.minimum(w.min(-1, keepdims=True), 0.0)
    high = np.maximum(w.max(-1, keepdims=True), 0.0)
    scale = ((high - low) / most).astype(np.float32)
    scale[scale == 0.0] = 1.0
    if float(scale.min()) >= _SMALLEST and float(scale.max()) < float(np.finfo(np.float16).max):
        scale = scale.astype(np.float16)
    step = scale.astype(np.float32)
    zero = np.clip(np.rint(-low / step), 0, most)
    numbers = np.clip(np.rint(w / step) + zero, 0, most)
    return numbers.astype(np.uint8), zero.astype(np.uint8), scale


def matrices(model: ov.Model, bits: int) -> list[Weight]:
    """The constant weights of the graph's matrix products; the last one keeps 8 bits at least."""
    products = [node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"]
    found = [node for node in products if _stored(node.input(1).get_source_output().get_node())]
    out = []
    for node in found:
        shape = node.input(1).get_partial_shape()
        if len(shape) != 2 or shape.is_dynamic or min(shape.to_shape()) < 2:
            continue
        source = node.input(1).get_source_output().get_node()
        rows, columns = shape.to_shape()
        out.append(Weight(node, rows * columns, _stored(source), max(bits, 8) if node is found[-1] else bits))
    return out


def _stored(node: Any) -> int:
    """Bits of a number of a constant sub-graph; 0 for anything else."""
    kind = node.get_type_name()
    if kind == "Constant":
        element = node.get_output_element_type(0)
        return _STORED.get(element.get_type_name(), element.size * 8)
    if kind not in ("Convert", "Subtract", "Multiply", "Reshape", "Transpose"):
        return 0
    inner = [_stored(i.get_source_output().get_node()) for i in node.inputs()]
    return inner[0] if all(inner) else 0


def _numbers(node: Any) -> Array:
    """float32 values of a constant sub-graph."""
    kind = node.get_type_name()
    if kind == "Constant":
        return np.asarray(node.get_data(dtype=np.float32))
    first = _numbers(node.input(0).get_source_output().get_node())
    if kind == "Convert":
        return first
    other = node.input(1).get_source_output().get_node()
    if kind == "Reshape":
        return first.reshape(node.get_output_shape(0))
    if kind == "Transpose":
        return first.transpose(np.asarray(other.get_data(dtype=np.int64)))
    second = _numbers(other)
    return np.asarray(first * second if kind == "Multiply" else first - second)


def _replace(weight: Weight) -> None:
    """A product with the same activations and the compressed weight."""
    node = weight.product
    attributes = node.get_attributes()
    w = _numbers(node.input(1).get_source_output().get_node())
    if not attributes.get("transpose_b"):
        w = np.ascontiguousarray(w.T)
    rows, width = w.shape
    size = groups(width)
    numbers, zero, scale = pack(w.reshape(rows, width // size, size), weight.bits)
    if size == width:  # one group a row needs no third axis
        numbers, zero, scale = (x.reshape(rows, -1) for x in (numbers, zero, scale))
    kind, wide = _KINDS[weight.bits], ov.Type.f16 if scale.dtype == np.float16 else ov.Type.f32
    value = op.convert(_constant(numbers, kind), wide)
    value = op.subtract(value, op.convert(_constant(zero, kind), wide))
    value = op.multiply(value, op.constant(scale))
    if size != width:
        value = op.reshape(value, op.constant(np.array([rows, width], np.int64)), False)
    if wide != ov.Type.f32:
        value = op.convert(value, ov.Type.f32)
    activations = node.input(0).get_source_output()
    product = op.matmul(activations, value, bool(attributes.get("transpose_a")), True)
    product.set_friendly_name(node.get_friendly_name())
    for target in list(node.output(0).get_target_inputs()):
        target.replace_source_output(product.output(0))


def _constant(numbers: Array, kind: ov.Type) -> Any:
    tensor = ov.Tensor(kind, ov.Shape(list(numbers.shape)))
    flat = numbers.reshape(-1)
    if kind == ov.Type.u4:  # two a byte, the first in the low half
        if flat.size % 2:
            flat = np.append(flat, np.uint8(0))
        flat = flat[0::2] | (flat[1::2] << 4)
    tensor.data.view(np.uint8).reshape(-1)[:] = flat
    return op.constant(tensor, shared_memory=False)
