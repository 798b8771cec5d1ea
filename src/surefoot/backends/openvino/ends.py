"""The tables that a graph reads and says tokens with, and its final norm: what those parts of it make of every token.

Weights of any format come out as the float32 numbers that the graph computes with, and a fused or folded factor with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import torch
from torch import Tensor

from ...core.protocols import Ends
from ...errors import Unsupported
from . import graph
from .cut import HIDDEN, detach_shapes, reach
from .hardware import compile_options, shared_core
from .structure import Structure

_IDS = "input_ids"


def ends(folder: Path) -> Ends:
    """Raises :class:`Unsupported` where the graph reads tokens by more than a table, or its parts are not recognised."""
    core = shared_core()
    model, structure = graph.load(core, folder)
    stream = graph.check_layers(structure, (len(structure.residual) - 1,))[0].output(0)
    read = structure.head.input(0).get_source_output()
    table = _table(model, structure)
    says = _part(read, model.output("logits").get_node().input(0).get_source_output())
    norm = _part(stream, read) if stream.get_node().get_name() != read.get_node().get_name() else None
    bias = says(torch.zeros(1, structure.hidden_size))[0]
    head = (says(torch.eye(structure.hidden_size)) - bias).T.contiguous()
    if head.shape == table.shape and torch.allclose(head, table, rtol=1e-3, atol=1e-5 * float(table.abs().max())):
        head = table
    return Ends(table, head, bias if bool(bias.any()) else None, norm if norm is not None else lambda x: x)


def _table(model: ov.Model, structure: Structure) -> Tensor:
    """[V, H]: the stream that enters the first layer, for every token."""
    result = op.result(structure.residual[0].output(0))
    inputs = [n for n in reach([result]).values() if n.get_type_name() == "Parameter"]
    part = ov.Model([result], inputs, "embedding").clone()
    compiled = shared_core().compile_model(part, "CPU", compile_options("f32", None))
    names = [next(iter(port.get_names())) for port in compiled.inputs]
    if set(names) - {_IDS, "position_ids"}:
        raise Unsupported("the graph reads tokens by more than a table; choose a drafter without trained heads")

    def run(position: int) -> np.ndarray:
        ids = np.arange(structure.vocab_size, dtype=np.int64)
        fed = {name: ids if name == _IDS else np.full_like(ids, position) for name in names}
        return np.array(compiled(fed)[0]).reshape(structure.vocab_size, -1)

    found = run(0)
    if "position_ids" in names and not np.array_equal(found, run(7)):
        raise Unsupported("the model adds position embeddings to its tokens; choose a drafter without trained heads")
    return torch.from_numpy(found)


def _part(start: Any, end: Any) -> Any:
    """The graph between two ports as a function [M, H] -> [M, width]."""
    rank = len(start.get_partial_shape())
    hidden = op.parameter(start.get_partial_shape(), ov.Type.f32, name=HIDDEN)
    hidden.output(0).set_names({HIDDEN})
    targets = list(start.get_target_inputs())
    for target in targets:
        target.replace_source_output(hidden.output(0))
    result = op.result(end)
    detach_shapes([result], hidden)
    inputs = [n for n in reach([result]).values() if n.get_type_name() == "Parameter"]
    part = ov.Model([result], inputs, "part").clone()
    for target in targets:
        target.replace_source_output(start)
    if len(part.inputs) != 1:
        raise Unsupported("the head of the graph reads from more than the last layer; choose a drafter without trained heads")
    compiled = shared_core().compile_model(part, "CPU", compile_options("f32", None))

    def run(x: Tensor) -> Tensor:
        flat = x.detach().to(torch.float32).contiguous().numpy()
        fed = flat if rank == 2 else flat.reshape(flat.shape[0], 1, -1)
        return torch.from_numpy(np.array(compiled(fed)[0]).reshape(flat.shape[0], -1))

    return run
