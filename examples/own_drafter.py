"""A drafter of one's own: guess that the text goes on as it did after the same word before.

python examples/own_drafter.py
"""

from __future__ import annotations

from collections.abc import Sequence

import surefoot
from surefoot.core.protocols import Need, Plan, Scores, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree, Forest


class SameAsBefore:
    """Copies what followed the last earlier occurrence of the row's last token. Point proposals: ``q`` stays ``None``."""

    name, source, needs = "same-as-before", 1, Need()

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._one(row.tokens, plan.nodes) for row, plan in zip(rows, plans, strict=True)]

    def _one(self, tokens: list[int], n: int) -> DraftTree:
        return DraftTree.chain([tokens[-1], *self._copy(tokens, n)], source=self.source)

    def _copy(self, tokens: list[int], n: int) -> list[int]:
        for i in range(len(tokens) - 2, -1, -1):
            if tokens[i] == tokens[-1]:
                return tokens[i + 1 : i + 1 + n]
        return []

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None: ...

    def forget(self, rows: Sequence[Row]) -> None: ...


def main() -> None:
    question = [{"role": "user", "content": "List the days of the week, then list them again in reverse order."}]
    plain = surefoot.load(drafter="none").generate(question, max_tokens=120)
    drafted = surefoot.load(drafter=SameAsBefore()).generate(question, max_tokens=120)
    print(drafted.text)
    print(f"{drafted.stats.passes} passes instead of {plain.stats.passes}")
    print("identical tokens:", "yes" if drafted.token_ids == plain.token_ids else "no")


if __name__ == "__main__":
    main()
