"""Losses against sums written out, their gradients against differences, and the head that never holds all its logits."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import linear

from surefoot.errors import BadRequest
from surefoot.train.losses import FLOOR, LOSSES, ROWS, row_loss, through_head


def law(logits):
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / sum(weights) for w in weights]


WRITTEN_OUT = {
    "soft_ce": lambda p, q: -sum(a * math.log(b) for a, b in zip(p, q)),
    "reverse_kl": lambda p, q: sum(b * (math.log(b) - math.log(a)) for a, b in zip(p, q)),
    "tv": lambda p, q: sum(abs(a - b) for a, b in zip(p, q)) / 2,
    "acceptance": lambda p, q: -math.log(sum(min(a, b) for a, b in zip(p, q))),
}


def test_every_loss_has_a_case():
    assert set(LOSSES) == set(ROWS) == set(WRITTEN_OUT)


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_value_is_the_mean_of_the_sums_written_out(name):
    torch.manual_seed(1)
    q, p = 3 * torch.randn(5, 7), 3 * torch.randn(5, 7)
    expected = [WRITTEN_OUT[name](law(a), law(b)) for a, b in zip(p.tolist(), q.tolist())]
    assert float(LOSSES[name](q, p)) == pytest.approx(sum(expected) / 5, rel=1e-5)
    torch.testing.assert_close(ROWS[name](q, p), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    shifted = LOSSES[name](q + 40, p - 70)
    assert float(shifted) == pytest.approx(sum(expected) / 5, rel=1e-4)


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_gradient_is_that_of_differences(name):
    torch.manual_seed(2)
    q, p = torch.randn(3, 5), torch.randn(3, 5)
    q.requires_grad_()
    LOSSES[name](q, p).backward()
    step = 1e-2
    for i in range(3):
        for j in range(5):
            with torch.no_grad():
                up, down = q.clone(), q.clone()
                up[i, j] += step
                down[i, j] -= step
                slope = (float(LOSSES[name](up, p)) - float(LOSSES[name](down, p))) / (2 * step)
            assert float(q.grad[i, j]) == pytest.approx(slope, abs=2e-3)


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("case", ["banned by p", "banned by q", "disjoint", "tiny"])
def test_extreme_logits_give_finite_values_and_gradients(name, case):
    torch.manual_seed(3)
    q, p = torch.randn(4, 6), torch.randn(4, 6)
    if case in ("banned by p", "disjoint"):
        p[:, :3] = -torch.inf
    if case in ("banned by q", "disjoint"):
        q[:, 3:] = -torch.inf
    if case == "tiny":
        q[:, 0], p[:, 1] = 1e4, 1e4
    q.requires_grad_()
    value = LOSSES[name](q, p)
    value.backward()
    assert math.isfinite(float(value.detach()))
    assert float(value.detach()) <= -FLOOR * 1.01
    assert bool(q.grad.isfinite().all())


@pytest.mark.parametrize("name", ["reverse_kl", "tv", "acceptance"])
def test_equal_laws_cost_nothing(name):
    logits = torch.randn(4, 6)
    assert float(LOSSES[name](logits + 3, logits)) == pytest.approx(0, abs=1e-5)


def test_no_rows_cost_nothing():
    assert all(float(loss(torch.zeros(0, 4), torch.zeros(0, 4))) == 0 for loss in LOSSES.values())


def test_unknown_loss_names_the_known_ones():
    with pytest.raises(BadRequest, match="soft_ce"):
        row_loss("huber")


PLACES = [torch.arange(9), torch.tensor([-1, 0, 1, 2, -1, 4, 5, 7, 8])]


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_through_head_is_the_loss_of_all_logits_at_once(name, own, biased):
    torch.manual_seed(4)
    states = [torch.randn(9, 5, requires_grad=True) for _ in PLACES]
    heads = [torch.randn(13, 5, requires_grad=own) for _ in (PLACES if own else [0])]
    teacher, table = torch.randn(9, 5), torch.randn(13, 5)
    bias, other = (torch.randn(13), torch.randn(13)) if biased else (None, None)
    expected = torch.zeros(())
    for k, weight in enumerate((1.0, 0.8)):
        there = PLACES[k] >= 0
        logits = linear(states[k][PLACES[k][there]], heads[k if own else 0], bias)
        expected = expected + weight * LOSSES[name](logits, linear(teacher, table, other)[there])
    learned = [*states, *heads] if own else states
    found = through_head(
        states, PLACES, heads, teacher, table, weights=[1.0, 0.8], loss=name, bias=bias, teacher_bias=other, chunk=4
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(torch.autograd.grad(3 * found, learned), torch.autograd.grad(3 * expected, learned)):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_through_head_without_gradient_and_without_labels():
    states = [torch.randn(9, 5)]
    with torch.no_grad():
        value = through_head(states, PLACES[:1], [torch.randn(13, 5)], torch.randn(9, 5), torch.randn(13, 5), weights=[1.0])
    assert not value.requires_grad
    assert float(value) > 0
    state = torch.randn(9, 5, requires_grad=True)
    empty = torch.zeros(0, dtype=torch.int64)
    value = through_head([state], [empty], [torch.randn(13, 5)], torch.randn(0, 5), torch.randn(13, 5), weights=[1.0])
    value.backward()
    assert float(value.detach()) == 0
    assert not state.grad.any()
