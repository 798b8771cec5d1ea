"""Values of options: one canonical form, what is refused and by which name, and the contradictions between options."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import pytest

from surefoot.core.constraint import Constraint, from_response_format, from_structured_outputs
from surefoot.core.options import bias_pairs, id_list, id_lists, is_int, is_number, text_list
from surefoot.core.params import SamplingParams
from surefoot.errors import BadRequest

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}


def processor(ids, logits):
    return logits


def named(options):
    """The same in every process: workers must agree on the names of tests."""
    return str({name: getattr(value, "__name__", value) for name, value in options.items()})


def test_whole_numbers_and_numbers():
    assert [is_int(x) for x in (0, -3, 2**90, True, 1.0, "1", None)] == [True, True, True, False, False, False, False]
    assert [is_int(x, 2) for x in (1, 2, 3)] == [False, True, True]
    assert [is_number(x) for x in (0, 1.5, -3, True, math.nan, math.inf, "1")] == [True, True, True, *[False] * 4]
    assert [is_number(x, 2) for x in (-2.0, 2, 2.01, -3)] == [True, True, False, False]


@pytest.mark.parametrize("given, wanted", [("ab", ("ab",)), (["a", "b"], ("a", "b")), (None, ()), ([], ())])
def test_texts(given, wanted):
    assert text_list("stop", given) == wanted


@pytest.mark.parametrize("given", ["", [""], ["a", 3], 3, b"ab", [b"a"], [None]])
def test_what_is_no_text_is_refused_by_name(given):
    with pytest.raises(BadRequest, match=r"^stop="):
        text_list("stop", given)


def test_ids():
    assert id_list("x", (i for i in (3, 1, 3))) == (3, 1, 3)
    assert id_list("x", None) == ()
    assert id_lists("x", [[1, 2], (3,)]) == ((1, 2), (3,))


@pytest.mark.parametrize("given", ["12", [1.0], [-1], [True], ["1"], 5, [[1]]])
def test_what_is_no_id_is_refused_by_name(given):
    with pytest.raises(BadRequest, match=r"^stop_token_ids="):
        id_list("stop_token_ids", given)


@pytest.mark.parametrize("given", [[[]], [[1], []], [1], ["ab"], [[1.5]], [[-2]]])
def test_what_is_no_list_of_ids_is_refused_by_name(given):
    with pytest.raises(BadRequest, match=r"^bad_words_ids="):
        id_lists("bad_words_ids", given)


@pytest.mark.parametrize(
    "given", [{5: 1, 2: -3.5}, {"5": 1.0, "2": -3.5}, [(5, 1.0), (2, -3.5)], ((2, -3.5), (5, 1.0)), [[2, -3.5], ["5", 1]]]
)
def test_biases_have_one_form(given):
    assert bias_pairs(given) == ((2, -3.5), (5, 1.0))


@pytest.mark.parametrize(
    "given, why",
    [
        ({"a": 1.0}, "entry"), ({1.5: 1.0}, "entry"), ({-1: 1.0}, "from 0 up"), ({1: 101}, "-100 to 100"),
        ({1: -100.5}, "-100 to 100"),
        ({1: math.nan}, "-100 to 100"), ({1: "2"}, "-100 to 100"), ({True: 1.0}, "from 0 up"), ({1: None}, "-100 to 100"),
        ([1, 2], "entry"), ([(1, 2, 3)], "entry"), ({1: 1.0, "1": 2.0}, "twice"), (3, "give a list"), ("1:2", "give a list"),
    ],
)  # fmt: skip
def test_what_is_no_bias_is_refused(given, why):
    with pytest.raises(BadRequest, match=f"^logit_bias.*{why}"):
        bias_pairs(given)


BAD = [
    {"min_tokens": -1}, {"min_tokens": 1.0}, {"min_tokens": None}, {"min_tokens": True},
    {"typical_p": 0}, {"typical_p": 1.1}, {"typical_p": math.nan}, {"typical_p": "all"},
    {"repetition_penalty": 0}, {"repetition_penalty": -1.0}, {"repetition_penalty": math.inf}, {"repetition_penalty": 1e-5},
    {"repetition_penalty": 1e5}, {"presence_penalty": 2.1}, {"presence_penalty": -2.1}, {"presence_penalty": None},
    {"frequency_penalty": 3}, {"frequency_penalty": math.nan}, {"frequency_penalty": "1"},
    {"logit_bias": {1: 200}}, {"allowed_token_ids": []}, {"allowed_token_ids": [-3]}, {"allowed_token_ids": "ab"},
    {"bad_words": [""]}, {"bad_words": 3}, {"bad_words_ids": [1, 2]}, {"bad_words_ids": [[]]},
    {"logits_processors": [3]}, {"logits_processors": ["f"]},
    {"response_format": "json"}, {"response_format": {"type": "yaml"}}, {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
    {"constrain_after": "x"}, {"thinking_budget": -1}, {"thinking_budget": 1.5}, {"thinking_budget": True},
    {"thinking_start": "<a>"}, {"thinking_end": "</a>"}, {"thinking_end": ""}, {"thinking_start": 3},
    {"n": 0}, {"n": 1.0}, {"n": True}, {"n": None}, {"logprobs": -1}, {"logprobs": "5"}, {"logprobs": 1.5},
    {"top_logprobs": 3}, {"echo": 1}, {"echo": None},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=str)
def test_bad_values_are_refused_by_name(options):
    [name] = options
    with pytest.raises(BadRequest, match=name) as caught:
        SamplingParams.build(options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


AGAINST = [
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens=4 is more than max_tokens=3"),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "say the same thing twice"),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos contradicts structured output"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos contradicts structured output"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs needs logprobs=True"),
    ({"logprobs": 3, "top_logprobs": 2}, "logprobs=3 contradicts top_logprobs=2"),
    ({"response_format": {"type": "text"}, "constrain_after": "x"}, "constrain_after needs response_format"),
    (
        {"response_format": {"type": "json_object"}, "thinking_budget": 3, "constrain_after": "x"},
        "constrain_after='x' contradicts thinking_end",
    ),
    ({"response_format": {"type": "json_object"}, "constrain_after": ""}, "constrain_after=''"),
]


@pytest.mark.parametrize("options, why", AGAINST, ids=str)
def test_options_that_contradict_each_other_are_refused(options, why):
    with pytest.raises(BadRequest, match=why):
        SamplingParams.build(options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 3, "min_tokens": 3},
        {"min_tokens": 3},
        {"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 1000, "typical_p": 1e-9},
        {"logprobs": 3, "top_logprobs": 3},
        {"response_format": {"type": "json_object"}, "thinking_budget": 0, "constrain_after": "</think>"},
        {"thinking_budget": 0, "thinking_start": "<a>", "thinking_end": "</a>"},
        {"logits_processors": processor},
        {"n": 128, "echo": True},
    ],
    ids=named,
)
def test_good_values_are_taken(options):
    SamplingParams.build(options)


@pytest.mark.parametrize(
    "options, wanted",
    [
        ({}, None), ({"logprobs": None}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": 0}, 0),
        ({"logprobs": 1}, 1), ({"logprobs": 5}, 5), ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"logprobs": True, "top_logprobs": 0}, 0),
    ],
)  # fmt: skip
def test_logprobs_of_either_api_mean_one_number(options, wanted):
    found = SamplingParams.build(options).logprobs
    assert found == wanted
    assert not isinstance(found, bool)


def test_a_constraint_beside_a_thinking_budget_begins_after_the_thinking():
    params = SamplingParams.build({"response_format": {"type": "json_object"}, "thinking_budget": 3})
    assert params.constrain_after == "</think>"
    params = SamplingParams.build(
        {"structured_outputs": {"regex": "a"}, "thinking_budget": 3, "thinking_start": "[", "thinking_end": "]"}
    )
    assert params.constrain_after == "]"
    assert params.constraint == Constraint("regex", "a")


ALL = [
    {},
    {"max_tokens": 9, "min_tokens": 2, "stop": ["a", "b"], "stop_token_ids": [3], "ignore_eos": True, "echo": True, "n": 3},
    {"temperature": 1.0, "top_k": -1, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "seed": -1, "verification": "ratio"},
    {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"7": 1, "2": -3}},
    {"allowed_token_ids": [3, 1], "bad_words": "x", "bad_words_ids": [[1, 2], [3]], "logits_processors": processor},
    {"logprobs": True, "top_logprobs": 4},
    {"logprobs": True},
    {"response_format": JSON_SCHEMA, "constrain_after": "x"},
    {"response_format": {"type": "choice", "choice": ["a", "b"]}, "thinking_budget": 4},
    {"structured_outputs": {"json": json.dumps(SCHEMA)}, "thinking_budget": 4, "thinking_end": "]"},
]


@pytest.mark.parametrize("options", ALL, ids=named)
def test_params_survive_being_made_again(options):
    """`replace` runs all checks on values that are in their canonical form already."""
    params = SamplingParams.build(options)
    assert replace(params) == params
    assert replace(params, n=1, max_tokens=99).n == 1
    assert SamplingParams(**{f.name: getattr(params, f.name) for f in fields(params)}) == params
    assert replace(replace(params, seed=5), seed=params.seed) == params


@pytest.mark.parametrize("options", ALL, ids=named)
def test_equal_options_are_equal_and_hash_alike(options):
    one, other = SamplingParams.build(options), SamplingParams.build(dict(reversed(options.items())))
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, SamplingParams.build({"max_tokens": 77})}) == 2


def test_other_spellings_of_the_same_options_are_equal():
    pairs = [
        ({"logit_bias": {1: 2, 0: 1}}, {"logit_bias": [("0", 1.0), (1, 2.0)]}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"bad_words": "a"}, {"bad_words": ["a"]}),
        ({"logits_processors": processor}, {"logits_processors": [processor]}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3, "top_logprobs": 3}),
        ({"response_format": {"type": "text"}}, {}),
        ({"structured_outputs": {"json": SCHEMA}}, {"structured_outputs": {"json": json.dumps(SCHEMA)}}),
    ]
    for one, other in pairs:
        assert SamplingParams.build(one) == SamplingParams.build(other)
        assert hash(SamplingParams.build(one)) == hash(SamplingParams.build(other))


# what the output must look like

GOOD_FORMATS = [
    (None, None),
    ({"type": "text"}, None),
    ({"type": "json_object"}, Constraint("json_object")),
    (JSON_SCHEMA, Constraint("json_schema", json.dumps(SCHEMA))),
    ({"type": "json_schema", "json_schema": {"schema": True}}, Constraint("json_schema", "true")),
    ({"type": "regex", "regex": "a+"}, Constraint("regex", "a+")),
    ({"type": "grammar", "grammar": "root ::= 'a'"}, Constraint("grammar", "root ::= 'a'")),
    ({"type": "choice", "choice": ["é", "b"]}, Constraint("choice", '["é", "b"]')),
    (Constraint("regex", "a"), Constraint("regex", "a")),
]
GOOD_OUTPUTS = [
    (None, None),
    ({"json": SCHEMA}, Constraint("json_schema", json.dumps(SCHEMA))),
    ({"json_object": True}, Constraint("json_object")),
    ({"regex": "a+"}, Constraint("regex", "a+")),
    ({"grammar": "root ::= 'a'"}, Constraint("grammar", "root ::= 'a'")),
    ({"choice": ("a", "b")}, Constraint("choice", '["a", "b"]')),
]


@pytest.mark.parametrize("given, wanted", GOOD_FORMATS, ids=str)
def test_response_formats(given, wanted):
    assert from_response_format(given) == wanted


@pytest.mark.parametrize("given, wanted", GOOD_OUTPUTS, ids=str)
def test_structured_outputs(given, wanted):
    assert from_structured_outputs(given) == wanted


def test_choices_are_read_back():
    assert from_structured_outputs({"choice": ["é", '"']}).choices == ["é", '"']


def test_a_schema_keeps_the_order_of_its_members():
    assert json.loads(from_structured_outputs({"json": SCHEMA}).text)["properties"].keys() == {"b": 0, "a": 0}.keys()
    assert from_structured_outputs({"json": SCHEMA}).text.index('"b"') < from_structured_outputs({"json": SCHEMA}).text.index(
        '"a"'
    )


@pytest.mark.parametrize(
    "given, why",
    [
        ("json", "an object with a"), ({}, "an object with a"), ({"type": 3}, "an object with a"), ([], "an object with a"),
        ({"type": "xml"}, "type 'xml' is unknown; give one of text, json_object"),
        ({"type": "text", "regex": "a"}, "unknown key 'regex'"),
        ({"type": "json_object", "schema": {}}, "unknown key 'schema'"),
        ({"type": "json_schema"}, "json_schema"), ({"type": "json_schema", "json_schema": {}}, '"schema"'),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strikt": 1}}, "unknown key 'strikt'"),
        ({"type": "json_schema", "json_schema": {"schema": "{"}}, "not valid JSON"),
        ({"type": "json_schema", "json_schema": {"schema": [1]}}, "a JSON schema: an object"),
        ({"type": "json_schema", "json_schema": {"schema": {"a": {1, 2}}}}, "cannot be written as JSON"),
        ({"type": "regex"}, "response_format.regex"), ({"type": "regex", "regex": ""}, "not empty"),
        ({"type": "grammar", "grammar": 3}, "response_format.grammar"),
        ({"type": "choice", "choice": []}, "one or more strings"), ({"type": "choice", "choice": "ab"}, "one or more strings"),
        ({"type": "choice", "choice": ["a", ""]}, "one or more strings"),
        ({"type": "choice", "choice": [1]}, "one or more strings"),
        (Constraint("xml", "a"), "one of json_object"),
    ],
    ids=str,
)  # fmt: skip
def test_other_response_formats_are_refused(given, why):
    with pytest.raises(BadRequest, match=why) as caught:
        from_response_format(given)
    assert "response_format" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "given, why",
    [
        ("json", "one of json"), ({}, "one of json"), ({"json": {}, "regex": "a"}, "one of json"),
        ({"json_schema": {}}, "'json_schema' is unknown"), ({"xml": 1}, "'xml' is unknown"),
        ({"json_object": False}, "true, or leave it out"), ({"json": "{"}, "not valid JSON"), ({"json": None}, "a JSON schema"),
        ({"regex": ""}, "not empty"), ({"choice": "ab"}, "one or more strings"), (Constraint("", "a"), "one of json_object"),
    ],
    ids=str,
)  # fmt: skip
def test_other_structured_outputs_are_refused(given, why):
    with pytest.raises(BadRequest, match=why) as caught:
        from_structured_outputs(given)
    assert "structured_outputs" in str(caught.value)
