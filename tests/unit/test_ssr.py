"""Requests that think and are forked: what becomes of forks, and that nobody but the drafter ever notices them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import Custom, ToyCodec
from toys_grammar import ToyGrammars
from toys_ssr import SSR, codec_of, forking, forks, nothing_left, plain, steps, thinking

from surefoot.backends.table import TableModel
from surefoot.backends.table_thinking import ThinkingTable
from surefoot.control.fixed import FixedController
from surefoot.core.cost import CostModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.penalties import Penalties
from surefoot.core.shaping import State
from surefoot.core.tree import DraftTree
from surefoot.errors import BackendError, BadRequest
from surefoot.ssr import Family, ForkControl, SsrOptions, SsrSource

PROMPT = [1, 2, 3]
GREEDY = SamplingParams(max_tokens=200)


def toy(**options) -> ThinkingTable:
    return ThinkingTable(**{"thought": 40, "answer": 30, "overlap": 0.8, "seed": 3} | options)


def said(target: ThinkingTable, prompt=PROMPT, params: SamplingParams = GREEDY, **engine) -> list[int]:
    e = plain(target, **engine)
    row = e.add(prompt, params)
    steps(e, [row])
    e.close()
    return row.output


def until_forked(engine: Engine, most: int = 100) -> None:
    while not forks(engine):
        engine.step()
        most -= 1
        assert most, "no request was forked"


# what a fork is good for


@pytest.mark.parametrize("overlap", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("edits", [("substitute",), ("insert", "delete")])
@pytest.mark.parametrize("seed", [None, 5])
def test_the_output_is_plain_and_the_passes_are_fewer(overlap, edits, seed) -> None:
    params = SamplingParams(max_tokens=200, temperature=0.0 if seed is None else 1.0, seed=seed)
    target = toy(overlap=overlap, edits=edits, sharpness=40.0 if seed is None else 9.0)
    engine, ssr = thinking(target)
    row = engine.add(PROMPT, params)
    steps(engine, [row])
    assert row.output == said(target, params=params)
    told = row.stats.ssr.to_dict()
    assert told["drafts"] == 1
    assert told["budgets"] == [10]
    kept = row.stats.by_source["ssr"].accepted_tokens if "ssr" in row.stats.by_source else 0
    assert told["prefix_tokens"] + told["suffix_tokens"] == kept
    if overlap == 1.0 and seed is None:
        assert told["draft_tokens"] in (29, 30)  # chance repetitions hurry one or the other
        assert told["prefix_tokens"] > 20
        assert told["suffix_tokens"] == 0
    if overlap == 0.9 and seed is None:
        assert told["suffix_tokens"] > 10
    nothing_left(engine, ssr)


def test_the_end_of_the_answer_is_foreseen_too() -> None:
    engine, ssr = thinking(toy(answer=6, overlap=1.0), k=16, others=False)
    row = engine.add(PROMPT, GREEDY)
    steps(engine, [row])
    assert row.finish_reason == "stop"
    assert row.output[-1] == engine.target.eos  # the end token was among the fork's
    assert row.stats.ssr.to_dict()["draft_tokens"] == 7
    # one pass for the thought's end, one that begins the answer and ends it
    assert row.stats.passes == 40 + 2 + 1
    nothing_left(engine, ssr)


@pytest.mark.parametrize("room", [{}, {"max_rows": 2}, {"capacity": 3 + 200 + 128 + 210}])
def test_several_drafts_one_behind_the_other(room) -> None:
    """They need room for one at a time."""
    target = toy(overlap=0.7)
    if "capacity" in room:
        target.traits = replace(target.traits, **room)
        room = {}
    more = {"interval": 8, "max_drafts": 3, "drafts": 2, "draft_tokens": 40}
    engine, ssr = thinking(target, draft_budget=5, engine=room, **more)
    row = engine.add(PROMPT, GREEDY)
    assert steps(engine, [row]) == 1  # a fork ends when the next one begins
    told = row.stats.ssr.to_dict()
    assert told["drafts"] == 3
    assert told["budgets"] == [5, 13, 21]
    assert told["draft_tokens"] > 3 * 8  # the later ones read the earlier
    assert row.output == said(target)
    nothing_left(engine, ssr)


def test_an_earlier_draft_that_goes_further_is_not_lost() -> None:
    target = toy(overlap=1.0)
    engine, ssr = thinking(target, draft_budget=5, interval=34, drafts=1)  # the second begins when the thought ends
    row = engine.add(PROMPT, GREEDY)
    steps(engine, [row])
    told = row.stats.ssr.to_dict()
    assert told["drafts"] == 2
    assert told["prefix_tokens"] >= 25
    nothing_left(engine, ssr)


# when forks end


def test_a_fork_ends_with_the_thought() -> None:
    target = toy(thought=20, answer=100)
    engine, ssr = thinking(target)
    row = engine.add(PROMPT, GREEDY)
    until_forked(engine)
    fork = forks(engine)[0]
    while target.end not in row.output:
        assert forks(engine) == [fork]
        engine.step()
    assert forks(engine) == []
    assert fork.finish_reason == "abort"
    assert not ssr._forks
    reference = ssr._rows[row.id].references[-1]
    assert reference.tokens == fork.output  # all that it said is read
    assert 5 <= len(reference.tokens) <= 12
    assert ssr._rows[row.id].stats.draft_tokens == len(reference.tokens)
    steps(engine, [row])
    nothing_left(engine, ssr)


@pytest.mark.parametrize("how", ["abort", "close", "stream", "batch"])
def test_a_fork_ends_with_its_request(how) -> None:
    target = toy()
    engine, ssr = thinking(target, engine={"reuse": False})
    if how == "stream":
        stream = engine.stream(PROMPT, max_tokens=200)
        for _ in range(15):
            next(stream)
        assert forks(engine)
        stream.close()
    elif how == "batch":
        steps_left = iter(range(15))
        shipped = engine.step

        def step(only=None):
            if next(steps_left, None) is None:
                raise KeyboardInterrupt
            return shipped(only)

        engine.step = step  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            engine.generate_batch([PROMPT, [4, 5]], max_tokens=200)
    else:
        row = engine.add(PROMPT, GREEDY)
        until_forked(engine)
        engine.step()
        if how == "abort":
            engine.abort(row)
            assert row.stats.ssr is not None
        else:
            engine.close()
    assert forks(engine) == []
    assert engine.target.open_slots == 0
    nothing_left(engine, ssr)


def test_a_fork_ends_when_its_request_fails() -> None:
    target = toy()

    def fails(token_ids, logits):
        if len(token_ids) == 25 and target.end not in token_ids:  # the request, not its fork
            raise RuntimeError("no more")
        return logits

    engine, ssr = thinking(target, engine={"reuse": False})
    row = engine.add(PROMPT, replace(GREEDY, logits_processors=(fails,)))
    other = engine.add([7, 8], GREEDY)
    steps(engine, [row, other])
    assert row.finish_reason == "error"
    assert row.stats.ssr.to_dict()["drafts"] == 1
    assert other.output == said(target, [7, 8])
    nothing_left(engine, ssr)


def test_a_request_goes_on_when_its_fork_fails() -> None:
    target = toy()

    def fails(token_ids, logits):
        if target.end in token_ids and len(token_ids) < 30:  # the fork, not its request
            raise RuntimeError("no more")
        return logits

    engine, ssr = thinking(target)
    row = engine.add(PROMPT, replace(GREEDY, logits_processors=(fails,)))
    steps(engine, [row])
    assert row.error is None
    assert row.stats.ssr.to_dict()["drafts"] == 1
    assert row.output == said(target)
    nothing_left(engine, ssr)


@pytest.mark.parametrize("tight", ["rows", "tokens"])
def test_forks_give_way_to_requests_that_wait(tight) -> None:
    target = toy(thought=200)
    params = SamplingParams(max_tokens=300)
    options: dict = {"max_rows": 2}
    if tight == "tokens":  # of two requests
        options = {}
        target.traits = replace(target.traits, capacity=2 * (3 + 300 + 128))
    engine, ssr = thinking(target, engine=options, draft_tokens=200)
    first = engine.add(PROMPT, params)
    until_forked(engine)
    second = engine.add([4, 5, 6], params)
    engine.step()
    assert second.slot is not None
    assert forks(engine) == []
    assert len(first.output) < 15
    third = engine.add([7, 8, 9], params)
    for _ in range(30):
        engine.step()
    assert forks(engine) == []  # as long as one waits there are no new ones
    assert third.slot is None
    steps(engine, [first, second, third])
    for row in (first, second, third):
        assert row.output == said(target, row.tokens[:3], params)
    nothing_left(engine, ssr)


def test_no_forks_while_a_request_waits() -> None:
    """Room that is too little for the one that waits is not for forks either."""
    target = toy()
    target.traits = replace(target.traits, capacity=2 * (3 + 200 + 128) + 50)
    engine, ssr = thinking(target, draft_tokens=20)
    row = engine.add(PROMPT, GREEDY)
    engine.step()
    other = engine.add([4, 5], SamplingParams(max_tokens=420))
    assert steps(engine, [row]) == 0
    assert other.slot is None
    steps(engine, [other])
    assert other.stats.ssr.to_dict()["drafts"] == 1
    nothing_left(engine, ssr)


def test_a_fork_that_had_no_part_in_the_last_pass_ends_too() -> None:
    """A long prompt that was there before it takes all that a pass may read."""
    target = toy(thought=20)
    engine, ssr = thinking(target, engine={"chunk": 4}, others=False)
    row = engine.add(PROMPT, GREEDY)
    while len(row.output) < 9:
        engine.step()
    other = engine.add([0, *[1] * 200], SamplingParams(max_tokens=2))
    until_forked(engine)
    fork = forks(engine)[0]
    while target.end not in row.output:
        engine.step()
    assert fork.output == []
    assert fork.slot is None
    assert fork not in engine._pool.running
    steps(engine, [row, other])
    nothing_left(engine, ssr)


def test_forks_stay_where_a_request_waits_for_other_things() -> None:
    """Answers of one prompt wait until it is read; that is no reason to end the forks of others."""
    target = toy(thought=200)
    engine, ssr = thinking(target, engine={"chunk": 4}, draft_tokens=200)
    first = engine.add(PROMPT, SamplingParams(max_tokens=250))
    until_forked(engine)
    fork = forks(engine)[0]
    rest = engine.submit([5] * 40, SamplingParams(max_tokens=3, n=2))
    engine.step()
    assert engine._pool.waiting
    assert forks(engine) == [fork]
    steps(engine, [first, *rest])
    nothing_left(engine, ssr)


def test_no_room_no_fork_and_no_failure() -> None:
    target = toy()
    target.traits = replace(target.traits, capacity=3 + 200 + 128 + 100)
    engine, ssr = thinking(target)
    row = engine.add(PROMPT, GREEDY)
    assert steps(engine, [row]) == 0
    assert row.stats.ssr.to_dict()["drafts"] == 0
    assert row.output == said(target)
    nothing_left(engine, ssr)


def test_a_fork_is_tried_again_when_there_may_be_room() -> None:
    target = toy(thought=60)
    engine, ssr = thinking(target, engine={"max_rows": 2}, others=False)
    other = engine.add([0, 1], SamplingParams(max_tokens=15))
    row = engine.add(PROMPT, GREEDY)
    steps(engine, [row, other])
    assert row.stats.ssr.to_dict()["budgets"] == [26]  # 10, where the other one still ran, and 16 more
    nothing_left(engine, ssr)


def test_a_backend_that_refuses_a_fork() -> None:
    target = toy()

    def fork(slot, length=None):
        raise BackendError("no more rows")

    target.fork = fork  # type: ignore[method-assign]
    engine, ssr = thinking(target, engine={"reuse": False})
    row = engine.add(PROMPT, GREEDY)
    steps(engine, [row])
    assert row.finish_reason == "stop"
    assert row.stats.ssr.to_dict()["drafts"] == 0
    nothing_left(engine, ssr)


def test_a_fork_that_no_longer_pays_is_ended() -> None:
    cost = CostModel((1, 2, 64), (1.0, 1.05, 1.05 + 62 * 0.2), 0)
    target = toy(thought=150)
    for always in (False, True):
        control = ForkControl(SsrOptions(draft_budget=10, draft_tokens=400, always=always), cost, thought=300.0, answer=100.0)
        engine, ssr = thinking(target, control=control)
        row = engine.add(PROMPT, SamplingParams(max_tokens=500))
        until_forked(engine)
        engine.step()
        assert forks(engine)
        crowd = [engine.add([0, i], SamplingParams(max_tokens=4)) for i in range(1, 9)]
        engine.step()
        engine.step()
        assert bool(forks(engine)) == always
        steps(engine, [row, *crowd])
        nothing_left(engine, ssr)


# nobody else notices


def test_forks_are_not_counted_anywhere() -> None:
    target = toy()
    engine, ssr = thinking(target)
    row = engine.add(PROMPT, GREEDY)
    shared = 0
    while not row.done:
        emitted = engine.step()
        assert emitted == [row]
        assert engine.rows in ([row], [])
        shared += bool(forks(engine))
    assert shared > 20
    alone = plain(toy())
    twin = alone.add(PROMPT, GREEDY)
    steps(alone, [twin])
    done, want = engine.completion(row), alone.completion(twin)
    assert (done.text, done.token_ids, done.usage) == (want.text, want.token_ids, want.usage)
    assert row.stats.passes <= twin.stats.passes
    nothing_left(engine, ssr)


def test_the_cache_of_forks_is_not_kept_for_prompts() -> None:
    engine, ssr = thinking(toy(), draft_budget=2, interval=3, max_drafts=12, engine={"reuse": True})
    row = engine.add([7] * 30, GREEDY)
    steps(engine, [row])
    assert row.stats.ssr.to_dict()["drafts"] > 8  # more than caches are kept
    assert [ended.hidden for ended in engine._pool._ended] == [False]
    again = engine.add([7] * 30, GREEDY)
    steps(engine, [again])
    assert again.stats.cached_tokens == 29
    nothing_left(engine, ssr)


def test_what_forks_said_is_not_kept_for_other_requests() -> None:
    engine, ssr = thinking(toy())
    row = engine.add(PROMPT, GREEDY)
    steps(engine, [row])
    assert row.stats.ssr.to_dict()["draft_tokens"] > 20
    assert engine.drafters["suffix"].stats()["shared_tokens"] == len(row.output) + 1
    nothing_left(engine, ssr)


def test_other_drafters_see_forks_as_rows_with_a_cache_until_they_are_told_that_they_end() -> None:
    watched: dict[int, str] = {}

    class Watch(Custom):
        def observe(self, rows, forest, scores, verdicts):
            for row in rows:
                assert row.slot is not None
                assert watched.get(row.id) != "forgotten"
                watched[row.id] = "seen"

        def forget(self, rows):
            for row in rows:
                watched[row.id] = "forgotten"

    target = toy()
    codec = codec_of(target)
    control = ForkControl(SsrOptions(draft_budget=3, interval=5, always=True))
    ssr = SsrSource(Family("toy", "<think>", "</think>", "</think>"), codec.pieces, [target.end], control)
    watch = Watch(lambda row, plan: DraftTree.chain(row.tokens[-1:]))
    engine = Engine(target, [ssr, watch], FixedController("custom", 2), codec=codec)
    rows = [engine.add([i, 2], GREEDY) for i in (1, 2, 3)]
    while not rows[0].done:
        engine.step()
    engine.abort(rows[2])
    steps(engine, rows)
    assert set(watched.values()) == {"forgotten"}
    assert len(watched) == 3 + sum(row.stats.ssr.to_dict()["drafts"] for row in rows)
    nothing_left(engine, ssr)


def test_one_source_for_one_engine() -> None:
    target = toy()
    engine, ssr = thinking(target)
    with pytest.raises(BadRequest, match="belongs to one engine"):
        Engine(target, [ssr], codec=codec_of(target))
    engine.close()


# which requests are forked


@pytest.mark.parametrize(
    "prompt, forked",
    [
        (PROMPT, True),  # the model writes the first marker itself
        ([*PROMPT, 61], True),  # the template does
        ([*PROMPT, 61, 4, 4, 62, 9, 9, 63, 5], True),  # an earlier turn that was thought about
        ([*PROMPT, 61, 4, 4, 62, 9, 9, 63, 5, 61, 8], True),
        ([*PROMPT, 61, 62], False),  # told not to think
        ([0, 61, 5, 62, 3], False),
        ([0, 5], False),
    ],
)
def test_who_is_forked(prompt, forked) -> None:
    target = toy()
    assert (target.start, target.end, target.eos) == (61, 62, 63)
    engine, ssr = thinking(target)
    row = engine.add(prompt, GREEDY)
    steps(engine, [row])
    assert row.output == said(target, prompt)
    assert (row.stats.ssr is not None) == forked
    if forked:
        told = row.stats.ssr.to_dict()
        assert told["budgets"] == [10]
        assert told["prefix_tokens"] + told["suffix_tokens"] > 5
    else:
        assert "ssr" not in row.stats.by_source
        assert "ssr" not in row.stats.to_dict()
    nothing_left(engine, ssr)


def test_thoughts_that_come_again_in_one_output() -> None:
    """Each is forked at the budget, and each answer is read from its own beginning."""
    target = toy(overlap=1.0)
    params = SamplingParams(max_tokens=145, ignore_eos=True)  # behind an answer the next turn follows at once
    engine, ssr = thinking(target, interval=500, others=False)
    row = engine.add(PROMPT, params)
    steps(engine, [row])
    assert row.output.count(target.end) == 2
    told = row.stats.ssr.to_dict()
    assert told["budgets"] == [10, 10]
    assert told["prefix_tokens"] > 45
    assert told["suffix_tokens"] == 0
    nothing_left(engine, ssr)


def test_forks_that_think_again_are_not_forked() -> None:
    """Behind the end of a thought this model begins another."""
    table = torch.zeros(7, 6, dtype=torch.float64)
    for token, after in {0: 2, 1: 3, 2: 3, 3: 4, 4: 5, 5: 2, 6: 0}.items():
        table[token, after] = 30.0
    table[1] = table[6]
    pieces = [b"<think>", b"</think>", b"c", b"d", b"e", b"f"]
    engine, ssr = forking(TableModel(table), pieces, draft_budget=2, interval=4, max_drafts=5)
    row = engine.add([0], SamplingParams(max_tokens=60))
    assert steps(engine, [row]) == 1
    assert row.stats.ssr.to_dict()["drafts"] == 5
    nothing_left(engine, ssr)


def test_a_request_that_does_not_think_costs_nothing() -> None:
    engine, ssr = thinking(toy())
    row = engine.add([0, 5], GREEDY)
    assert steps(engine, [row]) == 0
    assert ssr.control._seen == 0
    nothing_left(engine, ssr)


def test_a_thought_that_is_cut_off_by_the_limit() -> None:
    engine, ssr = thinking(toy(thought=200))
    row = engine.add(PROMPT, SamplingParams(max_tokens=60))
    steps(engine, [row])
    assert row.finish_reason == "length"
    assert row.stats.ssr.to_dict()["drafts"] == 1
    assert ssr.control._seen == 1
    assert ssr.control.thought == 400.0
    nothing_left(engine, ssr)


def test_requests_that_were_aborted_teach_nothing() -> None:
    target = toy()
    engine, ssr = thinking(target)
    row = engine.add(PROMPT, GREEDY)
    while target.end not in row.output:
        engine.step()
    engine.step()
    engine.abort(row)
    assert ssr.control._seen == 0
    nothing_left(engine, ssr)


def test_lengths_and_overlap_are_learned() -> None:
    target = toy(overlap=1.0)
    control = ForkControl(SsrOptions())
    engine, ssr = thinking(target, control=control, others=False)
    for i in range(20):
        row = engine.add([1, i], SamplingParams(max_tokens=600))
        steps(engine, [row])
        if i == 0:
            assert row.stats.ssr.to_dict()["drafts"] == 0  # its thought was shorter than thoughts were believed to be
    assert row.stats.ssr.to_dict()["drafts"] == 1
    assert control.thought == pytest.approx(41, abs=4)
    assert control.answer == pytest.approx(31, abs=5)
    assert control.overlap > 0.8
    nothing_left(engine, ssr)


def test_drafts_that_foresee_nothing_are_given_up() -> None:
    target = toy(overlap=0.0)
    cost = CostModel((1, 2, 64), (1.0, 1.2, 8.0), 0)
    engine, ssr = thinking(target, control=ForkControl(SsrOptions(draft_budget=5), cost))
    drafts = []
    for i in range(24):
        row = engine.add([1, i], SamplingParams(max_tokens=900))
        steps(engine, [row])
        drafts.append(row.stats.ssr.to_dict()["drafts"])
    assert drafts[0] == 1
    assert sum(drafts) <= 4  # now and then, to see whether that is still so
    nothing_left(engine, ssr)


# options


OPTIONS: dict[str, dict] = {
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "logprobs-number": {"logprobs": 3, "echo": True},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 1.5, "repetition_penalty": 1.3},
    "bad-words": {"bad_words": ["a b", "c "]},
    "bad-ids": {"bad_words_ids": [[5], [6, 7]]},
    "bias": {"logit_bias": {5: 3.0, 6: 7.0}},
    "least": {"min_tokens": 100},
    "stop": {"stop": ["b "]},
    "stop-ids": {"stop_token_ids": [9]},
    "eos": {"ignore_eos": True, "max_tokens": 120},
    "allowed": {"allowed_token_ids": [*range(20), 61, 62, 63]},
    "budget": {"thinking_budget": 20},
    "short-budget": {"thinking_budget": 11},
    "no-budget": {"thinking_budget": 0},
    "grammar": {"structured_outputs": {"regex": "([b-z]+ )*"}, "constrain_after": "</think>"},
    "several": {"n": 3, "temperature": 1.0, "seed": 4},
    "sampled": {"temperature": 1.2, "top_p": 0.9, "top_k": 7, "min_p": 0.01, "seed": 11},
    "typical": {"temperature": 1.2, "typical_p": 0.8, "seed": 11},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["once", "iterative"])
def test_options_hold_for_requests_that_are_forked(name, kind) -> None:
    target = toy(thought=30, answer=20, sharpness=6.0)
    grammars = ToyGrammars(codec_of(target).pieces)
    more = {"interval": 6, "drafts": 3} if kind == "iterative" else {}
    params = SamplingParams.build({"max_tokens": 140} | OPTIONS[name])
    engine, ssr = thinking(target, draft_budget=8, engine={"grammars": grammars}, **more)
    alone = plain(target, grammars=grammars)
    rows, twins = engine.submit(PROMPT, params), alone.submit(PROMPT, params)
    steps(engine, rows)
    steps(alone, twins)
    alone.close()
    for row, twin in zip(rows, twins, strict=True):
        assert row.output == twin.output
        assert (row.text, row.finish_reason, str(row.error)) == (twin.text, twin.finish_reason, str(twin.error))
        if row.logprobs is not None:
            assert [entry.token for entry in row.logprobs] == [entry.token for entry in twin.logprobs or ()]
    if name not in ("no-budget", "stop", "stop-ids", "bias"):
        assert any(row.stats.ssr is not None and row.stats.ssr.to_dict()["drafts"] for row in rows)
    nothing_left(engine, ssr)


def test_a_stateful_processor_sees_what_its_request_keeps() -> None:
    own: list[int] = []

    class Counting:
        """Dislikes a token the more often it was said. A request's own object is the first fork of what its options name."""

        def __init__(self, told=None, counts=None) -> None:
            self.told, self.counts = told, dict(counts or {})
            self.begun = False

        def __call__(self, token_ids, logits):
            for token, n in self.counts.items():
                logits[token] -= 3.0 * n
            return logits

        def advance(self, token):
            if self.told is not None:
                self.told.append(token)
            self.counts[token] = self.counts.get(token, 0) + 1

        def fork(self):
            first, self.begun = self.told is None and not self.begun, True
            return Counting(own if first and not self.counts else None, self.counts)

    def go(engine):
        own.clear()
        row = engine.add(PROMPT, replace(GREEDY, logits_processors=(Counting(),)))
        steps(engine, [row])
        return row, list(own)

    target = toy(sharpness=8.0)
    engine, ssr = thinking(target)
    row, told = go(engine)
    twin, _ = go(plain(toy(sharpness=8.0)))
    assert row.stats.ssr.to_dict()["drafts"] == 1
    assert row.output == twin.output == told
    nothing_left(engine, ssr)


def test_a_fork_counts_for_itself() -> None:
    """The state of a fork goes its own way: what either says from then on is nothing to the other."""
    tokens, vocab = [1, 2, 3], 6
    own = State([Penalties(tokens, 1.0, 0.5, 1.0)], tokens)

    def say(state: State, said: list[int], *new: int) -> None:
        for token in new:
            said.append(token)
            state.advance(token)

    def costs(state: State) -> list[float]:
        return (-state.shape(torch.zeros(vocab).double().numpy())).tolist()

    say(own, tokens, 4, 4)
    other = [*tokens, 5]
    moved = own.moved(other, 1)
    assert costs(own) == [0, 0, 0, 0, 2.5, 0]
    assert costs(moved) == [0, 0, 0, 0, 2.5, 1.5]
    say(own, tokens, 4, 0)
    assert costs(moved) == [0, 0, 0, 0, 2.5, 1.5]
    say(moved, other, 5, 1)
    assert costs(own) == [1.5, 0, 0, 0, 3.5, 0]
    assert costs(moved) == [0, 1.5, 0, 0, 2.5, 2.5]
    draft = moved.fork()
    draft.advance(2)
    assert costs(moved) == [0, 1.5, 0, 0, 2.5, 2.5]


def test_what_follows_the_marker_is_left_out_where_a_grammar_forbids_it() -> None:
    target = toy(overlap=1.0)
    codec = codec_of(target)
    grammars = ToyGrammars(codec.pieces)
    options = {"structured_outputs": {"regex": "([b-z]+ )*"}, "constrain_after": "</think>"}
    for params, forced in ((GREEDY, [62, 0]), (SamplingParams.build({"max_tokens": 200} | options), [62])):
        engine, ssr = thinking(target, force=[62, 0], engine={"grammars": grammars})  # the text of 0 is "a "
        row = engine.add(PROMPT, params)
        until_forked(engine)
        fork = forks(engine)[0]
        assert fork.tokens[len(row.tokens) : fork.n_prompt] == forced
        assert ssr._rows[row.id].references[-1].tokens == forced[1:]
        steps(engine, [row])
        assert row.stats.ssr.to_dict()["prefix_tokens"] + row.stats.ssr.to_dict()["suffix_tokens"] > 5
        nothing_left(engine, ssr)


def test_where_no_thought_may_end_there_is_no_fork() -> None:
    target = toy()
    grammars = ToyGrammars(codec_of(target).pieces)
    engine, ssr = thinking(target, engine={"grammars": grammars}, interval=3)
    params = SamplingParams.build({"max_tokens": 60, "structured_outputs": {"regex": "([a-z]+ )*"}})  # from the beginning
    row = engine.add([*PROMPT, 61], params)
    steps(engine, [row])
    assert row.error is None
    assert row.stats.ssr.to_dict()["drafts"] == 0
    nothing_left(engine, ssr)


# markers of several tokens, on a model that says anything


LETTERS = [b"a", b"b", b"c", b"d", b"e", b"bc", b"cd", b"f"]
CUT = Family("cut", "a", "bcd", "bcd")


def letters(seed: int = 2) -> TableModel:
    return TableModel.random(len(LETTERS), 2, seed, 1.5)


@pytest.mark.parametrize("force", [[1, 2, 3], [5, 3], [1, 6], [5, 3, 4, 4]])
@pytest.mark.parametrize("budget", [7, 9, 12])
def test_a_marker_of_several_tokens_and_other_ways_to_cut_it(force, budget) -> None:
    """The request's end is forced in the tokens of the codec ("bc", "d"), its forks' in others, at all places."""
    target = letters()
    codec = ToyCodec(LETTERS)
    params = SamplingParams(
        max_tokens=40, temperature=1.0, seed=budget, thinking_budget=budget, thinking_start="a", thinking_end="bcd"
    )
    alone = Engine(letters(), codec=codec)
    forked = 0
    for first in range(12):
        engine, ssr = forking(
            target, LETTERS, family=CUT, force=force, codec=codec, draft_budget=first, interval=2, max_drafts=5
        )
        for prompt in ([0], [4, 0, 7]):
            row, twin = engine.add(prompt, params), alone.add(prompt, params)
            steps(engine, [row])
            steps(alone, [twin])
            assert row.output == twin.output
            assert b"bcd" in b"".join(LETTERS[t] for t in row.output)
            forked += row.stats.ssr.to_dict()["drafts"] if row.stats.ssr is not None else 0
        nothing_left(engine, ssr)
    assert forked > 12
    alone.close()


def test_no_fork_while_the_end_is_being_forced() -> None:
    target = letters()
    codec = ToyCodec(LETTERS)
    params = SamplingParams(max_tokens=20, thinking_budget=3, thinking_start="a", thinking_end="bcd")
    engine, ssr = forking(target, LETTERS, family=CUT, force=[1, 2, 3], codec=codec, draft_budget=3)
    row = engine.add([0], params)
    assert steps(engine, [row]) == 0
    assert row.output[3:5] == [5, 3]
    nothing_left(engine, ssr)


# the clock


def test_the_seconds_of_the_stages_are_those_of_the_request() -> None:
    ticks = iter(range(1, 1_000_000))
    target = toy(overlap=0.85)
    engine, ssr = thinking(target, engine={"clock": lambda: float(next(ticks)), "chunk": 8}, draft_budget=5, interval=9)
    rows = [engine.add([i] * (3 + 6 * i), GREEDY) for i in (1, 2, 3)]
    for _ in range(30):
        engine.step()
    engine.abort(rows[2])
    steps(engine, rows)
    for row in rows:
        told = row.stats.ssr
        total = row.stats.prompt_seconds + row.stats.decode_seconds
        assert told.thought_seconds + told.verify_seconds + told.continuation_seconds == total
        assert 0 < told.draft_seconds < total
        if row is not rows[2]:
            assert told.thought_seconds > total / 2
            assert told.verify_seconds > 0
            assert told.continuation_seconds > 0
            assert told.draft_seconds <= told.thought_seconds
    nothing_left(engine, ssr)


def test_a_pass_belongs_to_the_stage_in_which_it_began() -> None:
    now = [0.0]
    target = toy(thought=20, answer=10, overlap=1.0)
    shipped = target.score

    def score(slots, forest, need):
        now[0] += 1.0
        return shipped(slots, forest, need)

    target.score = score  # type: ignore[method-assign]
    engine, ssr = thinking(target, draft_budget=5, k=4, engine={"clock": lambda: now[0]}, others=False)
    row = engine.add(PROMPT, GREEDY)
    steps(engine, [row])
    told = row.stats.ssr
    # the marker, 20 tokens and the other marker; then 11 tokens by fives, all of them read from the draft
    assert (told.thought_seconds, told.verify_seconds, told.continuation_seconds) == (22.0, 3.0, 0.0)
    assert told.draft_seconds == 11.0
    nothing_left(engine, ssr)


def test_sources_of_tokens_name_the_draft() -> None:
    engine, ssr = thinking(toy(overlap=1.0), others=False)
    row = engine.add(PROMPT, GREEDY)
    steps(engine, [row])
    assert {engine.names[s] for s in row.sources} == {"target", "ssr"}
    assert SSR in row.sources[42:]
    assert SSR not in row.sources[:42]
    nothing_left(engine, ssr)
