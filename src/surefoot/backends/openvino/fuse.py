"""Weight fusion: matrix products that read the same activations become one product with stacked weights.

Small passes are bound by the number of kernels and the bytes of weights; q, k, v and gate, up in one kernel each save about
a tenth of a pass. Only weights whose sub-graphs have the same form (constants under Convert, Subtract, Multiply, Reshape;
outputs along axis 0) are stacked; whatever does not fit is left as it is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op


class _NoFit(Exception):
    """The weights of the group cannot be stacked."""


def fuse(model: ov.Model) -> int:
    """Fuse in place; returns the number of groups."""
    groups: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        attributes = node.get_attributes()
        if attributes.get("transpose_a") or not attributes.get("transpose_b"):
            continue
        rows = node.input(1).get_partial_shape()
        if len(rows) == 2 and rows.is_static and _constant(node.input(1).get_source_output().get_node()):
            source = node.input(0).get_source_output()
            groups[source.get_node().get_name(), source.get_index()].append(node)
    count = 0
    for nodes in groups.values():
        if len(nodes) > 1:
            try:
                _merge(nodes)
            except _NoFit:
                continue
            count += 1
    if count:
        model.validate_nodes_and_infer_types()
    return count


def _constant(node: Any) -> bool:
    kind = node.get_type_name()
    if kind == "Constant":
        return True
    if kind not in ("Convert", "Subtract", "Multiply", "Reshape"):
        return False
    return all(_constant(i.get_source_output().get_node()) for i in node.inputs())


def _merge(nodes: list[Any]) -> None:
    outs = [n.input(1).get_shape()[0] for n in nodes]
    weight = _stack([n.input(1).get_source_output().get_node() for n in nodes], outs)
    product = op.matmul(nodes[0].input(0).get_source_output(), weight, False, True)
    parts = op.variadic_split(product, op.constant(np.int64(-1)), op.constant(np.array(outs, dtype=np.int64)))
    for i, node in enumerate(nodes):
        for target in list(node.output(0).get_target_inputs()):
            target.replace_source_output(parts.output(i))


def _stack(nodes: list[Any], outs: list[int]) -> Any:
    kind = nodes[0].get_type_name()
    if any(n.get_type_name() != kind or n.get_output_element_type(0) != nodes[0].get_output_element_type(0) for n in nodes):
        raise _NoFit
    if kind == "Constant":
        return _stack_constants(nodes, outs)
    inner = [[n.input(k).get_source_output().get_node() for n in nodes] for k in range(len(nodes[0].inputs()))]
    if kind == "Convert":
        return op.convert(_stack(inner[0], outs), nodes[0].get_output_element_type(0))
    if kind == "Reshape":
        shape = list(nodes[0].get_output_shape(0))
        if any(list(n.get_output_shape(0)) != [o, *shape[1:]] for n, o in zip(nodes, outs, strict=True)):
            raise _NoFit
        return op.reshape(_stack(inner[0], outs), op.constant(np.array([sum(outs), *shape[1:]], dtype=np.int64)), False)
    combine = op.multiply if kind == "Multiply" else op.subtract
    return combine(_stack(inner[0], outs), _stack(inner[1], outs))


def _stack_constants(nodes: list[Any], outs: list[int]) -> Any:
    shapes = [list(n.get_output_shape(0)) for n in nodes]
    rows = [s[0] if s else 0 for s in shapes]
    if rows != outs or any(s[1:] != shapes[0][1:] for s in shapes):
        raise _NoFit
    raw = np.concatenate([np.ascontiguousarray(n.data).view(np.uint8).reshape(-1) for n in nodes])
    tensor = ov.Tensor(nodes[0].get_output_element_type(0), ov.Shape([sum(outs), *shapes[0][1:]]))
    room = tensor.data.view(np.uint8).reshape(-1)
    # Sub-byte rows that end inside a byte cannot be joined by joining bytes.
    if room.size != raw.size:
        raise _NoFit
    room[:] = raw
    return op.constant(tensor, shared_memory=False)
