"""Prompt lookup against a search by hand; copies that run through their own end; plans, options and forgetting."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.core.protocols import Plan
from surefoot.drafters.ngram import RELIABILITY, NgramDrafter
from surefoot.errors import BadRequest


@dataclass
class Line:
    """As much of a row as a drafter reads."""

    tokens: list[int]
    id: int = 0
    n_prompt: int = field(default=1)


def draft(drafter: NgramDrafter, tokens: list[int], k: int, floor: float = 0.0, row_id: int = 0) -> list[int]:
    (tree,) = drafter.propose([Line(list(tokens), row_id)], [Plan(depth=k, nodes=k, floor=floor)])
    tree.check(1 << 20, k + 1)
    assert tree.tokens[0] == tokens[-1]
    assert tree.q is None
    assert tree.source.tolist() == [0] + [1] * (len(tree) - 1)
    return tree.tokens.tolist()[1:]


def by_hand(tokens: list[int], k: int, max_n: int, min_n: int) -> list[int]:
    for n in range(max_n, min_n - 1, -1):
        for e in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) > n and tokens[e - n : e] == tokens[-n:]:
                longer = list(tokens)
                for j in range(k):
                    longer.append(longer[e + j])
                return longer[len(tokens) :]
    return []


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.lists(st.integers(1, 4), max_size=12),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_equals_search_by_hand_however_the_tokens_arrive(tokens: list[int], steps: list[int], a: int, b: int, k: int) -> None:
    max_n, min_n = max(a, b), min(a, b)
    drafter = NgramDrafter(max_n, min_n)
    seen = 1
    for step in [*steps, len(tokens)]:
        seen = min(len(tokens), seen + step)
        assert draft(drafter, tokens[:seen], k) == by_hand(tokens[:seen], k, max_n, min_n)


def test_longest_match_wins_then_the_latest() -> None:
    assert draft(NgramDrafter(3, 1), [1, 2, 3, 9, 2, 3, 8, 7, 3, 6, 1, 2, 3], 1) == [9]
    assert draft(NgramDrafter(2, 1), [1, 2, 3, 9, 2, 3, 8, 7, 3, 6, 1, 2, 3], 1) == [8]
    assert draft(NgramDrafter(1, 1), [1, 2, 3, 9, 2, 3, 8, 7, 3, 6, 1, 2, 3], 1) == [6]


def test_repeats_extend_through_their_own_end() -> None:
    assert draft(NgramDrafter(), [7] * 48, 16) == [7] * 16
    assert draft(NgramDrafter(), [7, 7], 16) == [7] * 16
    assert draft(NgramDrafter(), [1, 2, 3, 1, 2, 3, 1], 8) == [2, 3, 1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("tokens", [[5], [5, 6], [1, 2, 3, 4]])
def test_says_nothing_without_a_match(tokens: list[int]) -> None:
    assert draft(NgramDrafter(), tokens, 8) == []


def test_budgets_and_floor() -> None:
    drafter = NgramDrafter()
    row = Line([1, 2, 3, 4, 5, 6, 1, 2])
    sizes = [len(drafter.propose([row], [plan])[0]) - 1 for plan in (Plan(), Plan(depth=3, nodes=9), Plan(depth=9, nodes=2))]
    assert sizes == [0, 3, 2]
    n = 2
    floor = RELIABILITY[n] * RELIABILITY[n + 1] - 1e-9
    assert draft(drafter, row.tokens, 9, floor) == [3, 4]


def test_rows_do_not_see_each_other_and_forget_frees() -> None:
    drafter = NgramDrafter()
    assert draft(drafter, [1, 2, 3, 1, 2], 1, row_id=1) == [3]
    assert draft(drafter, [2, 9, 2], 1, row_id=2) == [9]
    assert draft(drafter, [8, 1, 2], 1, row_id=3) == []
    assert drafter.stats() == {"rows": 3, "tokens": 11}
    drafter.forget([Line([], 1), Line([], 2), Line([], 3), Line([], 3)])
    assert drafter.stats() == {"rows": 0, "tokens": 0}


@pytest.mark.parametrize(
    "options,named",
    [
        ({"max_n": 0}, "max_n"),
        ({"min_n": 0}, "min_n"),
        ({"max_n": -3}, "max_n"),
        ({"max_n": 2.5}, "max_n"),
        ({"max_n": True}, "max_n"),
        ({"min_n": "2"}, "min_n"),
        ({"max_n": 2, "min_n": 3}, "min_n"),
    ],
)
def test_bad_options_are_named(options: dict, named: str) -> None:
    with pytest.raises(BadRequest, match=f"{named}="):
        NgramDrafter(**options)
