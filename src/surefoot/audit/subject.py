"""What is audited: a target, and the engine that decodes plainly on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.completion import Codec
from ..core.constraint import Grammars
from ..core.engine import Engine
from ..core.params import SamplingParams
from ..core.protocols import TargetModel
from ..core.request import Row
from ..loader import Target, assemble


@dataclass(frozen=True, slots=True)
class Subject:
    """``own``: the engine that was given, to be audited as it is."""

    target: Target
    plain: Engine
    own: Engine | None = None

    @staticmethod
    def of(given: Target | Engine | TargetModel, codec: Codec | None = None, grammars: Grammars | None = None) -> Subject:
        """A loaded target, an engine, or a target model with ``codec`` and ``grammars``."""
        if isinstance(given, Engine):
            plain = Engine(given.target, codec=given.codec, grammars=given.grammars)
            return Subject(_bare(given.target, given.codec), plain, given)
        model = getattr(given, "model", None)
        if model is not None and hasattr(given, "codec"):
            return Subject(given, assemble(given, "none"))  # type: ignore[arg-type]
        return Subject(_bare(given, codec), Engine(given, codec=codec, grammars=grammars))  # type: ignore[arg-type]

    @property
    def model(self) -> TargetModel:
        return self.target.model

    @property
    def codec(self) -> Any:
        return self.target.codec

    @property
    def known(self) -> int:
        """Token ids from here on stand for nothing."""
        vocab = self.model.traits.vocab_size
        return vocab if self.codec is None else min(self.codec.vocab_size, vocab)

    def ghost(self, prompt: list[int], params: SamplingParams, index: int = 0) -> Row:
        """A row outside the engine: the state, stops, decoder and noise that a request with these options has."""
        seed = None if params.seed is None else params.seed + index
        row = self.plain.add(prompt, replace(params, n=1, seed=seed))
        self.plain.abort(row)  # takes it out of the queue; nothing was generated
        row.finish_reason = None
        return row

    def say(self, tokens: list[int]) -> str:
        """Tokens as text, for people."""
        if self.codec is None:
            return " ".join(map(str, tokens))
        decoder = self.codec.decoder()
        found = "".join(decoder.push(token) for token in tokens) + decoder.flush()
        return found or "".join(self.piece(token) for token in tokens)

    def piece(self, token: int) -> str:
        """One token, special ones by their name."""
        pieces = self.codec.pieces if self.codec is not None else ()
        return pieces[token].decode(errors="replace") if 0 <= token < len(pieces) else f"#{token}"


def _bare(model: TargetModel, codec: Codec | None) -> Target:
    return Target(model, codec, None, Path(model.traits.name))  # type: ignore[arg-type]
