"""The draft model: what happens where its cache or context ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.drafters.model import ModelDrafter
from surefoot.errors import BackendError, VocabMismatch


class Full(TableModel):
    """A draft whose cache takes no fork."""

    forks = 0

    def fork(self, slot, length=None):
        Full.forks += 1
        raise BackendError("the cache is full; raise kv_tokens")


def test_a_full_cache_ends_the_drafts_not_the_request() -> None:
    target = TableModel.random(7, 2, seed=1)
    draft = Full(target.logits, 2)
    Full.forks = 0
    engine = Engine(target, [ModelDrafter(draft, 7)], FixedController("model", 3))
    with pytest.warns(RuntimeWarning, match="stops drafting.*raise kv_tokens"):
        found = engine.generate([1, 2, 3], max_tokens=30)
    assert found.token_ids == Engine(target).generate([1, 2, 3], max_tokens=30).token_ids
    assert Full.forks == 1, "it must not try again for the same request"
    assert draft.open_slots == 0


def test_a_short_context_ends_the_drafts_with_one_warning() -> None:
    target = TableModel.random(7, 2, seed=1)
    draft = TableModel(target.logits, 2, max_context=16)
    engine = Engine(target, [ModelDrafter(draft, 7)], FixedController("model", 3))
    with pytest.warns(RuntimeWarning, match="context holds 16 tokens.*longer context") as told:
        found = [engine.generate([1, 2, 3], max_tokens=40) for _ in range(2)]
    assert len(told) == 1
    for each in found:
        assert each.token_ids == Engine(target).generate([1, 2, 3], max_tokens=40).token_ids
        assert 0 < each.stats.draft_tokens < 16
    assert draft.open_slots == 0


@pytest.mark.parametrize("vocab, fits", [(7, True), (9, True), (5, True), (700, False)])
def test_padded_vocabularies_fit_and_others_do_not(vocab: int, fits: bool) -> None:
    target = TableModel.random(7, 1, seed=1)
    draft = TableModel.random(vocab, 1, seed=2)
    draft.traits = replace(draft.traits, vocab_size=vocab)
    if not fits:
        with pytest.raises(VocabMismatch, match="700 tokens, the target 7"):
            ModelDrafter(draft, 7)
        return
    engine = Engine(target, [ModelDrafter(draft, 7)], FixedController("model", 3))
    prompt = [1, 2, 3]
    for options in ({}, {"temperature": 1.0, "seed": 4}):
        wanted = Engine(target).generate(prompt, max_tokens=40, **options).token_ids
        assert engine.generate(prompt, max_tokens=40, **options).token_ids == wanted
