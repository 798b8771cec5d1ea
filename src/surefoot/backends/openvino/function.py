"""Small torch modules compiled by OpenVINO: draft heads, run once for every drafted token.

:func:`compile_module` refuses with a typed error what it cannot run; :func:`quick` then runs the module in torch, and is where
that is decided. Both are a :class:`surefoot.drafters.lane.Compile`. The module's weights are shared where the plugin does not
repack them: whether a later change of them is seen is not defined. Compiled functions are for one thread.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import openvino as ov
import openvino.opset13 as op
import torch
from torch import Tensor, nn

from ...errors import BackendError, BadRequest, Unsupported
from .hardware import compile_options, resolve, shared_core
from .quantize import compress, matrices
from .runner import first_line

Function = Callable[..., tuple[Tensor, ...]]

TYPES = {torch.float32: ov.Type.f32, torch.int64: ov.Type.i64, torch.bool: ov.Type.boolean}
WEIGHTS = ("plain", "int8")
COPY = 16 << 10
"""Bytes up to which an argument is copied into memory that the request reads already, rather than bound where it lies."""
_WIDE = (ov.Type.bf16, ov.Type.f16, ov.Type.f64)
_PREAMBLE = ("Check '", "Exception", "FrontEnd API failed", "Couldn't get TorchScript", "Model wasn't", "Summary")
_OFF = {"bf16": 0.1, "f32": 1e-3}
"""Relative error of an output, compiled against torch, from which the conversion is taken to be wrong."""


class CompiledFunction:
    """One request of a compiled graph. Results are views of its memory: the next call overwrites them.

    Arguments may have any strides. Large ones are read where they lie.
    """

    def __init__(self, core: ov.Core, model: ov.Model, options: dict[str, Any], dtypes: Sequence[torch.dtype]) -> None:
        try:
            self._request = core.compile_model(model, "CPU", options).create_infer_request()
        except RuntimeError as e:
            raise Unsupported(f"OpenVINO cannot compile the module ({first_line(e)}); run it in torch") from None
        self._dtypes = tuple(dtypes)
        self._outputs = range(len(model.outputs))
        self._results: tuple[Tensor, ...] = ()
        self._bound: list[Tensor | None] = [None] * len(dtypes)
        self._kept: list[ov.Tensor | None] = [None] * len(dtypes)  # they do not own the memory of _bound

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        if len(arguments) != len(self._bound):
            raise BadRequest(f"the module was compiled for {len(self._bound)} arguments, not {len(arguments)}")
        try:
            for i, argument in enumerate(arguments):
                self._feed(i, argument)
            self._request.start_async()
            self._request.wait()
        except RuntimeError as e:
            raise BackendError(
                f"OpenVINO failed in a compiled module ({first_line(e)}); list every dimension that varies in dynamic"
            ) from None
        read = self._request.get_output_tensor
        self._results = tuple(torch.from_numpy(read(i).data) for i in self._outputs)
        return self._results

    def _feed(self, i: int, argument: Tensor) -> None:
        bound = self._bound[i]
        small = argument.nbytes <= COPY
        if bound is not None and bound.shape == argument.shape:
            if small:
                bound.copy_(argument.detach())
                return
            if bound.data_ptr() == argument.data_ptr() and argument.is_contiguous() and bound.dtype == argument.dtype:
                return
        given = argument.detach().to(self._dtypes[i]).contiguous()
        place = given.untyped_storage().data_ptr()
        theirs = place == argument.untyped_storage().data_ptr()
        # What is small is written into by later calls, and a result by this one.
        if theirs and (small or any(place == result.untyped_storage().data_ptr() for result in self._results)):
            given = given.clone()
        tensor = ov.Tensor(given.numpy(), shared_memory=True)
        self._request.set_input_tensor(i, tensor)
        self._bound[i], self._kept[i] = given, tensor


def compile_module(
    module: nn.Module,
    example: Sequence[Tensor],
    dynamic: Sequence[Sequence[int]] = (),
    *,
    precision: str = "auto",
    threads: int | None = None,
    weights: str = "int8",
) -> CompiledFunction:
    """The module, in evaluation mode from now on, as a function that computes what ``module.forward`` does, up to rounding.

    example    arguments of a call: float32, int64 or bool; ``forward`` returns a tensor or a tuple of tensors
    dynamic    ``dynamic[i]``: dimensions of argument i that vary between calls
    precision  "auto" (bf16 where the processor has it, else f32), "bf16", "f32"
    threads    as many as the target's; None: OpenVINO's choice
    weights    "int8": matrices of 8 bits, quicker and as good for drafts; "plain": as they are

    A call whose shapes differ from the last one's takes longer, by 0.1 ms for a few layers and by 0.4 ms where attention is
    among them: pad rows and caches to sizes that hold, and mask what is not there. Caches that stay where they are, and are
    written in place, are not copied.
    """
    if weights not in WEIGHTS:
        raise BadRequest(f"unknown weights {weights!r}; choose one of {', '.join(WEIGHTS)}")
    for i, argument in enumerate(example):
        if argument.dtype not in TYPES:
            raise Unsupported(f"argument {i} is {argument.dtype}; give float32, int64 or bool")
    core = shared_core()
    element = "bf16" if resolve(core, precision) == "bf16" else "f32"
    module.eval()
    wanted = _results(module, example)
    model = _convert(module, example)
    _shape(model, example, dynamic)
    if weights == "int8":
        compress(model, matrices(model, 8))
    function = CompiledFunction(core, model, compile_options(element, threads), [argument.dtype for argument in example])
    _check(wanted, function(*example), _OFF["bf16" if weights == "int8" else element])
    return function


def quick(
    module: nn.Module,
    example: Sequence[Tensor],
    dynamic: Sequence[Sequence[int]] = (),
    *,
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> Function:
    """As :func:`compile_module`; a module that cannot be compiled runs in torch, and ``tell`` is told why."""
    try:
        return compile_module(module, example, dynamic, **options)
    except (BackendError, Unsupported) as e:
        if tell is not None:
            tell(f"a draft head runs in torch, which is slower: {e}")
        return eager(module)


def eager(module: nn.Module) -> Function:
    """The module in torch, without gradients."""

    @torch.no_grad()
    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        found = module(*arguments)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    return run


def _results(module: nn.Module, example: Sequence[Tensor]) -> tuple[Tensor, ...]:
    try:
        found = eager(module)(*example)
    except Exception as e:  # whatever the module's own code raises
        raise Unsupported(f"the module fails on its example ({_first(e)}); give arguments that it takes") from None
    if not found or not all(isinstance(result, Tensor) for result in found):
        raise Unsupported("the module does not return tensors; let forward return a tensor or a tuple of tensors")
    return found


def _convert(module: nn.Module, example: Sequence[Tensor]) -> ov.Model:
    """By the front end itself: ``ov.convert_model`` also checks the trace, sends telemetry and takes ten times as long."""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    try:
        with _quiet(), torch.no_grad():
            traced = TorchScriptPythonDecoder(module, example_input=tuple(example), trace_kwargs={"check_trace": False})
            frontend = FrontEndManager().load_by_framework("pytorch")
            model = frontend.convert(frontend.load(traced))
    except Exception as e:  # the tracer and the front end raise what they like
        raise Unsupported(f"OpenVINO cannot convert the module ({_first(e)}); run it in torch") from None
    if len(model.inputs) != len(example):
        raise Unsupported(f"the module reads {len(model.inputs)} of its {len(example)} arguments; leave the others out")
    return model


def _shape(model: ov.Model, example: Sequence[Tensor], dynamic: Sequence[Sequence[int]]) -> None:
    """Types and shapes of the inputs; results in float32 or an integer type."""
    shapes = {}
    for i, (argument, node) in enumerate(zip(example, model.get_parameters(), strict=True)):
        vary = {d % argument.ndim for d in dynamic[i]} if i < len(dynamic) and argument.ndim else set()
        shapes[i] = ov.PartialShape([-1 if d in vary else size for d, size in enumerate(argument.shape)])
        node.set_element_type(TYPES[argument.dtype])
    try:
        for node in model.get_results():
            if node.get_element_type() in _WIDE:
                narrow = op.convert(node.input(0).get_source_output(), ov.Type.f32)
                node.input(0).replace_source_output(narrow.output(0))
        model.reshape(shapes)
        model.validate_nodes_and_infer_types()
    except RuntimeError as e:
        raise Unsupported(f"the module cannot vary in these dimensions ({first_line(e)}); run it in torch") from None


def _check(wanted: Sequence[Tensor], found: Sequence[Tensor], most: float) -> None:
    if [w.shape for w in wanted] != [f.shape for f in found]:
        raise Unsupported("the compiled module returns other shapes than the module; run it in torch")
    for w, f in zip(wanted, found, strict=True):
        if w.is_floating_point():
            usual = torch.isfinite(w)
            error = (f[usual] - w[usual]).float().norm() / w[usual].float().norm().clamp(min=1e-20)
            if not (bool((torch.isfinite(f) == usual).all()) and float(error) < most):
                raise Unsupported(f"the compiled module is off by {float(error):.1%} of the module's result; run it in torch")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tracing warns about every shape that becomes a constant, and the tracer about its age; neither concerns the user."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _first(error: BaseException) -> str:
    """The line of a message of several that says what is wrong."""
    lines = [line.strip(" -") for line in str(error).splitlines()]
    return next((line for line in lines if line and not line.startswith(_PREAMBLE)), type(error).__name__)[:200]
