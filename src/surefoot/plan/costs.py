"""What a pass costs, from a number, a measurement or a description, all brought to one form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import BadRequest
from ..theory.checks import Curve
from ..theory.roofline import Device, Model, pass_seconds, ridge

if TYPE_CHECKING:
    from ..core.cost import CostModel


@dataclass(frozen=True, slots=True)
class Source:
    """Seconds of a pass over m tokens, as far as they are known, and of one drafted token."""

    origin: str
    seconds: Callable[[int], float]
    draft: float | None = None
    """None: not known from here."""
    limit: int | None = None
    """Most tokens of a pass whose cost is known; None: any."""
    facts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Cost:
    """``c``: a drafted token over a pass of one token. ``seconds[m - 1]``: a pass over m tokens; None: all cost the same."""

    origin: str
    c: float
    seconds: tuple[float, ...] | None = None
    facts: tuple[tuple[str, float], ...] = ()

    @property
    def curve(self) -> Curve | tuple[float, ...]:
        return self.seconds if self.seconds is not None else _flat

    def to_dict(self) -> dict[str, Any]:
        known = None if self.seconds is None else list(self.seconds)
        return {"origin": self.origin, "c": self.c, "constant": known is None, "seconds": known, **dict(self.facts)}


def _flat(m: int) -> float:
    return 1.0


def constant(c: float) -> Cost:
    """Every pass costs the same, however wide, and a drafted token ``c`` of it."""
    if not math.isfinite(c) or c <= 0:
        raise BadRequest(f"c must be a positive number (a drafted token over a pass); got {c}. A free drafter has c = 0.001")
    return Cost("c", float(c))


def settle(source: Source, most: int, draft: float | None) -> tuple[Cost, list[str]]:
    """The costs of passes over 1 … ``most`` tokens, never falling, and what had to be said about them."""
    own = source.draft if draft is None else draft
    own = 0.0 if own is None else float(own)
    if not math.isfinite(own) or own < 0:
        raise BadRequest(f"the seconds of a drafted token must be 0 or more; got {own}")
    if source.limit is not None and most > source.limit:
        raise BadRequest(
            f"{source.origin} has the seconds of 1 … {source.limit} tokens, and {most} are needed; lower --max-draft or --rows"
        )
    seconds = [float(source.seconds(m)) for m in range(1, most + 1)]
    if not all(math.isfinite(s) and s > 0 for s in seconds):
        raise BadRequest(f"{source.origin}: the seconds of a pass must be positive numbers; measure them again")
    clamped, warnings = _rising(seconds), []
    if clamped != seconds:
        at = next(i for i, (a, b) in enumerate(zip(clamped, seconds, strict=True)) if a != b)
        warnings.append(f"{source.origin}: a pass over {at + 1} tokens is quicker than one over fewer; taken as no quicker")
    return Cost(source.origin, own / seconds[0], tuple(clamped), source.facts), warnings


def _rising(seconds: Sequence[float]) -> list[float]:
    out: list[float] = []
    for value in seconds:
        out.append(max(value, out[-1]) if out else value)
    return out


def of_curve(cost: Curve | Sequence[float] | CostModel, origin: str = "the cost curve", context: int | None = None) -> Source:
    """A function of m, a list of seconds for 1, 2, … tokens, or a measured model (at ``context`` cached tokens)."""
    if callable(cost):
        own: Any = cost
        return Source(origin, cost if context is None else lambda m: own(m, context))
    listed = tuple(float(s) for s in cost)
    if not listed:
        raise BadRequest(f"{origin} is empty; give the seconds of 1, 2, … tokens")
    return Source(origin, lambda m: listed[m - 1], limit=len(listed))


def read_cost(path: str, context: int | None = None) -> Source:
    """A JSON file: a measured model (also within ``cost``, as the cache holds it), or ``{"seconds": [of 1, of 2, …]}``."""
    try:
        data = json.loads(Path(path).read_text("utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise BadRequest(f"cannot read the cost curve {path} ({error.strerror}); correct the path") from None
    except ValueError as error:
        raise BadRequest(f"the cost curve {path} is no JSON ({error}); correct it") from None
    if isinstance(data, dict) and isinstance(data.get("cost"), dict):
        data = data["cost"]
    if not isinstance(data, dict) or "seconds" not in data:
        raise BadRequest(f"the cost curve {path} has no seconds; give a JSON object with a list of them")
    if "widths" not in data:
        if context is not None:
            raise BadRequest(f"{path} does not tell what the context costs; leave --context out")
        listed = data["seconds"]
        if not isinstance(listed, list) or not all(isinstance(s, int | float) and not isinstance(s, bool) for s in listed):
            raise BadRequest(f"{path}: seconds must be a list of numbers, of passes over 1, 2, … tokens")
        return of_curve(listed, path)
    from ..core.cost import CostModel  # brings torch, which nothing else here needs

    try:
        return of_curve(CostModel.from_dict({"context": 0, "per_context": 0.0, "change": 0.0, **data}), path, context)
    except BadRequest as error:
        raise BadRequest(f"{path}: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNITS: dict[str, dict[str, float]] = {
    "bandwidth": {f"{p}B/s": f for p, f in _PREFIX.items()},
    "compute": {f"{p}{u}": f for p, f in _PREFIX.items() for u in ("FLOPS", "FLOP/s", "OPS", "OP/s")},
    "overhead": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6},
    "parameters": {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12},
    "bytes": {"": 1.0, "B": 1.0},
    "cache": {f"{p}B": f for p, f in _PREFIX.items()},
}
_UNITS["draft_parameters"], _UNITS["draft_bytes"] = _UNITS["parameters"], _UNITS["bytes"]
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)")


def described(text: str, context: int | None = None, rows: int = 1) -> Source:
    """``bandwidth=900GB/s,compute=150TFLOPS,overhead=0.1ms,parameters=7B,bytes=2``, and perhaps ``cache=128KB`` a token,
    ``draft_parameters=0.5B,draft_bytes=2``."""
    found: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, sign, value = (p.strip() for p in part.partition("="))
        if not sign or name not in _UNITS:
            raise BadRequest(f"--device does not know {part!r}; give NAME=VALUE with {', '.join(_UNITS)}")
        found[name] = _quantity(name, value)
    missing = [name for name in ("bandwidth", "compute", "parameters") if name not in found]
    if missing:
        raise BadRequest(f"--device lacks {', '.join(missing)}; for example bandwidth=900GB/s,compute=150TFLOPS,parameters=7B")
    device = Device(found["bandwidth"], found["compute"], found.get("overhead", 0.0))
    model = Model(found["parameters"], found.get("bytes", 2.0), found.get("cache", 0.0))
    behind = context or 0
    draft = None
    if "draft_parameters" in found:
        light = Model(found["draft_parameters"], found.get("draft_bytes", model.bytes))
        draft = pass_seconds(device, light, rows, 0, rows)
    elif "draft_bytes" in found:
        raise BadRequest("--device has draft_bytes without draft_parameters; give both")
    return Source(
        "the described device",
        lambda m: pass_seconds(device, model, m, behind, rows),
        draft,
        facts=(("free_tokens", ridge(device, model)),),
    )


def _quantity(name: str, text: str) -> float:
    match = _NUMBER.fullmatch(text)
    units = _UNITS[name]
    unit = match[2] if match else ""
    if match is None or (unit and unit not in units):
        raise BadRequest(f"--device {name}={text} is no quantity; write a number and one of {', '.join(filter(None, units))}")
    value = float(match[1]) * units.get(unit, 1.0)
    least = 0.0 if name in ("overhead", "cache") else None
    if not math.isfinite(value) or (value <= 0 if least is None else value < 0):
        raise BadRequest(f"--device {name}={text} must be {'positive' if least is None else '0 or more'}; correct it")
    return value
