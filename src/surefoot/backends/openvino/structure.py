"""What the transformer inside a graph looks like, found by structure and never by name.

The *value cone* are the nodes whose values depend on the token ids (shapes do not count). A node is a *waist* when every
path through the cone from the token ids to the logits passes it. In a transformer the waists are the residual stream:
the embeddings, the sums after attention and after the MLP, and the tail before the logits. The residual stream after
layer l is the last waist ahead of the attention of layer l+1; after the last layer it is the last waist that adds two
values of the cone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import openvino as ov

from ...errors import Unsupported

ATTENTION = "PagedAttentionExtension"


@dataclass(frozen=True, slots=True)
class Structure:
    """Nodes of one graph; ``residual[l]`` carries the stream after layer l (0 = embeddings), empty if not found."""

    attention: tuple[Any, ...]
    residual: tuple[Any, ...]
    head: Any
    """The matrix product that makes the logits."""
    hidden_size: int
    vocab_size: int
    rank: int
    """Rank of the activations; tokens lie along axis 0."""


def key(node: Any) -> str:
    """Identity of a node within its graph (Python wrappers are made anew on every access)."""
    name: str = node.get_name()
    return name


def sources(node: Any) -> list[Any]:
    return [i.get_source_output().get_node() for i in node.inputs()]


def value_cone(ops: list[Any], root: str) -> list[Any]:
    """Nodes of the ordered list whose values depend on the parameter called ``root``."""
    inside: set[str] = set()
    cone = []
    for node in ops:
        kind = node.get_type_name()
        if kind == "Parameter":
            member = root in node.output(0).get_names()
        else:
            member = kind not in ("ShapeOf", "Constant") and any(key(s) in inside for s in sources(node))
        if member:
            inside.add(key(node))
            cone.append(node)
    return cone


def waists(cone: list[Any]) -> list[int]:
    """Places in the cone of the nodes that every path passes."""
    place = {key(n): i for i, n in enumerate(cone)}
    last = list(range(len(cone)))
    for i, node in enumerate(cone):
        for s in sources(node):
            j = place.get(key(s))
            if j is not None:
                last[j] = i
    out, open_until = [], 0
    for i in range(len(cone)):
        if open_until <= i:
            out.append(i)
        open_until = max(open_until, last[i])
    return out


def read(model: ov.Model, root: str = "input_ids") -> Structure:
    """Find attention, residual stream and head. Raises :class:`Unsupported` for graphs without a plain head."""
    cone = value_cone(model.get_ordered_ops(), root)
    inside = {key(n) for n in cone}
    calls = [i for i, n in enumerate(cone) if n.get_type_name() == ATTENTION]
    heads = [n for n in cone if n.get_type_name() == "MatMul" and key(n.input(1).get_source_output().get_node()) not in inside]
    logits = model.output("logits").get_partial_shape()
    if not calls or not heads or not logits[-1].is_static:
        raise Unsupported(
            "the graph has no attention or no language-model head that Surefoot recognises; export a causal language model"
        )
    head = heads[-1]
    width = head.input(0).get_partial_shape()
    hidden = width[len(width) - 1]
    if not hidden.is_static:
        raise Unsupported("the graph's hidden size is dynamic; export the model with static weights")
    residual = _residual(cone, inside, calls, hidden.get_length())
    return Structure(
        tuple(cone[i] for i in calls), residual, head, hidden.get_length(), logits[len(logits) - 1].get_length(), len(width)
    )


def _residual(cone: list[Any], inside: set[str], calls: list[int], hidden: int) -> tuple[Any, ...]:
    def carries(i: int) -> bool:
        node = cone[i]
        if node.get_output_size() != 1:
            return False
        shape = node.get_output_partial_shape(0)
        return len(shape) > 1 and shape[len(shape) - 1].is_static and shape[len(shape) - 1].get_length() == hidden

    def adds(i: int) -> bool:
        return cone[i].get_type_name() == "Add" and all(key(s) in inside for s in sources(cone[i]))

    narrow = [i for i in waists(cone) if carries(i)]
    out = []
    bounds = [-1, *calls, len(cone)]
    for layer in range(len(calls) + 1):
        here = [i for i in narrow if bounds[layer] < i < bounds[layer + 1]]
        sums = [i for i in here if adds(i)]
        pick = sums if layer else here
        if not pick:
            return ()
        out.append(cone[pick[-1]])
    return tuple(out)
