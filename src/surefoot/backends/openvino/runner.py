"""One compiled graph with its caches and buffers: arrays in, float32 tensors out.

``ov.Tensor`` shares an array's memory without owning it, so every array that a request sees is kept here for as long as the
request may read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
import torch
from torch import Tensor

from ...errors import BackendError
from .pool import BlockPool, Shape

CACHE = ("key_cache.", "value_cache.")


class Runner:
    """Runs one graph. Outputs are written into buffers that the next pass reuses."""

    def __init__(self, core: ov.Core, model: ov.Model, config: Mapping[str, Any]) -> None:
        try:
            self.compiled = core.compile_model(model, "CPU", dict(config))
            self._request = self.compiled.create_infer_request()
        except RuntimeError as e:
            raise BackendError(f"OpenVINO cannot compile the model ({first_line(e)}); convert it again") from None
        self._inputs = {name: port for port in self.compiled.inputs for name in port.get_names()}
        self._place = {name: i for i, port in enumerate(self.compiled.inputs) for name in port.get_names()}
        self._widths = [_width(port) for port in self.compiled.outputs]
        self._rank = [len(port.get_partial_shape()) for port in self.compiled.outputs]
        self._room = [np.empty((0, w), np.float32) for w in self._widths]
        self._bound: dict[str, np.ndarray] = {}
        self._results: list[tuple[int, Tensor]] = [(-1, torch.empty(0))] * len(self._widths)
        self._kept: dict[str, tuple[np.ndarray, ov.Tensor]] = {}

    def caches(self) -> dict[str, tuple[Shape, str]]:
        """Cache input -> shape of a block and element type."""
        out = {}
        for name, port in self._inputs.items():
            if name.startswith(CACHE):
                dims = list(port.get_partial_shape())[1:]
                heads, block, size = (d.get_length() for d in dims)
                out[name] = ((heads, block, size), port.get_element_type().get_type_name())
        return out

    def attach(self, pool: BlockPool, order: Sequence[str]) -> None:
        """Hand the pool's arrays to the request; ``order`` names the cache input of each."""
        for name, array in zip(order, pool.arrays, strict=True):
            if name in self._inputs:
                tensor = ov.Tensor(array, ov.Shape(list(array.shape)), self._inputs[name].get_element_type())
                self._kept[name] = (array, tensor)
                self._request.set_tensor(name, tensor)

    def run(self, inputs: Mapping[str, np.ndarray], rows: Sequence[int]) -> list[Tensor]:
        """One pass. ``rows[i]`` is the number of rows of output i; returns [rows, width] tensors, valid until the next."""
        for name, array in inputs.items():
            if name in self._place:
                self._feed(name, array)
        out = [self._result(i, n) for i, n in enumerate(rows)]
        try:
            self._request.start_async()
            self._request.wait()
        except RuntimeError as e:
            raise BackendError(f"OpenVINO failed in a pass: {first_line(e)}; lower kv_tokens or the batch") from None
        return out

    def _feed(self, name: str, array: np.ndarray) -> None:
        """Copy into the array that the request already reads; binding another costs ten times as much."""
        bound = self._bound.get(name)
        if bound is not None and bound.shape == array.shape and bound.dtype == array.dtype:
            np.copyto(bound, array)
            return
        bound = np.array(array)
        tensor = ov.Tensor(bound, shared_memory=True)
        self._request.set_input_tensor(self._place[name], tensor)
        self._bound[name] = bound
        self._kept[name] = (bound, tensor)

    def _result(self, i: int, n: int) -> Tensor:
        """The buffer of output i, bound to the request with n rows."""
        if self._results[i][0] == n:
            return self._results[i][1]
        if self._room[i].shape[0] < n:
            self._room[i] = np.empty((n, self._widths[i]), np.float32)
        flat = self._room[i][:n]
        shaped = flat if self._rank[i] == 2 else flat.reshape(n, 1, -1)
        tensor = ov.Tensor(shaped, shared_memory=True)
        self._request.set_output_tensor(i, tensor)
        self._kept[f"output {i}"] = (shaped, tensor)
        self._results[i] = (n, torch.from_numpy(flat))
        return self._results[i][1]


def first_line(error: BaseException) -> str:
    """The line of OpenVINO's multi-line message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith("Exception from")), "unknown error")[:300]


def _width(port: Any) -> int:
    shape = port.get_partial_shape()
    last = shape[len(shape) - 1]
    if not last.is_static:
        raise BackendError("an output of the graph has a dynamic width; export the model with static weights")
    return int(last.get_length())
