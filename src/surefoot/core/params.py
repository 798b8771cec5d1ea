"""Request options, checked when they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from ..errors import BadRequest
from .constraint import Constraint, from_response_format, from_structured_outputs
from .options import bias_pairs, id_list, id_lists, is_int, is_number, text_list
from .verify import RULES

_THINK = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Options of one request, under the names that OpenAI's API, vLLM and Hugging Face use.

    Length and end
        max_tokens     most new tokens; ``None``: until the context is full
        min_tokens     end tokens are impossible, and stop strings are not looked for, before this many tokens
        stop           stop strings; the text ends before the first of them
        stop_token_ids tokens that end the output like EOS
        ignore_eos     go on past EOS
        include_stop_str_in_output   keep the stop string in the text
    Law (in the order of application; each token sees all tokens before it, drafted ones of its own path included)
        logit_bias     {token id: -100 … 100}, added to the logits
        repetition_penalty   logits of tokens of prompt and output are divided by it if positive, else multiplied (1: off)
        presence_penalty, frequency_penalty   subtracted from the logits of tokens of the output: once, and per occurrence
        logits_processors    your own, see :class:`surefoot.core.shaping.LogitsProcessor`
        allowed_token_ids    all other tokens are impossible
        bad_words, bad_words_ids   texts, and sequences of token ids, that the output never contains
        response_format, structured_outputs   what the output must look like (OpenAI's form; vLLM's form)
        constrain_after      text after which that holds, e.g. ``</think>``; before it the output is free
        thinking_budget      most tokens after ``thinking_start`` before ``thinking_end`` is forced
        temperature    0 is greedy (default)
        top_k          keep the k most probable tokens; 0 keeps all
        top_p, min_p   nucleus mass in (0, 1]; least probability relative to the most probable token, in [0, 1)
        typical_p      mass of the locally typical set, in (0, 1]
    Draws
        seed           makes the output a function of the request; ``None`` draws a fresh one
        n              that many answers, which share the prompt's cache; answer i uses seed + i
        verification   one of ``auto``, ``greedy``, ``coupled``, ``ratio``, ``block``, ``traversal``, ``kseq``
    Output
        logprobs       true: of each token; a number: also of so many most probable ones
        top_logprobs   that number, beside ``logprobs=True``
        echo           the text begins with the prompt; with ``logprobs`` the prompt's tokens have theirs too
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    verification: str = "auto"
    typical_p: float = 1.0
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    logits_processors: tuple[Any, ...] = ()
    response_format: Constraint | None = None
    structured_outputs: Constraint | None = None
    constrain_after: str | None = None
    thinking_budget: int | None = None
    thinking_start: str = _THINK[0]
    thinking_end: str = _THINK[1]
    n: int = 1
    logprobs: int | None = None
    top_logprobs: int | None = None
    echo: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "top_k", 0 if self.top_k == -1 else self.top_k)
        put(self, "stop", text_list("stop", self.stop))
        put(self, "stop_token_ids", id_list("stop_token_ids", self.stop_token_ids))
        put(self, "logit_bias", bias_pairs(self.logit_bias))
        if self.allowed_token_ids is not None:
            put(self, "allowed_token_ids", id_list("allowed_token_ids", self.allowed_token_ids))
        put(self, "bad_words", text_list("bad_words", self.bad_words))
        put(self, "bad_words_ids", id_lists("bad_words_ids", self.bad_words_ids))
        given = self.logits_processors
        put(self, "logits_processors", (given,) if callable(given) else tuple(given or ()))
        put(self, "response_format", from_response_format(self.response_format))
        put(self, "structured_outputs", from_structured_outputs(self.structured_outputs))
        self._check_ranges()
        self._check_logprobs()
        self._check_together()

    def _check_ranges(self) -> None:
        for name, ok, wanted in (
            ("max_tokens", self.max_tokens is None or is_int(self.max_tokens, 1), "a whole number from 1 up"),
            ("min_tokens", is_int(self.min_tokens, 0), "a whole number from 0 up"),
            ("temperature", is_number(self.temperature) and self.temperature >= 0, "0 (greedy) or a positive number"),
            ("top_k", is_int(self.top_k, 0), "0 or -1 (off) or a positive whole number"),
            ("top_p", is_number(self.top_p) and 0 < self.top_p <= 1, "above 0 and at most 1 (1 is off)"),
            ("min_p", is_number(self.min_p) and 0 <= self.min_p < 1, "from 0 (off) to below 1"),
            ("typical_p", is_number(self.typical_p) and 0 < self.typical_p <= 1, "above 0 and at most 1 (1 is off)"),
            (
                "repetition_penalty",
                is_number(self.repetition_penalty, 1e3) and self.repetition_penalty >= 1e-3,
                "from 0.001 to 1000 (1 is off)",
            ),
            ("presence_penalty", is_number(self.presence_penalty, 2), "from -2 to 2 (0 is off)"),
            ("frequency_penalty", is_number(self.frequency_penalty, 2), "from -2 to 2 (0 is off)"),
            ("allowed_token_ids", self.allowed_token_ids != (), "one or more token ids, or leave it out"),
            ("logits_processors", all(callable(p) for p in self.logits_processors), "callables (token_ids, logits) -> logits"),
            ("thinking_budget", self.thinking_budget is None or is_int(self.thinking_budget, 0), "a whole number from 0 up"),
            ("thinking_start", isinstance(self.thinking_start, str) and bool(self.thinking_start), "a text, not empty"),
            ("thinking_end", isinstance(self.thinking_end, str) and bool(self.thinking_end), "a text, not empty"),
            (
                "constrain_after",
                self.constrain_after is None or (isinstance(self.constrain_after, str) and bool(self.constrain_after)),
                "a text, not empty",
            ),
            ("n", is_int(self.n, 1), "a whole number from 1 up"),
            ("seed", self.seed is None or is_int(self.seed), "a whole number, or leave it out"),
            ("ignore_eos", isinstance(self.ignore_eos, bool), "true or false"),
            ("echo", isinstance(self.echo, bool), "true or false"),
            ("include_stop_str_in_output", isinstance(self.include_stop_str_in_output, bool), "true or false"),
            ("verification", self.verification in RULES, "one of " + ", ".join(RULES)),
        ):
            if not ok:
                raise BadRequest(f"{name}={getattr(self, name)!r} is not allowed; give {wanted}")

    def _check_logprobs(self) -> None:
        asked, top = self.logprobs, self.top_logprobs
        if asked is not None and not isinstance(asked, bool) and not is_int(asked, 0):
            raise BadRequest(f"logprobs={asked!r} is not allowed; give true, false or a number from 0 up")
        if top is not None and not is_int(top, 0):
            raise BadRequest(f"top_logprobs={top!r} is not allowed; give a whole number from 0 up")
        if top is not None and (asked is None or asked is False):
            raise BadRequest("top_logprobs needs logprobs=True; set it or leave top_logprobs out")
        if top is not None and not isinstance(asked, bool) and asked != top:
            raise BadRequest(f"logprobs={asked} contradicts top_logprobs={top}; give the number once")
        if isinstance(asked, bool):
            object.__setattr__(self, "logprobs", (top or 0) if asked else None)

    def _check_together(self) -> None:
        if self.verification == "greedy" and self.temperature > 0:
            raise BadRequest("verification 'greedy' contradicts temperature > 0; set temperature=0 or verification='auto'")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadRequest(f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}; lower it")
        if self.response_format is not None and self.structured_outputs is not None:
            raise BadRequest("response_format and structured_outputs say the same thing twice; give one")
        if self.constraint is None:
            if self.constrain_after is not None:
                raise BadRequest("constrain_after needs response_format or structured_outputs; give one or leave it out")
        elif self.ignore_eos:
            raise BadRequest("ignore_eos contradicts structured output, which ends where it is complete; leave one out")
        if self.thinking_budget is None and (self.thinking_start, self.thinking_end) != _THINK:
            raise BadRequest("thinking_start and thinking_end need thinking_budget; give it or leave them out")
        if self.thinking_budget is not None and self.constraint is not None:
            after = self.constrain_after
            if after is None:
                object.__setattr__(self, "constrain_after", self.thinking_end)
            elif after != self.thinking_end:
                raise BadRequest(f"constrain_after={after!r} contradicts thinking_end={self.thinking_end!r}; give one text")

    @property
    def constraint(self) -> Constraint | None:
        """What the output must look like."""
        return self.response_format or self.structured_outputs

    @classmethod
    def build(cls, options: Mapping[str, Any]) -> SamplingParams:
        """From keyword options; an unknown name is refused with the nearest known one."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else "known are " + ", ".join(known)
                raise BadRequest(f"unknown request option {name!r}; {hint}")
        return cls(**options)
