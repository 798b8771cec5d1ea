"""Early exit: a graph cut after layer E into a prefix (embeddings … E) and a suffix (E+1 … logits) over the same caches."""

from __future__ import annotations

from typing import Any

import openvino as ov
import openvino.opset13 as op

from ...errors import Unsupported
from .graph import port
from .structure import Structure, key, sources

HIDDEN = "hidden"


def split(model: ov.Model, structure: Structure, layer: int, taps: tuple[int, ...]) -> tuple[ov.Model, ov.Model]:
    """Prefix with outputs (stream after ``layer``, taps up to it), suffix with outputs (logits, later taps).

    ``structure`` is that of ``model``, which is taken apart.
    """
    last = len(structure.residual) - 1
    if last < 0:
        raise Unsupported("the residual stream of this graph was not recognised, so it cannot be cut for early exit")
    if not 0 < layer < last:
        raise Unsupported(f"cannot cut after layer {layer}; choose 1..{last - 1}")
    exit_port = structure.residual[layer].output(0)
    parameters = {key(p): p for p in model.get_parameters()}
    logits = model.output("logits").get_node()
    early = [exit_port, *(structure.residual[t].output(0) for t in taps if t <= layer)]
    prefix_ends = [op.result(port) for port in early]
    reached = reach(prefix_ends)
    # A copy, because the two halves share nodes (shapes, rotary tables) that are rewired for the suffix below.
    prefix = ov.Model(prefix_ends, [p for k, p in parameters.items() if k in reached], "prefix").clone()
    hidden = op.parameter(exit_port.get_partial_shape(), ov.Type.f32, name=HIDDEN)
    hidden.output(0).set_names({HIDDEN})
    ours = {key(r) for r in prefix_ends}
    for target in list(exit_port.get_target_inputs()):
        if key(target.get_node()) not in ours:
            target.replace_source_output(hidden.output(0))
    ends = [logits, *(op.result(port(structure, t)) for t in taps if t > layer)]
    detach_shapes(ends, hidden)
    reached = reach(ends)
    suffix = ov.Model(ends, [hidden, *(p for k, p in parameters.items() if k in reached)], "suffix")
    return prefix, suffix


def detach_shapes(ends: list[Any], hidden: Any) -> None:
    """Shapes read off earlier activations would pull the first layers into the suffix; the stream has the same shape."""
    shape = hidden.output(0).get_partial_shape()
    for node in reach(ends).values():
        if node.get_type_name() == "ShapeOf" and node.input(0).get_partial_shape() == shape:
            node.input(0).replace_source_output(hidden.output(0))


def reach(ends: list[Any]) -> dict[str, Any]:
    """Every node that these read from, themselves included, by :func:`key`."""
    found: dict[str, Any] = {}
    stack = list(ends)
    while stack:
        node = stack.pop()
        if key(node) not in found:
            found[key(node)] = node
            stack += sources(node)
    return found
