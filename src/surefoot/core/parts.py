"""What each row brings to a pass: pending tokens to catch up with, and a draft below the last of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import BadDraft, BadRequest
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
    whole: bool = False
    """The logits of every node are wanted, those of pending tokens too."""

    @property
    def scored(self) -> int:
        """Nodes whose logits the pass returns."""
        if self.whole:
            return len(self.lead) + len(self.tree)
        return len(self.tree) if self.wanted else 0

    @property
    def prefill(self) -> int:
        """Tokens that only fill the cache."""
        if self.drafter is not None:  # what a shadow has to read again is part of its decoding
            return 0
        return len(self.lead) + (0 if self.wanted else len(self.tree))


class Assembler:
    """Turns running rows into the parts of a pass: plans, proposes, and holds the proposals to their plans."""

    def __init__(
        self,
        traits: Traits,
        drafters: Mapping[str, Drafter],
        controller: Controller | None,
        chunk: int,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._drafters = drafters
        self._controller = controller
        self._chunk = max(1, min(chunk, traits.max_nodes))
        self._sources = {0, *(d.source for d in drafters.values())}

    def assemble(self, rows: Sequence[Row], traits: Traits) -> tuple[list[Part], float]:
        """Prefill chunks for rows with several pending tokens, trees for the others; and the seconds that drafting took."""
        budget = self._chunk
        parts: list[Part] = []
        ready = [row for row in rows if len(row.tokens) > row.n_prompt and len(row.tokens) - row.cached <= self._chunk]
        for row in ready:
            row.turn += 1
        drafts, seconds = self._drafts(ready, traits)
        for row in rows:
            slot = row.slot
            assert slot is not None  # running rows have one
            pending = row.tokens[slot.length :]
            if row.id in drafts:
                tree, drafter, hold = drafts[row.id]
                parts.append(Part(row, slot, pending[:-1], tree, True, drafter, hold))
            elif len(pending) == 1:
                parts.append(Part(row, slot, [], DraftTree.chain(pending)))
            elif budget > 0:
                now = pending[:budget]
                budget -= len(now)
                whole = row.prompt_logprobs is not None
                if len(now) == len(pending):
                    parts.append(Part(row, slot, now[:-1], DraftTree.chain(now[-1:]), whole=whole))
                else:
                    parts.append(Part(row, slot, [], DraftTree.chain(now), wanted=False, whole=whole))
        for part in parts:
            if part.wanted and len(part.row.tokens) == part.row.n_prompt:
                part.row.turn += 1  # once: how prefill was cut up must not shift the random numbers
        return parts, seconds

    def _drafts(self, ready: Sequence[Row], traits: Traits) -> tuple[dict[int, tuple[DraftTree, str | None, int]], float]:
        """Tree, drafter and width to hold, by row id, of the rows for which something was planned; seconds of drafting.

        The first token is never drafted: whether its pass has room for a draft depends on chunks and neighbours.
        """
        if self._controller is None or not ready:
            return {}, 0.0
        found: dict[int, tuple[DraftTree, str | None, int]] = {}
        asked: dict[str, list[tuple[Row, Plan, int]]] = {}
        for row, plan in zip(ready, self._controller.plan(ready), strict=True):
            pending = len(row.tokens) - row.cached
            hold = min(plan.hold, traits.max_nodes, traits.max_context - row.cached) if pending == 1 else 0
            if plan.drafter is not None and plan.drafter not in self._drafters:
                raise BadRequest(f"the controller plans drafter {plan.drafter!r}; the engine has {list(self._drafters)}")
            if plan.drafter is not None and (within := _within(row, plan, traits)).nodes > 0:
                asked.setdefault(plan.drafter, []).append((row, within, hold))
            elif hold:
                found[row.id] = DraftTree.chain(row.tokens[-1:]), None, hold
        seconds = 0.0
        for name, chosen in asked.items():
            start = self._clock()
            trees = self._drafters[name].propose([row for row, _, _ in chosen], [plan for _, plan, _ in chosen])
            seconds += self._clock() - start
            for (row, plan, hold), tree in zip(chosen, trees, strict=True):
                found[row.id] = self._checked(row, tree, plan, traits), name, max(hold, _size(row, len(tree), plan, traits))
        return found, seconds

    def _checked(self, row: Row, tree: DraftTree, plan: Plan, traits: Traits) -> DraftTree:
        tree.check(traits.vocab_size, traits.max_nodes)
        if tree.tokens[0].item() != row.tokens[-1]:
            raise BadDraft("node 0 of a draft must be the row's last token; build the tree on row.tokens[-1]")
        if len(tree) > plan.nodes + 1:
            raise BadDraft(f"the draft has {len(tree) - 1} nodes but the plan allows {plan.nodes}; keep to plan.nodes")
        if max(depths(tree.parents.tolist())) > plan.depth:
            raise BadDraft(f"the draft is deeper than the plan's {plan.depth}; keep to plan.depth")
        if not set(tree.source.tolist()) <= self._sources:
            raise BadDraft("a node's source is no drafter of this engine; mark nodes with the drafter's own source number")
        return tree


def _size(row: Row, nodes: int, plan: Plan, traits: Traits) -> int:
    """The least of the plan's sizes that holds a draft and fits."""
    room = min(traits.max_nodes, traits.max_context - row.cached)
    nodes += len(row.tokens) - row.cached - 1
    return next((size for size in plan.sizes if nodes <= size <= room), 0) if nodes > 1 else 0


def _within(row: Row, plan: Plan, traits: Traits) -> Plan:
    """The plan, cut to what budget, context and backend allow: no draft reaches past the last token wanted."""
    depth = min(plan.depth, row.remaining - 1, traits.max_context - len(row.tokens))
    pending = len(row.tokens) - row.cached
    nodes = min(plan.nodes, traits.max_nodes - pending, depth if plan.width == 1 or not traits.tree else plan.nodes)
    if depth < 1 or nodes < 1:
        return PLAIN
    return replace(plan, depth=depth, width=plan.width if traits.tree else 1, nodes=nodes)
