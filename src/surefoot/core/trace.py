"""The step trace: what was proposed, how probable the target found it, what stayed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import BadRequest
from .law import log_total
from .laws import Laws
from .protocols import Verdict
from .request import Row
from .stats import StepTrace
from .tree import DraftTree


def record(row: Row, tree: DraftTree, laws: Laws, verdict: Verdict, drafter: str | None, names: Mapping[int, str]) -> StepTrace:
    """Trace of one pass of one row, before it is committed; ``names``: source numbers to drafters."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    accepted = set(verdict.path)
    return StepTrace(
        position=len(row.tokens),
        drafter=drafter if len(tree) > 1 else None,
        candidates=tuple(tokens[1:]),
        parents=tuple(parents[1:]),
        p=tuple(_probability(laws, parents[i], tokens[i]) for i in range(1, len(tree))),
        accepted=tuple(i in accepted for i in range(1, len(tree))),
        token=verdict.token,
        kept=len(accepted) + 1,
        seconds=0.0,
        sources=tuple(names[source] for source in tree.source.tolist()[1:]),
    )


def _probability(laws: Laws, node: int, token: int) -> float:
    try:
        asked = laws.asked(node)
        return float(np.exp(float(asked[token]) - log_total(asked)))
    except BadRequest:  # below a token that the options make impossible
        return 0.0
