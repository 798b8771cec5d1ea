"""Bad input: each is refused in one line that names the field, or fails the one request that it belongs to."""

from __future__ import annotations

import math

import pytest
import torch
from behaviour.grid import LENGTHS, engine_of, every_draft, finish, plain, same, speculate, streamed
from toys import ToyCodec
from toys_grammar import ToyGrammars

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.request import Piece
from surefoot.errors import BadRequest, SurefootError, Unsupported

PIECES = ["a", "b", "c", "ab", "1", "2", "<eos>", " "]
CODEC = ToyCodec(PIECES, eos=[6])
TARGET = TableModel.random(8, order=2, seed=3, sharpness=1.5)
GRAMMARS = ToyGrammars(CODEC.pieces, [6])
LETTERS = {"structured_outputs": {"regex": "[abc]+"}}

REFUSED = {
    "greedy-hot": ({"verification": "greedy", "temperature": 0.5}, "verification 'greedy' contradicts temperature"),
    "min-max": ({"min_tokens": 9, "max_tokens": 8}, "min_tokens=9 is more than max_tokens=8"),
    "two-formats": (LETTERS | {"response_format": {"type": "json_object"}}, "response_format and structured_outputs"),
    "after-nothing": ({"constrain_after": "</think>"}, "constrain_after needs"),
    "endless-format": (LETTERS | {"ignore_eos": True}, "ignore_eos contradicts"),
    "markers-alone": ({"thinking_end": "</t>"}, "thinking_start and thinking_end need thinking_budget"),
    "two-markers": (LETTERS | {"thinking_budget": 3, "constrain_after": "c"}, "constrain_after='c' contradicts thinking_end"),
    "top-alone": ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
    "top-twice": ({"logprobs": 2, "top_logprobs": 3}, "logprobs=2 contradicts top_logprobs=3"),
    "unknown": ({"temprature": 1.0}, "unknown request option 'temprature'; did you mean 'temperature'"),
    "unknown-far": ({"zzz": 1}, "unknown request option 'zzz'; known are"),
    "schema-list": ({"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}, "response_format"),
    "schema-text": ({"structured_outputs": {"json": "{"}}, "structured_outputs: the schema is not valid JSON"),
    "schema-missing": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "format-type": ({"response_format": {"type": "yaml"}}, "response_format type 'yaml' is unknown"),
    "format-text": ({"response_format": "json"}, "response_format='json' is not allowed"),
    "format-key": ({"response_format": {"type": "json_object", "x": 1}}, "response_format: unknown key 'x'"),
    "outputs-two": ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    "choice-empty": ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    "choice-blank": ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice"),
    "regex-empty": ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    "regex-broken": ({"structured_outputs": {"regex": "(a"}}, "regex"),
    "stop-empty": ({"stop": ["a", ""]}, "stop"),
    "stop-blank": ({"stop": ""}, "stop"),
    "stop-number": ({"stop": [1]}, "stop"),
    "bad-words-empty": ({"bad_words": [""]}, "bad_words"),
    "bad-ids-empty": ({"bad_words_ids": [[]]}, "bad_words_ids"),
    "bad-ids-flat": ({"bad_words_ids": [1, 2]}, "bad_words_ids"),
    "bias-big": ({"logit_bias": {1: 101}}, "logit_bias"),
    "bias-nan": ({"logit_bias": {1: math.nan}}, "logit_bias"),
    "bias-name": ({"logit_bias": {"the": 1}}, "logit_bias"),
    "bias-twice": ({"logit_bias": {"1": 1, 1: 2}}, "logit_bias names token 1 twice"),
    "bias-outside": ({"logit_bias": {8: 1}}, "logit_bias names token 8"),
    "allowed-outside": ({"allowed_token_ids": [1, 9]}, "allowed_token_ids names token 9"),
    "allowed-none": ({"allowed_token_ids": []}, "allowed_token_ids"),
    "bad-ids-outside": ({"bad_words_ids": [[1, 99]]}, "bad_words_ids names token 99"),
    "temperature": ({"temperature": -1}, "temperature=-1"),
    "temperature-nan": ({"temperature": math.nan}, "temperature=nan"),
    "top-p": ({"top_p": 0}, "top_p=0"),
    "penalty": ({"frequency_penalty": 2.5}, "frequency_penalty=2.5"),
    "repetition": ({"repetition_penalty": 0}, "repetition_penalty=0"),
    "n": ({"n": 0}, "n=0"),
    "n-true": ({"n": True}, "n=True"),
    "seed": ({"seed": "1"}, "seed='1'"),
    "processor": ({"logits_processors": [3]}, "logits_processors"),
    "capacity": ({"n": 4000, "max_tokens": 4000}, "n=4000 answers of up to"),
    "context": ({"n": 2, "max_tokens": 0}, "max_tokens=0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_before_anything_runs(name):
    options, message = REFUSED[name]
    engine = engine_of(TARGET, "mixed", 3, CODEC, grammars=GRAMMARS)
    before = TARGET.nodes_scored
    for call in (
        lambda: engine.generate([1], **options),
        lambda: engine.generate_batch([[1], [2]], **options),
        lambda: next(engine.stream([1], **options)),
    ):
        with pytest.raises(BadRequest) as caught:
            call()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    assert engine.rows == []
    assert before == TARGET.nodes_scored
    same(finish(engine, [1], {"max_tokens": 6}), plain(TARGET, [1], {"max_tokens": 6}, CODEC))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"allowed_token_ids": [2], "bad_words_ids": [[2]]}, "allowed_token_ids and bad_words_ids"),
        ({"bad_words": [*"abc12 ", "<eos>"]}, "bad_words"),
        (LETTERS | {"allowed_token_ids": [4]}, "allowed_token_ids and structured_outputs"),
        ({"allowed_token_ids": [6], "min_tokens": 2}, "allowed_token_ids and min_tokens"),
        ({"response_format": {"type": "regex", "regex": "[xyz]"}}, "response_format"),
    ],
)
def test_options_that_leave_no_first_token_are_refused_at_once(options, message):
    engine = engine_of(TARGET, "mixed", 3, CODEC, grammars=GRAMMARS)
    with pytest.raises(BadRequest, match=f"loosen {message}"):
        engine.add([1], SamplingParams.build(options))
    assert engine.rows == []


@pytest.mark.parametrize("option", ["bad_words", "structured_outputs", "thinking_budget", "stop", "echo"])
def test_texts_need_a_tokenizer(option):
    value = {"bad_words": ["a"], "structured_outputs": {"regex": "a"}, "thinking_budget": 2, "stop": ["a"], "echo": True}
    with pytest.raises(SurefootError, match="tokenizer"):
        Engine(TARGET).generate([1], **{option: value[option]})


def test_structured_output_needs_a_library():
    with pytest.raises(Unsupported, match="response_format needs a tokenizer and a grammar library"):
        Engine(TARGET, codec=CODEC).generate([1], response_format={"type": "json_object"})


def test_add_is_for_one_answer():
    with pytest.raises(BadRequest, match="add queues one answer, and n is 2; use submit"):
        Engine(TARGET).add([1], SamplingParams(n=2))


# ---- requests that fail on their way ----


def closing(token_ids, logits):
    """Leaves nothing at the tenth token."""
    if len(token_ids) >= 9:
        logits[:] = -torch.inf
    return logits


def raising(token_ids, logits):
    if len(token_ids) >= 9:
        raise ValueError("no ninth token")
    return logits


def short(token_ids, logits):
    return logits[:-1] if len(token_ids) >= 9 else logits


def no_number(token_ids, logits):
    return logits * math.nan if len(token_ids) >= 9 else logits


def no_tensor(token_ids, logits):
    return logits.tolist() if len(token_ids) >= 9 else logits


class Forgetful:
    """Fails when it is told of the ninth token."""

    def __init__(self, told=0):
        self.told = told

    def __call__(self, token_ids, logits):
        return logits

    def advance(self, token):
        self.told += 1
        if self.told == 7:
            raise KeyError(token)

    def fork(self):
        return Forgetful(self.told)


FAILING = {
    "closing": ({"logits_processors": [closing]}, "no token is possible at token 9 of the request: loosen logits_processors"),
    "raising": ({"logits_processors": [raising]}, "logits_processors: raising failed: ValueError: no ninth token"),
    "short": ({"logits_processors": [short]}, "logits_processors: short must return logits of shape"),
    "nan": ({"logits_processors": [no_number]}, "logits_processors: no_number returned NaN"),
    "list": ({"logits_processors": [no_tensor]}, "logits_processors: no_tensor must return logits of shape"),
    "advance": ({"logits_processors": [Forgetful()]}, "logits_processors: Forgetful failed: KeyError"),
    "grammar": (
        {"structured_outputs": {"regex": "[ab]{7}c"}, "bad_words": ["c"], "allowed_token_ids": [0, 1, 2, 6]},
        "no token is possible at token 9 of the request: loosen allowed_token_ids and bad_words and structured_outputs",
    ),
    "least": (
        {"structured_outputs": {"regex": "[ab]{7}"}, "min_tokens": 9, "allowed_token_ids": [0, 1, 6]},
        "no token is possible at token 9 of the request: loosen allowed_token_ids and min_tokens and structured_outputs",
    ),
}


@every_draft
@pytest.mark.parametrize("name", FAILING)
def test_a_request_that_fails_keeps_what_it_said(name, kind, k):
    """Whether the fatal position is the first of a block or in the middle of one, the output is that of plain decoding."""
    options, message = FAILING[name]
    for more in ({}, {"temperature": 1.0, "seed": 4}, {"logprobs": 2}):
        asked = {"max_tokens": 30, **options, **more} | ({"ignore_eos": True} if "structured_outputs" not in options else {})
        wanted = plain(TARGET, [1, 2], asked, CODEC, grammars=GRAMMARS)
        assert wanted.finish_reason == "error"
        assert message in wanted.error
        assert len(wanted.token_ids) == 7
        same(speculate(TARGET, [1, 2], asked, kind, k, CODEC, grammars=GRAMMARS), wanted)


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("kind", ["oracle", "mixed"])
def test_neighbours_of_a_request_that_fails_go_on(kind, name, k):
    options = {"max_tokens": 30, **FAILING[name][0]}
    free = {"max_tokens": 30, "frequency_penalty": 0.5, "ignore_eos": True}
    engine = engine_of(TARGET, kind, k, CODEC, grammars=GRAMMARS)
    rows = [engine.add([1, 2], SamplingParams.build(o)) for o in (free, options, free, LETTERS | {"max_tokens": 30})]
    while not all(row.done for row in rows):
        engine.step()
    for row in (rows[0], rows[2]):
        same(engine.completion(row), plain(TARGET, [1, 2], free, CODEC))
    same(engine.completion(rows[1]), plain(TARGET, [1, 2], options, CODEC, grammars=GRAMMARS))
    same(engine.completion(rows[3]), plain(TARGET, [1, 2], LETTERS | {"max_tokens": 30}, CODEC, grammars=GRAMMARS))
    assert engine.rows == []
    engine.close()


@pytest.mark.parametrize("name", FAILING)
def test_generate_raises_and_a_stream_ends_with_the_error(name):
    options, message = FAILING[name]
    options = {"max_tokens": 30, **options} | ({"ignore_eos": True} if "structured_outputs" not in options else {})
    engine = engine_of(TARGET, "oracle", 8, CODEC, grammars=GRAMMARS)
    with pytest.raises(BadRequest) as caught:
        engine.generate([1, 2], **options)
    assert message in str(caught.value)
    pieces: list[Piece] = []
    with pytest.raises(BadRequest):
        pieces.extend(engine.stream([1, 2], **options))
    assert pieces[-1].finish_reason == "error"
    assert message in pieces[-1].error
    assert sum(len(piece.token_ids) for piece in pieces) == 7
    done = engine.generate_batch([[1, 2], [2, 1, 2]], **options)
    assert [d.finish_reason for d in done].count("error") >= 1
    same(finish(engine, [1], {"max_tokens": 6}), plain(TARGET, [1], {"max_tokens": 6}, CODEC))
    assert streamed(engine, [1], {"max_tokens": 6})


def test_one_bad_prompt_of_a_batch_loses_nothing():
    engine = engine_of(TARGET, "mixed", 3, CODEC)
    with pytest.raises(BadRequest, match="prompt token ids must lie in"):
        engine.generate_batch([[1], [99], [2]], max_tokens=5)
    with pytest.raises(BadRequest, match="the prompt is empty"):
        engine.generate_batch([[1], []], max_tokens=5)
    assert engine.rows == []
