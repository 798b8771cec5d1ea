"""``plan``: from acceptance and cost to tables, figures and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, SurefootError
from ..theory.cascade import Level
from ..theory.checks import Curve, whole
from .costs import Cost, Source, constant, of_curve, settle
from .inputs import Acceptance, Inputs, check_method, checked_level, of_log, of_rate
from .logs import Log
from .tables import Section, finite, sections

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..core.cost import CostModel

LENGTH = 12
NODES = 32
DEPTH = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What was planned; ``warnings``: what was mended in the inputs, a line each."""

    inputs: Inputs
    sections: tuple[Section, ...]
    warnings: tuple[str, ...] = ()

    @property
    def best(self) -> dict[str, float | int]:
        """The best row of all tables."""
        return max((s.best for s in self.sections), key=lambda row: row["speedup"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where there is no number."""
        inputs = self.inputs
        found: dict[str, Any] = {"method": inputs.method, "most": inputs.most}
        if inputs.cost is not None:
            found["cost"] = inputs.cost.to_dict()
        if inputs.method == "tree":
            found |= {"chances": list(inputs.chances), "depth": inputs.depth}
        if inputs.levels:
            found["levels"] = [{"alpha": x.alpha, "steps": x.steps, "c": x.c} for x in inputs.levels]
        found |= {"batch_rows": inputs.rows, "plans": [s.to_dict() for s in self.sections], "warnings": list(self.warnings)}
        checked: dict[str, Any] = finite(found)
        return checked

    def table(self) -> str:
        from .text import table

        return table(self)

    def figures(self) -> dict[str, Figure]:
        """By name; needs matplotlib."""
        from .plots import figures

        return figures(self)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write every figure as PNG and SVG; returns the paths."""
        from .plots import write

        return write(self, Path(folder))


def plan(
    *,
    alpha: float | Sequence[float] | None = None,
    log: Log | None = None,
    c: float | None = None,
    cost: Curve | Sequence[float] | CostModel | Source | None = None,
    draft_seconds: float | None = None,
    method: str = "chain",
    max_draft: int | None = None,
    chances: Sequence[float] | None = None,
    depth: int | None = None,
    levels: Sequence[Level] = (),
    rows: int = 1,
) -> Plan:
    """Plan a method.

    Acceptance: ``alpha`` (one or several), or a ``log``; for trees ``chances`` of the first, second, … child, or the log of a
    trace. Cost: ``c`` if every pass costs the same, or ``cost`` in seconds (a function of the number of tokens, the seconds of
    1, 2, … tokens, a measured model) with ``draft_seconds`` of a drafted token (0). Cascades have both in their ``levels``, the
    heaviest first; there ``alpha`` is how often the target itself accepts the lightest drafter. ``max_draft``: 12, of trees 32.
    """
    with _typed():
        check_method(method, levels, chances, rows, depth)
        rates = _rates(alpha, log)
        most = int(whole("the longest draft (--max-draft)", NODES if max_draft is None else max_draft, 1))
        if max_draft is None and method != "tree":
            most = LENGTH
        found = Inputs(method, most, None, rates, rows=rows)
        if method in ("cascade", "horizontal"):
            return _levels(found, levels, log, c is not None or cost is not None or draft_seconds is not None)
        if method == "tree":
            found = replace(
                found, chances=_chances(chances, alpha, log), depth=int(whole("depth", DEPTH if depth is None else depth, 1))
            )
        elif not rates:
            raise BadRequest("nothing says how often drafts are accepted; give --alpha or --log")
        settled, found, warnings = _cost(found, c, cost, draft_seconds, max_draft is None)
        found = replace(found, cost=settled)
        return Plan(found, sections(found), (*(log.warnings if log is not None else ()), *warnings))


def _rates(alpha: float | Sequence[float] | None, log: Log | None) -> tuple[Acceptance, ...]:
    if alpha is not None and log is not None:
        raise BadRequest("--alpha and --log both say how often drafts are accepted; give one")
    if log is not None:
        return (of_log(log),)
    if alpha is None:
        return ()
    listed = [alpha] if isinstance(alpha, int | float) else list(alpha)
    return tuple(of_rate(a) for a in dict.fromkeys(listed))


def _chances(chances: Sequence[float] | None, alpha: float | Sequence[float] | None, log: Log | None) -> tuple[float, ...]:
    """p_b, falling."""
    if alpha is not None:
        raise BadRequest("a tree needs the chance of each child, not one rate; give --chances 0.6,0.2,0.1 instead of --alpha")
    if chances is not None and log is not None:
        raise BadRequest("--chances and --log both say how often children are right; give one")
    if chances:
        return tuple(float(p) for p in chances)
    if log is not None and log.branches:
        return _of_branches(log)
    told = "the log has no children to count (a trace has)" if log is not None else "nothing says how often children are right"
    raise BadRequest(f"{told}; give --chances 0.6,0.2,0.1 for the first, second and third child")


def _of_branches(log: Log) -> tuple[float, ...]:
    """Shares of children that were tried at different places need not add up to 1: later ones get what is left."""
    out: list[float] = []
    for share in sorted((e.value for e in log.branches if e.trials), reverse=True):
        out.append(max(0.0, min(share, 1.0 - sum(out))))
    return tuple(out)


def _levels(found: Inputs, levels: Sequence[Level], log: Log | None, cost: bool) -> Plan:
    if cost:
        raise BadRequest(
            f"the levels of a {found.method} cascade have their own c, at constant cost of a pass; leave the cost out"
        )
    if log is not None or len(found.rates) > 1:
        raise BadRequest(
            "a cascade takes the rates of its levels, and one --alpha at most (of the lightest alone); leave the rest out"
        )
    if found.method == "horizontal" and found.rates:
        raise BadRequest("a horizontal cascade has the rates of its levels; leave --alpha out")
    found = replace(found, levels=tuple(checked_level(x) for x in levels))
    return Plan(found, sections(found))


def _cost(found: Inputs, c: float | None, cost: Any, draft_seconds: float | None, free: bool) -> tuple[Cost, Inputs, list[str]]:
    """Also shortens the default longest draft to what the curve knows."""
    if c is not None and (cost is not None or draft_seconds is not None):
        raise BadRequest(
            "--c is the cost of a drafted token where all passes cost the same; give --draft-seconds with a cost curve"
        )
    if c is not None:
        return constant(c), found, []
    if cost is None:
        raise BadRequest("nothing says what drafting costs; give --c, or a cost curve (--cost, --model or --device)")
    source = cost if isinstance(cost, Source) else of_curve(cost)
    if free and source.limit is not None:
        found = replace(found, most=min(found.most, max(1, source.limit // found.rows - 1)))
    settled, warnings = settle(source, found.need, draft_seconds)
    return settled, found, warnings


@contextmanager
def _typed() -> Iterator[None]:
    """What the theory finds wrong with a number is bad input."""
    try:
        yield
    except SurefootError:
        raise
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"{error}; correct it") from None
