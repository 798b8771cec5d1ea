"""What rows were asked to draft in the pass under way, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core.protocols import PLAIN, Plan, Verdict
from ..core.request import Row
from ..core.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Tried:
    """One row's draft. ``asked``: tokens that plan and budget allowed; ``cut``: the budget allowed less than the plan."""

    row: Row
    drafter: str
    asked: int
    drafted: int
    kept: int
    cut: bool

    @property
    def missed(self) -> bool:
        """Whether the draft ended too early: a token was refused, or the drafter had nothing more to say.

        The last draft of a request may have been cut short by its end, so there only a refused token counts.
        """
        if self.row.done:
            return self.row.error is None and self.kept < min(self.asked, self.drafted)
        return self.kept < self.asked


class Asked:
    """Remembers plans until their pass is over. Chains only. The longest plan must fit a pass of the target."""

    def __init__(self) -> None:
        self._plans: dict[int, tuple[str, int, int]] = {}

    def plan(self, row: Row, drafter: str | None, k: int, hold: int = 0) -> Plan:
        """A plan of ``k`` drafted tokens, remembered."""
        if drafter is None or k < 1:
            self._plans.pop(row.id, None)
            return PLAIN
        self._plans[row.id] = drafter, k, min(k, max(row.remaining - 1, 0))
        return Plan(drafter, k, 1, k, hold=hold)

    def settle(self, rows: Sequence[Row], trees: Sequence[DraftTree], verdicts: Sequence[Verdict]) -> list[Tried]:
        """The drafts of the rows that were asked for one; each is told once."""
        found = []
        for row, tree, verdict in zip(rows, trees, verdicts, strict=True):
            known = self._plans.pop(row.id, None)
            if known is not None:
                name, k, asked = known
                found.append(Tried(row, name, asked, len(tree) - 1, len(verdict.path), asked < k))
        return found

    def forget(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._plans.pop(row.id, None)


def drafted(tried: Iterable[Tried]) -> dict[str, int]:
    """Tokens that each drafter drafted."""
    out: dict[str, int] = {}
    for each in tried:
        out[each.drafter] = out.get(each.drafter, 0) + each.drafted
    return out
