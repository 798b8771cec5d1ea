"""Always the same plan."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.protocols import Costs, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree
from ..errors import BadRequest


class FixedController:
    """``num_speculative_tokens`` drafted tokens (0: plain decoding); as a tree with ``width`` above 1 and ``nodes``.

    ``hold``: pad every pass to so many tokens, where changing its size is dear.
    """

    def __init__(
        self,
        drafter: str | None,
        num_speculative_tokens: int = 4,
        width: int = 1,
        nodes: int | None = None,
        hold: int = 0,
    ) -> None:
        k = num_speculative_tokens
        if k < 0 or width < 1 or (nodes is not None and nodes < 0):
            raise BadRequest(
                f"num_speculative_tokens={k}, width={width}, nodes={nodes}: give lengths from 0 and a width from 1"
            )
        sizes = (hold,) if hold else ()
        self._plan = Plan(drafter if k else None, k, width, k if nodes is None else nodes, hold=hold, sizes=sizes)

    def plan(self, rows: Sequence[Row]) -> list[Plan]:
        return [self._plan] * len(rows)

    def learn(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], costs: Costs) -> None: ...

    def forget(self, rows: Sequence[Row]) -> None: ...
