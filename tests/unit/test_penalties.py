"""The three penalties against a reference over plain lists, and forks that see their own path only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.core.penalties import Penalties

V = 9
OFF = (1.0, 0.0, 0.0)


def reference(logits: Sequence[float], prompt, output, repetition: float, presence: float, frequency: float) -> list[float]:
    counts = Counter(output)
    out = []
    for token, x in enumerate(logits):
        if token in counts or token in prompt:
            x = x / repetition if x > 0 else x * repetition
        out.append(x - presence * (counts[token] > 0) - frequency * counts[token])
    return out


def shaped(penalties: Penalties, logits: Sequence[float]) -> list[float]:
    out = np.array(logits, np.float64)
    penalties.apply(out, [])
    return out.tolist()


def test_repetition_divides_positive_and_multiplies_negative_logits():
    """Of tokens of the prompt and of the output, once however often they occur."""
    penalties = Penalties([0, 1, 1], 2.0, 0.0, 0.0)
    for token in (2, 3, 3):
        penalties.advance(token)
    assert shaped(penalties, [4.0, -4.0, 1.0, -1.0, 5.0, -5.0]) == [2.0, -8.0, 0.5, -2.0, 5.0, -5.0]


def test_presence_counts_once_and_not_the_prompt():
    penalties = Penalties([0, 1], 1.0, 1.5, 0.0)
    assert shaped(penalties, [1.0] * 4) == [1.0] * 4
    for token in (1, 2, 2):
        penalties.advance(token)
    assert shaped(penalties, [1.0] * 4) == [1.0, -0.5, -0.5, 1.0]


def test_frequency_counts_every_occurrence_and_not_the_prompt():
    penalties = Penalties([0, 1, 1], 1.0, 0.0, 0.5)
    for token in (1, 2, 2, 2):
        penalties.advance(token)
    assert shaped(penalties, [1.0] * 4) == [1.0, 0.5, -0.5, 1.0]


def test_the_prompt_counts_for_repetition_only_when_all_are_on():
    penalties = Penalties([0], 2.0, 1.0, 0.25)
    assert shaped(penalties, [4.0, 4.0]) == [2.0, 4.0]
    penalties.advance(0)
    assert shaped(penalties, [4.0, 4.0]) == [2.0 - 1.25, 4.0]


def test_negative_penalties_reward():
    penalties = Penalties([], 0.5, -1.0, -0.5)
    penalties.advance(1)
    assert shaped(penalties, [1.0, 1.0, -1.0]) == [1.0, 3.5, -1.0]


def test_impossible_tokens_stay_impossible():
    penalties = Penalties([0], 0.5, -2.0, -2.0)
    penalties.advance(0)
    assert shaped(penalties, [-np.inf, 1.0]) == [-np.inf, 1.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_of_the_logits_is_kept(dtype):
    penalties = Penalties([0, 1], 1.1, 0.1, 0.1)
    logits = np.array([0.1, -0.1, 0.2], dtype)
    penalties.apply(logits, [])
    assert logits.dtype == dtype
    assert logits.tolist() == pytest.approx([0.1 / 1.1, -0.11, 0.2], rel=1e-6)


def test_more_tokens_than_room_was_made_for():
    penalties = Penalties([], 2.0, 1.0, 1.0)
    for token in [*range(300), *range(0, 300, 2)]:
        penalties.advance(token)
    wanted = [8.0 / 2 - 1 - (2 if token % 2 == 0 else 1) for token in range(300)]
    assert shaped(penalties, [8.0] * 301) == [*wanted, 8.0]


def test_a_fork_does_not_touch_its_parent_nor_its_sibling():
    penalties = Penalties([0], 2.0, 1.0, 0.5)
    penalties.advance(1)
    before = shaped(penalties, [4.0] * V)
    one, other = penalties.fork(), penalties.fork()
    one.advance(2)
    one.advance(1)
    child = one.fork()
    child.advance(3)
    other.advance(4)
    assert shaped(penalties, [4.0] * V) == before
    assert shaped(one, [4.0] * V) == reference([4.0] * V, [0], [1, 2, 1], 2.0, 1.0, 0.5)
    assert shaped(other, [4.0] * V) == reference([4.0] * V, [0], [1, 4], 2.0, 1.0, 0.5)
    assert shaped(child, [4.0] * V) == reference([4.0] * V, [0], [1, 2, 1, 3], 2.0, 1.0, 0.5)


tokens = st.lists(st.integers(0, V - 1), max_size=8)


@given(
    tokens, tokens, st.lists(tokens, max_size=3), st.lists(st.integers(-4, 4), min_size=V, max_size=V),
    st.sampled_from([0.5, 1.0, 1.7]), st.sampled_from([-1.0, 0.0, 0.7]), st.sampled_from([-0.5, 0.0, 2.0]),
)  # fmt: skip
def test_any_path_of_forks_equals_the_reference(prompt, output, path, logits, repetition, presence, frequency):
    penalties = Penalties(prompt, repetition, presence, frequency)
    for token in output:
        penalties.advance(token)
    history = list(output)
    below = penalties
    for steps in path:
        below = below.fork()
        for token in steps:
            below.advance(token)
        history += steps
        wanted = reference(logits, prompt, history, repetition, presence, frequency)
        np.testing.assert_allclose(shaped(below, logits), wanted, rtol=1e-12)
    wanted = reference(logits, prompt, output, repetition, presence, frequency)
    np.testing.assert_allclose(shaped(penalties, logits), wanted, rtol=1e-12)
