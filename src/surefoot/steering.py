"""Controllers by name: the registry, and how each is made for a target and its drafters."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import BadRequest

if TYPE_CHECKING:
    from .core.protocols import Controller
    from .making import Made
    from .target import Target

CONTROLLERS = {
    "fixed": "surefoot.control.fixed:FixedController",
    "window": "surefoot.control.window:WindowController",
    "goodput": "surefoot.control.goodput:GoodputController",
    "marginal": "surefoot.control.marginal:MarginalController",
    "confidence": "surefoot.control.confidence:ConfidenceController",
    "thompson": "surefoot.control.thompson:ThompsonController",
    "bandit": "surefoot.control.bandit:BanditController",
    "breaker": "surefoot.control.breaker:Breaker",
}
SINGLE = ("fixed", "window", "confidence", "breaker", "marginal")
"""Controllers that know one drafter."""
SHAPED = ("fixed", "breaker")
"""Controllers that plan trees of a given width and number of nodes."""


def steer(controller: str | Controller, made: Made, given: int | None, tree: Mapping[str, int], target: Target) -> Controller:
    """``given``: the draft length, or the most; ``tree``: width and nodes."""
    if not isinstance(controller, str):
        return controller
    traits = target.model.traits
    if given is not None and given > (most := traits.max_nodes - 1):
        raise BadRequest(f"num_speculative_tokens={given} is more than the backend takes in a pass ({most}); lower it")
    drafters = made.chosen
    found: Controller
    if controller == "window":
        high = 8 if given is None else given
        found = _import("window")(drafters[0], high, min(2, high), min(4, high))
        return found
    fixed: Controller = _import("fixed")(drafters[0], made.length if given is None else given, **tree)
    if controller == "fixed":
        return fixed
    from .control.costs import LiveCosts
    from .core.cost import sizes

    measured = target.calibration.cost(target.model)
    costs = LiveCosts(measured, change=measured.change if traits.steady else 0.0)
    name = controller if controller != "auto" else "marginal" if made.informed else "goodput"
    longest: dict[str, Any] = {} if given is None else {"max_draft": given}
    if name == "breaker":
        found = fixed
    elif name == "marginal":
        kept = sizes(measured, traits) if traits.steady else ()
        found = _import(name)(tuple(drafters), costs, sizes=kept, switch=measured.switch, min_width=traits.min_width, **longest)
    else:
        found = _import(name)(tuple(drafters), costs, min_width=traits.min_width, **longest)
    if controller in ("auto", "breaker"):
        # marginal plans no draft by itself where drafts fail: all that is left to guard against is what drafting costs
        slow: dict[str, Any] = {"patience": 16, "doubt": 1.0, "longest": 256} if name == "marginal" else {}
        found = _import("breaker")(found, costs, min_width=traits.min_width, **slow)
    return found


def _import(name: str) -> Any:
    module, _, attribute = CONTROLLERS[name].partition(":")
    return getattr(import_module(module), attribute)
