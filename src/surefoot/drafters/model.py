"""A smaller language model as drafter: any backend, linear drafts (Leviathan et al., 2023; Chen et al., 2023).

The draft model's cache holds verified tokens only. A round catches up with the tokens committed since, in the same pass that
gives the first drafted token, then drafts on a fork that is closed at the end: rejected tokens never need removing.

Greedy rows get the draft's argmax. Sampled rows verified by ``ratio`` get tokens drawn from the draft's law, which is
reported as ``q``; under ``coupled`` the draft draws with the target's own noise, which agrees more often, and reports nothing.
The request's options shape the draft's logits as they shape the target's, each token with its own path as history.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.law import host, row_law, support
from ..core.noise import DRAFT, TARGET
from ..core.params import SamplingParams
from ..core.protocols import Array, Need, Plan, Scores, Slot, Stop, TargetModel, Verdict
from ..core.request import Row
from ..core.shaping import State
from ..core.tree import DraftTree, Forest
from ..errors import BackendError, BadRequest, VocabMismatch

_PLAIN = SamplingParams(temperature=1.0)


class ModelDrafter:
    """``vocab_size``: that of the target; the draft's may be padded beyond it or fall short of it, with equal ids.

    ``known``: ids from here on stand for nothing in the tokenizer and are never drafted.
    """

    name = "model"
    needs = Need()

    def __init__(
        self, draft: TargetModel, vocab_size: int, *, known: int | None = None, chunk: int = 256, source: int = 1
    ) -> None:
        if abs(draft.traits.vocab_size - vocab_size) > max(512, vocab_size // 100):
            raise VocabMismatch(
                f"the draft model has {draft.traits.vocab_size} tokens, the target {vocab_size}; use a draft of the same family"
            )
        self.draft = draft
        self.source = source
        self._vocab = vocab_size
        self._known = min(draft.traits.vocab_size, vocab_size if known is None else known)
        self._chunk = min(chunk, draft.traits.max_nodes)
        self._slots: dict[int, Slot] = {}
        self._without: set[int] = set()
        """Rows that the draft's cache had no room for."""
        self._told = False
        """Whether it was said that the draft's context is the shorter one: once is enough."""

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        trees = {row.id: DraftTree.chain(row.tokens[-1:]) for row in rows}
        live = [(r, depth, p.stop) for r, p in zip(rows, plans, strict=True) if (depth := self._depth(r, p)) > 0]
        if not live:
            return list(trees.values())
        try:
            logits = self._catch_up([r for r, _, _ in live])
            self._draft(live, logits, trees)
        except BackendError as error:
            # the draft's cache is full: these rows go on without drafts rather than fail
            self._close(row for row, _, _ in live)
            self._without.update(row.id for row, _, _ in live)
            warnings.warn(f"the draft model stops drafting for {len(live)} requests: {error}", RuntimeWarning, stacklevel=2)
        return [trees[row.id] for row in rows]

    def _depth(self, row: Row, plan: Plan) -> int:
        """How many tokens to draft: the plan's, cut to the draft's context; 0 where it cannot read the row."""
        if row.id in self._without:
            return 0
        slot, known = self._slots.get(row.id), self.draft.traits.vocab_size
        if known < self._vocab and max(row.tokens[slot.length if slot is not None else 0 :]) >= known:
            self._without.add(row.id)  # a token that the draft cannot read
            return 0
        depth = min(plan.depth, plan.nodes)
        room = self.draft.traits.max_context - self.draft.traits.min_width - len(row.tokens)
        if room < min(depth, 1) and not self._told:
            self._told = True
            warnings.warn(
                f"the draft model's context holds {self.draft.traits.max_context} tokens; requests go on without drafts from "
                "there, which is slower; give a draft model with a longer context",
                RuntimeWarning,
                stacklevel=2,
            )
        return min(depth, room)

    def _catch_up(self, rows: Sequence[Row]) -> Tensor:
        """Commit all verified tokens; logits [B, V] after each row's last one."""
        for row in rows:
            if row.id not in self._slots:
                self._slots[row.id] = self.draft.open(1)[0]
        slots = [self._slots[row.id] for row in rows]
        last: list[Tensor | None] = [None] * len(rows)
        while any(x is None for x in last):
            now = [
                (i, row.tokens[slot.length : slot.length + self._chunk], slot)
                for i, (row, slot) in enumerate(zip(rows, slots, strict=True))
                if slot.length < len(row.tokens)
            ]
            ends = [slot.length + len(tokens) == len(rows[i].tokens) for i, tokens, slot in now]
            found = self._pass([tokens for _, tokens, _ in now], [slot for _, _, slot in now], ends)
            for (i, _, _), end in zip(now, ends, strict=True):
                if end:
                    last[i] = next(found)
        return torch.stack([x for x in last if x is not None])

    def _pass(self, chains: Sequence[Sequence[int]], slots: Sequence[Slot], wanted: Sequence[bool]) -> Iterator[Tensor]:
        """One committed pass over chains; the last token's logits of the wanted ones, in order."""
        forest = Forest.pack(
            [DraftTree.chain(c[-1:]) for c in chains],
            [c[:-1] for c in chains],
            wanted,
            self.draft.traits.min_width,
        )
        logits = self.draft.score(slots, forest, Need()).logits.clone()
        self.draft.commit(slots, [range(len(c)) for c in chains])
        return iter(logits)

    def _draft(self, live: list[tuple[Row, int, Stop | None]], logits: Tensor, trees: dict[int, DraftTree]) -> None:
        forks: list[Slot] = []
        try:
            drafted: list[list[int]] = [[r.tokens[-1]] for r, _, _ in live]
            laws: list[list[Tensor]] = [[] for _ in live]
            states: list[State | None] = [None] * len(live)
            going = list(range(len(live)))
            step = 0
            while going:
                for i, row_logits in zip(list(going), logits, strict=True):
                    row, _, stop = live[i]
                    try:
                        if step == 0 and row.state is not None:
                            states[i] = row.state.fork()
                        x = self._shaped(states[i], row_logits)
                        token, q = self._choose(row, x, step)
                        drafted[i].append(token)
                        if q is not None:
                            laws[i].append(q)
                        if (state := states[i]) is not None:
                            state.advance(token)
                        if stop is not None and stop(_law(row, x), token, step + 1):
                            going.remove(i)
                    except BadRequest:  # the options leave no token here, or none after this one
                        going.remove(i)
                step += 1
                going = [i for i in going if live[i][1] > step]
                if not going:
                    break
                if not forks:
                    forks = [self.draft.fork(self._slots[row.id]) for row, _, _ in live]
                passed = self._pass([drafted[i][-1:] for i in going], [forks[i] for i in going], [True] * len(going))
                logits = torch.stack(list(passed))
            for (row, _, _), tokens, qs in zip(live, drafted, laws, strict=True):
                trees[row.id] = DraftTree.chain(tokens, torch.stack(qs) if qs else None, self.source)
        finally:
            self.draft.close(forks)

    def _shaped(self, state: State | None, logits: Tensor) -> Array:
        """Logits [V] over the target's vocabulary, under the request's options."""
        own = host(logits)
        x = np.full(self._vocab, -np.inf, own.dtype)
        x[: self._known] = own[: self._known]
        return x if state is None else state.shape(x)

    def _choose(self, row: Row, x: Array, step: int) -> tuple[int, Tensor | None]:
        """A drafted token for position ``len(row.tokens) + step``, and its law if it has to be reported."""
        if row.params.temperature == 0:
            return int(x.argmax()), None
        position = len(row.tokens) + step
        if row.rule(has_q=True) == "ratio":
            q = torch.from_numpy(row_law(x, row.params))
            return row.noise.categorical(q, position, DRAFT, row.turn), q
        ids, weights = support(x, row.params)
        return row.noise.categorical(weights, position, TARGET, ids=ids), None

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None: ...

    def forget(self, rows: Sequence[Row]) -> None:
        self._close(rows)
        self._without.difference_update(row.id for row in rows)

    def _close(self, rows: Iterable[Row]) -> None:
        self.draft.close([self._slots.pop(row.id) for row in rows if row.id in self._slots])


def _law(row: Row, x: Array) -> Array:
    """What a stop rule is told: the law that the token was drawn from; where drafting is greedy, the softmax."""
    return row_law(x, row.params if row.params.temperature > 0 else _PLAIN)
