"""The step trace: what was proposed, how probable the target found it, what stayed."""

from __future__ import annotations

from torch import Tensor

from .law import law
from .protocols import Verdict
from .request import Row
from .stats import StepTrace
from .tree import DraftTree


def record(row: Row, tree: DraftTree, logits: Tensor, verdict: Verdict, kept: int, drafter: str | None) -> StepTrace:
    """Trace of one pass of one row; ``logits`` [N, V] are those of the tree's nodes, ``kept`` counts committed tokens."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    p = logits.softmax(-1) if row.params.temperature == 0 else law(logits, row.params)
    stayed = set(verdict.path[:kept])
    return StepTrace(
        position=len(row.tokens) - kept,
        drafter=drafter if len(tree) > 1 else None,
        candidates=tuple(tokens[1:]),
        parents=tuple(parents[1:]),
        p=tuple(float(p[parents[i], tokens[i]]) for i in range(1, len(tree))),
        accepted=tuple(i in stayed for i in range(1, len(tree))),
        token=verdict.token,
        kept=kept,
        seconds=0.0,
    )
