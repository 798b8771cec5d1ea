"""The markers that begin a call, and the formats that use them."""

from __future__ import annotations

HERMES, FUNCTION, MISTRAL, PYTHON, BARE = "<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>", "{"

FORMATS: dict[str, tuple[str, ...]] = {
    "auto": (HERMES, FUNCTION, MISTRAL, PYTHON, BARE),
    "hermes": (HERMES,),
    "qwen": (HERMES,),
    "function": (FUNCTION,),
    "qwen3_coder": (HERMES, FUNCTION),
    "mistral": (MISTRAL,),
    "llama3_json": (PYTHON, BARE),
}
"""``BARE`` counts only where nothing but blanks was written before."""

FAMILIES = {HERMES: (HERMES,), FUNCTION: (HERMES, FUNCTION), MISTRAL: (MISTRAL,), PYTHON: (PYTHON,), BARE: (PYTHON, BARE)}
"""Marker of the first call -> those that may begin later ones."""
