"""What the suffix stores say token by token: against "the longest context first" spelled out, and against looking up anew."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys_suffix import Line

from surefoot.drafters.suffix import SuffixDrafter
from surefoot.drafters.suffix_store import ContextStore
from surefoot.drafters.suffix_walk import LEVELS, REACH, WEIGHTS, SuffixWalk

KINDS, LENGTHS = 5, 8


def kind(count: int, total: int) -> int:
    """Of a continuation: lone occurrence, unanimous, from two thirds, from a third, below."""
    if total == 1:
        return 0
    share = count / total
    return 1 if share == 1 else 2 if share >= 0.66 else 3 if share >= 0.33 else 4


def by_hand(
    texts: list[list[int]], tail: list[int], width: int, depth: int, least: int = 1
) -> list[tuple[int, tuple[int, int, bool]]]:
    """(token, (match length, kind, own)) of the longest contexts; of equal ones that of the row itself first."""
    contexts = []
    for rank, text in enumerate(texts):
        for n in range(1, min(len(tail), REACH) + 1):
            places = [e for e in range(n, len(text)) if text[e - n : e] == tail[-n:]]
            if not places:
                break
            # a context of more than ``depth`` tokens is known only where it is the only one of its first ``depth``
            if n <= depth or len([e for e in range(depth, len(text)) if text[e - depth : e] == tail[-depth:]]) == 1:
                contexts.append((n, rank, [text[e] for e in places]))
    out: list[tuple[int, tuple[int, int, bool]]] = []
    for n, rank, said in sorted(contexts, key=lambda c: (-c[0], -c[1])):
        if n < least:
            continue
        counts = Counter(said)
        latest = {token: i for i, token in enumerate(said)}
        for token in sorted(counts, key=lambda x: (-counts[x], -latest[x])):
            if token not in [x for x, _ in out] and len(out) < width:
                out.append((token, (n, kind(counts[token], len(said)), rank == len(texts) - 1)))
    return out


def meaning(level: int) -> tuple[int, int, bool]:
    """(class of length, kind, own)"""
    own, rest = level < KINDS * LENGTHS, level % (KINDS * LENGTHS)
    return rest // KINDS, rest % KINDS, own


def of_length(n: int) -> int:
    """Class of a match length: each up to 3 its own, then two or more together."""
    bounds = (2, 3, 4, 5, 7, 9, 16)
    return sum(n >= bound for bound in bounds)


def stores(shared: list[int], own: list[int], depth: int) -> list[ContextStore]:
    made = [ContextStore(depth), ContextStore(depth)]
    made[0].add(shared)
    made[1].add(own)
    return made


texts = st.lists(st.integers(0, 2), min_size=0, max_size=40)


@settings(max_examples=300, deadline=None)
@given(texts, texts.filter(len), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_the_longest_context_comes_first(shared: list[int], own: list[int], depth: int, width: int, least: int) -> None:
    walk = SuffixWalk(stores(shared, own, depth), own[-REACH:], min(least, depth))
    found = walk.candidates(width)
    wanted = by_hand([shared, own], own[-REACH:], width, depth, min(least, depth))
    assert [token for token, _ in found] == [token for token, _ in wanted]
    for (_, level), (_, (n, sort, mine)) in zip(found, wanted, strict=True):
        assert meaning(level) == (of_length(n), sort, mine)
    assert walk.candidates(width) == found, "looking twice"
    assert walk.candidates(1) == found[:1]


@settings(max_examples=300, deadline=None)
@given(texts, texts.filter(len), st.data())
def test_going_on_is_looking_up_anew(shared: list[int], own: list[int], data: st.DataObject) -> None:
    """Whether a place was looked at or not, and along a lone match too, as long as that has text to follow.

    In stores that tell all contexts apart: others know less of a context than a copy under way does.
    """
    both = stores(shared, own, REACH)
    walk, tail = SuffixWalk(both, own[-REACH:], 1), own[-REACH:]
    for followed in range(1, 7):
        look = data.draw(st.booleans())
        found = walk.candidates(3) if look else []
        token = data.draw(st.sampled_from([x for x, _ in found] or [0, 1, 2]))
        walk, tail = walk.after(token), [*tail, token][-REACH:]
        anew = SuffixWalk(both, tail, 1, followed).candidates(3)
        here = walk.candidates(3)
        if walk._followed and walk._place < both[walk._rank].end:
            assert here == anew[:1], "a lone match stays the longest, and speaks for itself only"
        elif not walk._followed:
            assert here == anew


def test_a_copy_goes_on_through_the_end_of_the_history() -> None:
    """The whole draft is one span over and over, each token of it from the lone match or from what it has copied."""
    for period in (3, 5, 8):
        span = list(range(period))
        walk = SuffixWalk(stores([], [*span, 0], 4), [*span, 0][-REACH:], 1)
        said, levels = [], []
        for _ in range(40):
            ((token, level),) = walk.candidates(2)
            said.append(token)
            levels.append(meaning(level))
            walk = walk.after(token)
        assert said == [(1 + i) % period for i in range(40)]
        assert all(sort == 0 and own for _, sort, own in levels)
        if period <= REACH // 2:
            assert [n for n, _, _ in levels] == sorted(n for n, _, _ in levels), "the longer it has held, the surer"
            assert levels[-1][0] == LENGTHS - 1


def test_a_copy_from_other_rows_ends_with_their_text() -> None:
    walk = SuffixWalk(stores([5, 6, 7, 8], [5], 4), [5], 1)
    for token in (6, 7, 8):
        ((said, level),) = walk.candidates(2)
        assert said == token
        assert not meaning(level)[2]
        walk = walk.after(token)
    assert walk.candidates(2) == []
    walk = SuffixWalk(stores([5, 6], [9, 5], 4), [9, 5], 1)
    assert walk.candidates(1)[0][0] == 6
    assert walk.after(9).candidates(1)[0][0] == 5, "left the match: looked up"


def test_the_rows_own_text_wins_ties() -> None:
    both = stores([1, 2, 4], [1, 2, 3, 1, 2], 4)
    assert [token for token, _ in SuffixWalk(both, [1, 2], 1).candidates(2)] == [3, 4]
    both = stores([3, 1, 2, 4], [1, 2, 3, 1, 2], 4)
    assert [token for token, _ in SuffixWalk(both, [3, 1, 2], 1).candidates(2)] == [4, 3], "a longer match wins"


def test_beliefs_rise_with_length_and_agreement_and_fall_elsewhere() -> None:
    assert len(LEVELS) == len(WEIGHTS) - 2 == 2 * KINDS * LENGTHS
    assert all(0 < level < 1 for level in LEVELS)
    for n in range(LENGTHS):
        own = LEVELS[n * KINDS : (n + 1) * KINDS]
        assert own[1] > own[2] > own[3] > own[4], "the larger the share"
        assert all(a > b for a, b in zip(own, LEVELS[(LENGTHS + n) * KINDS :]))
    for sort in (0, 1):
        by_length = [LEVELS[n * KINDS + sort] for n in range(LENGTHS)]
        assert by_length == sorted(by_length)


@pytest.mark.parametrize("shared", [0, 1000])
def test_the_drafter_walks_where_its_row_stands(shared: int) -> None:
    made = SuffixDrafter(shared_tokens=shared)
    row = Line([1, 2, 3, 1, 2])
    assert made.walk(row).candidates(1)[0][0] == 3
    row.tokens += [4, 1, 2]
    assert made.walk(row).candidates(2) == made.walk(row).candidates(2)
    assert [token for token, _ in made.walk(row).candidates(2)] == [4, 3]
    made.forget([row])
    other = Line([2], id=1)
    assert [token for token, _ in made.walk(other).candidates(2)] == ([4, 3] if shared else [])
