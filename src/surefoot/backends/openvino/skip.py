"""The paged graph without some of its sublayers, and graphs to choose them by.

A sublayer is what one residual add puts on the stream: after attention, after the MLP. Leaving it out is reading the add's
residual input in place of its sum; what nothing reads any more, the layer's cache inputs included, is not compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op

from ...core.sublayers import ATTENTION, MLP, SkipSet, Step
from ...errors import Unsupported
from .cut import HIDDEN, detach_shapes, reach
from .structure import Structure, key, read, sources, value_cone, waists

GATES = "gates"


@dataclass(frozen=True, slots=True)
class Sum:
    """A residual add: ``residual`` is the input that carries the stream, the other one what the sublayer adds."""

    node: Any
    residual: int


def sums(structure: Structure) -> list[tuple[Sum, Sum]]:
    """The adds after attention and after the MLP of each layer."""
    out = []
    if not structure.residual:
        raise Unsupported("the residual stream of this graph was not recognised; leaving sublayers out needs backend=torch")
    for layer, (before, after) in enumerate(zip(structure.residual[:-1], structure.residual[1:], strict=True)):
        found = []
        for i, node in enumerate(sources(after)):
            inner = [j for j, s in enumerate(sources(node)) if key(s) == key(before)] if node.get_type_name() == "Add" else []
            if len(inner) == 1:
                found.append((Sum(node, inner[0]), Sum(after, i)))
        if len(found) != 1:
            raise Unsupported(f"layer {layer} of the graph does not add attention and MLP one by one; use backend=torch")
        out.append(found[0])
    return out


def bypass(model: ov.Model, structure: Structure, skips: SkipSet) -> tuple[ov.Model, Structure]:
    """The graph without these sublayers. ``model`` is taken apart."""
    skips.check(len(structure.attention))
    dropped = {key(structure.attention[layer]) for layer in skips.attention}
    for layer, (attention, mlp) in enumerate(sums(structure)):
        for each, out in ((attention, layer in skips.attention), (mlp, layer in skips.mlp)):
            if out:
                stream = each.node.input(each.residual).get_source_output()
                for target in list(each.node.output(0).get_target_inputs()):
                    target.replace_source_output(stream)
    reached = reach(model.get_results())
    if dropped & reached.keys():
        raise Unsupported("a later layer of the graph reads from a layer that is to be left out; use backend=torch")
    rest = ov.Model(model.get_results(), [p for p in model.get_parameters() if key(p) in reached], "draft")
    return rest, read(rest)


def gate(model: ov.Model, structure: Structure) -> tuple[ov.Model, Structure]:
    """A factor on what each sublayer adds, read from the input ``gates`` [2 L]: attention and MLP of each layer in turn."""
    pairs = sums(structure)
    gates = op.parameter([2 * len(pairs)], ov.Type.f32, name=GATES)
    gates.output(0).set_names({GATES})
    for i, each in enumerate(s for pair in pairs for s in pair):
        port = each.node.input(1 - each.residual)
        factor = op.gather(gates, op.constant(np.int32(i)), op.constant(np.int32(0)))
        port.replace_source_output(op.multiply(port.get_source_output(), factor).output(0))
    model.add_parameters([gates])
    model.validate_nodes_and_infer_types()
    return model, structure


def segments(model: ov.Model, structure: Structure) -> tuple[list[Step], list[ov.Model]]:
    """The graph as one graph for each step, from ``hidden`` to the stream after it. ``model`` is taken apart."""
    cone = value_cone(model.get_ordered_ops(), "input_ids")
    narrow = {key(cone[i]) for i in waists(cone)}
    steps: list[Step] = []
    ends: list[Any] = []
    for layer, (attention, mlp) in enumerate(sums(structure)):
        if key(attention.node) in narrow:
            steps += [((ATTENTION, layer),), ((MLP, layer),)]
            ends += [attention.node, mlp.node]
        else:
            steps.append(((ATTENTION, layer), (MLP, layer)))
            ends.append(mlp.node)
    parts: list[ov.Model] = []
    for start, end in zip([structure.residual[0], *ends[:-1]], ends, strict=True):
        port = start.output(0)
        hidden = op.parameter(port.get_partial_shape(), ov.Type.f32, name=HIDDEN)
        hidden.output(0).set_names({HIDDEN})
        for target in list(port.get_target_inputs()):
            target.replace_source_output(hidden.output(0))
        result = op.result(end.output(0))
        detach_shapes([result], hidden)
        part = ov.Model([result], [n for n in reach([result]).values() if n.get_type_name() == "Parameter"], "step").clone()
        # a shape may still come from the ids, a value may not
        if part.get_results()[0].get_name() in {key(n) for n in value_cone(part.get_ordered_ops(), "input_ids")}:
            raise Unsupported(
                "a layer of the graph reads from more than the layer before it; choose method swift, or use backend=torch"
            )
        parts.append(part)
    return steps, parts
