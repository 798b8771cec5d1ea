"""``--speculative-config JSON``: vLLM's keys, as our own drafting options.

Contract: what cannot be honoured is refused by name. Methods that vLLM does not have (cascades) take their own options as keys,
lists for what is joined by ``/`` in a specification. The draft length is the most tokens a pass; ``--controller fixed`` drafts
always so many, as vLLM does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ..errors import BadRequest
from .config import Store, claim

OPTION = "--speculative-config"
METHODS = ("ngram", "suffix", "draft_model")
MADE_OF_OTHERS = ("cascade", "horizontal", "two_exit", "dytc")
"""Our own methods."""
KEYS = ("method", "num_speculative_tokens", "model", "prompt_lookup_max", "prompt_lookup_min")


class SpeculativeConfig(Store):
    """Sets the options that the JSON describes."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        for dest, value in options(_object(values)).items():
            setattr(namespace, dest, value)
            claim(parser, namespace, dest, OPTION)

    def read(self, value: Any) -> dict[str, Any]:
        return options(value if isinstance(value, Mapping) else _object(value))


def _object(text: Any) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{OPTION} is not valid JSON ({error}); write {_example()}") from None
    if not isinstance(found, Mapping):
        raise BadRequest(f"{OPTION} is not a JSON object; write {_example()}")
    return found


def options(given: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's keys as ``drafter``, ``draft_model`` and ``num_speculative_tokens``."""
    if given.get("method") in MADE_OF_OTHERS:
        return _made_of_others(given)
    for key in given:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1)
            raise BadRequest(
                f"{OPTION}: unknown key {key!r}; {f'did you mean {near[0]!r}?' if near else 'known are ' + ', '.join(KEYS)}"
            )
    method = given.get("method", "draft_model" if "model" in given else None)
    if method not in METHODS:
        said = "no method" if method is None else f"method {method!r} is not here"
        raise BadRequest(f"{OPTION}: {said}; give one of {', '.join((*METHODS, *MADE_OF_OTHERS))}")
    owners = {"model": "draft_model", "prompt_lookup_max": "ngram", "prompt_lookup_min": "ngram"}
    for key, owner in owners.items():
        if key in given and method != owner:
            raise BadRequest(f"{OPTION}: {key} belongs to method {owner!r}, not to {method!r}; leave it out")
    numbers = {key: _number(key, given[key]) for key in given if key not in ("method", "model")}
    model = given.get("model")
    if method == "draft_model" and not (isinstance(model, str) and model):
        raise BadRequest(f"{OPTION}: method 'draft_model' needs model, the reference of the draft model; give it")
    found: dict[str, Any] = {"drafter": _drafter(method, numbers), "draft_model": model}
    if "num_speculative_tokens" in numbers:
        found["num_speculative_tokens"] = numbers["num_speculative_tokens"]
    return found


def _made_of_others(given: Mapping[str, Any]) -> dict[str, Any]:
    """The specification of a cascade; its options are checked where it is made."""
    own = {key: value for key, value in given.items() if key not in ("method", "model", "num_speculative_tokens")}
    words = [f"{key}={_word(key, value)}" for key, value in own.items()]
    found = {"drafter": given["method"] + (":" + ",".join(words) if words else ""), "draft_model": given.get("model")}
    if "num_speculative_tokens" in given:
        found["num_speculative_tokens"] = _number("num_speculative_tokens", given["num_speculative_tokens"])
    return found


def _word(key: str, value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(isinstance(part, str | int | float) for part in parts):
        raise BadRequest(f"{OPTION}: {key}={value!r} is not allowed; give a text, a number, true or false, or a list of those")
    words = [str(part).lower() if isinstance(part, bool) else str(part) for part in parts]
    if any(sign in word for word in words for sign in ",+"):
        raise BadRequest(f"{OPTION}: {key}={value!r} holds a comma or a plus, which no option can; give another value")
    return "/".join(words)


def _drafter(method: str, numbers: Mapping[str, int]) -> str:
    """A missing end of the n-gram range is the other end, as in vLLM."""
    if method == "draft_model":
        return "model"
    high, low = numbers.get("prompt_lookup_max"), numbers.get("prompt_lookup_min")
    if high is None and low is None:
        return method
    high, low = high if high is not None else low, low if low is not None else high
    assert high is not None
    assert low is not None
    if low > high:
        raise BadRequest(f"{OPTION}: prompt_lookup_min={low} is more than prompt_lookup_max={high}; lower it")
    return f"{method}:max_n={high},min_n={low}"


def _number(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest(f"{OPTION}: {key}={value!r} is not allowed; give a whole number from 1 up")
    return value


def _example() -> str:
    return '\'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}\''
