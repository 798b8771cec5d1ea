"""Figures of a plan, through matplotlib's objects alone: nothing global is changed, no display is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, Unsupported

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .run import Plan


def prepare(folder: str | Path) -> Path:
    """What a figure needs, checked before anything is computed."""
    _matplotlib()
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(f"cannot write figures to {path} ({error.strerror}); choose another folder") from None
    return path


def figures(plan: Plan) -> dict[str, Figure]:
    """The figures that a plan has, by name."""
    _matplotlib()
    from . import figures as draw
    from . import maps

    inputs = plan.inputs
    if inputs.method == "tree":
        return {"tree": draw.tree(plan)}
    if inputs.method == "horizontal":
        return {"horizontal": draw.horizontal(plan)}
    if inputs.method == "cascade":
        return {"cascade": maps.cascade(plan) if len(inputs.levels) == 2 else draw.levels(plan)}
    if inputs.rows > 1:
        return {"batch": draw.batch(plan)}
    return {"speedup": draw.speedup(plan), "map": maps.best(plan), "frontier": draw.frontier(plan)}


def write(plan: Plan, folder: Path) -> list[Path]:
    """NAME.png and NAME.svg of each figure; the same plan gives the same bytes."""
    prepare(folder)
    from matplotlib import rc_context

    written = []
    for name, figure in figures(plan).items():
        for kind, options in _KINDS.items():
            path = folder / f"{name}.{kind}"
            try:
                with rc_context({"svg.hashsalt": "surefoot"}):
                    figure.savefig(path, format=kind, **options)
            except OSError as error:
                raise BadRequest(f"cannot write {path} ({error.strerror}); choose another folder") from None
            written.append(path)
    return written


_KINDS: dict[str, dict[str, Any]] = {"png": {"dpi": 150}, "svg": {"metadata": {"Date": None}}}


def _matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unsupported("figures need matplotlib; install it with: pip install 'surefoot[plots]'") from None
