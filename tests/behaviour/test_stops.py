"""L16 to L28: the output ends where plain decoding's does, wherever in a block that is, and nothing of it goes further."""

from __future__ import annotations

import pytest
import torch
from behaviour.grid import (
    LENGTHS,
    combinations,
    engine_of,
    every_draft,
    every_draft_and_self,
    finish,
    plain,
    same,
    speculate,
    streamed,
    truth,
    words,
)
from toys import Custom, ToyCodec, counter, tree

from surefoot.backends.table import TableModel
from surefoot.core.completion import Completion
from surefoot.drafters.model import ModelDrafter

VOCAB = 64
COUNTER = counter(VOCAB)
"""After [2] it says 3, 4, 5 and so on: the token at place j of the output is 3 + j."""
START = 2
PLACES = range(21)


def check_stream(target, prompt, options, kind, k, codec, wanted: Completion) -> None:
    """The stream adds up to the completion: tokens, text, log-probabilities, reason."""
    engine = engine_of(target, kind, k, codec)
    pieces = streamed(engine, prompt, options)
    engine.close()
    assert tuple(t for p in pieces for t in p.token_ids) == wanted.token_ids
    assert "".join(p.text for p in pieces) == wanted.text
    assert [p.finish_reason for p in pieces if p.finish_reason] == [wanted.finish_reason]
    if wanted.logprobs is not None:
        assert [entry.token for p in pieces for entry in p.logprobs] == list(wanted.token_ids)


@pytest.fixture(scope="module")
def ends() -> dict[int, ToyCodec]:
    """Place in the output -> a codec whose end token is the one that stands there."""
    return {j: words(VOCAB, [START + 1 + j]) for j in PLACES}


@every_draft
def test_L16_an_end_token_at_every_place(kind, k, ends):
    for j in PLACES:
        options = {"max_tokens": 40}
        found = speculate(COUNTER, [START], options, kind, k, ends[j])
        assert found.token_ids == tuple(range(START + 1, START + 2 + j))
        assert found.finish_reason == "stop"
        assert found.text == "".join(f" w{t}" for t in found.token_ids[:-1])
        same(found, plain(COUNTER, [START], options, ends[j]))
        check_stream(COUNTER, [START], options, kind, k, ends[j], found)


@every_draft
def test_L16_an_end_token_at_every_place_of_a_tiny_transformer(kind, k, backends):
    backend = backends("llama")
    prompt, free = backend.prompt(9, 2), plain(backend.target, backend.prompt(9, 2), {"max_tokens": 30}).token_ids
    for j in (0, 1, 3, 8, 13, 20):
        options = {"max_tokens": 30, "stop_token_ids": [free[j]]}
        found = speculate(backend.target, prompt, options, kind, k)
        assert found.token_ids == free[: free.index(free[j]) + 1]
        assert found.finish_reason == "stop"


@every_draft
def test_L17_ignore_eos_goes_on(kind, k, ends):
    for j in PLACES:
        options = {"max_tokens": 30, "ignore_eos": True}
        found = speculate(COUNTER, [START], options, kind, k, ends[j])
        assert found.token_ids == tuple(range(START + 1, START + 31))
        assert found.finish_reason == "length"
        same(found, plain(COUNTER, [START], options, ends[j]))
        check_stream(COUNTER, [START], options, kind, k, ends[j], found)


@every_draft
@pytest.mark.parametrize("place, kept, reason", [(3, 3, "stop"), (5, 5, "stop"), (6, 5, "length")])
def test_L18_a_stop_and_the_limit_in_one_block(place, kept, reason, kind, k, ends):
    """The stop stands at ``place``, counted from one, and the limit is five tokens."""
    token = START + place
    for options, codec in (
        ({"stop_token_ids": [token]}, words(VOCAB)),
        ({"stop": [f"w{token}"]}, words(VOCAB)),
        ({}, ends[place - 1]),
    ):
        options = options | {"max_tokens": 5}
        found = speculate(COUNTER, [START], options, kind, k, codec)
        assert found.token_ids == tuple(range(START + 1, START + 1 + kept))
        assert found.finish_reason == reason
        assert f"w{START + place}" not in found.text
        assert f"w{START + place + 1}" not in found.text
        same(found, plain(COUNTER, [START], options, codec))
        check_stream(COUNTER, [START], options, kind, k, codec, found)


@pytest.mark.parametrize("limit", [1, 2, 3])
@combinations(("oracle", "wrong", "mixed", "ngram"), (*LENGTHS, 10))
def test_L19_never_more_than_asked(limit, kind, k, backends):
    loop = TableModel(torch.roll(torch.eye(5, 4).double() * 30, 1, 1), 1)
    lookup = [0, 1, 2, 3] * 4
    found = speculate(loop, lookup, {"max_tokens": limit}, kind, k)
    assert len(found.token_ids) == limit
    same(found, plain(loop, lookup, {"max_tokens": limit}))
    assert found.stats.draft_tokens <= max(0, limit - 2), "the first token is never drafted, the last is the target's own"
    backend = backends("llama")
    prompt = [9, 4, 7] * 6
    same(
        speculate(backend.target, prompt, {"max_tokens": limit}, kind, k),
        plain(backend.target, prompt, {"max_tokens": limit}),
    )


def laughing(tail: str = " ha") -> ToyCodec:
    """Tokens 9, 10 and 11 read `` ha``, `` ha`` and ``tail``."""
    pieces = [f" w{i}" for i in range(VOCAB)]
    pieces[9] = pieces[10] = " ha"
    pieces[11] = tail
    return ToyCodec(pieces)


@every_draft_and_self
@pytest.mark.parametrize("tail", [" ha", " hat", " hap"])
def test_L20_a_stop_string_in_the_middle_of_a_block(tail, kind, k):
    """Tokens, log-probabilities and text end together: at the token that completes the stop, and the text before it."""
    codec = laughing(tail)
    options = {"max_tokens": 30, "stop": [" ha ha ha"], "logprobs": 2}
    found = speculate(COUNTER, [START], options, kind, k, codec)
    assert found.token_ids == tuple(range(3, 12))
    assert found.logprobs is not None
    assert len(found.logprobs) == len(found.token_ids)
    assert found.text == " w3 w4 w5 w6 w7 w8"
    assert codec.text(found.token_ids).startswith(found.text + " ha ha ha")
    assert found.finish_reason == "stop"
    same(found, plain(COUNTER, [START], options, codec))
    check_stream(COUNTER, [START], options, kind, k, codec, found)


@every_draft
def test_L20_a_stop_string_that_only_begins(kind, k):
    """`` ha ha ho`` is no stop: the text that was held back comes out."""
    codec = laughing(" ho")
    options = {"max_tokens": 12, "stop": [" ha ha ha"], "logprobs": 2}
    found = speculate(COUNTER, [START], options, kind, k, codec)
    assert found.text == codec.text(found.token_ids)
    assert found.finish_reason == "length"
    same(found, plain(COUNTER, [START], options, codec))
    check_stream(COUNTER, [START], options, kind, k, codec, found)


def always(*tokens: int) -> Custom:
    """Drafts the same tokens in every pass."""
    return Custom(lambda row, plan: tree([row.tokens[-1], *tokens[: plan.depth]], range(-1, min(len(tokens), plan.depth))))


@pytest.mark.parametrize("k", [*LENGTHS, 48])
@pytest.mark.parametrize("j", [0, 1, 4, 11])
def test_L21_a_draft_of_nothing_but_end_tokens(j, k, ends):
    """Statistics count the one end token that was kept; the next turn does not see those that were not."""
    codec, end = ends[j], START + 1 + j
    options = {"max_tokens": 60}
    engine = engine_of(COUNTER, always(*[end] * 48), k, codec, reuse=True)
    turn = [START] * 20
    first = finish(engine, turn, options)
    same(first, plain(COUNTER, turn, options, codec))
    assert first.stats.accepted_tokens == (1 if j else 0), "kept as a draft, unless it is the very first token"
    assert first.stats.accepted_per_position == ([1] if j else [])
    assert first.sources.count("custom") == first.stats.accepted_tokens
    more = [*turn, *first.token_ids, 30, 31]
    second = finish(engine, more, {"max_tokens": 9, "ignore_eos": True})
    same(second, plain(COUNTER, more, {"max_tokens": 9, "ignore_eos": True}, codec))
    assert second.stats.cached_tokens == len(turn) + len(first.token_ids) - 1
    engine.close()


@pytest.mark.parametrize("k", LENGTHS)
def test_L21_end_tokens_that_are_not_said_count_for_nothing(k):
    codec = words(VOCAB, [60])
    found = speculate(COUNTER, [START], {"max_tokens": 20}, always(*[60] * 48), k, codec)
    assert found.stats.accepted_tokens == 0
    assert found.stats.draft_tokens > 0
    same(found, plain(COUNTER, [START], {"max_tokens": 20}, codec))


@pytest.mark.parametrize("k", LENGTHS)
def test_L21_a_whole_transformer_turn_after_an_end_in_a_block(k, backends):
    backend = backends("llama")
    prompt = backend.prompt(24, 1)
    end = plain(backend.target, prompt, {"max_tokens": 8}).token_ids[4]
    engine = engine_of(backend.target, "oracle", k, reuse=True)
    first = finish(engine, prompt, {"max_tokens": 30, "stop_token_ids": [end]})
    assert first.token_ids[-1] == end
    more = [*prompt, *first.token_ids, 5, 6, 7]
    second = finish(engine, more, {"max_tokens": 12})
    same(second, plain(backend.target, more, {"max_tokens": 12}))
    assert second.stats.cached_tokens >= len(prompt)
    engine.close()


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("before", [0, 1, 4])
def test_L22_a_rejected_end_token_ends_nothing(before, k):
    """Drafts of ``before`` right tokens, EOS, and two more, where plain decoding does not say EOS."""
    end = 60
    codec = words(VOCAB, [end])

    def propose(row, plan):
        last = row.tokens[-1]
        drafted = [*range(last + 1, last + 1 + before), end, 5, 6][: plan.depth]
        return tree([last, *drafted], range(-1, len(drafted)))

    found = speculate(COUNTER, [START], {"max_tokens": 30}, Custom(propose), k, codec)
    assert found.finish_reason == "length"
    assert end not in found.token_ids
    same(found, plain(COUNTER, [START], {"max_tokens": 30}, codec))


@pytest.mark.parametrize(
    "place, source", [(0, "script"), (1, "script"), (2, "script"), (3, "target")], ids=["first", "middle", "last", "bonus"]
)
def test_L23_a_stop_token_at_each_place_of_a_block(place, source):
    """Blocks of three drafted tokens and the target's own; the first token of all comes before the first block."""
    for block in (0, 1, 2):
        j = 1 + 4 * block + place
        options = {"max_tokens": 30, "stop_token_ids": [START + 1 + j]}
        found = speculate(COUNTER, [START], options, "oracle", 3, words(VOCAB))
        assert found.token_ids == tuple(range(START + 1, START + 2 + j))
        assert found.sources[-1] == source
        same(found, plain(COUNTER, [START], options, words(VOCAB)))


@every_draft_and_self
def test_L23_stop_tokens_at_every_place(kind, k):
    codec = words(VOCAB)
    for j in PLACES:
        options = {"max_tokens": 30, "stop_token_ids": [START + 1 + j, 1]}
        found = speculate(COUNTER, [START], options, kind, k, codec)
        assert found.token_ids[-1] == START + 1 + j
        assert found.finish_reason == "stop"
        same(found, plain(COUNTER, [START], options, codec))


@combinations(("oracle", "wrong", "mixed", "self", "ngram"))
def test_L24_without_any_end_or_padding_token(kind, k, backends):
    backend = backends("llama")
    prompt, options = backend.prompt(15, 1), {"max_tokens": 30}
    assert backend.target.model.config.eos_token_id is None
    assert backend.target.model.config.pad_token_id is None
    for codec in (None, words(backend.vocab)):
        found = speculate(backend.target, prompt, options, kind, k, codec)
        assert len(found.token_ids) == 30
        assert found.finish_reason == "length"
        same(found, plain(backend.target, prompt, options, codec))


def impatient(sharpness: float = 1.5) -> TableModel:
    """A random law in which token 6 is nearly always the most probable one."""
    table = TableModel.random(9, order=1, seed=21, sharpness=sharpness)
    logits = table.logits.clone()
    logits[:, 6] += 6.0
    return TableModel(logits, 1)


IMPATIENT = impatient()
DRAFT = IMPATIENT.mixed(TableModel.random(9, order=1, seed=22), 0.3)


@combinations(("oracle", "wrong", "mixed", "self", "ngram", "model"))
def test_L25_min_tokens_of_twenty_where_the_end_is_likely(kind, k, recwarn):
    codec = words(9, [6])
    free = plain(IMPATIENT, [2, 4], {"max_tokens": 40}, codec)
    assert len(free.token_ids) <= 5
    options = {"max_tokens": 40, "min_tokens": 20}
    draft = ModelDrafter(DRAFT, 9) if kind == "model" else kind
    found = speculate(IMPATIENT, [2, 4], options, draft, k, codec)
    assert 6 not in found.token_ids[:20]
    assert found.token_ids[20] == 6
    assert found.finish_reason == "stop"
    same(found, plain(IMPATIENT, [2, 4], options, codec))
    assert not recwarn.list


@every_draft_and_self
@pytest.mark.parametrize("stop", ["eos", "stop token"])
def test_L26_min_tokens_inside_a_block(stop, kind, k):
    """The end is impossible at the places before the least number, and possible from there on in the same block."""
    codec, extra = (words(9, [6]), {}) if stop == "eos" else (words(9), {"stop_token_ids": [6]})
    for least in range(1, 13):
        options = {"max_tokens": 30, "min_tokens": least, **extra}
        found = speculate(IMPATIENT, [2, 4], options, kind, k, codec)
        assert len(found.token_ids) == least + 1
        assert found.token_ids.index(6) == least
        same(found, plain(IMPATIENT, [2, 4], options, codec))


def test_L26_the_end_is_taken_from_the_block_that_reaches_the_least_number():
    """Six tokens at least, blocks of four drafted ones: the second block drafts the sixth token and the end behind it."""
    found = speculate(IMPATIENT, [2, 4], {"max_tokens": 30, "min_tokens": 7}, "oracle", 4, words(9, [6]), trace=True)
    last = (found.stats.trace or [])[-1]
    assert last.position - 2 < 7
    assert found.sources[-1] == "script"
    assert found.token_ids[-1] == 6


@pytest.mark.parametrize("limit", [2, 3, 4, 7, 20])
@every_draft
def test_L27_no_draft_beyond_the_budget(limit, kind, k):
    """With three tokens left, two are worth drafting: the last one is the target's own."""
    say = truth(COUNTER)
    seen: list[tuple[int, int]] = []

    def propose(row, plan):
        seen.append((row.remaining, plan.depth))
        right = say(row)[len(row.output) : len(row.output) + plan.depth]
        drafted = list(right) if kind == "oracle" else [t - 1 if kind == "wrong" or t % 2 else t for t in right]
        return tree([row.tokens[-1], *drafted], range(-1, len(drafted)))

    found = speculate(COUNTER, [START], {"max_tokens": limit}, Custom(propose), k)
    same(found, plain(COUNTER, [START], {"max_tokens": limit}))
    assert all(depth == min(k, left - 1) for left, depth in seen)
    assert found.stats.draft_tokens == sum(depth for _, depth in seen)


@pytest.mark.parametrize("limit", [2, 3, 4, 7])
@pytest.mark.parametrize("k", LENGTHS)
def test_L27_a_draft_model_runs_no_further_than_the_budget(limit, k):
    draft = counter(VOCAB)
    speculate(COUNTER, [START], {"max_tokens": limit}, ModelDrafter(draft, VOCAB), k)
    # it reads the committed tokens, and drafts what is accepted: never a token behind the last one asked for
    assert draft.nodes_scored <= 1 + (limit - 1) + (limit - 2)


THINK, END = 20, 21


def thinker() -> TableModel:
    """Opens ``<think>`` after token 4, and would go on thinking for ever."""
    logits = torch.zeros(31, 30, dtype=torch.float64)
    for t in range(31):
        logits[t, (t + 1) % 10] = 30.0
    logits[4, :] = 0.0
    logits[4, THINK] = 30.0
    logits[THINK, 5] = 30.0
    logits[9, 5] = 60.0  # a loop that never comes by 4 again
    return TableModel(logits, 1)


THINKER = thinker()


@pytest.mark.parametrize("marker", ["one token", "three tokens"])
@combinations(("oracle", "wrong", "mixed", "self"), range(1, 9))
def test_L28_the_thinking_budget_ends_at_the_same_token(marker, kind, k):
    pieces = [f" w{i}" for i in range(30)]
    pieces[THINK] = "<think>"
    if marker == "one token":
        pieces[END], forced = "</think>", (END,)
    else:
        pieces[21], pieces[22], pieces[23], forced = "</", "think", ">", (21, 22, 23)
    codec, target = ToyCodec(pieces), THINKER
    for prompt, begin in (([2], 3), ([2, THINK], 0)):  # it opens in the output, or in the prompt
        options = {"max_tokens": 24, "thinking_budget": 8}
        found = speculate(target, prompt, options, kind, k, codec)
        assert found.token_ids[begin + 8 : begin + 8 + len(forced)] == forced
        assert not set(forced) & set(found.token_ids[: begin + 8])
        same(found, plain(target, prompt, options, codec))
