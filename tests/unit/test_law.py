"""Logits to law, against a straightforward reference over Python floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surefoot.core.law import argmax, law
from surefoot.core.params import SamplingParams


def reference(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """One row, by sorting; every filter keeps what ties with its last token."""

    def normal(weights: list[float]) -> list[float]:
        total = math.fsum(weights)
        return [w / total for w in weights]

    top = max(logits)
    p = [math.exp((x - top) / temperature) for x in logits]
    if top_k:
        kth = sorted(logits, reverse=True)[min(top_k, len(logits)) - 1]
        p = [w if x >= kth else 0.0 for w, x in zip(p, logits)]
    p = normal(p)
    if top_p < 1:
        mass, last = 0.0, 0.0
        for w in sorted(p, reverse=True):
            mass, last = mass + w, w
            if mass >= top_p:
                break
        p = normal([w if w >= last else 0.0 for w in p])
    if min_p:
        p = normal([w if w >= min_p * max(p) else 0.0 for w in p])
    return p


OPTIONS = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 1000},
    {"top_p": 0.05},
    {"top_p": 0.7},
    {"top_p": 0.999},
    {"min_p": 0.3},
    {"min_p": 0.999},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.5, "top_k": 2, "top_p": 0.5, "min_p": 0.9},
]


def params(options) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0} | options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_the_reference(options, dtype, rng):
    logits = torch.tensor(rng.normal(0, 2, (20, 11)), dtype=dtype)
    shape = params(options)
    p = law(logits, shape)
    assert p.dtype == dtype
    wanted = [reference(row, shape.temperature, shape.top_k, shape.top_p, shape.min_p) for row in logits.tolist()]
    np.testing.assert_allclose(p.numpy(), wanted, atol=1e-6 if dtype == torch.float32 else 1e-14)
    assert ((p > 0).numpy() == (np.array(wanted) > 0)).all()


@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=12),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(0, 13),
    st.sampled_from([0.11, 0.52, 0.9, 1.0]),
    st.sampled_from([0.0, 0.03, 0.7]),
)
def test_agrees_with_the_reference_where_tokens_tie(logits, temperature, top_k, top_p, min_p):
    shape = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    p = law(torch.tensor([logits], dtype=torch.float64), shape)[0]
    np.testing.assert_allclose(p.numpy(), reference([float(x) for x in logits], temperature, top_k, top_p, min_p), atol=1e-9)


def test_temperature_zero_is_one_hot_at_the_smallest_index_of_a_tie():
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    assert law(logits, SamplingParams()).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert argmax(logits) == argmax(logits.double()) == [1, 0]
    assert argmax(logits.to(torch.bfloat16)) == [1, 0]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45, 1e-310])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_temperatures_approach_the_argmax(temperature, dtype):
    p = law(torch.tensor([[2.0, -1.0, 5.0, 4.9]], dtype=dtype), SamplingParams(temperature=temperature))
    assert p.tolist() == [[0, 0, 1, 0]]


def test_huge_temperatures_approach_the_uniform_law():
    p = law(torch.tensor([[2.0, -1.0, 5.0, 4.9]]), SamplingParams(temperature=1e30))
    assert torch.allclose(p, torch.full((1, 4), 0.25))


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 1 - 1e-9}], ids=str)
def test_ties_stay_together(options):
    p = law(torch.tensor([[1.0, 1.0, 1.0, 1.0, -3.0]], dtype=torch.float64), params(options))
    assert torch.allclose(p, torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0]], dtype=torch.float64))


def test_tokens_of_probability_zero_stay_impossible():
    p = law(torch.tensor([[0.0, -torch.inf, 1.0]]), params({"top_k": 3, "top_p": 0.9999}))
    assert float(p[0, 1]) == 0.0
    assert not p.isnan().any()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_row_does_not_depend_on_its_neighbours(options, rng):
    logits = torch.tensor(rng.normal(0, 3, (9, 300)), dtype=torch.float32)
    together = law(logits, params(options))
    for i in range(len(logits)):
        assert torch.equal(together[i], law(logits[i : i + 1], params(options))[0])


def test_a_flat_law_over_a_large_vocabulary_passes_the_head_of_the_sort(rng):
    """The nucleus reaches beyond the tokens that are looked at first."""
    logits = torch.tensor(rng.normal(0, 0.01, (1, 5000)), dtype=torch.float64)
    shape = params({"top_p": 0.8})
    np.testing.assert_allclose(law(logits, shape)[0].numpy(), reference(logits[0].tolist(), 1.0, 0, 0.8, 0.0), atol=1e-14)


def test_the_input_is_left_alone():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    before = logits.clone()
    law(logits, params({"temperature": 0.5, "top_k": 2, "top_p": 0.5, "min_p": 0.2}))
    assert torch.equal(logits, before)
