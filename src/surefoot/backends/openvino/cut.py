"""Early exit: a graph cut after some layers into sections over the same caches; the last one makes the logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov
import openvino.opset13 as op

from ...errors import Unsupported
from .graph import port, shown
from .structure import Structure, key, sources

HIDDEN = "hidden"


def split(model: ov.Model, structure: Structure, cuts: Sequence[int], taps: Sequence[int], rounded: bool) -> list[ov.Model]:
    """Sections, the first reading tokens and each other one the stream at a cut; ``cuts`` rise.

    Outputs: the stream at the section's end (of the last section the logits), then the taps between the cuts, in order.
    ``structure`` is that of ``model``, which is taken apart. ``rounded``: the graph runs in bf16.
    """
    last = len(structure.residual) - 1
    if last < 0:
        raise Unsupported("the residual stream of this graph was not recognised, so it cannot be cut for early exit")
    for layer in cuts:
        if not 0 < layer < last:
            raise Unsupported(f"cannot cut after layer {layer}; choose 1..{last - 1}")
    parameters = {key(p): p for p in model.get_parameters()}
    logits = model.output("logits").get_node()
    sections, before = [], -1
    for layer in cuts:
        exit_port = structure.residual[layer].output(0)
        ends = [op.result(shown(exit_port, rounded))]
        ends += [op.result(shown(structure.residual[t].output(0), rounded)) for t in taps if before < t < layer]
        # A copy, because the sections share nodes (shapes, rotary tables) that are rewired for the later ones below.
        sections.append(_section(ends, parameters, f"to layer {layer}").clone())
        hidden = op.parameter(exit_port.get_partial_shape(), ov.Type.f32, name=f"{HIDDEN}.{layer}")
        hidden.output(0).set_names({HIDDEN})
        ours = reach(ends)
        for target in list(exit_port.get_target_inputs()):
            if key(target.get_node()) not in ours:
                target.replace_source_output(hidden.output(0))
        parameters[key(hidden)] = hidden
        later = [logits, *(op.result(port(structure, t)) for t in taps if t > layer)]
        later += [op.result(structure.residual[c].output(0)) for c in cuts if c > layer]
        detach_shapes(later, hidden)
        before = layer
    ends = [logits, *(op.result(shown(port(structure, t), rounded)) for t in taps if t > before)]
    sections.append(_section(ends, parameters, "to the end"))
    return sections


def _section(ends: list[Any], parameters: dict[str, Any], name: str) -> ov.Model:
    reached = reach(ends)
    return ov.Model(ends, [p for k, p in parameters.items() if k in reached], name)


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
