"""Request options: what is refused, and that the message names the option and the fix."""

from __future__ import annotations

import math

import pytest

from surefoot.core.params import SamplingParams
from surefoot.errors import BadRequest

BAD = [
    {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 2.5}, {"max_tokens": True}, {"max_tokens": "9"},
    {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf}, {"temperature": True}, {"temperature": "hot"},
    {"temperature": None},
    {"top_k": -2}, {"top_k": 1.5}, {"top_k": True},
    {"top_p": 0}, {"top_p": 0.0}, {"top_p": -0.5}, {"top_p": 1.01}, {"top_p": math.nan}, {"top_p": True},
    {"min_p": -0.1}, {"min_p": 1.0}, {"min_p": math.nan}, {"min_p": False},
    {"seed": 1.5}, {"seed": "7"}, {"seed": True},
    {"stop": ""}, {"stop": ["ok", ""]}, {"stop": [3]}, {"stop": 3},
    {"stop_token_ids": [-1]}, {"stop_token_ids": ["a"]}, {"stop_token_ids": [1.0]}, {"stop_token_ids": [True]},
    {"stop_token_ids": 5},
    {"ignore_eos": "no"}, {"ignore_eos": 1}, {"include_stop_str_in_output": None},
    {"verification": "typical"}, {"verification": None}, {"verification": ["ratio"]},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=str)
def test_bad_values_are_refused_by_name(options):
    [name] = options
    with pytest.raises(BadRequest, match=name) as caught:
        SamplingParams.build(options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 1, "temperature": 0, "top_p": 1, "min_p": 0},
        {"temperature": 5, "top_k": 10**9, "top_p": 1e-9, "min_p": 0.999, "seed": -3},
        {"seed": 2**100, "stop": None, "stop_token_ids": None},
    ],
)
def test_good_values_are_taken(options):
    SamplingParams.build(options)


def test_values_are_normalised():
    params = SamplingParams(stop="END", stop_token_ids=[3, 4], top_k=-1)
    assert params.stop == ("END",)
    assert params.stop_token_ids == (3, 4)
    assert params.top_k == 0
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert hash(params) == hash(SamplingParams(stop=("END",), stop_token_ids=(3, 4)))


def test_unknown_names_get_the_nearest_known_one():
    with pytest.raises(BadRequest, match="'max_token'; did you mean 'max_tokens'"):
        SamplingParams.build({"max_token": 3})
    with pytest.raises(BadRequest, match=r"known are .*temperature"):
        SamplingParams.build({"zzz": 3})


def test_greedy_verification_contradicts_sampling():
    with pytest.raises(BadRequest, match="contradicts temperature"):
        SamplingParams(temperature=0.5, verification="greedy")
    SamplingParams(verification="greedy")


def test_there_is_no_lenience_option():
    """Lossless is not an option; a tolerance of any name may not appear."""
    names = set(SamplingParams.__dataclass_fields__)
    assert not [n for n in names if any(w in n for w in ("lenien", "toleran", "typical_accept", "accept", "epsilon"))]
