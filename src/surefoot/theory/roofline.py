"""What a pass costs on a described device (Williams et al., 2009).

It is the larger of the time to move its bytes and the time to do its arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from .checks import not_negative, positive, whole


@dataclass(frozen=True, slots=True)
class Device:
    """``bandwidth`` bytes a second, ``compute`` operations a second, ``overhead`` seconds of every pass."""

    bandwidth: float
    compute: float
    overhead: float = 0.0


@dataclass(frozen=True, slots=True)
class Model:
    """``parameters`` that a token passes through, ``bytes`` of each, ``cache`` bytes of the KV of one token."""

    parameters: float
    bytes: float = 2.0
    cache: float = 0.0


def pass_seconds(device: Device, model: Model, tokens: int, context: int = 0, rows: int = 1) -> float:
    """Seconds of a pass over ``tokens`` tokens of ``rows`` rows, each behind ``context`` cached tokens.

    Weights are read once, each row's cache once; every token costs two operations a parameter, and attention 2 operations a
    cached number (taken as two bytes).
    """
    m, n, b = int(whole("tokens", tokens, 1)), int(whole("context", context)), int(whole("rows", rows, 1))
    weights = float(positive("parameters", model.parameters)) * float(positive("bytes", model.bytes))
    cache = float(not_negative("cache", model.cache))
    moved = weights + b * n * cache
    done = m * (2.0 * model.parameters + n * cache)
    seconds = max(moved / float(positive("bandwidth", device.bandwidth)), done / float(positive("compute", device.compute)))
    return seconds + float(not_negative("overhead", device.overhead))


def ridge(device: Device, model: Model) -> float:
    """Tokens of a pass up to which more of them are free: where arithmetic takes as long as moving the weights."""
    weights = float(positive("parameters", model.parameters)) * float(positive("bytes", model.bytes))
    return weights / float(positive("bandwidth", device.bandwidth)) * device.compute / (2.0 * model.parameters)
