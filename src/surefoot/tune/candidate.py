"""A way to draft: what a configuration names, and the engine that it describes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..core.engine import Engine
from ..core.protocols import Drafter
from ..drafter_spec import parse
from ..loader import Target, assemble
from ..registry import DRAFTERS, parts

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """``k``: tokens drafted a pass (``None``: the controller decides). ``width`` above 1: trees of at most ``nodes``."""

    drafter: str | Drafter = "none"
    controller: str = "fixed"
    k: int | None = None
    width: int = 1
    nodes: int = 0

    @property
    def name(self) -> str:
        return self.drafter if isinstance(self.drafter, str) else self.drafter.name

    @property
    def plain(self) -> bool:
        return self.drafter == "none"

    @property
    def spec(self) -> str | Drafter:
        """The drafter with the options that make its drafts trees."""
        if self.width == 1 or not isinstance(self.drafter, str):
            return self.drafter
        joint = "," if ":" in self.drafter else ":"
        return f"{self.drafter}{joint}width={self.width},nodes={self.nodes}"

    @property
    def takes_draft(self) -> bool:
        """Whether a draft model has a part in it: under a controller that picks, ``auto`` takes one if there is one."""
        picks = self.name == "auto" and self.controller == "auto"
        return isinstance(self.drafter, str) and (picks or self._has("model"))

    def _has(self, name: str) -> bool:
        """Whether that drafter is the one, or a part of it."""
        return any(name in parts(spec) for spec in parse(self.name, list(DRAFTERS))[0])

    @property
    def label(self) -> str:
        if self.plain:
            return "plain"
        shape = "" if self.width == 1 else f" tree of {self.nodes}, width {self.width}"
        return f"{self.name} {self.controller}" if self.k is None else f"{self.name} k={self.k}{shape}"

    def longest(self, k: int) -> Candidate:
        return replace(self, k=k)

    def engine(self, target: Target, draft: Target | None, clock: Clock = time.perf_counter) -> Engine:
        """A fresh engine that has learned nothing; caches are not shared between requests, so that runs are alike."""
        partner = draft if self.takes_draft else None
        controller = "auto" if self.plain else self.controller
        made = assemble(target, self.spec, partner, controller, self.k)
        drafters = list(made.drafters.values())
        return Engine(
            made.target, drafters, made.controller, codec=made.codec, grammars=made.grammars, reuse=False, clock=clock
        )


PLAIN = Candidate()
