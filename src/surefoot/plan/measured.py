"""A measured set of drafters, as ``surefoot tune --cascade --json`` prints it: arguments of :func:`.cascades.plan_cascade`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..errors import BadRequest
from .costs import of_curve


def read_measured(path: str) -> dict[str, Any]:
    """Rates, costs, names and the curve of target passes; ``-`` is standard input."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
        data = json.loads(text)
    except OSError as error:
        raise BadRequest(f"cannot read {path} ({error.strerror}); correct --measured") from None
    except ValueError as error:
        raise BadRequest(
            f"--measured {path} is no JSON ({error}); give what 'surefoot tune --cascade --json' printed"
        ) from None
    own = data.get("cascade") if isinstance(data, dict) else None
    if not isinstance(own, dict):
        raise BadRequest(f"--measured {path} has no cascade; give what 'surefoot tune --cascade --json' printed")
    try:
        drafters = own["drafters"]
        names = [str(d["name"]) for d in drafters]
        found: dict[str, Any] = {
            "alphas": [_rate(d["alpha"]) for d in drafters],
            "costs": [float(d["c"]) for d in drafters],
            "inner": {(int(e["reviewer"]) - 1, int(e["drafter"]) - 1): _rate(e["alpha"]) for e in own["inner"]},
            "names": names,
        }
        seconds = [float(s) for s in own["seconds"]]
        curves = [d.get("seconds") for d in drafters]
        reviews = [
            None if c is None else of_curve([float(s) for s in c], f"{path}, passes of {n}")
            for c, n in zip(curves, names, strict=True)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"--measured {path} is not whole ({error!r}); make it again with tune --cascade --json") from None
    return found | {"cost": of_curve(seconds, path), "reviews": reviews}


def _rate(value: Any) -> float | tuple[float, ...]:
    return tuple(float(x) for x in value) if isinstance(value, list) else float(value)
