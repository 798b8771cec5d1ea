"""What was measured on this machine: the invariance report and the cost curve of a target, kept in the cache.

A key of machine, model and numerics decides which entry applies; anything unreadable is measured anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .core.cost import CostModel
from .core.measure import measure
from .core.protocols import InvarianceReport, TargetModel
from .errors import BadRequest
from .models import Progress, cache_root
from .models.cache import write_json


def machine() -> str:
    """One line that tells this kind of machine from others: processor, cores, libraries that pick the kernels."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} cores, " + ", ".join(_installed(p) for p in ("openvino", "torch", "transformers"))


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} none"


class Calibration:
    """The stored measurements of one target. ``identity``: model fingerprint and options that change the numerics."""

    def __init__(self, identity: str, progress: Progress | None = None) -> None:
        key = hashlib.sha256(f"{machine()}\0{identity}".encode()).hexdigest()[:20]
        self._path = cache_root() / "measured" / f"{key}.json"
        self._progress = progress
        self._data = self._read()

    def report(self, probe: Callable[[], InvarianceReport]) -> InvarianceReport:
        """The invariance report; probed if there is none."""
        stored = self._data.get("report")
        if isinstance(stored, dict) and set(stored) == {f.name for f in fields(InvarianceReport)}:
            return InvarianceReport(**stored)
        self._tell("checking numerics")
        found = probe()
        self._write("report", asdict(found))
        return found

    def cost(self, target: TargetModel, *, refresh: bool = False) -> CostModel:
        """The cost curve; measured if there is none."""
        try:
            if not refresh and "cost" in self._data:
                return CostModel.from_dict(self._data["cost"])
        except BadRequest:
            pass
        self._tell("measuring passes")
        found = measure(target)
        self._write("cost", found.to_dict())
        return found

    def _tell(self, label: str) -> None:
        if self._progress is not None:
            self._progress(label, 0, None)

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _write(self, name: str, value: dict[str, Any]) -> None:
        self._data[name] = value
        # a full or read-only cache costs a new measurement next time, nothing else
        with contextlib.suppress(OSError):
            write_json(self._path, {"machine": machine(), **self._data})
