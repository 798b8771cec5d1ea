"""Prompt lookup against a search by hand, for every pick; copies that run through their own end; plans, caps and forgetting."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan
from surefoot.drafters.ngram import PICKS, RELIABILITY, NgramDrafter
from surefoot.drafters.ngram_index import FAR, NgramIndex
from surefoot.errors import BadRequest


@dataclass
class Line:
    """As much of a row as a drafter reads."""

    tokens: list[int]
    id: int = 0
    n_prompt: int = field(default=1)

    @property
    def base(self) -> Line:
        return self


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
    stats = drafter.stats()
    assert (stats["rows"], stats["tokens"]) == (3, 11)
    assert stats["bytes"] > 0
    drafter.forget([Line([], 1), Line([], 2), Line([], 3), Line([], 3)])
    assert drafter.stats() == {"rows": 0, "tokens": 0, "bytes": 0}


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
        ({"pick": "best"}, "pick"),
        ({"pick": 1}, "pick"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
    ],
)
def test_bad_options_are_named(options: dict, named: str) -> None:
    with pytest.raises(BadRequest, match=f"{named}="):
        NgramDrafter(**options)


# ---- the other picks


def followers(tokens: list[int], tail: list[int]) -> list[int]:
    """What followed ``tail`` in ``tokens``, the earliest first."""
    n = len(tail)
    return [tokens[e] for e in range(n, len(tokens)) if tokens[e - n : e] == tail]


def longest_match(tokens: list[int], tail: list[int], max_n: int, min_n: int) -> int:
    return next((n for n in range(min(max_n, len(tail)), min_n - 1, -1) if followers(tokens, tail[-n:])), 0)


def ranked(tokens: list[int], tail: list[int], max_n: int, min_n: int) -> list[int]:
    """Followers of the longest match: by count, of equals the latest first."""
    n = longest_match(tokens, tail, max_n, min_n)
    if not n:
        return []
    found = followers(tokens, tail[-n:])
    last = {token: place for place, token in enumerate(found)}
    counts = Counter(found)
    return sorted(counts, key=lambda token: (-counts[token], -last[token]))


histories = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(histories, st.lists(st.integers(1, 4), max_size=12), st.integers(1, 5), st.integers(1, 5), st.integers(0, 9))
def test_frequent_takes_what_followed_most_often(tokens: list[int], steps: list[int], a: int, b: int, k: int) -> None:
    max_n, min_n = max(a, b), min(a, b)
    drafters = [NgramDrafter(max_n, min_n, pick) for pick in ("frequent", "all")]
    seen = 1
    for step in [*steps, len(tokens)]:
        seen = min(len(tokens), seen + step)
        known = tokens[:seen]
        path = list(known)
        while len(path) < seen + k and (found := ranked(known, path, max_n, min_n)):
            path.append(found[0])
        for drafter in drafters:
            assert draft(drafter, known, k) == path[seen:]


@settings(max_examples=150, deadline=None)
@given(
    histories, st.integers(1, 4), st.integers(2, 4), st.integers(1, 4), st.integers(1, 12), st.sampled_from([0.0, 0.05, 0.3])
)
def test_all_branches_into_what_followed(
    tokens: list[int], max_n: int, width: int, depth: int, nodes: int, floor: float
) -> None:
    plan = Plan(depth=depth, width=width, nodes=nodes, floor=floor)
    (tree,) = NgramDrafter(max_n, pick="all").propose([Line(tokens)], [plan])
    tree.check(4, nodes + 1)
    parents, drafted = tree.parents.tolist(), tree.tokens.tolist()
    paths: list[list[int]] = [[]]
    for node in range(1, len(tree)):
        paths.append([*paths[parents[node]], drafted[node]])
        assert len(paths[-1]) <= depth
    for node in range(len(tree)):
        children = [drafted[i] for i in range(1, len(tree)) if parents[i] == node]
        assert children == ranked(tokens, tokens + paths[node], max_n, 1)[: len(children)]
        assert len(children) <= width
    if floor == 0.0 and nodes == 12 and depth == 1:
        assert drafted[1:] == ranked(tokens, tokens, max_n, 1)[:width]


def test_all_puts_the_likelier_first_and_keeps_to_the_floor() -> None:
    tokens = [1, 5, 1, 6, 1, 5, 1, 7, 1, 5, 8, 9, 1]
    # after 1 came 5 three times, 7 and 6 once, 7 later; (9, 1) is new
    (tree,) = NgramDrafter(pick="all").propose([Line(tokens)], [Plan(depth=1, width=3, nodes=9)])
    assert tree.tokens.tolist() == [1, 5, 7, 6]
    share = RELIABILITY[1] / 5
    for floor, want in ((3 * share, [5]), (share, [5, 7, 6]), (3 * share + 1e-9, [])):
        (tree,) = NgramDrafter(pick="all").propose([Line(tokens)], [Plan(depth=1, width=3, nodes=9, floor=floor - 1e-12)])
        assert tree.tokens.tolist()[1:] == want


def max_gram(tokens: list[int], k: int, max_n: int, min_n: int) -> list[int]:
    path, place, end = list(tokens), len(tokens), len(tokens)
    while len(path) < end + k:
        if place >= end:
            sizes = [n for n in range(1, FAR + 1) if n <= len(path) and followers(tokens, path[-n:])]
            n = max(sizes, default=0)
            if n < min_n:
                break
            if n == 1:
                path.append(ranked(tokens, path, 1, 1)[0])
                continue
            # sizes over max_n are told apart among the places of the largest n-gram only, which hold them all
            tail = path[-n:]
            place = max(e for e in range(n, end) if tokens[e - n : e] == tail)
        path.append(tokens[place])
        place += 1
    return path[end:]


@settings(max_examples=200, deadline=None)
@given(histories, st.integers(2, 5), st.integers(1, 2), st.integers(0, 12), st.integers(1, 7))
def test_max_gram_copies_matches_again_and_chains_bigrams(tokens: list[int], max_n: int, min_n: int, k: int, step: int) -> None:
    drafter = NgramDrafter(max_n, min_n, "max_gram")
    for seen in [*range(1, len(tokens), step), len(tokens)]:
        got = draft(drafter, tokens[:seen], k)
    want = max_gram(tokens, k, max_n, min_n)
    # a lone bigram place is copied on from, which the search by hand tells by matching again: the same tokens
    assert got == want


def test_max_gram_looks_beyond_the_largest_ngram() -> None:
    tokens = [4, 1, 2, 3, 9, 5, 1, 2, 3, 8, 4, 1, 2, 3]
    assert draft(NgramDrafter(2, pick="recent"), tokens, 1) == [8]
    assert draft(NgramDrafter(2, pick="max_gram"), tokens, 1) == [9]


def test_max_gram_takes_the_latest_of_equals_and_the_usual_follower_of_a_single_token() -> None:
    assert draft(NgramDrafter(2, pick="max_gram"), [0, 1, 2, 0, 1, 3, 0, 1], 1) == [3]
    tokens = [5, 1, 6, 1, 6, 2, 1, 7, 8, 9, 1]
    # 6 followed 1 twice, 7 last; behind the chosen 6 the match is looked up anew, not copied on from the 7
    assert draft(NgramDrafter(pick="max_gram"), tokens, 3) == [6, 2, 1]
    assert draft(NgramDrafter(pick="max_gram", min_n=2), tokens, 3) == []


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("tokens", [[7] * 48, [1, 2, 3, 1, 2, 3, 1], [9, 4, 5, 6, 7, 4, 5]])
def test_repeats_go_on_for_every_pick(pick: str, tokens: list[int]) -> None:
    period = {48: 1, 7: 3 if tokens[0] == 1 else 4}[len(tokens)]
    longer = list(tokens)
    while len(longer) < len(tokens) + 12:
        longer.append(longer[-period])
    assert draft(NgramDrafter(pick=pick), tokens, 12) == longer[len(tokens) :]


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("tokens", [[5], [5, 6], [1, 2, 3, 4]])
def test_no_pick_says_anything_without_a_match(pick: str, tokens: list[int]) -> None:
    assert draft(NgramDrafter(pick=pick), tokens, 8) == []


@pytest.mark.parametrize("pick", PICKS)
def test_floor_ends_the_draft_of_every_pick(pick: str) -> None:
    tokens = [1, 2, 3, 4, 5, 6, 1, 2]
    floor = RELIABILITY[2] * RELIABILITY[3]
    assert draft(NgramDrafter(pick=pick), tokens, 9, floor - 1e-9) == [3, 4]
    assert draft(NgramDrafter(pick=pick), tokens, 9, floor + 1e-9) == [3]


# ---- the cap


def index_of(index: NgramIndex) -> object:
    return index._places, index._before and {a: b for a, b in index._before.items() if b >= index._first}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.lists(st.integers(1, 9), max_size=12),
    st.integers(1, 3),
    st.integers(1, 20),
    st.booleans(),
)
def test_the_index_keeps_the_latest_places_only(
    tokens: list[int], steps: list[int], most: int, capacity: int, chained: bool
) -> None:
    index = NgramIndex(1, most, capacity, chained)
    seen = 0
    for step in [*steps, len(tokens)]:
        seen = min(len(tokens), seen + step)
        index.catch_up(tokens[:seen])
        first = max(0, seen - capacity)
        assert len(index) == seen - first
        for n, places in enumerate(index._places, 1):
            want = {tuple(tokens[e - n : e]): e for e in range(max(n, first), seen)}
            assert places == want
        if chained:
            assert all(first <= place < seen for place in index._before or ())
            at_once = NgramIndex(1, most, capacity, chained)
            at_once.catch_up(tokens[:seen])
            assert index_of(index) == index_of(at_once) or seen == 0
            for end in range(seen + 1):
                assert index.longest(tokens, tokens[:end]) == at_once.longest(tokens, tokens[:end])


@pytest.mark.parametrize("pick", PICKS)
def test_what_is_older_than_the_cap_is_not_proposed(pick: str) -> None:
    tokens = [1, 2, 9, 8, 7, 6, 5, 1]
    assert draft(NgramDrafter(pick=pick, max_tokens=7), tokens, 1) == [2]
    assert draft(NgramDrafter(pick=pick, max_tokens=6), tokens, 1) == []
    drafter = NgramDrafter(pick=pick, max_tokens=50)
    sizes = []
    for end in range(2, 600, 2):
        draft(drafter, [(i * i) % 37 for i in range(end)], 2)
        stats = drafter.stats()
        assert stats["tokens"] == min(50, end)
        sizes.append(stats["bytes"])
    assert max(sizes[150:]) <= 1.2 * max(sizes[25:150])


# ---- in an engine


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 7, "n": 2}], ids=["greedy", "seeded"])
def test_equal_to_plain_decoding(pick: str, k: int, options: dict) -> None:
    target = TableModel.random(5, 2, seed=3)
    for width in (1, 3):
        engine = Engine(target, [NgramDrafter(pick=pick)], FixedController("ngram", k, width=width, nodes=2 * k), max_rows=4)
        plain = Engine(target, max_rows=4)
        asked = [[1, 2, 3, 1, 2], [4], [0, 0, 0], [3, 1, 3, 1, 3]]
        found = engine.generate_batch(asked, max_tokens=40, **options)
        for one, two in zip(found, plain.generate_batch(asked, max_tokens=40, **options), strict=True):
            assert [choice.token_ids for choice in (one, *one.choices)] == [choice.token_ids for choice in (two, *two.choices)]
        assert sum(one.stats.accepted_tokens for one in found) > 0
        row = engine.add([1, 2, 1, 2], SamplingParams(max_tokens=30))
        engine.step()
        engine.abort(row)
        assert engine.drafters["ngram"].stats()["rows"] == 0
