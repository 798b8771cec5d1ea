"""Checks of controllers' options: a bad one is a :class:`BadRequest` that names it and what to give."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import BadRequest


def names(controller: str, drafters: str | Sequence[str]) -> tuple[str, ...]:
    """The drafters' names: one or several, all different."""
    found = (drafters,) if isinstance(drafters, str) else tuple(drafters)
    if not found or len(set(found)) != len(found) or not all(isinstance(name, str) and name for name in found):
        raise BadRequest(f"{controller}: drafters={drafters!r}; give one name or several different ones")
    return found


def whole(controller: str, option: str, value: int, low: int, high: int | None = None) -> int:
    """``value`` if it is a whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        bounds = f"from {low} up" if high is None else f"from {low} to {high}"
        raise BadRequest(f"{controller}: {option}={value!r}; give a whole number {bounds}")
    return value


def number(controller: str, option: str, value: float, low: float, high: float = math.inf, *, above: bool = False) -> float:
    """``value`` if it is a finite number within its bounds; ``above``: the lower one excluded."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not usable or not low <= value <= high or (above and value == low):
        bounds = f"{'above' if above else 'from'} {low:g}" + (" up" if math.isinf(high) else f" to {high:g}")
        raise BadRequest(f"{controller}: {option}={value!r}; give a number {bounds}")
    return float(value)


def stay_of(controller: str, stay: int | None, change: float) -> int:
    """Passes that one choice is kept for: many where changing the size of a pass is dear, one where it is not."""
    if stay is None:
        return 16 if change > 0 else 1
    return whole(controller, "stay", stay, 1)
