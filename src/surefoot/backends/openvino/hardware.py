"""What the processor computes natively, and the memory that is left."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import openvino as ov

from ...errors import BadRequest

PRECISIONS = ("auto", "bf16", "f32", "fast")


@cache
def shared_core() -> ov.Core:
    """The one core of the process, never destroyed.

    A core's CPU plugin replaces the alternate stack that signal handlers run on, and puts back the one before when it
    goes. Of two cores whose lives overlap, the older going first, the second puts back a stack that is no longer mapped:
    the next Ctrl-C is a segmentation fault.
    """
    return ov.Core()


def native_bf16(core: ov.Core) -> bool:
    """OpenVINO also emulates bf16; only native instructions make it the faster and the sensible choice."""
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return False
    try:
        info = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return True
    flags = set(info.split())
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def resolve(core: ov.Core, precision: str) -> str:
    """The precision to use; refuses unknown names."""
    if precision not in PRECISIONS:
        raise BadRequest(f"unknown precision {precision!r}; choose one of {', '.join(PRECISIONS)}")
    if precision == "auto":
        return "bf16" if native_bf16(core) else "f32"
    return precision


def compile_options(precision: str, threads: int | None) -> dict[str, Any]:
    """Options of ``compile_model``. In f32, activation quantization depends on the rows of a pass: off, but in the fast mode.

    In bf16 nothing is quantized by default, and setting the option selects other kernels, slower and not invariant.
    """
    element = "bf16" if precision == "bf16" else "f32"
    options: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": element,
        "KV_CACHE_PRECISION": element,
    }
    if precision == "f32":
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = threads
    return options


def available_memory() -> int:
    """Bytes that can be had without swapping; a modest guess where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 << 30
