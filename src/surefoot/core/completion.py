"""What a finished request returns, and what the engine asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .logprobs import Logprob
from .protocols import Decoder
from .request import Row
from .stats import Stats

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]
"""Text, chat messages (``role``, ``content``), or token ids."""


class Codec(Protocol):
    """Tokenizer side of an engine."""

    @property
    def eos_ids(self) -> Sequence[int]: ...

    @property
    def vocab_size(self) -> int:
        """Ids from here on stand for nothing (a padded embedding) and are never emitted."""
        ...

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes that each id stands for; a special token's are those of its name."""
        ...

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Tokens of a text, as they stand in the middle of one if not ``special``."""
        ...

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

    ``finish_reason``: ``stop`` (EOS, stop token, stop string, or a constraint that is complete), ``length`` (budget or
    context), ``abort``, ``error`` (``error`` tells why; what was generated before stays).
    ``logprobs``: one a token, if asked for. ``prompt_logprobs``: one a prompt token, the first ``None``, if asked for with
    ``echo``. ``choices``: all answers of a request with ``n`` above 1, this one first; ``usage`` is then that of all.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: Usage
    stats: Stats
    sources: tuple[str, ...]
    logprobs: tuple[Logprob, ...] | None = None
    prompt_logprobs: tuple[Logprob | None, ...] | None = None
    error: str | None = None
    index: int = 0
    choices: tuple[Completion, ...] = ()

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
            None if row.logprobs is None else tuple(row.logprobs),
            None if row.prompt_logprobs is None else tuple(row.prompt_logprobs),
            None if row.error is None else str(row.error),
            row.index,
        )

    @staticmethod
    def together(rows: Sequence[Row], names: Mapping[int, str]) -> Completion:
        """The choices of one request as one completion."""
        found = [Completion.of(row, names) for row in rows]
        if len(found) == 1:
            return found[0]
        usage = Usage(found[0].usage.prompt_tokens, sum(c.usage.completion_tokens for c in found))
        return replace(found[0], usage=usage, choices=tuple(found))
