"""From options to a state: none where none is needed, all of them in their order, and early refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from toys import ToyCodec
from toys_grammar import ToyGrammars

from surefoot.backends.table import TableModel
from surefoot.core.compiled import Compiler
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.shaping import State
from surefoot.errors import BadRequest, Unsupported

PIECES = ["a", "b", "ab", "<think>", "</", "think>", "", "é"]
V = len(PIECES)
CODEC = ToyCodec(PIECES)


def state(tokens: list[int] | None = None, stop_ids=(), codec: Any = CODEC, vocab: int = V, **options) -> State | None:
    grammars = None if codec is None else ToyGrammars(codec.pieces, (), vocab)
    params = SamplingParams.build(options)
    return Compiler(vocab, codec, grammars).state(params, [0] if tokens is None else tokens, stop_ids)


def banned(made: State | None, vocab: int = V) -> list[int]:
    assert made is not None
    return np.flatnonzero(made.shape(np.zeros(vocab)) == -np.inf).tolist()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "seed": 1},
        {"max_tokens": 3, "stop": "a", "stop_token_ids": [1], "ignore_eos": True, "n": 2, "logprobs": 3, "echo": True},
        {"logit_bias": {}, "bad_words": [], "bad_words_ids": [], "logits_processors": [], "min_tokens": 0},
        {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0},
        {"response_format": {"type": "text"}},
    ],
    ids=str,
)
def test_options_that_look_at_no_tokens_need_no_state(options):
    assert state(**options) is None


def test_min_tokens_needs_a_state_only_where_something_could_end():
    assert state(min_tokens=3) is None
    assert state(stop_ids=[1]) is None
    assert banned(state(min_tokens=3, stop_ids=[1, 2])) == [1, 2]
    assert banned(state(min_tokens=3, stop_ids=[1, V + 5])) == [1], "an end token that the model does not have"


@pytest.mark.parametrize(
    "options, wanted",
    [
        ({"allowed_token_ids": [1, 2]}, [0, 3, 4, 5, 6, 7]),
        ({"bad_words": "b"}, [1, 2]),
        ({"bad_words_ids": [[1], [2, 3]]}, [1]),
        ({"thinking_budget": 0}, [0, 1, 2, 3, 5, 6, 7]),
        ({"response_format": {"type": "regex", "regex": "ab"}}, [1, 3, 4, 5, 6, 7]),
        ({"structured_outputs": {"choice": ["b"]}}, [0, 2, 3, 4, 5, 6, 7]),
    ],
    ids=str,
)
def test_what_is_impossible_after_a_prompt(options, wanted):
    assert banned(state(tokens=[0, 3], **options)) == wanted


def test_the_order_of_what_changes_logits():
    """Bias, then repetition, presence and frequency, then the user's processors."""
    seen: list[list[float]] = []

    def spy(ids, logits):
        seen.append(logits.tolist())
        return logits * 10

    tokens = [0]
    made = state(
        tokens, logit_bias={0: 3.0, 1: 1.0}, repetition_penalty=2.0, presence_penalty=0.5, logits_processors=spy, bad_words="b"
    )
    assert made is not None
    tokens.append(0)
    made.advance(0)
    shaped = made.shape(np.ones(V))
    assert seen == [[(1 + 3) / 2 - 0.5, 2.0, 1, 1, 1, 1, 1, 1]]
    assert shaped.tolist() == [15.0, -np.inf, -np.inf, *[10.0] * 5], "what is impossible stays so whatever a processor says"


def test_the_end_of_thinking_is_forced_over_all_that_is_impossible():
    made = state(
        [3], thinking_budget=0, allowed_token_ids=[0], bad_words="</", min_tokens=1, stop_ids=[4], logit_bias={4: -100}
    )
    assert banned(made) == [0, 1, 2, 3, 5, 6, 7]
    made.advance(4)
    assert banned(made) == [0, 1, 2, 3, 4, 6, 7]
    made.advance(5)
    assert banned(made) == [1, 2, 3, 4, 5, 6, 7]


def test_a_constraint_begins_where_forced_thinking_ended():
    made = state([3], thinking_budget=1, response_format={"type": "regex", "regex": "ab*"})
    assert made is not None
    for token in (0, 4, 5):
        assert token not in banned(made)
        made.advance(token)
    assert banned(made) == [1, 3, 4, 5, 6, 7]
    assert not made.ended


@pytest.mark.parametrize("eos", [(), (6,)])
def test_output_that_is_complete_ends_the_request(eos):
    """With an end token by that token, without one where nothing can follow."""
    codec = ToyCodec(PIECES, eos)
    engine = Engine(TableModel.random(V, seed=3), codec=codec, grammars=ToyGrammars(codec.pieces, eos))
    found = engine.generate([0], max_tokens=20, structured_outputs={"choice": ["abba", "éa"]})
    assert found.text in ("abba", "éa")
    assert found.finish_reason == "stop"
    assert found.token_ids[-1] in eos or not eos


def test_the_rows_own_list_is_read_not_copied():
    tokens = [0]
    made = state(tokens, logits_processors=lambda ids, x: x + len(ids))
    assert made is not None
    assert made.shape(np.zeros(V))[0] == 1
    tokens.append(2)
    made.advance(2)
    assert made.shape(np.zeros(V))[0] == 2


class Count:
    def __init__(self, n: int = 0) -> None:
        self.n = n

    def __call__(self, ids, logits: torch.Tensor) -> torch.Tensor:
        return logits + self.n

    def advance(self, token: int) -> None:
        self.n += 1

    def fork(self) -> Count:
        return Count(self.n)


def test_every_request_begins_with_a_fork_of_the_users_processor():
    given = Count()
    one, other = (state(logits_processors=given) for _ in range(2))
    assert one is not None
    assert other is not None
    one.advance(0)
    assert (one.shape(np.zeros(V))[0], other.shape(np.zeros(V))[0], given.n) == (1, 0, 0)


@pytest.mark.parametrize(
    "options", [{"logit_bias": {V: 1.0}}, {"allowed_token_ids": [0, V]}, {"bad_words_ids": [[0, 1], [1, V]]}], ids=str
)
def test_ids_that_the_model_does_not_have_are_refused(options):
    [name] = options
    with pytest.raises(BadRequest, match=rf"{name} names token 8; the model has the ids 0\.\.7"):
        state(**options)
    assert state(vocab=V + 1, **options) is not None


@pytest.mark.parametrize("options", [{"bad_words": "a"}, {"thinking_budget": 3}], ids=str)
def test_texts_need_a_tokenizer(options):
    [name] = options
    with pytest.raises(BadRequest, match=f"{name} needs a tokenizer"):
        state(codec=None, **options)


def test_ids_do_not():
    assert state(codec=None, bad_words_ids=[[1]], allowed_token_ids=[0, 2], logit_bias={1: 1.0}, repetition_penalty=2.0)


@pytest.mark.parametrize("name", ["response_format", "structured_outputs"])
def test_structured_output_needs_grammars(name):
    value = {"type": "json_object"} if name == "response_format" else {"json_object": True}
    with pytest.raises(Unsupported, match=f"{name} needs a tokenizer and a grammar library"):
        state(codec=None, **{name: value})


class Unwritable(ToyCodec):
    def encode(self, text: str, special: bool = True) -> list[int]:
        assert not special
        return [0]


def test_an_end_of_thinking_that_cannot_be_written_is_refused():
    with pytest.raises(BadRequest, match="thinking_end='</think>' cannot be written"):
        state(codec=Unwritable(PIECES), thinking_budget=3)


def test_one_vocabulary_serves_all_requests():
    compiler = Compiler(V, CODEC, None)
    assert compiler.vocabulary("bad_words") is compiler.vocabulary("thinking_budget")
