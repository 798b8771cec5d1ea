"""L56 to L61: every option of a request is honoured at drafted, corrected and bonus positions, or refused by name.

Two references: plain decoding on the same target, and :mod:`exact.reference`, which computes each position from the token
history alone.
"""

from __future__ import annotations

import math

import pytest
from behaviour.grid import DRAFTS, LENGTHS, build, engine_of, every_draft, finish, plain, same, speculate, streamed
from exact.reference import World, filtered, softmax
from toys import Custom, ToyCodec, fixed
from toys_grammar import ToyGrammars

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.laws import Laws
from surefoot.core.params import SamplingParams
from surefoot.core.tree import DraftTree
from surefoot.drafters.script import ScriptDrafter
from surefoot.errors import BadRequest

PIECES = ["a", "b", "c", "ab", "ba", "ca", "bc", "abc", " ", "cab", "x", "aa"]
CODEC = ToyCodec(PIECES)
TARGET = TableModel.random(12, order=2, seed=14, sharpness=1.2)
GRAMMARS = ToyGrammars(CODEC.pieces)
WORLD = World(TARGET, CODEC.pieces)
PROMPT = [3, 1, 3, 1, 3, 1]


def check(prompt, options, kind, k, target=TARGET):
    """The speculative run, equal to plain decoding and, where greedy, to the reference."""
    found = speculate(target, prompt, options, kind, k, CODEC)
    same(found, plain(target, prompt, options, CODEC))
    if not options.get("temperature"):
        assert found.token_ids == WORLD.greedy(prompt, options)
    return found


# ---- L56, L57: penalties ----


@every_draft
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_L56_frequency_penalty_of_both_signs(temperature, kind, k):
    base = {"max_tokens": 40, "temperature": temperature, "seed": 1}
    down, up = (check(PROMPT, base | {"frequency_penalty": f}, kind, k) for f in (2.0, -2.0))
    assert down.token_ids != up.token_ids
    assert max(map(up.token_ids.count, range(12))) > 2 * max(map(down.token_ids.count, range(12)))


@every_draft
@pytest.mark.parametrize("penalty", [-2.0, 1.5])
def test_L56_presence_penalty(penalty, kind, k):
    options = {"max_tokens": 40, "presence_penalty": penalty}
    found = check(PROMPT, options, kind, k)
    assert found.token_ids != plain(TARGET, PROMPT, {"max_tokens": 40}, CODEC).token_ids


@every_draft
def test_L56_penalties_on_a_transformer(backends, kind, k):
    target = backends("llama").target
    prompt, options = [7, 9, 7, 9, 7, 9], {"max_tokens": 20, "frequency_penalty": 1.5, "repetition_penalty": 1.2}
    wanted = plain(target, prompt, options)
    same(speculate(target, prompt, options, kind, k), wanted)
    assert wanted.token_ids != plain(target, prompt, {"max_tokens": 20}).token_ids


def seventy(options, prompt=PROMPT) -> ScriptDrafter:
    """Right at seven of ten positions."""
    return ScriptDrafter(lambda row: plain(TARGET, prompt, options, CODEC).token_ids, 12, accuracy=0.7)


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("penalty", [1.05, 1.3, 2.0])
def test_L57_repetition_counts_accepted_tokens_of_the_block(penalty, k):
    options = {"max_tokens": 60, "repetition_penalty": penalty}
    for draft in (*DRAFTS, seventy(options)):
        check(PROMPT, options, draft, k)


@pytest.mark.parametrize("accuracy", ["oracle", "seventy"])
@pytest.mark.parametrize("penalty", [1.3, 2.0])
def test_L57_an_engine_that_counts_committed_tokens_only_is_seen(penalty, accuracy, monkeypatch):
    options = {"max_tokens": 30, "repetition_penalty": penalty}
    prompts = [[i, 3] for i in range(12)]
    wanted = [plain(TARGET, prompt, options, CODEC).token_ids for prompt in prompts]
    monkeypatch.setattr(Laws, "_at", lambda self, node: self._state)
    drafts = [accuracy if accuracy == "oracle" else seventy(options, prompt) for prompt in prompts]
    assert [speculate(TARGET, p, options, d, 5, CODEC).token_ids for p, d in zip(prompts, drafts)] != wanted


# ---- L58: bias and bans ----


def favourite(options=()) -> int:
    """The token that plain decoding says most often."""
    said = plain(TARGET, PROMPT, {"max_tokens": 40, **dict(options)}, CODEC).token_ids
    return max(set(said), key=said.count)


def always(token):
    return Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], *[token] * plan.depth], source=1))


def unbiased():
    """Drafts what the target would say without any option: every banned token where it would come."""
    said = plain(TARGET, PROMPT, {"max_tokens": 60}, CODEC).token_ids
    return ScriptDrafter(lambda row: said, 12)


def all_drafts():
    return (*DRAFTS, always(favourite()), unbiased())


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_L58_a_bias_of_minus_100_bans_everywhere(temperature, k):
    token = favourite()
    options = {"max_tokens": 40, "temperature": temperature, "seed": 2, "logit_bias": {str(token): -100}}
    for draft in all_drafts():
        assert token not in check(PROMPT, options, draft, k).token_ids


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_L58_a_bias_of_100_forces_everywhere(temperature, k):
    token = (favourite() + 5) % 12
    options = {"max_tokens": 17, "temperature": temperature, "seed": 2, "logit_bias": {token: 100}}
    for draft in (*all_drafts(), always(token)):
        assert check(PROMPT, options, draft, k).token_ids == (token,) * 17


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("words", [["ab"], ["aba", "ca"], ["b", "cc"], ["ab ", "bcab", "x"]], ids="-".join)
def test_L58_bad_words_across_token_borders(words, k):
    """A banned text may begin inside one token and end inside another, all of it drafted or only its end."""
    for temperature in (0.0, 1.3):
        options = {"max_tokens": 40, "bad_words": words, "temperature": temperature, "seed": 4}
        free = plain(TARGET, PROMPT, {name: options[name] for name in ("max_tokens", "temperature", "seed")}, CODEC)
        assert any(word in free.text for word in words)
        for draft in all_drafts():
            text = check(PROMPT, options, draft, k).text
            assert not any(word in text for word in words)


@pytest.mark.parametrize("k", LENGTHS)
def test_L58_bad_sequences_of_ids(k):
    said = plain(TARGET, PROMPT, {"max_tokens": 40}, CODEC).token_ids
    bad = [list(said[4:6]), list(said[9:12]), [said[20]]]
    for draft in all_drafts():
        found = check(PROMPT, {"max_tokens": 40, "bad_words_ids": bad}, draft, k).token_ids
        assert not any(list(found[i : i + len(b)]) == b for b in bad for i in range(40))


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_L58_allowed_tokens(temperature, k):
    options = {"max_tokens": 40, "allowed_token_ids": [0, 4, 8, 10], "temperature": temperature, "seed": 6}
    for draft in (*all_drafts(), always(4)):
        assert set(check(PROMPT, options, draft, k).token_ids) <= {0, 4, 8, 10}


@every_draft
def test_L58_min_p_at_every_position(kind, k):
    options = {"max_tokens": 40, "temperature": 1.7, "min_p": 0.4, "seed": 8, "frequency_penalty": 0.3}
    found = check(PROMPT, options, kind, k).token_ids
    assert all(WORLD.probabilities(PROMPT, found[:i], options)[token] > 0 for i, token in enumerate(found))


@every_draft
@pytest.mark.parametrize("least", [2, 6, 9])
def test_L58_min_tokens_inside_a_block(least, kind, k):
    """The end token comes first where it is impossible for the last time, or for the first time possible."""
    said = plain(TARGET, PROMPT, {"max_tokens": 40}, CODEC).token_ids
    places = [i for i in range(1, 20) if said.index(said[i]) == i]
    for place in places:
        options = {"max_tokens": 30, "min_tokens": least, "stop_token_ids": [said[place]]}
        found = check(PROMPT, options, kind, k).token_ids
        assert said[place] not in found[:least]
    assert {least - 1, least} & set(places)


# ---- L59: honoured or refused ----

OPENAI = (
    "audio", "best_of", "echo", "extra_body", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
    "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model", "n", "parallel_tool_calls",
    "prediction", "presence_penalty", "prompt_cache_key", "reasoning_effort", "response_format",
    "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options", "suffix", "temperature",
    "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity", "web_search_options",
)  # fmt: skip
"""Fields of OpenAI's chat and completion requests."""
SAMPLED = {"temperature": 1.2, "seed": 3}
EFFECTS = {
    "echo": ({}, {"echo": True}),
    "frequency_penalty": ({}, {"frequency_penalty": 2.0}),
    "logit_bias": ({}, {"logit_bias": {"3": -100}}),
    "logprobs": ({}, {"logprobs": True}),
    "max_tokens": ({}, {"max_tokens": 7}),
    "n": (SAMPLED, {"n": 2}),
    "presence_penalty": ({}, {"presence_penalty": 2.0}),
    "response_format": ({}, {"response_format": {"type": "regex", "regex": "[ab]{40}"}}),
    "seed": (SAMPLED, {"seed": 4}),
    "stop": ({}, {"stop": ["a"]}),
    "temperature": ({"seed": 3}, {"temperature": 1.2}),
    "top_logprobs": ({"logprobs": True}, {"top_logprobs": 2}),
    "top_p": (SAMPLED, {"top_p": 0.3}),
}
"""Field -> the request without it, and what it adds."""


def test_L59_the_list_of_effects_is_complete():
    known = set(SamplingParams.__dataclass_fields__)
    assert set(EFFECTS) == set(OPENAI) & known


@pytest.mark.parametrize("field", [name for name in OPENAI if name not in EFFECTS])
def test_L59_what_is_not_honoured_is_refused_by_name(field):
    engine = engine_of(TARGET, "mixed", 3, CODEC)
    for call in (engine.generate, lambda prompt, **o: list(engine.stream(prompt, **o))):
        with pytest.raises(BadRequest, match=f"unknown request option '{field}'"):
            call(PROMPT, max_tokens=3, **{field: 1})
    assert engine.rows == []


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("field", EFFECTS)
def test_L59_what_is_honoured_has_its_effect(field, k):
    base, more = EFFECTS[field]
    without, given = {"max_tokens": 24, **base}, {"max_tokens": 24, **base, **more}
    wanted = plain(TARGET, PROMPT, given, CODEC, grammars=GRAMMARS)
    assert seen(wanted) != seen(plain(TARGET, PROMPT, without, CODEC, grammars=GRAMMARS))
    for draft in DRAFTS:
        same(speculate(TARGET, PROMPT, given, draft, k, CODEC, grammars=GRAMMARS), wanted)


def seen(completion):
    return (completion.text, completion.token_ids, completion.logprobs, [c.token_ids for c in completion.choices])


# ---- L60, L61: log-probabilities ----

LOGGED = {
    "greedy": {},
    "sampled": {"temperature": 1.3, "seed": 5},
    "filtered": {"temperature": 0.7, "seed": 5, "top_k": 5, "top_p": 0.9},
    "penalized": {"frequency_penalty": 0.8, "logit_bias": {3: 1.5}, "bad_words": ["ab"]},
}


@every_draft
@pytest.mark.parametrize("name", LOGGED)
def test_L60_logprobs_are_those_of_the_position(name, kind, k):
    options = {"max_tokens": 24, "logprobs": 3} | LOGGED[name]
    found = check(PROMPT, options, kind, k)
    assert len(found.logprobs) == len(found.token_ids)
    for i, (token, told) in enumerate(zip(found.token_ids, found.logprobs)):
        history = found.token_ids[:i]
        model = softmax([float(v) for v in TARGET.next_logits([*PROMPT, *history])])
        shaped = WORLD.shaped(PROMPT, history, options)
        temperature = options.get("temperature", 0.0)
        asked = filtered([v / temperature for v in shaped], options) if temperature else softmax(shaped)
        assert told.token == token
        assert told.logprob == pytest.approx(math.log(model[token]), abs=1e-4)
        assert told.asked == pytest.approx(math.log(asked[token]), abs=1e-4)
        for top, law in ((told.top, model), (told.top_asked, asked)):
            best = sorted((t for t in range(12) if law[t] > 0), key=lambda t: -law[t])[:3]
            assert [t for t, _ in top] == best
            assert [v for _, v in top] == pytest.approx([math.log(law[t]) for t in best], abs=1e-4)


@every_draft
@pytest.mark.parametrize("name", LOGGED)
def test_L60_the_whole_vocabulary_adds_up_to_one(name, kind, k):
    options = {"max_tokens": 16, "logprobs": True, "top_logprobs": 12} | LOGGED[name]
    for told in check(PROMPT, options, kind, k).logprobs:
        for top, own in ((told.top, told.logprob), (told.top_asked, told.asked)):
            assert math.fsum(math.exp(v) for _, v in top) == pytest.approx(1.0, abs=1e-6)
            assert [v for _, v in top] == sorted((v for _, v in top), reverse=True)
            assert dict(top)[told.token] == pytest.approx(own, abs=1e-9)
        assert len(told.top) == 12


@every_draft
def test_L60_logprobs_on_a_transformer(backends, kind, k):
    target = backends("llama").target
    options = {"max_tokens": 18, "logprobs": 3}
    wanted = plain(target, [5, 6, 7], options)
    assert all(told.logprob < -1e-6 for told in wanted.logprobs)
    same(speculate(target, [5, 6, 7], options, kind, k), wanted)


@every_draft
@pytest.mark.parametrize("ending", [{}, {"stop": ["ab"]}, {"stop_token_ids": [3, 7]}, {"max_tokens": 1}], ids=str)
def test_L61_as_many_entries_as_tokens(ending, kind, k):
    options = {"max_tokens": 21, "logprobs": 2} | ending
    found = check(PROMPT, options, kind, k) if "stop" not in ending else speculate(TARGET, PROMPT, options, kind, k, CODEC)
    same(found, plain(TARGET, PROMPT, options, CODEC))
    assert [told.token for told in found.logprobs] == list(found.token_ids)
    assert found.usage.completion_tokens == len(found.logprobs)
    pieces = streamed(engine_of(TARGET, kind, k, CODEC), PROMPT, options)
    assert all(len(piece.logprobs) == len(piece.token_ids) for piece in pieces)
    assert tuple(told for piece in pieces for told in piece.logprobs) == found.logprobs
    assert "".join(piece.text for piece in pieces) == found.text


@pytest.mark.parametrize("logprobs", [None, False])
def test_L61_no_entries_unless_asked_for(logprobs):
    options = {"max_tokens": 9} | ({} if logprobs is None else {"logprobs": logprobs})
    assert speculate(TARGET, PROMPT, options, "mixed", 3, CODEC).logprobs is None
    assert all(piece.logprobs == () for piece in streamed(engine_of(TARGET, "mixed", 3, CODEC), PROMPT, options))
    assert speculate(TARGET, PROMPT, {"max_tokens": 9, "logprobs": 0}, "mixed", 3, CODEC).logprobs[4].top == ()


@pytest.mark.parametrize("chunk", [1, 3, 4, 256])
@pytest.mark.parametrize("length", [1, 2, 4, 9, 13])
def test_L61_echo_scores_the_prompt(length, chunk):
    """However prefill is cut into passes, beside a neighbour or alone, and whatever of the prompt is in the cache already."""
    prompt = [(5 * i + i // 4) % 12 for i in range(length)]
    options = {"max_tokens": 10, "echo": True, "logprobs": 2, "frequency_penalty": 1.0}
    engine = engine_of(TARGET, "mixed", 5, CODEC, chunk=chunk)
    finish(engine, [*prompt, 1, 1], {"max_tokens": 5})
    engine.add([1, 2, 3, 4, 5, 6, 7], build({"max_tokens": 30}))
    found = finish(engine, prompt, options)
    same(found, plain(TARGET, prompt, options, CODEC))
    assert found.text == CODEC.text([*prompt, *found.token_ids])
    assert found.prompt_logprobs[0] is None
    assert len(found.prompt_logprobs) == length
    for i in range(1, length):
        model = softmax([float(v) for v in TARGET.next_logits(prompt[:i])])
        told = found.prompt_logprobs[i]
        assert (told.token, told.logprob) == (prompt[i], pytest.approx(math.log(model[prompt[i]]), abs=1e-4))
        assert told.top[0] == (model.index(max(model)), pytest.approx(math.log(max(model)), abs=1e-4))


def test_L61_echo_with_choices_and_a_transformer(backends):
    target = backends("llama").target
    prompt = [2, 3, 5, 7, 11, 13, 17]
    options = {"max_tokens": 6, "echo": True, "logprobs": 2, "n": 2, "temperature": 1.0, "seed": 4}
    codec = ToyCodec([f"{i} " for i in range(53)])
    wanted = plain(target, prompt, options, codec, chunk=256)
    found = finish(engine_of(target, "oracle", 3, codec, chunk=2), prompt, options)
    same(found, wanted)
    step = Engine(target, codec=codec)
    for i in range(1, len(prompt)):  # teacher forcing, one prompt at a time
        told = finish(step, prompt[:i], {"max_tokens": 1, "logprobs": 53}).logprobs[0]
        assert found.prompt_logprobs[i].logprob == pytest.approx(dict(told.top)[prompt[i]], abs=1e-4)
    for choice in found.choices:
        assert choice.text.startswith("2 3 5 7 11 13 17 ")
        assert [e and e.token for e in choice.prompt_logprobs] == [None, *prompt[1:]]


def test_L61_a_failed_draft_of_many_tokens_costs_no_entries():
    """Blocks that are refused whole: one entry a pass."""
    engine = fixed(TARGET, always((favourite() + 1) % 12), 16, codec=CODEC)
    found = finish(engine, PROMPT, {"max_tokens": 15, "logprobs": 1})
    assert len(found.logprobs) == len(found.token_ids) == 15
