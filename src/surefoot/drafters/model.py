"""A language model as drafter, on any backend: chains (Leviathan et al., 2023; Chen et al., 2023) and trees.

A round catches up with the tokens committed since the last one, in the same pass that gives the first drafted tokens, then
drafts level by level (:mod:`.model_tree`), one pass a level for all rows, beside the cache of verified tokens
(:mod:`.draft_cache`). Rows may be shadows, whose drafted tokens are read in that same pass. What the model says is shaped by
each request's options as the target is (:mod:`.draft_law`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from ..core.protocols import Need, Plan, Scores, TargetModel, Verdict
from ..core.request import Row
from ..core.tree import DraftTree, Forest
from ..errors import BackendError, VocabMismatch
from .draft_cache import DraftCache
from .draft_law import DraftLaw
from .model_tree import start


class ModelDrafter:
    """``vocab_size``: that of the target; the draft's may be padded beyond it or fall short of it, with equal ids.

    ``known``: ids from here on stand for nothing in the tokenizer and are never drafted. ``name``, ``source``: under which its
    tokens are counted.
    """

    needs = Need()

    def __init__(
        self,
        draft: TargetModel,
        vocab_size: int,
        *,
        known: int | None = None,
        chunk: int = 256,
        source: int = 1,
        name: str = "model",
    ) -> None:
        if abs(draft.traits.vocab_size - vocab_size) > max(512, vocab_size // 100):
            raise VocabMismatch(
                f"the draft model has {draft.traits.vocab_size} tokens, the target {vocab_size}; use a draft of the same family"
            )
        self.draft = draft
        self.name = name
        self.source = source
        self._vocab = vocab_size
        self._known = min(draft.traits.vocab_size, vocab_size if known is None else known)
        self._cache = DraftCache(draft, chunk)
        self._without: set[int] = set()
        """Rows that the draft's cache had no room for."""
        self._told = False
        """Whether it was said that the draft's context is the shorter one: once is enough."""

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        trees = [DraftTree.chain(row.tokens[-1:]) for row in rows]
        within = [self._within(row, plan) for row, plan in zip(rows, plans, strict=True)]
        asked = [i for i, plan in enumerate(within) if plan.depth > 0]
        if not asked:
            return trees
        live = [(rows[i], within[i]) for i in asked]
        try:
            drafts = self._drafts(live)
        except BackendError as error:
            # the draft's cache is full: these rows go on without drafts rather than fail
            self._cache.close(row for row, _ in live)
            lost = {row.id for row, _ in live}
            self._without |= lost
            warnings.warn(f"the draft model stops drafting for {len(lost)} requests: {error}", RuntimeWarning, stacklevel=2)
            return trees
        for i, tree in zip(asked, drafts, strict=True):
            trees[i] = tree
        return trees

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None: ...

    def forget(self, rows: Sequence[Row]) -> None:
        self._cache.close(rows)
        self._without.difference_update(row.id for row in rows)

    def _within(self, row: Row, plan: Plan) -> Plan:
        """The plan, cut to what the draft's context allows; of depth 0 where it has no room or cannot read the row."""
        nothing = replace(plan, depth=0)
        if row.id in self._without:
            return nothing
        if max(row.tokens[self._cache.length(row) :], default=0) >= self.draft.traits.vocab_size:
            if max(row.base.tokens[self._cache.length(row) :], default=0) >= self.draft.traits.vocab_size:
                self._without.add(row.id)  # a token that the draft cannot read
            return nothing
        traits = self.draft.traits
        depth = min(plan.depth, plan.nodes)
        room = traits.max_context - traits.min_width - len(row.tokens)
        if room < min(depth, 1) and not self._told:
            self._told = True
            warnings.warn(
                f"the draft model's context holds {traits.max_context} tokens; requests go on without drafts from "
                "there, which is slower; give a draft model with a longer context",
                RuntimeWarning,
                stacklevel=2,
            )
        return replace(plan, depth=max(min(depth, room), 0), nodes=min(plan.nodes, traits.max_nodes - 1))

    def _drafts(self, live: Sequence[tuple[Row, Plan]]) -> list[DraftTree]:
        try:
            return self._draft(live)
        except BackendError:
            if not self._cache.spare():
                raise
        return self._draft(live)

    def _draft(self, live: Sequence[tuple[Row, Plan]]) -> list[DraftTree]:
        cache = self._cache
        rooted = [cache.masked and plan.width > 1 for _, plan in live]
        rows = [row for row, _ in live]
        growing = [start(DraftLaw(row, self._vocab, self._known), plan) for row, plan in live]
        slots, logits = cache.catch_up(rows, rooted)
        branches = [cache.branches(slot, r) for slot, r in zip(slots, rooted, strict=True)]
        asked = [(i, [0]) for i in range(len(live))]
        try:
            while asked:
                ready = iter(logits)
                for i, nodes in asked:
                    growing[i].grow(nodes, [next(ready) for _ in nodes])
                lines, asked = [], []
                for i, draft in enumerate(growing):
                    if draft.level:
                        more, nodes = branches[i].lines(draft.level, draft.tokens, draft.parents)
                        lines += more
                        asked.append((i, nodes))
                logits = cache.score(lines) if lines else []
        finally:
            for branch in branches:
                branch.close()
        return [draft.tree(self.source) for draft in growing]
