"""Admission by capacity, and reuse of the cache of ended requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toys import ToyCodec

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.pool import Pool
from surefoot.core.request import Row
from surefoot.errors import BackendError, BadRequest

PROMPT = [(3 * i + i // 5) % 7 for i in range(40)]


def model(capacity: int | None = None) -> TableModel:
    target = TableModel.random(7, order=2, seed=1)
    if capacity is not None:
        target.traits = replace(target.traits, capacity=capacity)
    return target


def row(id: int, prompt, limit: int = 10) -> Row:
    return Row(id, prompt, SamplingParams(), limit=limit)


def finish(engine: Engine, *rows: Row) -> None:
    while not all(r.done for r in rows):
        engine.step()


def test_rows_wait_for_room_and_start_in_order():
    engine = Engine(model(400), reuse=False)  # a request of 1 + 10 tokens takes 139
    rows = [engine.add([i], SamplingParams(max_tokens=10)) for i in range(5)]
    engine.step()
    assert [bool(r.output) for r in rows] == [True, True, False, False, False]
    finish(engine, *rows[:2])
    engine.step()
    assert [bool(r.output) for r in rows] == [True] * 4 + [False]
    finish(engine, *rows)
    alone = Engine(model())
    for i, r in enumerate(rows):
        assert tuple(r.output) == alone.generate([i], max_tokens=10).token_ids


def test_a_request_that_can_never_fit_is_refused_at_once():
    engine = Engine(model(200))
    with pytest.raises(BadRequest, match=r"the cache holds 200; lower max_tokens"):
        engine.add([0] * 50, SamplingParams(max_tokens=60))
    engine.add([0] * 50, SamplingParams(max_tokens=20))
    assert len(engine.rows) == 1


def test_most_rows_at_once():
    engine = Engine(model(), max_rows=2)
    rows = [engine.add([i], SamplingParams(max_tokens=4)) for i in range(3)]
    engine.step()
    assert [bool(r.output) for r in rows] == [True, True, False]
    finish(engine, *rows)


class Few(TableModel):
    """A backend with three slots."""

    def open(self, n):
        return self._limited(lambda: super(Few, self).open(n))

    def fork(self, slot, length=None):
        return self._limited(lambda: super(Few, self).fork(slot, length))

    def _limited(self, make):
        if self.open_slots >= 3:
            raise BackendError("all 3 rows are in use")
        return make()


@pytest.mark.parametrize("reuse", [False, True])
def test_a_backend_with_few_slots_queues_rows_rather_than_fail(reuse):
    target = Few(model().logits, 2)
    engine = Engine(target, reuse=reuse)
    rows = [engine.add([*PROMPT[: 20 + i], i], SamplingParams(max_tokens=3 + i)) for i in range(7)]
    finish(engine, *rows)
    child = engine.fork(rows[-1], [1])
    finish(engine, child)
    for r in rows:
        assert tuple(r.output) == Engine(model()).generate(r.tokens[: r.n_prompt], max_tokens=r.limit).token_ids
    engine.close()
    assert target.open_slots == 0
    target.open_slots = 3  # taken by someone else: the error arrives, and the request can be ended
    with pytest.raises(BackendError, match="in use"):
        engine.generate([1], max_tokens=2)
    assert engine.rows == []


def test_aborting_a_waiting_row_lets_the_next_one_in():
    engine = Engine(model(), max_rows=1)
    first, second, third = (engine.add([i], SamplingParams(max_tokens=3)) for i in range(3))
    engine.step()
    engine.abort(second)
    finish(engine, first, third)
    assert second.output == []
    assert second.finish_reason == "abort"
    assert engine.rows == []


def test_the_cache_of_ended_rows_makes_room_for_new_ones():
    target = model(300)
    engine = Engine(target, reuse=True)
    for i in range(6):
        finish(engine, engine.add([i] * 20, SamplingParams(max_tokens=30)))
    assert target.open_slots <= 2
    engine.close()
    assert target.open_slots == 0


def test_few_ended_rows_are_kept():
    target = model()
    engine = Engine(target, reuse=True)
    for i in range(20):
        finish(engine, engine.add([i % 7, i // 7], SamplingParams(max_tokens=2)))
    assert target.open_slots == 8
    engine.close()
    assert target.open_slots == 0


def test_nothing_is_kept_without_reuse():
    target = model()
    engine = Engine(target, reuse=False)
    finish(engine, engine.add(PROMPT, SamplingParams(max_tokens=3)))
    assert target.open_slots == 0


@pytest.mark.parametrize("shared, cached", [(15, 0), (16, 16), (25, 25), (40, 39)])
def test_a_common_beginning_is_forked_if_it_is_long_enough(shared, cached):
    target = model()
    engine = Engine(target, reuse=True)
    finish(engine, engine.add(PROMPT, SamplingParams(max_tokens=5)))
    prompt = [*PROMPT[:shared], *([] if shared == 40 else [(PROMPT[shared] + 1) % 7, 2])]
    before = target.nodes_scored
    again = engine.add(prompt, SamplingParams(max_tokens=5))
    finish(engine, again)
    assert again.stats.cached_tokens == cached
    assert target.nodes_scored - before == len(prompt) - cached + 4
    assert tuple(again.output) == Engine(model()).generate(prompt, max_tokens=5).token_ids


def test_the_longest_common_beginning_wins():
    engine = Engine(model(), reuse=True)
    for n in (20, 30, 25):
        finish(engine, engine.add([*PROMPT[:n], (PROMPT[n] + 1) % 7], SamplingParams(max_tokens=2)))
    again = engine.add(PROMPT, SamplingParams(max_tokens=2))
    finish(engine, again)
    assert again.stats.cached_tokens == 30


def test_a_running_row_may_be_forked_too():
    engine = Engine(model(), reuse=True)
    first = engine.add(PROMPT, SamplingParams(max_tokens=20))
    engine.step()
    engine.step()
    second = engine.add(PROMPT, SamplingParams(max_tokens=20))
    finish(engine, first, second)
    assert second.stats.cached_tokens == 39
    assert first.output == second.output


def test_a_prompt_and_its_answer_are_reused_for_the_next_turn():
    """Turn two of a conversation: what the first request said is in the cache, but for its last token."""
    engine = Engine(model(), reuse=True)
    first = engine.add(PROMPT, SamplingParams(max_tokens=10))
    finish(engine, first)
    second = engine.add([*first.tokens, 1, 2, 3], SamplingParams(max_tokens=10))
    finish(engine, second)
    assert second.stats.cached_tokens == 49
    assert tuple(second.output) == Engine(model()).generate([*first.tokens, 1, 2, 3], max_tokens=10).token_ids


def test_recently_used_cache_is_dropped_last():
    target = model()
    pool = Pool(target, 4, reuse=True, kept_rows=2)

    def through(id: int, prompt) -> Row:
        r = row(id, prompt)
        pool.enqueue(r)
        pool.admit()
        slot = r.slot
        assert slot is not None
        slot.tokens = list(prompt)
        pool.end([r])
        return r

    through(0, PROMPT)
    through(1, [1] * 30)
    again = through(2, [*PROMPT, 1])  # forks row 0, which is now younger than row 1; the oldest, 1, is dropped
    assert again.stats.cached_tokens == 40
    assert through(3, [*PROMPT, 2]).stats.cached_tokens == 40
    assert through(4, [1] * 30).stats.cached_tokens == 0
    pool.clear()
    assert target.open_slots == 0


def test_a_fork_of_an_ended_and_forgotten_row_starts_cold():
    engine = Engine(model(), reuse=False)
    first = engine.add(PROMPT, SamplingParams(max_tokens=5))
    finish(engine, first)
    child = engine.fork(first, [1])
    finish(engine, child)
    assert child.stats.cached_tokens == 0
    assert tuple(child.output) == Engine(model()).generate([*first.tokens, 1], max_tokens=5).token_ids


def test_forks_share_even_short_prefixes():
    engine = Engine(model(), reuse=False)
    first = engine.add([1, 2], SamplingParams(max_tokens=8))
    engine.step()
    child = engine.fork(first, [3])
    finish(engine, first, child)
    assert child.stats.cached_tokens == 2


# several answers to one prompt


def test_siblings_wait_for_the_prompt_and_share_its_cache():
    target = model()
    engine = Engine(target, reuse=True, chunk=15)
    first, second, third = rows = engine.submit(PROMPT, SamplingParams(n=3, max_tokens=6, temperature=1.0, seed=5))
    for _ in range(2):  # two of three chunks of the prompt
        engine.step()
        assert (first.cached > 0, second.slot, third.slot) == (True, None, None)
    before = target.nodes_scored
    finish(engine, *rows)
    assert [r.stats.cached_tokens for r in rows] == [0, 39, 39]
    assert target.nodes_scored - before == 10 + 5 + 2 * (1 + 5), "what is left of the prompt, and each answer's own tokens"
    for i, r in enumerate(rows):
        alone = Engine(model()).generate(PROMPT, max_tokens=6, temperature=1.0, seed=5 + i)
        assert (r.index, tuple(r.output)) == (i, alone.token_ids)
    assert len({tuple(r.output) for r in rows}) > 1


def test_siblings_of_a_short_prompt_share_it_too():
    engine = Engine(model(), reuse=True)
    rows = engine.submit([1, 2], SamplingParams(n=2, max_tokens=3))
    finish(engine, *rows)
    assert [r.stats.cached_tokens for r in rows] == [0, 1]


def test_a_prompt_of_one_token_has_nothing_to_share():
    engine = Engine(model(), reuse=True)
    rows = engine.submit([1], SamplingParams(n=3, max_tokens=3))
    finish(engine, *rows)
    assert [r.stats.cached_tokens for r in rows] == [0, 0, 0]
    assert rows[0].output == rows[1].output == rows[2].output


def test_without_reuse_siblings_do_not_wait():
    engine = Engine(model(), reuse=False, chunk=200)
    rows = engine.submit(PROMPT, SamplingParams(n=3, max_tokens=3))
    engine.step()
    assert [len(r.output) for r in rows] == [1, 1, 1]
    finish(engine, *rows)
    assert [r.stats.cached_tokens for r in rows] == [0, 0, 0]


def test_siblings_whose_prompt_is_told_of_score_it_themselves():
    engine = Engine(model(), codec=ToyCodec("abcdefg"), reuse=True)
    rows = engine.submit(PROMPT, SamplingParams(n=2, max_tokens=2, echo=True, logprobs=1))
    finish(engine, *rows)
    assert [r.stats.cached_tokens for r in rows] == [0, 0]
    assert rows[0].prompt_logprobs == rows[1].prompt_logprobs
    assert len(rows[0].prompt_logprobs) == len(PROMPT)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_siblings_of_an_aborted_answer_go_on(steps):
    engine = Engine(model(), reuse=True, chunk=15)
    first, *rest = engine.submit(PROMPT, SamplingParams(n=3, max_tokens=4))
    for _ in range(steps):
        engine.step()
    engine.abort(first)
    finish(engine, *rest)
    assert {tuple(r.output) for r in rest} == {Engine(model()).generate(PROMPT, max_tokens=4).token_ids}


def test_a_sibling_that_waits_for_its_prompt_ends_its_wait_with_the_rows_that_run():
    """One row at a time: the answers come one after the other, and none starves."""
    engine = Engine(model(), reuse=True, max_rows=1, chunk=7)
    rows = engine.submit(PROMPT, SamplingParams(n=4, max_tokens=3))
    other = engine.add([3] * 20, SamplingParams(max_tokens=3))
    finish(engine, *rows, other)
    assert [r.stats.cached_tokens for r in rows] == [0, 39, 39, 39]


def test_answers_that_can_never_fit_together_are_refused_at_once():
    """The prompt once, and each answer with its slack: 40 + 3 · (10 + 128) = 454."""
    engine = Engine(model(454), reuse=True)
    assert len(engine.submit(PROMPT, SamplingParams(n=3, max_tokens=10))) == 3
    engine.close()
    with pytest.raises(
        BadRequest, match=r"n=3 answers of up to 11 tokens need room for 457 tokens .* holds 454; lower n or max_tokens"
    ):
        engine.submit(PROMPT, SamplingParams(n=3, max_tokens=11))
    with pytest.raises(BadRequest, match=r"n=4 answers"):
        engine.submit(PROMPT, SamplingParams(n=4, max_tokens=10))
    assert engine.rows == []


def test_add_queues_one_answer_only():
    engine = Engine(model())
    with pytest.raises(BadRequest, match="add queues one answer, and n is 2; use submit"):
        engine.add(PROMPT, SamplingParams(n=2))
    assert engine.rows == []
