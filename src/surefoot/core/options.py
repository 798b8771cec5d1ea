"""Values of request options in one canonical, hashable form; what has another form is refused with the option's name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import BadRequest


def is_int(value: object, least: int | None = None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def is_number(value: object, most: float = math.inf) -> bool:
    """A finite number, at most ``most`` in size."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and abs(value) <= most


def text_list(name: str, value: Any) -> tuple[str, ...]:
    """One string or a list of strings, none of them empty."""
    found = (value,) if isinstance(value, str) else _items(name, value)
    if not all(isinstance(text, str) and text for text in found):
        raise BadRequest(f"{name}={found!r} is not allowed; give strings, none of them empty")
    return found


def id_list(name: str, value: Any) -> tuple[int, ...]:
    found = _items(name, value)
    if not all(is_int(token, 0) for token in found):
        raise BadRequest(f"{name}={found!r} is not allowed; give token ids from 0 up")
    return found


def id_lists(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    found = tuple(id_list(name, item) for item in _items(name, value))
    if not all(found):
        raise BadRequest(f"{name}={found!r} is not allowed; give lists of token ids, none of them empty")
    return found


def bias_pairs(value: Any) -> tuple[tuple[int, float], ...]:
    """``{id: bias}``, ids as numbers or (as JSON has them) strings; sorted by id."""
    pairs = value.items() if isinstance(value, Mapping) else _items("logit_bias", value)
    out: dict[int, float] = {}
    for pair in pairs:
        try:
            token, bias = pair
            token = int(token) if isinstance(token, str) else token
        except (TypeError, ValueError):
            raise BadRequest(f"logit_bias entry {pair!r} is not allowed; give {{token id: bias}}") from None
        if not is_int(token, 0) or not is_number(bias, 100):
            raise BadRequest(f"logit_bias entry {pair!r} is not allowed; give token ids from 0 up and biases from -100 to 100")
        if token in out:
            raise BadRequest(f"logit_bias names token {token} twice; give one bias")
        out[token] = float(bias)
    return tuple(sorted(out.items()))


def _items(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise BadRequest(f"{name}={value!r} is not allowed; give a list")
    return tuple(value)
