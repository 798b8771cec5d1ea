"""A request's state: shaping never changes its input, forks never change their parents, users' processors are held to form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from surefoot.core.bans import BadSequences, Least
from surefoot.core.penalties import Penalties
from surefoot.core.shaping import Allowed, Bias, Custom, History, State
from surefoot.errors import BadRequest

V = 6
INF = np.inf


class Total:
    """A processor with state: forbids the token that the sum of its path points at."""

    def __init__(self, total: int = 0) -> None:
        self.total = total
        self.seen: list[list[int]] = []

    def __call__(self, token_ids, logits):
        self.seen.append(token_ids)
        logits[self.total % V] = -torch.inf
        return logits

    def advance(self, token: int) -> None:
        self.total += token

    def fork(self) -> Total:
        return Total(self.total)


def zeros(dtype=np.float64) -> np.ndarray:
    return np.zeros(V, dtype)


def test_a_history_reads_like_one_list():
    base, extra = [5, 6, 7], [8, 9]
    history = History(base, extra)
    whole = [5, 6, 7, 8, 9]
    assert len(history) == 5
    assert list(history) == whole
    assert [history[i] for i in range(-5, 5)] == [whole[i] for i in range(-5, 5)]
    for cut in (slice(None), slice(1, 4), slice(-2, None), slice(None, None, 2), slice(4, 0, -1), slice(3, 99)):
        assert history[cut] == whole[cut]
    for index in (5, -6):
        with pytest.raises(IndexError):
            history[index]
    assert 9 in history
    assert 4 not in history
    assert history.index(8) == 3
    assert list(reversed(history)) == whole[::-1]
    base.append(0)
    assert len(history) == 6, "the row's tokens are not copied"


def test_shaping_leaves_the_logits_and_the_state_alone():
    logits = np.linspace(-1, 1, V)
    before = logits.copy()
    state = State([Bias([1], [2.0]), Penalties([0], 2.0, 1.0, 1.0), Custom(Total()), Least([3], 2)], [0])
    first = state.shape(logits)
    assert (logits == before).all()
    assert first is not logits
    assert (state.shape(logits) == first).all()


def test_ids_that_stand_for_nothing_are_impossible():
    assert State([], [0]).shape(zeros(), known=4).tolist() == [0, 0, 0, 0, -INF, -INF]
    assert State([Bias([5], [9.0])], [0]).shape(zeros(), known=5)[5] == -INF


def test_biases_are_added():
    found = State([Bias([1, 4], [2.5, -3.0])], [0]).shape(zeros(np.float32))
    assert found.tolist() == [0, 2.5, 0, 0, -3, 0]
    assert found.dtype == np.float32


def test_all_but_the_allowed_ids_are_impossible():
    assert State([Allowed([1, 4], V)], [0]).shape(np.ones(V)).tolist() == [-INF, 1, -INF, -INF, 1, -INF]


def test_parts_are_applied_in_their_order():
    doubled = Custom(lambda ids, x: 2 * x)
    assert State([Bias([0], [1.0]), doubled], [0]).shape(zeros())[0] == 2.0
    assert State([doubled, Bias([0], [1.0])], [0]).shape(zeros())[0] == 1.0


def test_forks_see_their_own_paths_only():
    tokens = [3]
    total = Total()
    state = State([Custom(total), Penalties((), 1.0, 0.0, 1.0)], tokens)
    one, other = state.fork(), state.fork()
    one.advance(2)
    child = one.fork()
    child.advance(2)
    other.advance(5)
    assert np.flatnonzero(state.shape(zeros()) == -INF).tolist() == [0]
    assert one.shape(zeros()).tolist() == [0, 0, -INF, 0, 0, 0]
    assert child.shape(zeros()).tolist() == [0, 0, -2, 0, -INF, 0]
    assert other.shape(zeros()).tolist() == [0, 0, 0, 0, 0, -INF]
    assert total.total == 0


def test_a_path_and_a_row_that_kept_it_shape_alike():
    """What was drafted or not must not show."""
    logits = np.linspace(-1, 1, V)
    tokens = [0, 1]

    def parts():
        return [
            Bias([1], [0.5]),
            Penalties(tokens[:2], 1.5, 0.5, 0.25),
            Custom(Total()),
            BadSequences([(4, 2, 5)]),
            Least([0], 3),
        ]

    state = State(parts(), tokens)
    fork = state
    along = []
    for token in (4, 2, 4):
        fork = fork.fork()
        fork.advance(token)
        along.append(fork.shape(logits))
    for token, wanted in zip((4, 2, 4), along, strict=True):
        tokens.append(token)
        state.advance(token)
        assert (state.shape(logits) == wanted).all()


def test_a_processor_reads_prompt_and_path_and_may_change_its_copies():
    seen = []

    def spoil(token_ids, logits):
        seen.append(list(token_ids))
        token_ids.clear()
        logits += 1.0
        return logits

    tokens = [3, 1]
    state = State([Custom(spoil)], tokens)
    fork = state.fork()
    fork.advance(4)
    logits = zeros()
    assert fork.shape(logits).tolist() == [1.0] * V
    state.shape(logits)
    assert seen == [[3, 1, 4], [3, 1]]
    assert logits.tolist() == [0.0] * V
    assert tokens == [3, 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("made", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64])
def test_a_processor_may_answer_in_any_dtype(dtype, made):
    found = State([Custom(lambda ids, x: torch.arange(V).to(made))], [0]).shape(zeros(dtype))
    assert found.dtype == dtype
    assert found.tolist() == list(range(V))


def test_a_processor_may_answer_with_a_tensor_that_has_a_gradient():
    weight = torch.ones(V, requires_grad=True, dtype=torch.float64)
    assert State([Custom(lambda ids, x: x + weight)], [0]).shape(zeros()).tolist() == [1.0] * V


def raises(token_ids, logits):
    raise ValueError("gone\n  for ever")


@pytest.mark.parametrize(
    "processor, why",
    [
        (raises, "raises failed: ValueError: gone for ever"),
        (lambda ids, x: x[:3], r"must return logits of shape \[6\]"),
        (lambda ids, x: x.unsqueeze(0), "must return logits of shape"),
        (lambda ids, x: x.tolist(), "must return logits of shape"),
        (lambda ids, x: None, "must return logits of shape"),
        (lambda ids, x: x * torch.nan, "returned NaN or infinity"),
        (lambda ids, x: x + torch.inf, "returned NaN or infinity"),
        (lambda ids, x: x.float() + 1e38 * 10, "returned NaN or infinity"),
    ],
)
def test_a_processor_that_fails_is_the_requests_error(processor, why):
    with pytest.raises(BadRequest, match=f"logits_processors: .*{why}") as caught:
        State([Custom(processor)], [0]).shape(zeros(np.float32))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["advance", "fork"])
def test_a_state_of_the_users_that_fails_is_the_requests_error(method):
    broken = Total()
    setattr(broken, method, lambda *token: 1 // 0)
    state = State([Custom(broken)], [0])
    with pytest.raises(BadRequest, match="Total failed: ZeroDivisionError"):
        state.fork().advance(1) if method == "fork" else state.advance(1)


@pytest.mark.parametrize("missing", ["fork", "advance"])
def test_half_a_state_is_refused(missing):
    methods = {name: lambda *_: None for name in ("fork", "advance", "__call__") if name != missing}
    with pytest.raises(BadRequest, match="has only one of fork and advance"):
        Custom(type("Half", (), methods)())


def test_no_token_left_names_the_options_and_the_place():
    parts = [Allowed([1], V), Bias([1], [2.0]), BadSequences([(1,)])]
    with pytest.raises(BadRequest, match="at token 3 of the request: loosen allowed_token_ids and bad_words_ids") as caught:
        State(parts, [0, 0, 0]).shape(zeros())
    assert "\n" not in str(caught.value)
    with pytest.raises(BadRequest, match="at token 2 of the request: loosen logits_processors"):
        State([Custom(lambda ids, x: x - torch.inf)], [0, 0]).shape(zeros())


def test_tokens_that_only_the_padding_holds_are_not_left():
    with pytest.raises(BadRequest, match="loosen allowed_token_ids"):
        State([Allowed([5], V)], [0]).shape(zeros(), known=5)


def test_what_options_alone_make_impossible_is_known_before_the_first_pass():
    """The user's processors are not asked: they may look at the logits."""
    with pytest.raises(BadRequest, match="loosen allowed_token_ids and min_tokens"):
        State([Allowed([2], V), Least([2], 1)], [0]).check(V, V)
    State([Allowed([2], V), Least([2], 0)], [0]).check(V, V)
    State([Custom(raises)], [0]).check(V, V)
    with pytest.raises(BadRequest, match="loosen allowed_token_ids"):
        State([Allowed([5], V)], [0]).check(V, 5)


class Ending:
    mask = ""

    def __init__(self, ended: bool, forced: list[int]) -> None:
        self.ended = ended
        self._forced = forced

    def apply(self, logits, tokens) -> None: ...

    def advance(self, token) -> None: ...

    def fork(self):
        return self

    def forced(self, limit: int) -> list[int]:
        return self._forced[:limit]


def test_a_state_ends_with_any_of_its_parts_and_the_last_one_forces_first():
    assert not State([Bias([0], [1.0]), Ending(False, [])], [0]).ended
    assert State([Ending(False, []), Ending(True, []), Bias([0], [1.0])], [0]).ended
    assert State([Ending(False, [1, 2]), Bias([0], [1.0])], [0]).forced(5) == [1, 2]
    assert State([Ending(False, [1, 2]), Ending(False, [3, 4])], [0]).forced(1) == [3]
    assert State([Bias([0], [1.0])], [0]).forced(5) == []
