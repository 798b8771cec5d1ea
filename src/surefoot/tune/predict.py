"""The speed-up of every draft length and tree, from a profile and the measured cost of passes.

speed-up(k) = (1 + r_1 + … + r_k) V(plain) / (draft time + V(k + 1)), where both V carry the engine's own work between passes.
V(k + 1) is the mean over the passes that the profile saw, since a drafter may have less to say than it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.cost import CostModel
from ..core.protocols import TargetModel
from ..core.tree import DraftTree, Forest
from ..theory import speedup, tree_plan
from .profile import Profile


@dataclass(frozen=True, slots=True)
class Machine:
    """What passes cost here. ``overhead``: seconds of the engine's own work in a pass. ``steady``: see the traits.

    ``chains``: a tree is computed as one chain for each of its leaves.
    """

    cost: CostModel
    context: int
    min_width: int = 1
    overhead: float = 0.0
    steady: bool = False
    chains: bool = False

    def seconds(self, nodes: int) -> float:
        """A pass over ``nodes`` tokens, padding and the engine's work included."""
        return self.cost(max(nodes, self.min_width), self.context) + self.overhead

    @property
    def plain(self) -> float:
        return self.seconds(1)


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree that pays: ``depth``, most children of a node, drafted nodes, and its speed-up."""

    depth: int
    width: int
    nodes: int
    speedup: float


def lengths(found: Profile, machine: Machine) -> list[float]:
    """Speed-up of draft length 0, 1, … over plain decoding."""
    tokens = speedup.tokens_from_reach(found.reach())
    seconds = []
    for k in range(len(tokens)):
        drafted = [min(n, k) for n in found.drafted]
        passes = max(1, len(drafted))
        seconds.append(_passes(drafted, machine) / passes + found.draft_seconds * sum(drafted) / passes)
    seconds[0] = machine.plain
    return [float(s) for s in speedup.speedup_measured(tokens, 0.0, seconds)]


def trees(found: Profile, machine: Machine, depth: int, most: int) -> Shape | None:
    """The best tree of at most ``most`` nodes that is no chain, if one has any hope."""
    chances = sorted(found.by_rank, reverse=True)
    best: Shape | None = None
    for n in range(2, most + 1):
        tree = tree_plan.greedy(chances, n, depth)
        width = 1 + max(tree.rank, default=0)
        if width == 1 or len(tree.parents) < n:
            continue
        work = tree.work() if machine.chains else n + 1
        gain = tree.tokens * machine.plain / (machine.seconds(work) + n * found.draft_seconds)
        if best is None or gain > best.speedup:
            best = Shape(tree.depth, width, n, gain)
    return best


def in_chains(model: TargetModel) -> bool:
    """Whether a node with two children costs more than three tokens."""
    work: Callable[[Any], int] | None = getattr(model, "work", None)
    if work is None or not model.traits.tree:
        return False
    tree = DraftTree.chain([0, 0, 0])
    tree.parents[2] = 0
    tree.tokens[2] = 1
    return work(Forest.pack([tree], None, [True], 1)) > 3


def _passes(drafted: Sequence[int], machine: Machine) -> float:
    """Seconds of these passes one after the other.

    A steady backend pads a smaller pass to the last one's size, until the padding has cost as much as a change of size.
    """
    if not machine.steady:
        return sum(machine.seconds(n + 1) for n in drafted)
    cost = machine.cost
    token = (cost.seconds[-1] - cost.seconds[0]) / max(1, cost.widths[-1] - cost.widths[0])
    patience = cost.change / token if token > 0 else 0.0
    size, waste, peak, total = 0, 0.0, 0, 0.0
    for n in drafted:
        need = max(n + 1, machine.min_width)
        if need < size and waste + size - need <= patience:
            waste, peak = waste + size - need, max(peak, need)
        elif need != size:
            size, waste, peak = max(need, peak) if need < size else need, 0.0, 0
            total += cost.change
        else:
            waste, peak = 0.0, 0
        total += machine.seconds(size)
    return total
