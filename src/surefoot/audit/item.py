"""One prompt of an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Item:
    """``prompt``: text, chat messages or token ids. ``raw``: a text is sent as it is, not as a chat message.

    ``options``: request options of this prompt alone. ``id``: its name in a file of outputs.
    """

    prompt: str | Sequence[Mapping[str, Any]] | Sequence[int]
    kind: str = "given"
    raw: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None

    def tokens(self, codec: Any, raw: bool = False, system: str | None = None) -> list[int]:
        """Token ids for an engine with this codec; without one the prompt must be token ids."""
        if codec is None or not isinstance(self.prompt, str):
            return list(self.prompt) if codec is None else codec.prompt(self.prompt)  # type: ignore[arg-type]
        if self.kind == "single token":  # without what a tokenizer puts before a text
            return list(codec.encode(self.prompt, special=False))[-1:]
        if self.raw or raw or not getattr(codec, "has_template", False):
            return list(codec.prompt(self.prompt))
        before = [{"role": "system", "content": system}] if system is not None else []
        return list(codec.prompt([*before, {"role": "user", "content": self.prompt}]))
