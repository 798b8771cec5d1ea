"""One request and its single commit function.

``Row.commit`` is the only place where tokens become output: it walks them in order and applies EOS, stop tokens, stop
strings, budget and the state of all other options to each. Whatever it does not keep never happened: cache, statistics,
stream, log-probabilities and usage follow its return value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import BadRequest, SurefootError
from .logprobs import Logprob
from .noise import Noise, SplitMix
from .params import SamplingParams
from .protocols import Array, Decoder, Slot
from .shaping import State
from .stats import Stats
from .verify import choose_rule


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the stream: text that became final, the tokens that were kept, and the source of each.

    The source of a token that the target itself chose is ``"target"``. Texts add up to the completion's text. ``logprobs``:
    one a token, if asked for. ``index``: which answer of a request with several.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    finish_reason: str | None = None
    logprobs: tuple[Logprob, ...] = ()
    index: int = 0
    error: str | None = None
    ends: tuple[int, ...] = ()
    """Length of ``text`` after each token."""

    def split(self) -> list[Piece]:
        """One piece a token; the same text, and the end on the last of them."""
        n = len(self.token_ids)
        if n < 2:
            return [self]
        cuts = [0, *self.ends[:-1], len(self.text)]
        return [
            replace(
                self,
                text=self.text[cuts[i] : cuts[i + 1]],
                token_ids=self.token_ids[i : i + 1],
                sources=self.sources[i : i + 1],
                finish_reason=self.finish_reason if i == n - 1 else None,
                logprobs=self.logprobs[i : i + 1],
                error=self.error if i == n - 1 else None,
                ends=(cuts[i + 1] - cuts[i],),
            )
            for i in range(n)
        ]


class Row:
    """State of one request. ``tokens``: prompt and kept output; the last one is pending (not in the cache)."""

    def __init__(
        self,
        id: int,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        limit: int,
        eos: Sequence[int] = (),
        decoder: Decoder | None = None,
        noise: Noise | None = None,
        index: int = 0,
        echo: str = "",
    ) -> None:
        self.id = id
        self.tokens: list[int] = list(prompt)
        self.n_prompt = len(self.tokens)
        self.params = params
        self.limit = limit
        self.stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos))
        self.index = index
        self.noise: Noise = noise if noise is not None else SplitMix(None if params.seed is None else params.seed + index)
        self.state: State | None = None
        """What options remember of the kept tokens; ``None`` where none has to."""
        self.slot: Slot | None = None
        self.of: Row | None = None
        """The request that this row drafts for: it holds that one's tokens and drafted ones behind them (:mod:`.shadow`)."""
        self.hidden = False
        """Whether it serves a drafter, and nobody waits for it."""
        self.laws: list[Array] | None = None
        """Where asked for, the law [V] that each output token was taken from; where decoding is greedy, the softmax."""
        self.turn = 0
        """Passes so far; keys the random numbers of rules and drafters that draw anew in every pass."""
        self.finish_reason: str | None = None
        self.stats = Stats()
        self.sources: list[int] = []
        """Source number of each output token."""
        self.text = echo
        """Final text; what may be the start of a stop string is still withheld."""
        self.logprobs: list[Logprob] | None = None if params.logprobs is None else []
        """One for each output token."""
        self.prompt_logprobs: list[Logprob | None] | None = None
        if params.echo and params.logprobs is not None:
            self.prompt_logprobs = [None]
        self.error: SurefootError | None = None
        self._decoder = decoder
        self._withheld = ""
        self._ends: list[int] = []
        """Length of the final text after each output token."""
        self._sent_text = 0
        self._sent_tokens = 0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.n_prompt :]

    @property
    def base(self) -> Row:
        """The row whose tokens are all committed: itself, or the one that it drafts for."""
        return self if self.of is None else self.of

    @property
    def drafted(self) -> list[int]:
        """Tokens behind those of the base."""
        return [] if self.of is None else self.tokens[len(self.of.tokens) :]

    @property
    def remaining(self) -> int:
        """New tokens that the budget still allows."""
        return self.limit - (len(self.tokens) - self.n_prompt)

    @property
    def cached(self) -> int:
        """Tokens whose KV is in the target's cache."""
        return self.slot.length if self.slot is not None else 0

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    def rule(self, has_q: bool) -> str:
        """The verification rule for a proposal with or without a law."""
        seeded = self.params.seed is not None
        return choose_rule(self.params.verification, self.params.temperature == 0, seeded, has_q)

    def commit(self, tokens: Sequence[int], sources: Sequence[int]) -> int:
        """Append tokens in order until one ends the request; returns how many were kept."""
        for kept, (token, source) in enumerate(zip(tokens, sources, strict=True), 1):
            self.tokens.append(token)
            self.sources.append(source)
            stopped = self._read(token)
            self._ends.append(len(self.text))
            if self.state is not None:
                try:
                    self.state.advance(token)
                except BadRequest as error:
                    self.fail(error)
                    return kept
            if stopped or token in self.stop_ids or (self.state is not None and self.state.ended):
                self.finish_reason = "stop"
            elif self.remaining <= 0:
                self.finish_reason = "length"
            if self.done:
                if not stopped and self._flush() and self.finish_reason == "length":
                    self.finish_reason = "stop"  # the text that was held back had a stop string: it wins over the limit
                return kept
        return len(tokens)

    def abort(self) -> None:
        """End the request where it stands; what was generated stays."""
        if not self.done:
            self.finish_reason = "abort"
            self._flush()

    def fail(self, error: SurefootError) -> None:
        """End the request for a reason of its own; other requests go on."""
        if not self.done:
            self.finish_reason = "error"
            self.error = error
            self._flush()

    def drain(self, names: Mapping[int, str]) -> Piece | None:
        """What was kept since the last call; ``names`` maps source numbers to drafters."""
        before, start = self._sent_text, self._sent_tokens
        text = self.text[before:]
        if not text and start == len(self.sources) and not self.done:
            return None
        self._sent_text, self._sent_tokens = len(self.text), len(self.sources)
        return Piece(
            text,
            tuple(self.tokens[self.n_prompt + start :]),
            tuple(names[s] for s in self.sources[start:]),
            self.finish_reason,
            tuple(self.logprobs[start:]) if self.logprobs is not None else (),
            self.index,
            None if self.error is None else str(self.error),
            tuple(end - before for end in self._ends[start:]),
        )

    def _read(self, token: int) -> bool:
        """Add the token's text; True if it completed a stop string. Tokens that stop have no text."""
        if self._decoder is None or token in self.stop_ids:
            return False
        return self._release(self._decoder.push(token), final=False)

    def _flush(self) -> bool:
        """Add the text of an incomplete tail; True if it completed a stop string."""
        return self._release(self._decoder.flush() if self._decoder is not None else "", final=True)

    def _release(self, new: str, final: bool) -> bool:
        stops = self.params.stop
        # before min_tokens no stop string ends the output, so none is looked for
        if not stops or (not final and len(self.sources) < self.params.min_tokens):
            self.text += new
            return False
        text = self._withheld + new
        found = [(at, -len(s)) for s in stops if (at := text.find(s)) >= 0]
        if found:
            at, size = min(found)
            self.text += text[: at - size if self.params.include_stop_str_in_output else at]
            self._withheld = ""
            return True
        keep = 0 if final else _begun(text, stops)
        self.text += text[: len(text) - keep]
        self._withheld = text[len(text) - keep :]
        return False


def _begun(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that begins a stop string."""
    longest = 0
    for stop in stops:
        for n in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:n]):
                longest = n
                break
    return longest
