"""The loop itself: stops inside blocks, budgets, streams, statistics, traces, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from toys import Custom, ToyCodec, Truth, counter, fixed, run, tree

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan
from surefoot.core.tree import DraftTree
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.errors import BackendError, BadDraft, BadRequest

VOCAB = 40
LETTERS = [chr(0x61 + i) if i < 26 else chr(0x41 + i - 26) for i in range(VOCAB)]


def oracle(vocab: int = VOCAB, accuracy: float = 1.0) -> ScriptDrafter:
    """Knows the counting model: after t comes t + 1."""
    return ScriptDrafter(
        lambda row: [(row.tokens[row.n_prompt - 1] + 1 + i) % vocab for i in range(400)], vocab, accuracy=accuracy
    )


def counting(k: int = 8, accuracy: float = 1.0, eos=(), codec: bool = True, **options) -> Engine:
    return fixed(counter(VOCAB), oracle(accuracy=accuracy), k, codec=ToyCodec(LETTERS, eos) if codec else None, **options)


# stops inside a block


@pytest.mark.parametrize("j", range(21))
def test_eos_at_every_position(j):
    """The j-th new token is EOS; the output ends there, in ids, text, stream and counts."""
    eos = j + 1
    engine = counting(eos=[eos])
    done = engine.generate([0], max_tokens=30)
    assert done.token_ids == tuple(range(1, eos + 1))
    assert done.text == "".join(LETTERS[1:eos])
    assert done.finish_reason == "stop"
    assert done.usage.completion_tokens == len(done.token_ids) == len(done.sources)
    assert done.stats.accepted_tokens == sum(s == "script" for s in done.sources)
    pieces = list(engine.stream([0], max_tokens=30))
    assert tuple(t for p in pieces for t in p.token_ids) == done.token_ids
    assert "".join(p.text for p in pieces) == done.text
    assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + ["stop"]


@pytest.mark.parametrize("j", range(21))
def test_the_next_turn_after_an_eos_in_a_block_equals_a_cold_run(j):
    """What was scored behind the stop must not be in the cache."""
    warm = counting(eos=[j + 1], reuse=True)
    first = warm.generate([0] * 20, max_tokens=30)
    prompt = [*[0] * 20, *first.token_ids, 7, 7]
    second = warm.generate(prompt, max_tokens=6)
    assert second.stats.cached_tokens >= 20
    assert second.token_ids == counting(eos=[j + 1]).generate(prompt, max_tokens=6).token_ids


@pytest.mark.parametrize("j", range(21))
def test_the_cache_holds_what_was_kept_and_nothing_else(j):
    engine = counting(eos=[j + 1], reuse=True)
    row = engine.add([0], SamplingParams(max_tokens=15))
    while not row.done:
        assert row.slot is None or row.slot.tokens == row.tokens[:-1]
        engine.step()
    assert row.slot.tokens == row.tokens[:-1]


@pytest.mark.parametrize("j", range(21))
def test_ignore_eos_goes_on(j):
    engine = counting(eos=[j + 1])
    assert engine.generate([0], max_tokens=25, ignore_eos=True).token_ids == tuple(range(1, 26))


@pytest.mark.parametrize("stop", range(1, 12))
def test_stop_token_ids_at_every_place_of_a_block(stop):
    done = counting(k=4).generate([0], max_tokens=30, stop_token_ids=[stop])
    assert done.token_ids == tuple(range(1, stop + 1))
    assert done.finish_reason == "stop"
    assert done.text == "".join(LETTERS[1:stop])


@pytest.mark.parametrize("begin", range(1, 14))
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_over_tokens_and_blocks(begin, size, include):
    stop = "".join(LETTERS[begin : begin + size])
    done = counting(k=3).generate([0], max_tokens=30, stop=[stop], include_stop_str_in_output=include)
    assert done.token_ids == tuple(range(1, begin + size))
    assert done.text == "".join(LETTERS[1:begin]) + (stop if include else "")
    assert done.finish_reason == "stop"


@pytest.mark.parametrize("limit", range(1, 12))
@pytest.mark.parametrize("stop", [3, 6, 9])
def test_a_stop_at_or_before_the_limit_wins(limit, stop):
    by_id = counting().generate([0], max_tokens=limit, stop_token_ids=[stop])
    by_text = counting().generate([0], max_tokens=limit, stop=LETTERS[stop])
    for done in (by_id, by_text):
        assert done.token_ids == tuple(range(1, min(limit, stop) + 1))
        assert done.finish_reason == ("stop" if stop <= limit else "length")


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("k", [0, 1, 3, 10])
def test_never_more_than_asked(max_tokens, k):
    for engine in (counting(k), fixed(counter(VOCAB), NgramDrafter(), k)):
        done = engine.generate([5, 0, 1, 2, 3, 4, 5, 0], max_tokens=max_tokens)
        assert done.token_ids == tuple(range(1, max_tokens + 1))
        assert done.finish_reason == "length"
        assert done.usage.prompt_tokens == 8
        assert done.usage.total_tokens == 8 + max_tokens


def test_a_drafted_eos_that_is_refused_ends_nothing():
    target = counter(VOCAB)
    drafter = Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], *[30, 5, 6][: plan.depth]], source=1))
    done = fixed(target, drafter, 3, codec=ToyCodec(LETTERS, eos=[30])).generate([0], max_tokens=12)
    assert done.token_ids == tuple(range(1, 13))
    assert done.finish_reason == "length"


def test_a_draft_of_nothing_but_eos():
    drafter = Custom(lambda row, plan: DraftTree.chain([row.tokens[-1]] + [4] * plan.depth, source=1))
    done = fixed(counter(VOCAB), drafter, 48, codec=ToyCodec(LETTERS, eos=[4])).generate([0], max_tokens=100)
    assert done.token_ids == (1, 2, 3, 4)
    assert done.stats.accepted_tokens == 1


def test_without_eos_and_codec_it_runs_to_the_budget():
    done = counting(codec=False).generate([0], max_tokens=50)
    assert len(done.token_ids) == 50
    assert done.text == ""


def test_withheld_text_comes_with_the_last_piece():
    pieces = list(counting(k=2).stream([0], max_tokens=5, stop=["fgz"]))
    assert "".join(p.text for p in pieces) == "bcdef"
    assert pieces[-1].text.endswith("f")
    assert pieces[-1].finish_reason == "length"


# streams


@pytest.mark.parametrize("k", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("options", [{}, {"stop": ["hij", "jk"]}, {"stop": "z"}, {"stop_token_ids": [9]}], ids=str)
def test_pieces_add_up_to_the_completion(k, accuracy, options):
    done = counting(k, accuracy).generate([0], max_tokens=17, **options)
    pieces = list(counting(k, accuracy).stream([0], max_tokens=17, **options))
    assert "".join(p.text for p in pieces) == done.text
    assert tuple(t for p in pieces for t in p.token_ids) == done.token_ids
    assert tuple(s for p in pieces for s in p.sources) == done.sources
    assert pieces[-1].finish_reason == done.finish_reason


def test_characters_split_over_tokens_and_blocks():
    text = "añ€😀ü"
    raw = text.encode()
    codec = ToyCodec([bytes([b]) for b in raw] + [b"?"] * (VOCAB - len(raw)))
    target = counter(VOCAB)
    for k in range(6):
        pieces = list(fixed(target, oracle(), k, codec=codec).stream([VOCAB - 1], max_tokens=len(raw)))
        assert "".join(p.text for p in pieces) == text
        assert all("\N{REPLACEMENT CHARACTER}" not in p.text for p in pieces)


def test_a_closed_stream_ends_the_request_and_keeps_what_was_said():
    engine = counting()
    row = engine.add([0], SamplingParams(max_tokens=100))
    pieces = engine.follow(row)
    first = [next(pieces), next(pieces)]
    pieces.close()
    assert row.finish_reason == "abort"
    assert row.output == [t for p in first for t in p.token_ids]
    assert engine.rows == []


def test_two_streams_of_one_engine_lose_nothing():
    """The first one steps both rows to their ends before the second is read."""
    engine = counting(4)
    one, two = (engine.follow(engine.add([0], SamplingParams(max_tokens=11))) for _ in range(2))
    texts = ["".join(p.text for p in stream) for stream in (one, two)]
    assert texts == ["".join(LETTERS[1:12])] * 2


def test_streams_read_in_turns():
    engine = counting(4)
    rows = [engine.add([i], SamplingParams(max_tokens=9 + 3 * i)) for i in range(3)]
    streams = {row.id: engine.follow(row) for row in rows}
    out: dict[int, list[int]] = {row.id: [] for row in rows}
    while streams:
        for id, stream in list(streams.items()):
            piece = next(stream, None)
            if piece is None:
                del streams[id]
            else:
                out[id] += piece.token_ids
    assert [out[row.id] for row in rows] == [row.output for row in rows]
    assert [len(row.output) for row in rows] == [9, 12, 15]


# sources, statistics, trace


def test_sources_of_an_oracle():
    """k drafted tokens, then the target's own; the first token comes from the prompt's pass."""
    done = counting(k=3).generate([0], max_tokens=9)
    assert done.sources == ("target", "script", "script", "script", "target", "script", "script", "script", "target")


def test_sources_of_an_always_wrong_draft():
    assert set(counting(k=3, accuracy=0.0).generate([0], max_tokens=9).sources) == {"target"}


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_oracle_and_wrong_acceptance(k):
    right = counting(k).generate([0], max_tokens=1 + 4 * (k + 1)).stats
    assert (right.drafts, right.draft_tokens, right.accepted_tokens, right.passes) == (4, 4 * k, 4 * k, 5)
    assert right.mean_acceptance_length == k + 1
    assert right.acceptance_rate == 1.0
    assert right.accepted_per_position == [4] * k
    wrong = counting(k, 0.0).generate([0], max_tokens=20).stats
    assert wrong.mean_acceptance_length == 1.0
    assert wrong.acceptance_rate == 0.0
    assert wrong.accepted_per_position == []


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_no_draft_reaches_beyond_the_budget(max_tokens):
    """With r tokens left at most r - 1 are drafted: one is the target's own."""
    asked = []

    def one(row, plan: Plan):
        asked.append((row.remaining, plan.depth, plan.nodes))
        return DraftTree.chain([row.tokens[-1] + i for i in range(plan.depth + 1)], source=1)

    done = fixed(counter(VOCAB), Custom(one), 4).generate([0], max_tokens=max_tokens)
    assert all(depth <= remaining - 1 and nodes <= remaining - 1 for remaining, depth, nodes in asked)
    # prompt pass 1 token, then blocks of 5, the last one cut: all drafted tokens are accepted
    assert done.stats.draft_tokens == done.stats.accepted_tokens
    assert len(done.token_ids) == max_tokens


def test_plain_decoding_drafts_nothing():
    done = Engine(counter(VOCAB)).generate([0], max_tokens=7)
    assert (done.stats.drafts, done.stats.passes, done.stats.by_source) == (0, 7, {})
    assert done.stats.mean_acceptance_length == 1.0


def test_nodes_scored_are_those_that_were_planned():
    target = counter(VOCAB)
    fixed(target, oracle(), 4).generate([0] * 10, max_tokens=11)
    assert target.nodes_scored == 10 + 5 + 5


def test_times_come_from_the_engines_clock():
    ticks = iter(range(1000))
    engine = Engine(counter(VOCAB), clock=lambda: float(next(ticks)))
    stats = engine.generate([0], max_tokens=3).stats
    assert stats.prompt_seconds == 0.0  # one pending token is not prefill
    assert stats.decode_seconds == 9.0  # three passes of three ticks
    longer = engine.generate([0, 1, 2], max_tokens=3).stats
    assert (longer.prompt_seconds, longer.decode_seconds) == (3.0, 6.0)


def test_the_trace_says_what_was_proposed_and_kept():
    target = TableModel.random(7, seed=5, sharpness=1.0)
    say = Truth(target, reuse=False)
    drafter = ScriptDrafter(say, 7, accuracy=0.6, tree=True)
    done = fixed(target, drafter, 3, 2, 6).generate([1, 2], max_tokens=12, trace=True)
    entries = done.stats.trace
    assert entries is not None
    assert len(entries) == done.stats.passes
    tokens = [1, 2, *done.token_ids]
    assert entries[0].candidates == ()
    assert entries[0].drafter is None
    for entry in entries:
        assert len(entry.candidates) == len(entry.parents) == len(entry.p) == len(entry.accepted)
        for i, (token, parent, p) in enumerate(zip(entry.candidates, entry.parents, entry.p)):
            path, node = [token], parent
            while node > 0:
                path.insert(0, entry.candidates[node - 1])
                node = entry.parents[node - 1]
            before = [*tokens[: entry.position], *path[:-1]]
            assert p == pytest.approx(float(target.next_logits(before).softmax(-1)[token]))
            on_path = tokens[entry.position : entry.position + len(path)] == path
            assert entry.accepted[i] == on_path
        assert tokens[entry.position : entry.position + entry.kept][-1] == entry.token or entry.kept <= sum(entry.accepted)
    assert sum(sum(e.accepted) for e in entries) == done.stats.accepted_tokens
    assert sum(e.kept for e in entries) == 12
    assert all(e.drafter == "script" for e in entries if e.candidates)


def test_the_trace_stops_where_the_output_stops():
    done = counting(k=8).generate([0], max_tokens=30, stop_token_ids=[4], trace=True)
    last = done.stats.trace[-1]
    assert last.candidates == (2, 3, 4, 5, 6, 7, 8, 9)
    assert last.accepted == (True, True, True, False, False, False, False, False)
    assert last.kept == 3


def test_no_trace_unless_asked():
    assert counting().generate([0], max_tokens=3).stats.trace is None


# prefill, batches, abort


@pytest.mark.parametrize("chunk", [1, 2, 4, 5, 7, 100])
@pytest.mark.parametrize("min_width", [1, 4])
def test_prefill_in_chunks_equals_whole(chunk, min_width):
    target = TableModel.random(7, order=3, seed=3, min_width=min_width)
    prompt = [i * i % 7 for i in range(13)]
    options = {"max_tokens": 9, "temperature": 0.7, "seed": 3}
    whole = Engine(TableModel(target.logits, 3)).generate(prompt, **options)
    assert fixed(target, NgramDrafter(), 3, chunk=chunk).generate(prompt, **options).token_ids == whole.token_ids


def test_a_chunk_is_shared_by_all_rows_of_a_pass():
    widest = []

    class Watch(TableModel):
        def score(self, slots, forest, need):
            widest.append(forest.nodes)
            return super().score(slots, forest, need)

    target = Watch(counter(VOCAB).logits)
    engine = Engine(target, chunk=8)
    run(engine, *[([0] * 20, {"max_tokens": 5}) for _ in range(3)])
    assert max(widest) <= 8 + 3
    assert widest[0] == 8


def test_rows_that_only_prefill_do_not_emit():
    engine = Engine(counter(VOCAB), chunk=4)
    row = engine.add([0] * 9, SamplingParams(max_tokens=2))
    assert engine.step() == []
    assert engine.step() == []
    assert engine.step() == [row]
    assert row.output == [1]


def test_step_without_requests_is_harmless():
    assert Engine(counter(VOCAB)).step() == []


def test_a_batch_with_prompts_and_results_in_order():
    engine = counting(3)
    done = engine.generate_batch([[i] * (i + 1) for i in range(5)], max_tokens=4)
    assert [d.token_ids for d in done] == [tuple(range(i + 1, i + 5)) for i in range(5)]
    assert engine.generate_batch([], max_tokens=4) == []


def test_a_bad_prompt_in_a_batch_leaves_no_row_behind():
    engine = counting(3)
    with pytest.raises(BadRequest):
        engine.generate_batch([[1], [VOCAB]], max_tokens=4)
    assert engine.rows == []


def test_aborting_twice_and_after_the_end_is_harmless():
    engine = counting(3)
    row = engine.add([0], SamplingParams(max_tokens=3))
    engine.abort(row)
    engine.abort(row)
    done = engine.generate([0], max_tokens=3)
    assert done.finish_reason == "length"
    assert row.finish_reason == "abort"
    assert engine.completion(row).finish_reason == "abort"


def test_drafters_and_controllers_are_told_of_every_end():
    drafter = Custom(lambda row, plan: DraftTree.chain(row.tokens[-1:]))
    engine = fixed(counter(VOCAB), drafter, 2)
    rows = [engine.add([0], SamplingParams(max_tokens=n)) for n in (2, 5, 50)]
    while not rows[1].done:
        engine.step()
    engine.abort(rows[2])
    assert sorted(drafter.forgotten) == [r.id for r in rows]


def test_close_ends_everything():
    target = counter(VOCAB)
    engine = fixed(target, oracle(), 2)
    rows = [engine.add([0], SamplingParams(max_tokens=50)) for _ in range(3)]
    engine.step()
    engine.close()
    engine.close()
    assert [r.finish_reason for r in rows] == ["abort"] * 3
    assert target.open_slots == 0


def test_without_a_seed_each_run_is_its_own():
    engine = Engine(TableModel(torch.zeros(8, 7)))
    assert len({engine.generate([0], max_tokens=20, temperature=1.0).token_ids for _ in range(5)}) == 5


def test_one_seed_one_output_whatever_the_rows_number():
    engine = Engine(TableModel(torch.zeros(8, 7)))
    assert len({engine.generate([0], max_tokens=20, temperature=1.0, seed=1).token_ids for _ in range(5)}) == 1


def test_until_the_context_is_full():
    target = counter(VOCAB, max_context=20)
    for k in (0, 3, 8):
        done = fixed(target, oracle(), k).generate([0] * 6)
        assert len(done.token_ids) == 14
        assert done.finish_reason == "length"


# refusals


@pytest.mark.parametrize(
    "prompt, message",
    [
        ([], "empty"),
        ([VOCAB], r"0\.\.39"),
        ([-1], r"0\.\.39"),
        ("text", "no tokenizer"),
        (["a"], "no tokenizer"),
        ([1.0], "no tokenizer"),
        ([{"role": "user", "content": "x"}], "no tokenizer"),
        ([0] * 4096, "4096 tokens but the context holds 4096"),
    ],
)
def test_bad_prompts(prompt, message):
    engine = Engine(counter(VOCAB))
    with pytest.raises(BadRequest, match=message):
        engine.add(prompt)
    assert engine.rows == []


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_token": 3}, "did you mean 'max_tokens'"),
        ({"temperature": -1}, "temperature=-1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0}, "top_p=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": True}, "max_tokens=True"),
        ({"stop": ["x"]}, "stop strings need a tokenizer"),
    ],
)
def test_bad_options(options, message):
    engine = Engine(counter(VOCAB))
    with pytest.raises(BadRequest, match=message):
        engine.generate([0], **options)
    assert engine.rows == []


def test_two_drafters_of_one_name_or_number():
    with pytest.raises(BadRequest, match="share a name or a source number"):
        Engine(counter(VOCAB), [NgramDrafter(), NgramDrafter(source=2)])
    with pytest.raises(BadRequest, match="share a name or a source number"):
        Engine(counter(VOCAB), [NgramDrafter(source=1), oracle()])
    with pytest.raises(BadRequest, match="share a name or a source number"):
        Engine(counter(VOCAB), [NgramDrafter(source=0)])


BAD_TREES = {
    "wrong root": lambda row: DraftTree.chain([row.tokens[-1] + 1, 2]),
    "too long": lambda row: DraftTree.chain([row.tokens[-1], *[1] * 9], source=1),
    "outside the vocabulary": lambda row: DraftTree.chain([row.tokens[-1], VOCAB], source=1),
    "negative": lambda row: DraftTree.chain([row.tokens[-1], -1], source=1),
    "parent after child": lambda row: tree([row.tokens[-1], 1, 2], [-1, 2, 0]),
    "two roots": lambda row: tree([row.tokens[-1], 1, 2], [-1, -1, 0]),
    "twins": lambda row: tree([row.tokens[-1], 1, 1], [-1, 0, 0]),
    "lengths": lambda row: DraftTree(
        torch.tensor([row.tokens[-1], 1]), torch.tensor([-1]), None, torch.zeros(2, dtype=torch.int16)
    ),
    "empty": lambda row: DraftTree(*(torch.zeros(0, dtype=torch.int64),) * 2, None, torch.zeros(0, dtype=torch.int16)),
    "q of another vocabulary": lambda row: DraftTree.chain([row.tokens[-1], 1], torch.ones(1, 3), 1),
    "q rows": lambda row: DraftTree.chain([row.tokens[-1], 1, 2], torch.full((1, VOCAB), 1 / VOCAB), 1),
    "q says never": lambda row: DraftTree.chain(
        [row.tokens[-1], 1], torch.nn.functional.one_hot(torch.tensor([2]), VOCAB).double(), 1
    ),
    "unknown source": lambda row: DraftTree.chain([row.tokens[-1], 1], source=9),
    "deeper than planned": lambda row: tree([row.tokens[-1], 1, 2, 3, 4], [-1, 0, 1, 2, 3]),
}


@pytest.mark.parametrize("kind", BAD_TREES)
def test_bad_drafts_are_refused(kind):
    drafter = Custom(lambda row, plan: BAD_TREES[kind](row))
    engine = fixed(counter(VOCAB), drafter, 3, 2, 6)
    with pytest.raises(BadDraft):
        engine.generate([0], max_tokens=20, temperature=1.0, verification="ratio")
    assert engine.rows == []


def test_a_draft_longer_than_the_backend_takes_is_cut_before_it_is_made():
    target = counter(VOCAB, max_nodes=5)
    drafter = oracle()
    done = fixed(target, drafter, 100).generate([0], max_tokens=30)
    assert done.token_ids == tuple(range(1, 31))
    assert max(s for s in done.stats.accepted_per_position) > 0
    assert len(done.stats.accepted_per_position) == 4


def test_backends_without_trees_get_chains():
    from dataclasses import replace

    target = counter(VOCAB)
    target.traits = replace(target.traits, tree=False)
    drafter = Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], *range(plan.depth)], source=1))
    fixed(target, drafter, 3, 2, 9).generate([0], max_tokens=12)
    assert all(plan.width == 1 and plan.nodes <= 3 for plan in drafter.plans)


def test_closed_slots_and_short_tables_are_refused():
    target = counter(VOCAB)
    [slot] = target.open(1)
    target.close([slot])
    target.close([slot])
    assert target.open_slots == 0
    with pytest.raises(BackendError, match="closed"):
        target.fork(slot)
    with pytest.raises(BadRequest, match="needs 8 rows"):
        TableModel(torch.zeros(7, 7))


def test_the_controller_learns_from_every_pass_that_emitted():
    seen = []

    class Watch(FixedController):
        def learn(self, rows, trees, verdicts, costs):
            assert len(rows) == len(trees) == len(verdicts)
            seen.append((len(rows), costs.nodes, costs.prefill, costs.context))

    engine = Engine(counter(VOCAB), [oracle()], Watch("script", 2), chunk=4)
    run(engine, ([0] * 6, {"max_tokens": 4}), ([0], {"max_tokens": 4}))
    assert seen[0] == (1, 5, 4, 0)
    assert all(n >= 1 for n, *_ in seen)
