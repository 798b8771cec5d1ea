"""What tests of the suffix stores share: a row, a question, and a store as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from surefoot.core.protocols import Plan
from surefoot.core.tree import DraftTree
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.drafters.suffix_store import Context, ContextStore


@dataclass(eq=False)
class Line:
    """As much of a row as a drafter reads."""

    tokens: list[int]
    id: int = 0
    n_prompt: int = field(default=1)
    drafted: Sequence[int] = ()
    hidden: bool = False

    @property
    def base(self) -> Line:
        return self


def shape(branch: Context | int, moved: int = 0) -> object:
    """A branch as plain values, positions moved by a constant; dict order included."""
    if isinstance(branch, int):
        return branch + moved
    kids = None if branch.kids is None else sorted((t, shape(kid, moved)) for t, kid in branch.kids.items())
    return (branch.total, branch.last + moved, list(branch.after.items()), kids)


def whole(store: ContextStore, moved: int = 0) -> object:
    return sorted((t, shape(kid, moved)) for t, kid in store._root.items())


def ask(drafter: SuffixDrafter, tokens: list[int], plan: Plan, row_id: int = 0, n_prompt: int = 1) -> DraftTree:
    (tree,) = drafter.propose([Line(list(tokens), row_id, n_prompt)], [plan])
    tree.check(1 << 20, plan.nodes + 1)
    assert tree.q is None
    assert tree.tokens[0] == tokens[-1]
    assert tree.source.tolist() == [0] + [2] * (len(tree) - 1)
    return tree


def chain(k: int, floor: float = 0.0) -> Plan:
    return Plan(depth=k, nodes=k, floor=floor)
