"""Which exact precision is fastest here: a plain pass of each, in turn."""

from __future__ import annotations

from collections.abc import Callable

from ..core.measure import measure
from ..errors import SurefootError
from ..loader import Target

EXACT = ("bf16", "f32")
_MARGIN = 0.05
"""Another precision is another model, with other outputs: it must be clearly faster than the default."""


def compare(target: Target, open_in: Callable[[str], Target], turns: int = 2) -> tuple[Target, str, dict[str, float]]:
    """The target to use, its precision (``auto``: the one given), and the seconds of a plain pass by precision.

    ``target`` was opened with precision ``auto``; ``open_in`` opens the same model in another one. Outputs are equal within
    a precision, not between two of them.
    """
    own = getattr(target.model, "precision", None)
    if own not in EXACT:
        return target, "auto", {}
    opened = {own: target}
    for name in EXACT:
        if name != own:
            try:
                opened[name] = open_in(name)
            except SurefootError:
                continue  # this processor has no such kernels
    times: dict[str, list[float]] = {name: [] for name in opened}
    for _ in range(turns):
        for name, one in opened.items():
            times[name].append(measure(one.model, (1,), repeats=1)(1))
    seconds = {name: min(found) for name, found in times.items()}
    exact = [name for name, one in opened.items() if one.model.traits.exact or name == own]
    best = min(exact, key=lambda name: seconds[name])
    if seconds[best] < (1.0 - _MARGIN) * seconds[own]:
        return opened[best], best, seconds
    return target, "auto", seconds
