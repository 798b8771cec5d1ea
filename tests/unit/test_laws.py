"""Each node's law by its own ancestors, made once and only when asked for; and the log-probabilities that are told of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from surefoot.core.law import law
from surefoot.core.laws import Laws
from surefoot.core.logprobs import logprob
from surefoot.core.noise import TARGET, SplitMix
from surefoot.core.params import SamplingParams
from surefoot.core.shaping import Allowed, Custom, State
from surefoot.errors import BadRequest

V = 7
TOKENS = [1, 2, 3, 4, 3]
PARENTS = [-1, 0, 0, 1, 3]
"""0 - 1 - 3 - 4, and 2 beside 1."""


class Spy:
    """Remembers for what history it was asked; on node i's path it favours the token at the path's length."""

    def __init__(self, asked: list[list[int]], path: tuple[int, ...] = ()) -> None:
        self.asked, self.path = asked, path

    def __call__(self, token_ids, logits):
        self.asked.append(list(token_ids))
        assert tuple(token_ids[len(token_ids) - len(self.path) :]) == self.path
        logits[len(self.path)] += 100.0
        return logits

    def advance(self, token: int) -> None:
        self.path = (*self.path, token)

    def fork(self) -> Spy:
        return Spy(self.asked, self.path)


def made(rng, asked: list[list[int]], **options) -> tuple[torch.Tensor, Laws]:
    logits = torch.tensor(rng.normal(0, 2, (len(TOKENS), V)))
    state = State([Custom(Spy(asked))], [6, 1])
    return logits, Laws(logits, SamplingParams(**options), state, TOKENS, PARENTS, keep=True)


def test_each_node_is_shaped_by_its_own_ancestors(rng):
    asked: list[list[int]] = []
    logits, laws = made(rng, asked)
    before = logits.clone()
    assert [laws.best(node) for node in (4, 2, 0, 1, 3)] == [3, 1, 0, 1, 2]
    assert asked == [[6, 1, 2, 4, 3], [6, 1, 3], [6, 1], [6, 1, 2], [6, 1, 2, 4]]
    assert torch.equal(logits, before)


def test_what_was_shaped_once_is_not_shaped_again(rng):
    asked: list[list[int]] = []
    _, laws = made(rng, asked, temperature=1.0, logprobs=2)
    for _ in range(2):
        for node in (1, 0):
            laws[node]
            laws.best(node)
            laws.draw(node, SplitMix(1), 5, TARGET)
            logprob(laws, node, 2, 2)
    assert asked == [[6, 1, 2], [6, 1]], "nodes that no one asked for were not looked at either"


def test_the_law_is_that_of_the_shaped_logits(rng):
    logits, laws = made(rng, [], temperature=0.7, top_k=3)
    wanted = logits[3].clone()
    wanted[2] += 100.0
    assert torch.allclose(laws[3], law(wanted.unsqueeze(0), laws.params)[0], atol=1e-15)


def test_a_path_is_walked_once(rng):
    walked: list[tuple[int, ...]] = []

    class Walker(Spy):
        def advance(self, token: int) -> None:
            super().advance(token)
            walked.append(self.path)

        def fork(self) -> Walker:
            return Walker(self.asked, self.path)

    state = State([Custom(Walker([]))], [6, 1])
    laws = Laws(torch.tensor(rng.normal(0, 2, (5, V))), SamplingParams(), state, TOKENS, PARENTS)
    for node in (1, 4, 3, 4, 2):
        laws.best(node)
    assert walked == [(2,), (2, 4), (2, 4, 3), (3,)]


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.6}, {"typical_p": 0.5, "min_p": 0.05}], ids=str)
def test_a_draw_is_one_from_the_law(options, rng):
    """The short way and the long way take the same token."""
    logits = torch.tensor(rng.normal(0, 2, (1, V)), dtype=torch.float32)
    laws = Laws(logits, SamplingParams(temperature=1.3, **options))
    noise = SplitMix(9)
    draws = [laws.draw(0, noise, position, TARGET, 2) for position in range(200)]
    assert draws == [noise.categorical(laws[0], position, TARGET, 2) for position in range(200)]
    assert len(set(draws)) > 1


def test_ids_that_stand_for_nothing_are_impossible(rng):
    logits = torch.tensor(rng.normal(0, 1, (1, V)))
    logits[0, 5] = 50.0
    for state in (None, State([Custom(lambda ids, x: x)], [0])):
        laws = Laws(logits, SamplingParams(temperature=1.0), state, [0], [-1], known=5)
        assert laws.best(0) < 5
        assert laws[0][5:].tolist() == [0.0, 0.0]
        told = logprob(laws, 0, 1, V)
        assert {t for t, _ in told.top} == {t for t, _ in told.top_asked} == set(range(5))
        assert sum(math.exp(x) for _, x in told.top) == pytest.approx(1.0)
    assert logits[0, 5] == 50.0


def test_the_smallest_id_wins_a_tie():
    assert Laws(torch.tensor([[1.0, 3.0, 3.0]]), SamplingParams()).best(0) == 1


def test_where_no_token_is_left_the_path_to_it_is_known(rng):
    state = State([Custom(lambda ids, x: x - torch.inf if ids[-1] == 4 else x)], [6, 1])
    laws = Laws(torch.tensor(rng.normal(0, 1, (5, V))), SamplingParams(), state, TOKENS, PARENTS)
    assert laws.reached() == ()
    laws.best(0)
    laws.best(1)
    with pytest.raises(BadRequest, match="token 4 of the request"):
        laws.best(3)
    assert laws.reached() == (1, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_logits_of_any_dtype(dtype):
    laws = Laws(torch.tensor([[1.0, 2.0, -1.0]], dtype=dtype), SamplingParams(temperature=1.0))
    wanted = torch.softmax(torch.tensor([1.0, 2.0, -1.0]), 0)
    assert laws[0].tolist() == pytest.approx(wanted.tolist(), rel=1e-6)
    assert logprob(laws, 0, 1, 0).logprob == pytest.approx(math.log(wanted[1]), rel=1e-5)


# log-probabilities


def model_logs(logits: torch.Tensor) -> list[float]:
    return torch.log_softmax(logits.double(), -1).tolist()


def test_two_laws_are_told_the_models_own_and_the_one_asked_for(rng):
    logits = torch.tensor(rng.normal(0, 2, (1, V)))
    state = State([Allowed([0, 1, 2, 4], V)], [0])
    laws = Laws(logits, SamplingParams(temperature=0.5, top_k=2), state, [0], [-1])
    kept = sorted([0, 1, 2, 4], key=lambda i: -float(logits[0, i]))[:2]
    told = logprob(laws, 0, kept[0], V)
    own = model_logs(logits[0])
    weights = [math.exp(2 * float(logits[0, i])) for i in kept]
    assert told.token == kept[0]
    assert told.logprob == pytest.approx(own[kept[0]], abs=1e-12)
    assert told.asked == pytest.approx(math.log(weights[0] / sum(weights)), abs=1e-12)
    assert [t for t, _ in told.top] == sorted(range(V), key=lambda i: -own[i])
    assert [x for _, x in told.top] == pytest.approx(sorted(own, reverse=True), abs=1e-12)
    assert [t for t, _ in told.top_asked] == kept, "impossible tokens are not listed"
    assert sum(math.exp(x) for _, x in told.top_asked) == pytest.approx(1.0)


def test_where_decoding_is_greedy_the_law_asked_for_is_told_at_temperature_one(rng):
    """With all masks, without the filters that a temperature of 0 makes void."""
    logits = torch.tensor(rng.normal(0, 2, (1, V)))
    laws = Laws(logits, SamplingParams(top_k=1), State([Allowed([1, 3, 5], V)], [0]), [0], [-1])
    told = logprob(laws, 0, laws.best(0), V)
    wanted = torch.log_softmax(logits[0, [1, 3, 5]], 0)
    assert told.asked == pytest.approx(float(wanted.max()), abs=1e-12)
    assert [x for _, x in told.top_asked] == pytest.approx(sorted(wanted.tolist(), reverse=True), abs=1e-12)


def test_a_token_that_the_model_finds_unlikely_has_its_place():
    logits = torch.tensor([[0.0, -30.0, 1.0, -200.0]], dtype=torch.float64)
    told = logprob(Laws(logits, SamplingParams()), 0, 3, 1)
    assert told.logprob == pytest.approx(model_logs(logits[0])[3], rel=1e-12)
    assert [t for t, _ in told.top] == [2]


@pytest.mark.parametrize("most", range(6))
def test_so_many_are_listed_best_first_and_ties_by_id(most):
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, -20.0]], dtype=torch.float64)
    told = logprob(Laws(logits, SamplingParams()), 0, 0, most)
    assert [t for t, _ in told.top] == [t for t, _ in told.top_asked] == [1, 3, 0, 2, 4][:most]
    own = model_logs(logits[0])
    assert [x for _, x in told.top] == pytest.approx([own[t] for t, _ in told.top])


def test_as_many_as_asked_for_though_all_but_one_are_unlikely():
    logits = torch.tensor([[0.0, 100.0, 1.0, 2.0, -20.0]], dtype=torch.float64)
    told = logprob(Laws(logits, SamplingParams()), 0, 0, 3)
    assert [t for t, _ in told.top] == [1, 3, 2]


def test_over_a_large_vocabulary_the_numbers_hold_in_single_precision(rng):
    logits = torch.tensor(rng.normal(0, 3, (1, 50_000)), dtype=torch.float32)
    told = logprob(Laws(logits, SamplingParams(temperature=1.0)), 0, 17, 20)
    own = torch.log_softmax(logits[0].double(), -1)
    assert told.logprob == pytest.approx(float(own[17]), abs=1e-5)
    assert told.asked == pytest.approx(float(own[17]), abs=1e-5)
    best = torch.topk(own, 20)
    assert [t for t, _ in told.top] == best.indices.tolist()
    np.testing.assert_allclose([x for _, x in told.top], best.values, atol=1e-5)
