"""The fast CPU backend: OpenVINO's paged attention driven with our block tables and tree masks.

Names are looked up when used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {"OpenVINOModel": "model", "from_gguf": "convert", "from_transformers": "convert"}
__all__ = ["OpenVINOModel", "from_gguf", "from_transformers"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
