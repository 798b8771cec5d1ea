"""From a model folder to a paged graph: read, apply the paged-attention transformation, fuse, gather before the head, tap.

Inputs of the result: ``input_ids`` [M], ``position_ids`` [M], ``past_lens`` [B], ``subsequence_begins`` [B+1],
``block_indices``, ``block_indices_begins`` [B+1], ``max_context_len`` [], ``qq_bias`` (one byte a query-query pair),
``qq_bias_begins`` [B+1], ``logit_rows`` [R] and the caches. Outputs: logits [R, 1, V], then the taps [M, 1, H].
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
from openvino._offline_transformations import paged_attention_transformation

from ...errors import BackendError, ModelNotFound, Unsupported
from .fuse import fuse
from .runner import first_line
from .structure import ATTENTION, Structure, read

MODEL_FILE = "openvino_model.xml"
FACTS_FILE = "surefoot.json"
ROWS = "logit_rows"
DEFAULT_CONTEXT = 2048
_SLIDING_INPUT = 10
Edit = Callable[[ov.Model, Structure], tuple[ov.Model, Structure]]
"""A change of the paged graph."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the folder says about the model beside the graph.

    windows  sliding window of each layer (0: none) as our export recorded it; empty if it did not
    window   narrowest sliding window of a graph that we did not export, or 0
    """

    name: str
    max_context: int
    windows: tuple[int, ...]
    window: int


def facts(folder: Path) -> Facts:
    """Read ``surefoot.json`` (written by our conversions) or ``config.json`` (written by other exporters)."""
    ours, theirs = _json(folder / FACTS_FILE), _json(folder / "config.json")
    config = {**theirs, **(theirs.get("text_config") or {})}
    if config.get("attn_logit_softcapping"):
        raise Unsupported("the model caps its attention scores, which the paged kernel leaves out; use backend=torch")
    limits = [config.get(k) for k in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")]
    limit = ours.get("max_context") or next((n for n in limits if n), None) or DEFAULT_CONTEXT
    window = ours.get("window")
    if window is None:
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else 0
    windows = tuple(int(w) for w in ours.get("windows", ()))
    return Facts(str(ours.get("name") or folder.name), int(limit), windows, int(window or 0))


def weights(folder: Path) -> int:
    """Bytes of the weights on disk."""
    path = (folder / MODEL_FILE).with_suffix(".bin")
    return path.stat().st_size if path.is_file() else 0


def load(core: ov.Core, folder: Path) -> tuple[ov.Model, Structure]:
    """The paged and fused graph. A graph that keeps other state than attention caches is refused."""
    path = folder / MODEL_FILE
    if not path.is_file():
        raise ModelNotFound(f"no {MODEL_FILE} in {folder}; convert the model first or name the folder that holds it")
    try:
        model = core.read_model(path)
        paged_attention_transformation(model, False, False, False, False, False, False, True)
    except RuntimeError as e:
        raise BackendError(f"{path} cannot be paged by OpenVINO ({first_line(e)}); convert it again") from None
    kinds = [node.get_type_name() for node in model.get_ops()]
    if ATTENTION not in kinds:
        raise Unsupported(
            "no attention layer of the graph can be paged; export it with past keys and values as state, or use backend=torch"
        )
    if "ReadValue" in kinds or "Assign" in kinds:
        raise Unsupported("the model keeps recurrent state beside attention; use backend=torch")
    fuse(model)
    return model, read(model)


def slide(model: ov.Model, structure: Structure, windows: tuple[int, ...]) -> None:
    """Give each attention layer its sliding window: our export leaves windows out of the masks that it traces."""
    if len(windows) == len(structure.attention) and any(windows):
        for node, window in zip(structure.attention, windows, strict=True):
            node.input(_SLIDING_INPUT).replace_source_output(op.constant(np.int32(window)).output(0))
        model.validate_nodes_and_infer_types()


def sliding_window(structure: Structure) -> int:
    """The widest window that the graph asks of its attention, or 0."""
    windows = []
    for node in structure.attention:
        source = node.input(_SLIDING_INPUT).get_source_output().get_node()
        if source.get_type_name() == "Constant":
            windows.append(int(np.asarray(source.data).reshape(-1)[0]))
    return max(windows, default=0)


def gather_rows(model: ov.Model, structure: Structure) -> None:
    """Let only the rows named by ``logit_rows`` reach the head: it is the widest product and its result is converted."""
    rows = op.parameter([-1], ov.Type.i32, name=ROWS)
    rows.output(0).set_names({ROWS})
    port = structure.head.input(0)
    port.replace_source_output(op.gather(port.get_source_output(), rows, op.constant(np.int32(0))).output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()


def tap(model: ov.Model, structure: Structure, layers: tuple[int, ...], rounded: bool) -> None:
    """Make the residual streams after these layers outputs, in order, behind the logits. ``rounded``: see :func:`shown`."""
    if layers:
        check_layers(structure, layers)
        model.add_outputs([shown(port(structure, layer), rounded) for layer in layers])


def shown(port: Any, rounded: bool) -> Any:
    """The port as an output of the graph. ``rounded``: the graph runs in bf16.

    There the plugin computes what lies in front of an output in f32, up to the next matrix product, and so all that follows
    from it otherwise than without the output. Behind a product with the identity, which is exact, it does not.
    """
    if not rounded:
        return port
    shape = port.get_partial_shape()
    one = np.eye(shape[len(shape) - 1].get_length(), dtype=np.float32)
    return op.matmul(port, op.constant(one), False, True).output(0)


def port(structure: Structure, layer: int) -> Any:
    """The output that a tap reads: the stream after a layer, or, behind the last, what the head reads of every token."""
    if layer < len(structure.residual):
        return structure.residual[layer].output(0)
    source = structure.head.input(0).get_source_output()
    node = source.get_node()
    if node.get_type_name() == "Gather" and ROWS in node.input(1).get_source_output().get_names():
        source = node.input(0).get_source_output()
    return source


def check_layers(structure: Structure, layers: tuple[int, ...]) -> list[Any]:
    """The residual nodes of these layers, as far as there are any, or a refusal that says which taps exist."""
    last = len(structure.residual)
    if last < 1:
        raise Unsupported("the residual stream of this graph was not recognised; hidden states need backend=torch")
    if any(not 0 <= layer <= last for layer in layers):
        raise Unsupported(f"hidden layers {list(layers)} asked for; the model has 0..{last}")
    return [structure.residual[layer] for layer in layers if layer < last]


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise BackendError(f"cannot read {path} ({first_line(e)}); convert the model again") from None
    return data if isinstance(data, dict) else {}
