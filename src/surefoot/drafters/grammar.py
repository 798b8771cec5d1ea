"""Jump-forward: where a request's options leave no choice, the tokens without alternative are the draft.

What the options force after the row's tokens is followed on a fork of the row's state, so several forced runs in a row make
one chain. Proposals are points (q = None): how a forced text is cut into tokens is the target's choice, and stays it. Where
nothing is forced, the ``inner`` drafter proposes; it is a drafter of the same engine, which tells it of passes and ends
itself, and its nodes carry its own source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.protocols import Drafter, Need, Plan, Scores, Verdict
from ..core.tree import DraftTree, Forest
from ..errors import BadRequest

if TYPE_CHECKING:
    from ..core.request import Row


class GrammarDrafter:
    """Drafter ``grammar``. Without ``inner`` it proposes nothing where nothing is forced."""

    name = "grammar"

    def __init__(self, inner: Drafter | None = None, *, source: int = 9) -> None:
        self.inner = inner
        self.source = source
        self.needs = Need() if inner is None else inner.needs

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        forced = [() if row.state is None else _forced(row, plan) for row, plan in zip(rows, plans, strict=True)]
        if self.inner is None:
            return [self._chain(row, tokens) for row, tokens in zip(rows, forced, strict=True)]
        if not any(forced):
            return self.inner.propose(rows, plans)
        free = [i for i, tokens in enumerate(forced) if not tokens]
        trees = [self._chain(row, tokens) for row, tokens in zip(rows, forced, strict=True)]
        if free:
            for i, tree in zip(free, self.inner.propose([rows[i] for i in free], [plans[i] for i in free]), strict=True):
                trees[i] = tree
        return trees

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Nothing: a row's state says it all."""

    def forget(self, rows: Sequence[Row]) -> None:
        """Nothing is kept."""

    def _chain(self, row: Row, tokens: Sequence[int]) -> DraftTree:
        return DraftTree.chain([row.tokens[-1], *tokens], source=self.source)


def _forced(row: Row, plan: Plan) -> Sequence[int]:
    """At most as many tokens as the plan has room for."""
    state, limit = row.state, min(plan.depth, plan.nodes)
    assert state is not None
    found: list[int] = []
    try:
        while len(found) < limit and (run := state.forced(limit - len(found))):
            found += run
            if len(found) < limit:
                state = state.fork() if state is row.state else state
                for token in run:
                    state.advance(token)
    except BadRequest:
        # a user's processor failed on the way; the request learns of it when the target gets there
        pass
    return found
