"""How a budget of drawn nodes is divided between what lies below a drawn token and the siblings drawn after it.

Verifiers that use ``q`` look at a node's children in the order drawn, and at all below a child before its next sibling. They
are exact if the shape of what they look at depends on tokens they looked at before alone: so a subtree is given its size when
its root is drawn, and what is left goes to later siblings. The division is the one that is best in expectation (Sequoia, arXiv
2402.12374; DySpec, arXiv 2410.11744): both sides are trees of typical chances of acceptance, scaled by the chance that
verification gets there, and the nodes of most value are kept.
"""

from __future__ import annotations

from functools import lru_cache

_FIRST, _LATER = 0.7, 0.35
"""Typical chance of a node's first child, and of one whose earlier siblings were refused."""


def below(chance: float, nodes: int, depth: int, width: int, siblings: int) -> int:
    """Of ``nodes`` more nodes, how many go below a token that is accepted with ``chance``.

    ``depth``: levels below the token; ``width``: most children of a node; ``siblings``: how many more the token may have.
    """
    under = [chance * value for value in _below(depth, width, nodes)]
    beside = [(1.0 - chance) * value for value in _beside(False, depth, width, siblings, nodes)]
    i = j = 0
    while i + j < nodes and (i < len(under) or j < len(beside)):
        if j == len(beside) or (i < len(under) and under[i] >= beside[j]):
            i += 1
        else:
            j += 1
    return i


def _below(depth: int, width: int, nodes: int) -> tuple[float, ...]:
    return _beside(True, depth - 1, width, width, nodes) if depth > 0 else ()


@lru_cache(maxsize=4096)
def _beside(first: bool, depth: int, width: int, siblings: int, nodes: int) -> tuple[float, ...]:
    """Values, descending, of the best ``nodes`` among ``siblings`` children and ``depth`` levels below each."""
    if siblings < 1 or nodes < 1:
        return ()
    chance = _FIRST if first else _LATER
    under = [chance * value for value in _below(depth, width, nodes - 1)]
    later = [(1.0 - chance) * value for value in _beside(False, depth, width, siblings - 1, nodes - 1)]
    return tuple(sorted([chance, *under, *later], reverse=True)[:nodes])
