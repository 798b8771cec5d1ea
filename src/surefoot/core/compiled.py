"""From request options to the state that carries them: which options look at tokens, in the order of application."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..errors import BadRequest, Unsupported
from .bans import BadSequences, BadWords, Least
from .completion import Codec
from .constraint import Grammars
from .params import SamplingParams
from .penalties import Penalties
from .phases import Constrained, Thinking
from .shaping import Allowed, Bias, Custom, Processor, State
from .words import Vocabulary


@dataclass(slots=True)
class Compiler:
    """What options are compiled against. ``vocab``: size of the target's logits."""

    vocab: int
    codec: Codec | None
    grammars: Grammars | None
    _vocabulary: Vocabulary | None = None

    def state(self, params: SamplingParams, tokens: Sequence[int], stop_ids: Collection[int]) -> State | None:
        """The state at the end of the prompt ``tokens``, which is the row's own list; ``None`` where no option needs one."""
        for name, ids in (
            ("logit_bias", [token for token, _ in params.logit_bias]),
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("bad_words_ids", [token for sequence in params.bad_words_ids for token in sequence]),
        ):
            if any(token >= self.vocab for token in ids):
                raise BadRequest(f"{name} names token {max(ids)}; the model has the ids 0..{self.vocab - 1}")
        parts = [*self._changing(params, tokens), *self._masking(params, stop_ids), *self._phased(params, tokens)]
        return State(parts, tokens) if parts else None

    def _changing(self, params: SamplingParams, tokens: Sequence[int]) -> list[Processor]:
        parts: list[Processor] = []
        if params.logit_bias:
            parts.append(Bias(*zip(*params.logit_bias, strict=True)))
        factors = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        if factors != (1.0, 0.0, 0.0):
            parts.append(Penalties(tokens, *factors))
        parts += [Custom(given).fork() for given in params.logits_processors]
        return parts

    def _masking(self, params: SamplingParams, stop_ids: Collection[int]) -> list[Processor]:
        parts: list[Processor] = []
        if params.allowed_token_ids is not None:
            parts.append(Allowed(params.allowed_token_ids, self.vocab))
        if params.bad_words:
            vocabulary = self.vocabulary("bad_words")
            parts.append(BadWords([vocabulary.word(text) for text in params.bad_words], vocabulary))
        if params.bad_words_ids:
            parts.append(BadSequences(params.bad_words_ids))
        if params.min_tokens and stop_ids:
            parts.append(Least([i for i in stop_ids if i < self.vocab], params.min_tokens))
        return parts

    def _phased(self, params: SamplingParams, tokens: Sequence[int]) -> list[Processor]:
        parts: list[Processor] = []
        if params.constraint is not None:
            name = "response_format" if params.response_format is not None else "structured_outputs"
            if self.grammars is None:
                raise Unsupported(f"{name} needs a tokenizer and a grammar library; load the model with surefoot.load")
            vocabulary = None if params.constrain_after is None else self.vocabulary("constrain_after")
            after = None if vocabulary is None else vocabulary.word(str(params.constrain_after))
            try:
                matcher = self.grammars.matcher(params.constraint)
            except BadRequest as error:
                raise BadRequest(f"{name}: {error}") from None
            parts.append(Constrained(name, matcher, after, vocabulary))
        if params.thinking_budget is not None:
            vocabulary = self.vocabulary("thinking_budget")
            assert self.codec is not None
            forced = self.codec.encode(params.thinking_end, special=False)
            if vocabulary.text(forced) != params.thinking_end.encode():
                raise BadRequest(f"thinking_end={params.thinking_end!r} cannot be written in the model's tokens; give another")
            thinking = Thinking(params.thinking_budget, params.thinking_start, params.thinking_end, forced, vocabulary)
            thinking.begin(tokens)
            parts.append(thinking)
        return parts

    def vocabulary(self, option: str) -> Vocabulary:
        if self.codec is None:
            raise BadRequest(f"{option} needs a tokenizer; load the engine with one or leave it out")
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.codec.pieces[: self.vocab])
        return self._vocabulary
