"""Logits to law, against a straightforward reference over Python floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surefoot.core.law import argmax, host, law, row_law, support
from surefoot.core.params import SamplingParams


def reference(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, typical_p: float = 1.0
) -> list[float]:
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
    if typical_p < 1:
        entropy = -math.fsum(w * math.log(w) for w in p if w)
        far = [abs(-math.log(w) - entropy) if w else math.inf for w in p]
        mass, last = 0.0, 0.0
        for distance, w in sorted(zip(far, p)):
            mass, last = mass + w, distance
            if mass >= typical_p:
                break
        p = normal([w if distance <= last else 0.0 for w, distance in zip(p, far)])
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
    {"typical_p": 0.01},
    {"typical_p": 0.5},
    {"typical_p": 0.95},
    {"temperature": 3.0, "typical_p": 0.3},
    {"temperature": 0.8, "top_k": 7, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.7},
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
    wanted = [
        reference(row, shape.temperature, shape.top_k, shape.top_p, shape.min_p, shape.typical_p) for row in logits.tolist()
    ]
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


def test_typical_sampling_may_drop_the_most_probable_token():
    """Entropy 1.50: the token of 0.4 tells 0.92, the next one 1.61, which is nearer."""
    p = law(torch.tensor([[0.4, 0.2, 0.2, 0.2]], dtype=torch.float64).log(), params({"typical_p": 0.5}))
    assert p[0].tolist() == pytest.approx([0.0, 1 / 3, 1 / 3, 1 / 3])


def test_typical_sampling_looks_at_what_the_other_filters_left():
    """Of four tokens three would be typical; of the two that top_k leaves it is the better one."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    shape = params({"top_k": 2, "typical_p": 0.5})
    assert law(logits, shape)[0].tolist() == pytest.approx(reference(logits[0].tolist(), 1.0, 2, 1.0, 0.0, 0.5))
    assert law(logits, shape)[0].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_equally_typical_tokens_stay_together():
    p = law(torch.tensor([[1.0, 1.0, 1.0, -3.0]], dtype=torch.float64), params({"typical_p": 0.1}))
    assert p[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tensors_and_arrays_have_one_law(options, dtype, rng):
    row = rng.normal(0, 3, 40).astype(dtype)
    before = row.copy()
    p = row_law(row, params(options))
    assert p.dtype == dtype
    assert (p == law(torch.from_numpy(row).unsqueeze(0), params(options))[0].numpy()).all()
    assert float(p.sum()) == pytest.approx(1.0, rel=1e-5)
    assert (row == before).all()


@pytest.mark.parametrize("options", [*OPTIONS, {"temperature": 0.0}], ids=str)
def test_the_support_is_that_of_the_law(options, rng):
    """Ascending, weights in proportion; a draw needs no more."""
    row = rng.normal(0, 3, 500)
    row[::7] = -np.inf
    ids, weights = support(row, params(options))
    ids = np.arange(500) if ids is None else ids
    p = row_law(row, params(options))
    assert (np.diff(ids) > 0).all()
    np.testing.assert_allclose(weights / weights.sum(), p[ids], rtol=1e-12)
    assert p[ids].sum() == pytest.approx(1.0)
    assert (p[::7] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_near_ties_are_no_ties(dtype, k):
    """Logits that differ in their last bit: top_k tells them apart."""
    one = dtype(1.0)
    row = np.array([one, np.nextafter(one, dtype(2)), np.nextafter(one, dtype(0)), dtype(-5)], dtype)
    assert np.flatnonzero(row_law(row, params({"top_k": k}))).tolist() == sorted([1, 0, 2][:k])
    assert np.flatnonzero(row_law(row, params({"temperature": 0.0}))).tolist() == [1]


@pytest.mark.parametrize("k", [3, 30, 200, 299])
@pytest.mark.parametrize("spread", [0.1, 3.0, 60.0])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 50.0])
def test_the_kth_token_may_be_near_or_far(k, spread, temperature, rng):
    """Tokens near to the best are looked at first; how many there are must not show."""
    row = rng.normal(0, spread, 300)
    row[5:25] = row[4]
    ids, _ = support(row, params({"top_k": k, "temperature": temperature}))
    kth = np.sort(row)[::-1][k - 1]
    assert ids is not None
    assert ids.tolist() == np.flatnonzero(row >= kth).tolist()


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.99}, {"min_p": 0.01}, {"typical_p": 0.99}], ids=str)
@pytest.mark.parametrize("temperature", [1e-300, 0.5, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_impossible_tokens_stay_so_at_any_temperature(options, temperature, dtype):
    """Also where they are all but one, and where top_k asks for more than there are."""
    logits = torch.full((2, 6), -torch.inf, dtype=dtype)
    logits[0, 3] = -7.0
    logits[1, [1, 4]] = torch.tensor([2.0, 1.0], dtype=dtype)
    p = law(logits, params(options | {"temperature": temperature}))
    assert not p.isnan().any()
    assert p[0].tolist() == [0, 0, 0, 1, 0, 0]
    assert p[1, [0, 2, 3, 5]].tolist() == [0] * 4
    assert float(p[1].sum()) == pytest.approx(1.0)
    if temperature == 1e30 and not {"typical_p"} & set(options):
        assert p[1, [1, 4]].tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("temperature", [1e-310, 1e-30, 1e-3, 1e3, 1e30, 1e308])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_law_is_a_law_at_any_scale(temperature, scale, dtype, rng):
    logits = torch.tensor(rng.normal(0, 1, (3, 50)) * scale, dtype=dtype)
    p = law(logits, params({"temperature": temperature, "top_p": 0.9, "min_p": 0.01}))
    assert not p.isnan().any()
    np.testing.assert_allclose(p.sum(-1).numpy(), 1.0, rtol=1e-5)
    assert (p.gather(1, logits.argmax(-1, keepdim=True)) > 0).all()


def test_double_precision_is_kept_to_its_end():
    """A difference of logits that single precision does not know."""
    logits = torch.tensor([[1e6, 1e6 + 1e-3]], dtype=torch.float64)
    p = law(logits, params({}))[0]
    assert p.dtype == torch.float64
    assert float(p[1] / p[0]) == pytest.approx(math.exp(1e-3), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_for_numpy(dtype):
    found = host(torch.tensor([[1.0, -torch.inf]], dtype=dtype, requires_grad=True))
    assert found.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    assert found.tolist() == [[1.0, -np.inf]]
