"""What each row brings to a pass: pending tokens to catch up with, and a draft below the last of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import BadDraft
from .protocols import PLAIN, Controller, Drafter, Plan, Slot, Traits
from .request import Row
from .tree import DraftTree, depths


@dataclass(frozen=True, slots=True)
class Part:
    """One row's share of a pass: ``lead`` pending tokens, then a tree. ``wanted``: the last pending token is reached."""

    row: Row
    slot: Slot
    lead: list[int]
    tree: DraftTree
    wanted: bool = True
    drafter: str | None = None
    hold: int = 0
    """Nodes that the row is padded to."""

    @property
    def prefill(self) -> int:
        """Tokens that only fill the cache."""
        return len(self.lead) + (0 if self.wanted else len(self.tree))


class Assembler:
    """Turns running rows into the parts of a pass: plans, proposes, and holds the proposals to their plans."""

    def __init__(
        self,
        traits: Traits,
        drafters: Mapping[str, Drafter],
        controller: Controller | None,
        chunk: int,
    ) -> None:
        self._drafters = drafters
        self._controller = controller
        self._chunk = max(1, min(chunk, traits.max_nodes))
        self._sources = {0, *(d.source for d in drafters.values())}

    def assemble(self, rows: Sequence[Row], traits: Traits) -> list[Part]:
        """Prefill chunks for rows with several pending tokens, trees for the others."""
        budget = self._chunk
        parts: list[Part] = []
        for row in rows:
            slot = row.slot
            assert slot is not None  # running rows have one
            pending = row.tokens[slot.length :]
            if len(pending) == 1:
                parts.append(Part(row, slot, [], DraftTree.chain(pending)))
            elif budget > 0:
                now = pending[:budget]
                budget -= len(now)
                if len(now) == len(pending):
                    parts.append(Part(row, slot, now[:-1], DraftTree.chain(now[-1:])))
                else:
                    parts.append(Part(row, slot, [], DraftTree.chain(now), wanted=False))
        for part in parts:
            part.row.turn += part.wanted  # how prefill was cut up must not shift the random numbers
        # the first token is never drafted: whether its pass has room for a draft depends on chunks and neighbours
        ready = [i for i, p in enumerate(parts) if p.wanted and len(p.row.tokens) > p.row.n_prompt]
        if self._controller is not None and ready:
            plans = self._controller.plan([parts[i].row for i in ready])
            for i, asked in zip(ready, plans, strict=True):
                if asked.hold:
                    parts[i] = replace(parts[i], hold=min(asked.hold, traits.max_nodes))
            for name, drafter in self._drafters.items():
                chosen = [
                    (i, plan)
                    for i, asked in zip(ready, plans, strict=True)
                    if asked.drafter == name and (plan := _within(parts[i].row, asked, traits)).nodes > 0
                ]
                if chosen:
                    trees = drafter.propose([parts[i].row for i, _ in chosen], [plan for _, plan in chosen])
                    for (i, plan), tree in zip(chosen, trees, strict=True):
                        parts[i] = replace(parts[i], tree=self._checked(parts[i].row, tree, plan, traits), drafter=name)
        return parts

    def _checked(self, row: Row, tree: DraftTree, plan: Plan, traits: Traits) -> DraftTree:
        tree.check(traits.vocab_size, traits.max_nodes)
        if int(tree.tokens[0]) != row.tokens[-1]:
            raise BadDraft("node 0 of a draft must be the row's last token; build the tree on row.tokens[-1]")
        if len(tree) > plan.nodes + 1:
            raise BadDraft(f"the draft has {len(tree) - 1} nodes but the plan allows {plan.nodes}; keep to plan.nodes")
        if max(depths(tree.parents.tolist())) > plan.depth:
            raise BadDraft(f"the draft is deeper than the plan's {plan.depth}; keep to plan.depth")
        if not set(tree.source.tolist()) <= self._sources:
            raise BadDraft("a node's source is no drafter of this engine; mark nodes with the drafter's own source number")
        return tree


def _within(row: Row, plan: Plan, traits: Traits) -> Plan:
    """The plan, cut to what budget, context and backend allow: no draft reaches past the last token wanted."""
    depth = min(plan.depth, row.remaining - 1, traits.max_context - len(row.tokens))
    nodes = min(plan.nodes, traits.max_nodes - 1, depth if plan.width == 1 or not traits.tree else plan.nodes)
    if depth < 1 or nodes < 1:
        return PLAIN
    return replace(plan, depth=depth, nodes=nodes, width=plan.width if traits.tree else 1)
