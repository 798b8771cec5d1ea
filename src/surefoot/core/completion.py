"""What a finished request returns, and what the engine asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .protocols import Decoder
from .request import Row
from .stats import Stats

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]
"""Text, chat messages (``role``, ``content``), or token ids."""


class Codec(Protocol):
    """Tokenizer side of an engine."""

    @property
    def eos_ids(self) -> Sequence[int]: ...

    def prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, of chat messages, or of ids as they are."""
        ...

    def decoder(self) -> Decoder: ...


@dataclass(frozen=True, slots=True)
class Usage:
    """Delivered tokens."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. ``sources[i]`` names the drafter of token i, or ``"target"``.

    ``finish_reason``: ``stop`` (EOS, stop token or stop string), ``length`` (budget or context), ``abort``.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: Usage
    stats: Stats
    sources: tuple[str, ...]

    @staticmethod
    def of(row: Row, names: Mapping[int, str]) -> Completion:
        output = tuple(row.output)
        return Completion(
            row.text,
            output,
            row.finish_reason or "abort",
            Usage(row.n_prompt, len(output)),
            row.stats,
            tuple(names[s] for s in row.sources),
        )
