"""Surefoot: faster inference of large language models without changing a single token."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.completion import Completion, Usage
    from .core.engine import Engine
    from .core.params import SamplingParams
    from .core.request import Piece
    from .errors import (
        BackendError,
        BadDraft,
        BadRequest,
        ModelNotFound,
        SurefootError,
        Unsupported,
        VocabMismatch,
    )
    from .loader import load

__version__ = "0.1.0"

_HOME = {
    "BackendError": ".errors",
    "BadDraft": ".errors",
    "BadRequest": ".errors",
    "Completion": ".core.completion",
    "Engine": ".core.engine",
    "ModelNotFound": ".errors",
    "Piece": ".core.request",
    "SamplingParams": ".core.params",
    "SurefootError": ".errors",
    "Unsupported": ".errors",
    "Usage": ".core.completion",
    "VocabMismatch": ".errors",
    "load": ".loader",
}

__all__ = [
    "BackendError",
    "BadDraft",
    "BadRequest",
    "Completion",
    "Engine",
    "ModelNotFound",
    "Piece",
    "SamplingParams",
    "SurefootError",
    "Unsupported",
    "Usage",
    "VocabMismatch",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing the package alone stays quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value
