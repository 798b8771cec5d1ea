"""A traced transformers model as a stateful OpenVINO graph, in the form that the paged-attention transformation matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import torch
from openvino._offline_transformations import apply_make_stateful_transformation
from torch import Tensor

from ...errors import Unsupported

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MASKED = -3.0e38


class Traced(torch.nn.Module):
    """ids [B, T], positions [B, T], mask [B, P+T], past (keys and values by layer) -> logits and present keys and values."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        types = getattr(model.config.get_text_config(), "layer_types", None) or ()
        # Models that mix kinds of layers take a mask a kind. Windows are left out here and given to the attention at load.
        self.kinds = sorted(set(types)) if "sliding_attention" in types else []

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, past: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        cache = _cache(past)
        columns = torch.arange(attention_mask.shape[1])
        sees = (columns[None, None] <= position_ids[:, :, None]) & (attention_mask[:, None, :] > 0)
        mask = torch.where(sees[:, None], torch.tensor(0.0), torch.tensor(_MASKED))
        masks: Any = dict.fromkeys(self.kinds, mask) if self.kinds else mask
        out = self.model(
            input_ids=input_ids, position_ids=position_ids, attention_mask=masks, past_key_values=cache, use_cache=True
        )
        present = [x for layer in cache.layers for x in (layer.keys, layer.values)]
        return (out.logits, *present)


def _cache(past: tuple[Tensor, ...]) -> Any:
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache()
    cache.layers = []
    for keys, values in zip(past[::2], past[1::2], strict=True):
        layer: Any = DynamicLayer()
        layer.keys, layer.values = keys, values
        layer.dtype, layer.device = keys.dtype, keys.device
        layer.is_initialized = True
        cache.layers.append(layer)
    return cache


def cache_shapes(model: PreTrainedModel) -> list[tuple[int, int]]:
    """(heads, size) of keys and values of every layer, read off a real pass."""
    from transformers.cache_utils import DynamicLayer

    with torch.no_grad():
        cache = model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=True).past_key_values
    layers = getattr(cache, "layers", [])
    count = model.config.get_text_config().num_hidden_layers
    plain = [x for layer in layers if isinstance(layer, DynamicLayer) for x in (layer.keys, layer.values) if x is not None]
    if len(plain) != 2 * count:
        raise Unsupported(f"{model.config.model_type} keeps other state than keys and values in every layer; use backend=torch")
    return [(x.shape[1], x.shape[3]) for x in plain]


def stateful(model: PreTrainedModel) -> ov.Model:
    """The graph with inputs input_ids, position_ids, attention_mask, beam_idx; the past is state."""
    shapes = cache_shapes(model)
    batch, past, new = 2, 5, 3
    example = (
        torch.randint(0, model.config.get_text_config().vocab_size, (batch, new)),
        torch.arange(past, past + new)[None].expand(batch, new).contiguous(),
        torch.ones(batch, past + new, dtype=torch.int64),
        tuple(torch.randn(batch, heads, past, size) for heads, size in shapes),
    )
    with torch.no_grad():
        graph = ov.convert_model(Traced(model), example_input=example)
    state = [f"{layer}.{side}" for layer in range(len(shapes) // 2) for side in ("key", "value")]
    inputs = ["input_ids", "position_ids", "attention_mask", *(f"past_key_values.{s}" for s in state)]
    outputs = ["logits", *(f"present.{s}" for s in state)]
    dims: list[list[int]] = [[-1, -1]] * 3 + [[-1, heads, -1, size] for heads, size in shapes]
    if len(graph.inputs) != len(inputs) or len(graph.outputs) != len(outputs):
        raise Unsupported(f"the graph of {model.config.model_type} lost inputs or outputs in tracing; use backend=torch")
    for port, name, shape in zip(graph.inputs, inputs, dims, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
        port.get_node().set_partial_shape(ov.PartialShape(shape))
    for port, name in zip(graph.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    graph.validate_nodes_and_infer_types()
    _reorder(graph, inputs[3:])
    apply_make_stateful_transformation(graph, dict(zip(inputs[3:], outputs[1:], strict=True)))
    _initialise(graph, dict(zip(inputs[3:], shapes, strict=True)))
    graph.validate_nodes_and_infer_types()
    return graph


def _reorder(graph: ov.Model, names: list[str]) -> None:
    """Gather every past by ``beam_idx``: the transformation looks for it, the paged graph no longer has it."""
    beam = op.parameter([-1], ov.Type.i32, name="beam_idx")
    beam.output(0).get_tensor().add_names({"beam_idx"})
    graph.add_parameters([beam])
    for name in names:
        port = graph.input(name)
        readers = list(port.get_target_inputs())
        gathered = op.gather(port, beam, op.constant(0))
        for reader in readers:
            reader.replace_source_output(gathered.output(0))
    graph.validate_nodes_and_infer_types()


def _initialise(graph: ov.Model, shapes: dict[str, tuple[int, int]]) -> None:
    """Give every state an empty start of the batch's size; without it no attention layer is recognised."""

    def whole(*numbers: int) -> Any:
        return op.constant(np.array(numbers, dtype=np.int64))

    batch = op.gather(op.shape_of(graph.input("input_ids"), "i64"), whole(0), op.constant(0))
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            name = str(node.get_attributes()["variable_id"])
            heads, width = next(shape for past, shape in shapes.items() if name.startswith(past))
            size = op.concat([batch, whole(heads), whole(0), whole(width)], 0)
            node.set_arguments([op.broadcast(op.constant(np.float32(0)), size)])
