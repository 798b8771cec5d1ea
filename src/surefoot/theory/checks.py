"""Checks of the numbers that go into a formula; nothing that is not a number comes out of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray[Any, Any]
Curve = Callable[[int], float]


def probability(name: str, value: ArrayLike) -> Array:
    """float64 in [0, 1]."""
    found = np.asarray(value, np.float64)
    if not np.all((found >= 0.0) & (found <= 1.0)):
        raise ValueError(f"{name} must lie in [0, 1]; got {_show(found)}")
    return found


def positive(name: str, value: ArrayLike) -> Array:
    """float64 above 0."""
    found = np.asarray(value, np.float64)
    if not np.all(np.isfinite(found) & (found > 0.0)):
        raise ValueError(f"{name} must be a positive number; got {_show(found)}")
    return found


def not_negative(name: str, value: ArrayLike) -> Array:
    """float64 from 0 up."""
    found = np.asarray(value, np.float64)
    if not np.all(np.isfinite(found) & (found >= 0.0)):
        raise ValueError(f"{name} must be 0 or more; got {_show(found)}")
    return found


def whole(name: str, value: ArrayLike, least: int = 0) -> Array:
    """int64 from ``least`` up."""
    found = np.asarray(value)
    if found.size and not np.all(np.isfinite(found.astype(np.float64))):
        raise ValueError(f"{name} must be whole numbers from {least}; got {_show(found)}")
    rounded = found.astype(np.int64)
    if not np.all((found == rounded) & (rounded >= least)):
        raise ValueError(f"{name} must be whole numbers from {least}; got {_show(found)}")
    return rounded


def curve(cost: Curve | ArrayLike, most: int) -> Array:
    """V(0) … V(most) [most+1] relative to V(1); ``cost``: a function of m, or the seconds of 1, 2, … tokens.

    Measurements are noisy, but more tokens never cost less: a curve that falls is clamped to its running maximum.
    """
    if callable(cost):
        seconds = np.array([cost(m) for m in range(1, most + 1)], np.float64)
    else:
        seconds = np.asarray(cost, np.float64)
        if seconds.ndim != 1 or len(seconds) < most:
            raise ValueError(f"the cost curve has {seconds.size} entries; give the seconds of 1 … {most} tokens")
        seconds = seconds[:most]
    positive("the cost curve", seconds)
    relative = np.maximum.accumulate(seconds) / seconds[0]
    return np.concatenate([[0.0], relative])


def _show(found: Array) -> str:
    flat = found.reshape(-1)
    return f"{flat[0]!s}" if flat.size == 1 else f"{flat[:4].tolist()}{'…' if flat.size > 4 else ''}"
