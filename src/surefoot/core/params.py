"""Request options, checked when they are given."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from ..errors import BadRequest
from .verify import RULES


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Options of one request, under the names that OpenAI's API and vLLM use.

    max_tokens     most new tokens; ``None``: until the context is full
    temperature    0 is greedy (default)
    top_k          keep the k most probable tokens; 0 keeps all
    top_p, min_p   nucleus mass in (0, 1]; least probability relative to the most probable token, in [0, 1)
    seed           makes the output a function of the request; ``None`` draws a fresh one
    stop           stop strings; the text ends before the first of them
    stop_token_ids tokens that end the output like EOS
    ignore_eos     go on past EOS
    include_stop_str_in_output   keep the stop string in the text
    verification   one of ``auto``, ``greedy``, ``coupled``, ``ratio``
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

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Iterable):
                raise BadRequest(f"{name}={value!r} is not allowed; give a list")
            object.__setattr__(self, name, tuple(value or ()))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        for name, ok, wanted in (
            ("max_tokens", self.max_tokens is None or _is_int(self.max_tokens, 1), "a whole number from 1 up"),
            ("temperature", _is_number(self.temperature) and self.temperature >= 0, "0 (greedy) or a positive number"),
            ("top_k", _is_int(self.top_k, 0), "0 or -1 (off) or a positive whole number"),
            ("top_p", _is_number(self.top_p) and 0 < self.top_p <= 1, "above 0 and at most 1 (1 is off)"),
            ("min_p", _is_number(self.min_p) and 0 <= self.min_p < 1, "from 0 (off) to below 1"),
            ("seed", self.seed is None or _is_int(self.seed), "a whole number, or leave it out"),
            ("stop", all(isinstance(s, str) and s for s in self.stop), "strings, none of them empty"),
            ("stop_token_ids", all(_is_int(t, 0) for t in self.stop_token_ids), "token ids from 0 up"),
            ("ignore_eos", isinstance(self.ignore_eos, bool), "true or false"),
            ("include_stop_str_in_output", isinstance(self.include_stop_str_in_output, bool), "true or false"),
            ("verification", self.verification in RULES, "one of " + ", ".join(RULES)),
        ):
            if not ok:
                raise BadRequest(f"{name}={getattr(self, name)!r} is not allowed; give {wanted}")
        if self.verification == "greedy" and self.temperature > 0:
            raise BadRequest("verification 'greedy' contradicts temperature > 0; set temperature=0 or verification='auto'")

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


def _is_int(value: object, least: int | None = None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
