"""The counted store against counting by hand (also after eviction), and the drafts that are made from it."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys_suffix import Line, ask, chain, whole

from surefoot.core.protocols import Plan
from surefoot.core.tree import depths
from surefoot.drafters.ngram import RELIABILITY
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.drafters.suffix_store import BREAK, SCAN, Context, ContextStore
from surefoot.errors import BadRequest

# ---- the store


def by_hand(text: list[int], live: range, tail: list[int]) -> tuple[Counter[int], int]:
    """Continuations of ``tail`` at the live positions of ``text``, and the latest such position."""
    n = len(tail)
    places = [e for e in live if e >= n and text[e] != BREAK and text[e - n : e] == tail]
    return Counter(text[e] for e in places), max(places, default=-1)


def check_against_hand(store: ContextStore, text: list[int], alphabet: int) -> None:
    live = range(store.end - len(store), store.end)
    tails = {tuple(text[e - n : e]) for e in live for n in range(1, store.depth + 1) if e >= n}
    tails |= {(a, b)[-store.depth :] for a in range(alphabet) for b in range(alphabet)}
    for tail in tails:
        if BREAK in tail:
            continue
        found = store.matches(list(tail), len(tail))
        counts = [by_hand(text, live, list(tail[-n:])) for n in range(1, len(tail) + 1)]
        longest = max((n for n, (count, _) in enumerate(counts, 1) if count), default=0)
        assert (found[-1][0] if found else 0) == longest
        for n, hit in found:
            count, last = counts[n - 1]
            if isinstance(hit, int):
                assert dict(count) == {store.at(hit): 1}
                assert hit == last
            else:
                assert hit.after == dict(count)
                assert (hit.total, hit.last) == (count.total(), last)
                assert count.total() > 1


pieces = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 5), st.integers(1, 7))
def test_counts_of_one_sequence_are_exact(tokens: list[int], depth: int, chunk: int) -> None:
    store = ContextStore(depth)
    for i in range(0, len(tokens), chunk):
        store.add(tokens[i : i + chunk])
    check_against_hand(store, tokens, 3)
    at_once = ContextStore(depth)
    at_once.add(tokens)
    assert whole(store) == whole(at_once)


@settings(max_examples=150, deadline=None)
@given(pieces, st.integers(1, 4), st.integers(1, 40))
def test_counts_are_exact_after_eviction(sequences: list[list[int]], depth: int, capacity: int) -> None:
    store = ContextStore(depth, capacity)
    text: list[int] = []
    for tokens in sequences:
        store.add_sequence(tokens)
        text += [BREAK, *tokens[max(0, len(tokens) - capacity + 1) :]]
        assert store.end == len(text)
        assert len(store) == min(capacity, len(text))
        check_against_hand(store, text, 3)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(1, 25), max_size=6), st.integers(1, 5), st.integers(1, 15)
)
def test_counts_are_exact_when_more_comes_than_is_kept(tokens: list[int], steps: list[int], depth: int, capacity: int) -> None:
    store = ContextStore(depth, capacity)
    seen = 0
    for step in [*steps, len(tokens)]:
        store.add(tokens[seen : seen + step])
        seen = min(len(tokens), seen + step)
        assert store.end == seen
        assert len(store) == min(capacity, seen)
        check_against_hand(store, tokens[:seen], 3)


@settings(max_examples=100, deadline=None)
@given(pieces, pieces, st.integers(1, 4))
def test_eviction_leaves_what_a_fresh_store_would_hold(old: list[list[int]], new: list[list[int]], depth: int) -> None:
    size = sum(len(tokens) + 1 for tokens in new)
    evicted, fresh = ContextStore(depth, size), ContextStore(depth, size)
    for tokens in old + new:
        evicted.add_sequence(tokens)
    for tokens in new:
        fresh.add_sequence(tokens)
    assert whole(evicted, fresh.end - evicted.end) == whole(fresh)
    assert evicted.contexts == fresh.contexts


def test_sequences_do_not_run_into_each_other() -> None:
    store = ContextStore(4, 100)
    store.add_sequence([1, 2])
    store.add_sequence([3, 4])
    assert store.matches([1, 2], 4) == []
    assert [n for n, _ in store.matches([9, 3], 4)] == [1]


def test_common_tokens_cost_a_bounded_scan() -> None:
    store = ContextStore(2)
    for token in range(1, 5 * SCAN):
        store.add([0, token])
    ((_, context),) = store.matches([0], 2)
    assert isinstance(context, Context)
    assert len(context.after) == 5 * SCAN - 1
    assert [token for token, _ in context.recent()] == list(range(5 * SCAN - 1, 4 * SCAN - 1, -1))


def size_of(branch: Context | int) -> int:
    if isinstance(branch, int):
        return sys.getsizeof(branch)
    own = sys.getsizeof(branch) + sys.getsizeof(branch.after)
    return own if branch.kids is None else own + sys.getsizeof(branch.kids) + sum(map(size_of, branch.kids.values()))


def test_memory_is_flat_over_many_sequences() -> None:
    store = ContextStore(8, 400)
    sizes = []
    for i in range(300):
        store.add_sequence([(i * 7 + j * j) % 23 for j in range(40)])
        sizes.append(sum(map(size_of, store._root.values())))
        assert len(store) <= 400
        assert len(store._text) <= 2 * 400 + 8 + 41
    assert max(sizes[150:]) <= 1.2 * max(sizes[20:150])
    assert 0.5 <= store.nbytes / sizes[-1] <= 3.0


# ---- the drafter


histories = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None)
@given(
    histories,
    st.lists(histories, max_size=3),
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(0, 20),
    st.sampled_from([0.0, 0.01, 0.1, 0.5]),
)
def test_trees_are_valid_within_budget_and_repeatable(
    tokens: list[int], past: list[list[int]], depth: int, width: int, nodes: int, floor: float
) -> None:
    plan = Plan(depth=depth, width=width, nodes=nodes, floor=floor)
    twins = [SuffixDrafter(max_match=5), SuffixDrafter(max_match=5)]
    seen = []
    for chunks, drafter in zip((1, 7), twins, strict=True):
        for i, old in enumerate(past, 1):
            ask(drafter, old, Plan(), i, 0)
            drafter.forget([Line(old, i, 0)])
        for end in range(chunks, len(tokens), chunks):
            ask(drafter, tokens[:end], plan)
        tree = ask(drafter, tokens, plan)
        seen.append((tree.tokens.tolist(), tree.parents.tolist()))
        parents = tree.parents.tolist()
        assert len(tree) <= nodes + 1
        assert max(depths(parents)) <= depth
        assert max(Counter(parents).values()) <= max(width, 1)
        guess = drafter.guess(Line(tokens), plan)
        assert all(r >= floor for r in guess.reach)
        for i, parent in enumerate(guess.parents):
            siblings = [j for j, other in enumerate(guess.parents) if other == parent]
            assert sum(guess.reach[j] for j in siblings) <= (guess.reach[parent] if parent >= 0 else 1.0) + 1e-9
            assert parent < i
    assert seen[0] == seen[1]


def test_reach_falls_along_the_order_of_a_tree() -> None:
    tokens = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 5, 1, 2]
    guess = SuffixDrafter().guess(Line(tokens), Plan(depth=4, width=3, nodes=12))
    assert guess.reach == sorted(guess.reach, reverse=True)
    first = [token for token, parent in zip(guess.tokens, guess.parents, strict=True) if parent == -1]
    assert first[:2] == [3, 4]
    assert guess.score == pytest.approx(sum(guess.reach))


def test_counts_decide_and_recency_breaks_ties() -> None:
    assert ask(SuffixDrafter(), [1, 2, 1, 3, 1, 2, 1, 4, 1], chain(1)).tokens.tolist() == [1, 2]
    assert ask(SuffixDrafter(), [1, 2, 0, 1, 3, 0, 9, 1], chain(1)).tokens.tolist() == [1, 3]


def test_longer_contexts_come_first() -> None:
    tokens = [8, 5, 1, 7, 5, 2, 7, 5, 2, 7, 5, 2, 8, 5]
    assert ask(SuffixDrafter(), tokens, chain(1)).tokens.tolist() == [5, 1]
    assert ask(SuffixDrafter(max_match=1), tokens, chain(1)).tokens.tolist() == [5, 2]


def test_shorter_contexts_share_what_longer_ones_leave() -> None:
    tokens = [1, 2, 7, 9, 2, 8, 6, 2, 8, 5, 2, 7, 4, 2, 3, 1, 2]
    guess = SuffixDrafter().guess(Line(tokens), Plan(depth=1, width=4, nodes=9))
    left = (1 - RELIABILITY[2]) * RELIABILITY[1]
    assert guess.tokens == [7, 8, 3]
    assert guess.reach == pytest.approx([RELIABILITY[2], left * 2 / 3, left * 1 / 3])


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    "tokens,want",
    [
        ([7] * 48, [7] * 12),
        ([7, 7], [7] * 12),
        ([1, 2, 3, 1, 2, 3, 1], [2, 3, 1] * 4),
        ([9, 4, 5, 6, 7, 4, 5], [6, 7, 4, 5] * 3),
    ],
)
def test_repeats_extend_through_their_own_end(tokens: list[int], want: list[int], width: int) -> None:
    tree = ask(SuffixDrafter(), tokens, Plan(depth=12, width=width, nodes=12))
    assert tree.tokens.tolist()[1:] == want


@pytest.mark.parametrize("tokens", [[5], [5, 6], [1, 2, 3, 4]])
@pytest.mark.parametrize("width", [1, 3])
def test_says_nothing_without_a_match(tokens: list[int], width: int) -> None:
    assert len(ask(SuffixDrafter(), tokens, Plan(depth=8, width=width, nodes=8))) == 1


def test_least_match_silences_short_ones() -> None:
    tokens = [1, 2, 3, 4, 1, 9, 2]
    assert len(ask(SuffixDrafter(), tokens, chain(4))) > 1
    assert len(ask(SuffixDrafter(min_match=2), tokens, chain(4))) == 1


def test_finished_rows_help_later_ones() -> None:
    drafter = SuffixDrafter()
    story = list(range(100, 140))
    ask(drafter, [1, 2, *story], chain(1), row_id=1, n_prompt=2)
    drafter.forget([Line([1, 2, *story], 1, 2)])
    assert ask(drafter, [3, 100, 101], chain(16), row_id=2).tokens.tolist()[1:] == story[2:18]
    assert ask(drafter, [3, 137], chain(16), row_id=3).tokens.tolist() == [137, 138, 139]
    assert len(ask(drafter, [3, 138, 139], chain(16), row_id=5)) == 1
    assert len(ask(drafter, [9, 1], chain(4), row_id=4)) == 1, "prompts stay private"


def test_own_history_wins_ties_and_prompts_may_be_shared() -> None:
    drafter = SuffixDrafter(share_prompts=True)
    ask(drafter, [1, 2, 3], chain(1), row_id=1, n_prompt=2)
    drafter.forget([Line([1, 2, 3], 1, 2)])
    assert ask(drafter, [8, 1], chain(2), row_id=2).tokens.tolist() == [1, 2, 3]
    assert ask(drafter, [1, 9, 1], chain(1), row_id=3).tokens.tolist() == [1, 9]


def test_nothing_is_shared_when_told_so() -> None:
    drafter = SuffixDrafter(shared_tokens=0)
    ask(drafter, [1, 2, 3, 4], chain(1), row_id=1)
    drafter.forget([Line([1, 2, 3, 4], 1, 0)])
    assert len(ask(drafter, [9, 2], chain(4), row_id=2)) == 1
    assert drafter.stats()["shared_tokens"] == 0


def test_forget_frees_and_the_cap_holds() -> None:
    drafter = SuffixDrafter(shared_tokens=500)
    sizes = []
    for i in range(120):
        row = Line([(i + j * j) % 31 for j in range(90)], i, 10)
        ask(drafter, row.tokens, chain(4), i, 10)
        assert drafter.stats()["rows"] == 1
        drafter.forget([row])
        drafter.forget([row])
        stats = drafter.stats()
        assert (stats["rows"], stats["tokens"]) == (0, 0)
        assert stats["shared_tokens"] == min(500, (i + 1) * 81)
        sizes.append(stats["bytes"])
    assert max(sizes[60:]) <= 1.5 * max(sizes[10:60])


def test_rows_of_one_call_keep_apart() -> None:
    drafter = SuffixDrafter()
    rows = [Line([1, 2, 1], 1), Line([1, 5, 1], 2), Line([4], 3)]
    trees = drafter.propose(rows, [chain(1), chain(1), chain(1)])
    assert [tree.tokens.tolist() for tree in trees] == [[1, 2], [1, 5], [4]]


@pytest.mark.parametrize(
    "options,named",
    [
        ({"max_match": 0}, "max_match"),
        ({"max_match": 2.0}, "max_match"),
        ({"min_match": 9}, "min_match"),
        ({"min_match": 0}, "min_match"),
        ({"shared_tokens": -1}, "shared_tokens"),
        ({"shared_tokens": True}, "shared_tokens"),
    ],
)
def test_bad_options_are_named(options: dict, named: str) -> None:
    with pytest.raises(BadRequest, match=f"{named}="):
        SuffixDrafter(**options)
