"""The n-grams against a search by hand; Jacobi's iteration against its fixed point; drafts, their limits, and the engine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Custom, Truth, fixed, run, within

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan, Scores, Verdict
from surefoot.core.tree import DraftTree, Forest, depths
from surefoot.drafters.lookahead import LookaheadDrafter
from surefoot.drafters.lookahead_pool import KEPT, SEED, Pool, believed, weighed
from surefoot.drafters.lookahead_tree import carrier
from surefoot.errors import BadRequest

LENGTHS = (1, 2, 3, 5, 8, 16)


@dataclass(eq=False)
class Line:
    """As much of a row as a drafter reads."""

    tokens: list[int]
    id: int = 0
    n_prompt: int = field(default=1)
    done: bool = False
    drafted: Sequence[int] = ()

    @property
    def base(self) -> Line:
        return self


def chain(k: int, floor: float = 0.0) -> Plan:
    return Plan(depth=k, nodes=k, floor=floor)


def ask(drafter: LookaheadDrafter, row: Line | list[int], plan: Plan) -> DraftTree:
    row = row if isinstance(row, Line) else Line(row)
    (tree,) = drafter.propose([row], [plan])
    tree.check(1 << 20, plan.nodes + 1)
    assert tree.q is None
    assert tree.tokens[0] == row.tokens[-1]
    assert tree.source.tolist() == [0] + [5] * (len(tree) - 1)
    return tree


def said(drafter: LookaheadDrafter, row: Line | list[int], plan: Plan) -> list[int]:
    tree = ask(drafter, row, plan)
    assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
    return tree.tokens.tolist()[1:]


def tell(drafter: LookaheadDrafter, row: Line, tree: DraftTree, path: list[int], token: int, best: list[int], vocab: int = 64):
    """A pass over ``tree`` in which ``best[i]`` was the target's choice behind node i."""
    logits = torch.zeros(len(tree), vocab)
    logits[range(len(tree)), best] = 1.0
    row.tokens += [int(tree.tokens[i]) for i in path] + [token]
    drafter.observe([row], Forest.pack([tree]), Scores(logits), [Verdict(tuple(path), token)])


# ---- the pool


def by_hand(tokens: list[int], context: list[int]) -> list[int]:
    """Continuations of a context, the latest first."""
    n = len(context)
    found = [tokens[e] for e in range(n, len(tokens)) if tokens[e - n : e] == context]
    return list(dict.fromkeys(reversed(found)))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=50), st.lists(st.integers(1, 9), max_size=9), st.integers(2, 5))
def test_pool_equals_search_by_hand_however_the_tokens_arrive(tokens: list[int], steps: list[int], n: int) -> None:
    pool = Pool(n, 1 << 20)
    seen = 0
    for step in [*steps, len(tokens)]:
        begin, seen = seen, min(len(tokens), seen + step)
        pool.say(tokens[:seen], begin)
    contexts = {tuple(tokens[e - c : e]) for c in range(1, n + 1) for e in range(c, len(tokens))}
    for context in contexts:
        assert list(pool.after(context)) == (by_hand(tokens, list(context)) if len(context) < n else [])
    assert len(pool) == sum(len(pool.after(c)) for c in contexts)


def test_a_context_keeps_its_latest_continuations() -> None:
    pool = Pool(2, 100)
    for token in range(1, KEPT + 3):
        pool.say([0, token], 1)
    assert list(pool.after((0,))) == list(range(KEPT + 2, 2, -1))
    assert len(pool) == KEPT


def test_what_was_said_stands_before_what_was_guessed() -> None:
    pool = Pool(3, 100)
    pool.guess((7, 1, 2), 3)
    assert (list(pool.after((2,))), list(pool.after((1, 2))), list(pool.after((7, 1, 2)))) == ([3], [3], [])
    pool.say([1, 2, 4], 0)
    assert list(pool.after((1, 2))) == [4, 3]
    pool.guess((1, 2), 5)
    assert list(pool.after((1, 2))) == [4, 3, 5]
    pool.say([1, 2, 5], 0)
    assert list(pool.after((1, 2))) == [5, 4, 3]


def test_contexts_not_seen_for_longest_go_first() -> None:
    pool = Pool(2, 3)
    pool.say([1, 2], 1)
    pool.say([3, 4], 1)
    pool.say([5, 6], 1)
    pool.say([1, 2], 1)
    pool.say([7, 8], 1)
    assert [list(pool.after((t,))) for t in (1, 3, 5, 7)] == [[2], [], [6], [8]]
    pool.trim(1)
    assert len(pool) == 1
    assert list(pool.after((7,))) == [8]
    pool.guess((9,), 9)
    assert len(pool) == 1


def size_of(pool: Pool) -> int:
    rows = sum(sys.getsizeof(context) + sys.getsizeof(known) for context, known in pool._found.items())
    return sys.getsizeof(pool._found) + rows


def test_memory_is_bounded_over_a_million_tokens() -> None:
    drafter = LookaheadDrafter(ngram=3, pool=4000)
    sizes = []
    state = 1
    for i in range(10):
        row = Line([0], i)
        for _ in range(10):
            for _ in range(10_000):
                state = state * 1_103_515_245 + 12_345 & 0x7FFFFFFF
                row.tokens.append(state >> 16)
            ask(drafter, row, chain(4))
            tell(drafter, row, DraftTree.chain([row.tokens[-1], 1, 2, 3], source=5), [], 4, [4, 5, 6, 7])
            stats = drafter.stats()
            assert stats["rows"] == 1
            assert stats["entries"] <= 2000
            assert stats["shared_entries"] <= 2000
            (own,) = drafter._rows.values()
            assert len(own.guess) <= 64
            sizes.append(size_of(own.pool) + size_of(drafter._shared))
        assert stats["bytes"] == pytest.approx(sizes[-1], rel=0.5)
        drafter.forget([row])
    assert sum(len(known) for known in drafter._shared._found.values()) == len(drafter._shared) > 1900
    assert max(sizes[30:]) <= 1.2 * max(sizes[12:30])


def test_rows_divide_the_cap_among_them() -> None:
    drafter = LookaheadDrafter(pool=1200, shared=False)
    rows = [Line([(i * j * j) % 997 for j in range(900)], i) for i in range(1, 5)]
    for n, row in enumerate(rows, 1):
        ask(drafter, row, chain(2))
        assert drafter.stats()["entries"] <= 1200
        assert all(len(own.pool) <= 1200 // n for own in drafter._rows.values())
    drafter.forget(rows[1:])
    assert drafter._rows[1].pool.capacity == 1200


# ---- chains


def test_longest_context_wins_then_the_latest() -> None:
    tokens = [1, 2, 3, 9, 2, 3, 8, 7, 3, 6, 1, 2, 3]
    assert said(LookaheadDrafter(ngram=4), tokens, chain(1)) == [9]
    assert said(LookaheadDrafter(ngram=3), tokens, chain(1)) == [8]
    assert said(LookaheadDrafter(ngram=2), tokens, chain(1)) == [6]


def test_repeats_extend_through_their_own_end() -> None:
    assert said(LookaheadDrafter(), [7] * 48, chain(16)) == [7] * 16
    assert said(LookaheadDrafter(), [1, 2, 3, 1, 2, 3, 1], chain(8)) == [2, 3, 1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("plan", [chain(8), Plan(depth=8, width=3, nodes=8), chain(0), Plan(depth=3, width=0, nodes=3)])
def test_says_nothing_where_nothing_is_known(plan: Plan) -> None:
    assert len(ask(LookaheadDrafter(), [1, 2, 3, 4], plan)) == 1


def test_budgets_and_floor() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 1, 2]
    drafter = LookaheadDrafter()
    assert len(said(drafter, tokens, Plan(depth=3, nodes=9))) == 3
    assert len(said(drafter, tokens, Plan(depth=9, nodes=2))) == 2
    levels = drafter.levels
    assert said(drafter, tokens, chain(9, levels[2] * levels[3] - 1e-9)) == [3, 4]
    assert said(drafter, tokens, chain(9, levels[2] + 1e-9)) == []


def test_a_cut_is_asked_at_the_end() -> None:
    asked = []

    def cut(reach, work):
        asked.append((list(reach), list(work)))
        return 2

    drafter = LookaheadDrafter()
    levels = drafter.levels
    assert said(drafter, [1, 2, 3, 4, 1, 2], Plan(depth=4, nodes=3, cut=cut)) == [3, 4]
    reach = [levels[2], levels[2] * levels[3], levels[2] * levels[3] ** 2]
    assert asked.pop() == (pytest.approx(reach), [1, 1, 1])
    tree = ask(LookaheadDrafter(paths=True), [1, 5, 0, 1, 6, 0, 1], Plan(depth=2, width=2, nodes=9, cut=cut))
    assert tree.parents.tolist() == [-1, 0, 1]
    reach, work = asked.pop()
    assert reach == sorted(reach, reverse=True)
    assert work[2:] == [2, 1], "the second branch computes the pending token again"


def test_window_lengthens_a_chain_with_tokens_of_the_row() -> None:
    assert said(LookaheadDrafter(window=3), [1, 2, 3, 4], chain(8)) == [4, 3, 4]
    assert said(LookaheadDrafter(window=3), [1, 2, 3, 4], chain(2)) == [4, 3]
    assert said(LookaheadDrafter(window=6), [3, 4], chain(6)) == [4, 3, 4, 3, 4, 3]
    assert said(LookaheadDrafter(window=3), [1, 2, 3, 4], chain(8, SEED * 0.9)) == [4]


# ---- the iteration


def test_what_the_target_chose_behind_refused_tokens_is_the_next_guess() -> None:
    drafter = LookaheadDrafter(pool=0)
    row = Line([1, 2])
    ask(drafter, row, chain(4))
    tell(drafter, row, DraftTree.chain([2, 10, 11, 12, 13], source=5), [1], 20, [10, 20, 21, 22, 23])
    # 20 took the place of 11; behind 11, 12, 13 stood 21, 22, 23
    assert said(drafter, row, chain(3)) == [21, 22, 23]
    row.tokens += [30]  # a pass without a draft uses up one place
    assert said(drafter, row, chain(2)) == [22, 23]
    row.tokens += [31, 32]
    assert said(drafter, row, chain(2)) == [32, 31]


def test_rows_of_one_pass_keep_apart() -> None:
    drafter = LookaheadDrafter(pool=0)
    rows = [Line([1, 2], 1), Line([3, 4], 2), Line([5, 6], 3), Line([7, 8], 4, done=True)]
    drafter.propose(rows, [chain(2)] * 4)
    trees = [DraftTree.chain([row.tokens[-1], 10, 11], source=5) for row in rows]
    logits = torch.zeros(12, 64)
    logits[range(12), range(20, 32)] = 1.0
    for row, token in zip(rows, (20, 23, 26, 29), strict=True):
        row.tokens.append(token)
    verdicts = [Verdict((), 20), None, Verdict((), 26), Verdict((), 29)]
    drafter.observe(rows, Forest.pack(trees), Scores(logits), verdicts)
    assert [own.guess for own in drafter._rows.values()] == [[21, 22], [], [27, 28], []]


def test_guesses_beyond_a_shorter_draft_stay() -> None:
    drafter = LookaheadDrafter(pool=0)
    row = Line([1, 2])
    ask(drafter, row, chain(4))
    tell(drafter, row, DraftTree.chain([2, 10, 11, 12, 13], source=5), [], 20, [20, 21, 22, 23, 24])
    tell(drafter, row, DraftTree.chain([20, 21, 22], source=5), [], 40, [40, 41, 42])
    assert said(drafter, row, chain(3)) == [41, 42, 24]


def test_refused_nodes_make_n_grams_of_their_own_path() -> None:
    drafter = LookaheadDrafter(ngram=4)
    row = Line([1, 2])
    ask(drafter, row, chain(3))
    tell(drafter, row, DraftTree.chain([2, 10, 11, 12], source=5), [1], 20, [10, 20, 21, 22])
    pool = drafter._rows[0].pool
    assert [list(pool.after(c)) for c in ((11,), (10, 11), (2, 10, 11))] == [[21], [21], [21]]
    assert [list(pool.after(c)) for c in ((12,), (11, 12), (10, 11, 12))] == [[22], [22], [22]]
    assert list(pool.after((2,))) == []  # what was kept is learned when the row asks next
    ask(drafter, row, chain(3))
    assert [list(pool.after(c)) for c in ((2,), (10,), (2, 10))] == [[10], [20], [20]]
    row.tokens += [10, 11]
    assert said(drafter, row, chain(1)) == [21]


def test_a_guess_that_n_grams_confirm_comes_first() -> None:
    drafter = LookaheadDrafter(ngram=2)
    row = Line([5, 6, 5, 7, 5, 8, 4])
    ask(drafter, row, chain(1))
    tell(drafter, row, DraftTree.chain([4, 9], source=5), [], 5, [5, 6])
    walk = drafter.walk(row)
    n = 2
    assert list(walk.candidates(3)) == [(6, n - 1 + 1), (8, 1), (7, 2 * (n - 1) + 1)]
    assert list(walk.candidates(1)) == [(6, n - 1 + 1)]
    assert list(walk.after(8).candidates(3)) == [(4, 1)]
    assert list(walk.candidates(1)) == [(6, n - 1 + 1)], "looking and going on change nothing"
    alone = walk.trajectory()
    assert list(alone.candidates(2)) == [(6, 0)]
    assert list(alone.after(6).candidates(2)) == []


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=4, max_size=30), st.lists(st.integers(0, 4), min_size=4, max_size=4), st.integers(2, 5)
)
def test_the_one_candidate_is_the_first_of_many(tokens: list[int], best: list[int], n: int) -> None:
    drafter = LookaheadDrafter(ngram=n, known=4)
    old = Line(tokens[::-1], 1, 0)
    ask(drafter, old, chain(1))
    drafter.forget([old])
    row = Line(tokens)
    ask(drafter, row, chain(1))
    tell(drafter, row, DraftTree.chain([tokens[-1], 0, 1, 2], source=5), [], 3, best)
    walk = drafter.walk(row)
    for token in (0, 1, 2, 3):
        many = list(walk.candidates(9))
        assert list(walk.candidates(1)) == many[:1]
        assert len({token for token, _ in many}) == len(many)
        assert all(token < 4 for token, _ in many)
        chances = [drafter.levels[level] for _, level in many]
        assert chances == sorted(chances, reverse=True)
        walk = walk.after(token)


@pytest.mark.parametrize("n", [2, 4, 9])
def test_levels_are_chances_that_grow_with_the_context(n: int) -> None:
    levels = believed(n)
    assert len(levels) == 1 + 3 * (n - 1)
    assert all(0 < x < 1 for x in levels)
    named, agreed = levels[1:n], levels[n : 2 * n - 1]
    assert named == sorted(named)
    assert agreed == sorted(agreed)
    assert all(a > b for a, b in zip(agreed, named, strict=True))
    weights = weighed(n)
    assert len(weights) == len(levels) + 2
    beside = weights[2 * n - 1 : -2]
    assert all(a > b > c for a, b, c in zip(weights[n : 2 * n - 1], weights[1:n], beside, strict=True))
    assert weights[-2] < weights[-1]


@pytest.mark.parametrize("options,looks", [({}, 8), ({"window": 11}, 11), ({"pool": 0}, 40)])
def test_only_so_many_refused_nodes_are_looked_at(options: dict, looks: int) -> None:
    drafter = LookaheadDrafter(**options)
    row = Line([1, 2])
    ask(drafter, row, chain(4))
    tell(drafter, row, DraftTree.chain([2, *range(10, 50)], source=5), [], 63, [63, *range(20, 60)])
    (own,) = drafter._rows.values()
    assert own.guess == list(range(20, 20 + looks))
    if "pool" not in options:
        assert list(own.pool.after((9 + looks,))) == [19 + looks]
        assert list(own.pool.after((10 + looks,))) == []


@pytest.mark.parametrize(
    "parents,path,want",
    [
        ([-1, 0, 1, 2], [], [1, 2, 3]),
        ([-1, 0, 1, 2], [1], [2, 3]),
        ([-1, 0, 1, 2], [1, 2, 3], []),
        ([-1, 0, 0, 2, 3], [1], [3, 4]),  # beside the accepted leaf: from the new token's place on
        ([-1, 0, 0, 1, 2, 4], [1], [3]),  # what leaves the path latest was chosen behind more of the truth
        ([-1, 0, 0, 1, 2, 4], [1, 3], [5]),
        ([-1, 0, 0, 1], [], [1, 3]),  # the deepest of siblings
        ([-1, 0, 0, 2], [], [2, 3]),
        ([-1, 0, 0], [1], []),
        ([-1, 0, 0, 1, 1, 2, 5], [1, 3], [6]),  # 4 ends before the new token's place
    ],
)
def test_the_branch_that_carries_the_guesses(parents: list[int], path: list[int], want: list[int]) -> None:
    assert carrier(parents, depths(parents), path) == want


def lagged(vocab: int, lag: int) -> TableModel:
    """The next token is a permutation of the one ``lag`` places back: no token depends on the one before it."""
    states = (vocab + 1) ** lag
    logits = torch.zeros(states, vocab)
    for state in range(states):
        logits[state, (3 * (state // (vocab + 1) ** (lag - 1)) + 1) % vocab] = 9.0
    return TableModel(logits, lag)


@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 2])
def test_jacobi_settles_as_many_tokens_a_pass_as_do_not_depend_on_each_other(lag: int, width: int) -> None:
    target = lagged(7, lag)
    engine = fixed(target, LookaheadDrafter(pool=0), 6, width, 6)
    done = engine.generate([1, 4, 2], max_tokens=61)
    plain = Engine(target).generate([1, 4, 2], max_tokens=61)
    assert done.token_ids == plain.token_ids
    passes = done.stats.passes
    if lag == 1 and width == 1:  # a permutation of the last token: wrong guesses stay wrong, luck aside
        assert passes > 40
    elif lag > 1:
        assert passes <= 61 / lag + lag + 1


def test_jacobi_reaches_a_fixed_point_of_the_text() -> None:
    """Whatever a guess was, behind it stands one token: the iteration settles in all places at once."""
    logits = torch.zeros(9, 8)
    logits[:, 5] = 9.0
    done = fixed(TableModel(logits, 1), LookaheadDrafter(pool=0), 8).generate([1, 2], max_tokens=46)
    assert set(done.token_ids) == {5}
    assert done.stats.passes <= 2 + 45 / 9


# ---- trees


histories = st.lists(st.integers(0, 3), min_size=1, max_size=60)
shapes = st.fixed_dictionaries(
    {
        "window": st.integers(0, 4),
        "ngram": st.integers(2, 5),
        "guesses": st.integers(1, 4),
        "pool": st.sampled_from([0, 7, 999]),
    }
)


@settings(max_examples=250, deadline=None)
@given(histories, shapes, st.integers(0, 6), st.integers(1, 4), st.integers(0, 14), st.sampled_from([0.0, 0.01, 0.1, 0.5]))
def test_drafts_are_within_their_plans_and_repeatable(
    tokens: list[int], options: dict, depth: int, width: int, nodes: int, floor: float
) -> None:
    plan = Plan(depth=depth, width=width, nodes=nodes, floor=floor)
    twins = [LookaheadDrafter(**options), LookaheadDrafter(**options)]
    seen = []
    for drafter in twins:
        row = Line(list(tokens))
        for step in range(3):
            tree = ask(drafter, row, plan)
            parents = tree.parents.tolist()
            assert len(tree) <= nodes + 1
            assert max(depths(parents)) <= depth
            assert max(Counter(parents).values()) <= max(width, 1)
            leaves = len(tree) - len(set(parents) - {-1}) if len(tree) > 1 else 0
            assert leaves <= options["guesses"] + (options["window"] > 0 or options["pool"] == 0)
            seen.append((tree.tokens.tolist(), parents))
            path = [1] if len(tree) > 1 and step == 1 else []
            tell(drafter, row, tree, path, 0, [(7 * i + step) % 5 for i in range(len(tree))])
    assert seen[:3] == seen[3:]


def test_a_tree_has_the_likeliest_first_and_at_most_so_many_branches() -> None:
    tokens = [1, 5, 0, 1, 6, 0, 1, 7, 0, 2, 1]
    plan = Plan(depth=1, width=4, nodes=9)
    assert ask(LookaheadDrafter(), tokens, plan).tokens.tolist() == [1, 7, 6, 5]
    assert ask(LookaheadDrafter(guesses=2), tokens, plan).tokens.tolist() == [1, 7, 6]
    assert ask(LookaheadDrafter(), tokens, Plan(depth=1, width=2, nodes=9)).tokens.tolist() == [1, 7, 6]
    levels = LookaheadDrafter().levels
    floor = (levels[1] + max(levels[7:10])) / 2
    assert ask(LookaheadDrafter(), tokens, Plan(depth=1, width=4, nodes=9, floor=floor)).tokens.tolist() == [1, 7]
    deep = ask(LookaheadDrafter(guesses=1), tokens, Plan(depth=4, width=4, nodes=9))
    assert deep.parents.tolist() == [-1, 0, 1, 2, 3]


def test_window_is_a_branch_that_shares_nodes() -> None:
    drafter = LookaheadDrafter(window=3, ngram=2)
    row = Line([20, 21, 30, 20, 40, 7, 2])
    ask(drafter, row, chain(3))
    tell(drafter, row, DraftTree.chain([2, 10, 11, 12], source=5), [], 20, [20, 21, 22, 23])
    tree = ask(drafter, row, Plan(depth=3, width=3, nodes=9))
    paths = {tuple(tree.tokens[list(chain_of(tree, i))].tolist()) for i in range(1, len(tree))}
    assert (20, 21, 22, 23) in paths, "the guesses"
    assert (20, 21, 30, 20) in paths, "an n-gram"
    assert (20, 40, 7, 2) in paths, "another one"
    assert Counter(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))[0, 21] == 1


def chain_of(tree: DraftTree, node: int) -> list[int]:
    found = []
    while node >= 0:
        found.append(node)
        node = int(tree.parents[node])
    return found[::-1]


# ---- rows


def test_ended_rows_help_later_ones_and_prompts_stay_private() -> None:
    drafter = LookaheadDrafter()
    story = list(range(100, 120))
    row = Line([1, 2, *story], 1, 2)
    ask(drafter, row, chain(1))
    assert said(drafter, Line([9, 100, 101], 2), chain(4)) == [], "nor does a row that goes on"
    drafter.forget([row, row])
    assert said(drafter, Line([3, 100, 101], 3), chain(4)) == story[2:6]
    assert said(drafter, Line([9, 1], 4), chain(4)) == []
    assert said(drafter, Line([100, 7, 100], 5), chain(1)) == [7], "the row's own comes first"
    drafter.forget([Line([5, 6], 99, 0)])
    assert drafter.stats()["rows"] == 4


def test_nothing_is_shared_when_told_so() -> None:
    drafter = LookaheadDrafter(shared=False)
    row = Line([1, 2, 3, 4], 1, 0)
    ask(drafter, row, chain(1))
    drafter.forget([row])
    assert said(drafter, Line([9, 2], 2), chain(4)) == []
    drafter.forget([Line([], 2)])
    assert drafter.stats() == {"rows": 0, "entries": 0, "shared_entries": 0, "bytes": 0}


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("pool", [0, 100])
def test_ids_that_stand_for_nothing_are_never_drafted(width: int, pool: int) -> None:
    drafter = LookaheadDrafter(window=4, pool=pool, known=10)
    row = Line([5, 12, 5, 13, 12, 5])
    for _ in range(3):
        tree = ask(drafter, row, Plan(depth=4, width=width, nodes=8))
        assert all(token < 10 for token in tree.tokens.tolist()[1:])
        tree = DraftTree.chain([row.tokens[-1], 3, 4], source=5)
        logits = torch.zeros(3, 16)
        logits[:, 14] = 2.0
        logits[:, 8] = 1.0
        row.tokens.append(5)
        drafter.observe([row], Forest.pack([tree]), Scores(logits), [Verdict((), 5)])
        assert drafter._rows[0].guess == [8, 8]


@pytest.mark.parametrize(
    "options,named",
    [
        ({"window": -1}, "window"),
        ({"window": 2.0}, "window"),
        ({"ngram": 1}, "ngram"),
        ({"ngram": True}, "ngram"),
        ({"pool": -1}, "pool"),
        ({"pool": "9"}, "pool"),
        ({"guesses": 0}, "guesses"),
        ({"shared": 1}, "shared"),
        ({"known": 0}, "known"),
    ],
)
def test_bad_options_are_named(options: dict, named: str) -> None:
    with pytest.raises(BadRequest, match=f"{named}="):
        LookaheadDrafter(**options)


# ---- in the engine

KINDS: dict[str, tuple[dict, int]] = {
    "chain": ({}, 1),
    "jacobi": ({"pool": 0}, 1),
    "tree": ({}, 3),
    "window": ({"window": 3, "ngram": 3, "pool": 40}, 3),
    "jacobi-tree": ({"pool": 0}, 2),
}


def made(kind: str, target: TableModel, k: int, **engine) -> Engine:
    options, width = KINDS[kind]
    return fixed(
        target, LookaheadDrafter(known=target.traits.vocab_size, **options), k, width, 2 * k if width > 1 else k, **engine
    )


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_rows_equal_plain_decoding(kind: str, k: int) -> None:
    target = TableModel.random(6, 2, seed=k, sharpness=3.0)
    truth = Truth(target, reuse=False)
    engine = made(kind, target, k, chunk=5, max_rows=3)
    requests: list[tuple[list[int], dict]] = [
        ([1], {"max_tokens": 40}),
        ([0, 1, 2, 3, 4, 5] * 3, {"max_tokens": 25}),
        ([2, 2], {"max_tokens": 33, "temperature": 0.8, "seed": 7}),
        ([3, 4], {"max_tokens": 20, "temperature": 1.0, "top_p": 0.9, "seed": 8, "verification": "coupled"}),
        ([5, 0, 5], {"max_tokens": 20, "temperature": 0.7, "top_k": 1, "verification": "ratio"}),
        ([5, 1], {"max_tokens": 1}),
    ]
    accepted = 0
    for _ in range(2):  # the second time with what the first left behind
        rows = [engine.add(prompt, SamplingParams(**options)) for prompt, options in requests]
        while not all(row.done for row in rows):
            engine.step()
        for row in rows:
            assert tuple(row.output) == truth(row)
        accepted += sum(source == 5 for row in rows for source in row.sources)
    assert accepted > 0
    assert target.open_slots == 0 or not engine.rows
    assert engine.drafters["lookahead"].stats()["rows"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_forks_and_aborts(kind: str) -> None:
    target = TableModel.random(6, 2, seed=3, sharpness=3.0)
    truth = Truth(target, reuse=False)
    engine = made(kind, target, 4)
    row = engine.add([1, 2, 3], SamplingParams(max_tokens=40))
    other = engine.add([4, 5], SamplingParams(max_tokens=40))
    for _ in range(5):
        engine.step()
    branch = engine.fork(row, [2], SamplingParams(max_tokens=15))
    engine.step()
    engine.abort(other)
    kept = list(other.output)
    while engine.rows:
        engine.step()
    assert tuple(row.output) == truth(row)
    assert tuple(branch.output) == truth(branch)
    assert tuple(kept) == truth(other)[: len(kept)]
    assert engine.drafters["lookahead"].stats()["rows"] == 0


def test_options_that_forbid_the_best_token() -> None:
    target = TableModel.random(6, 1, seed=5, sharpness=3.0)
    options = {"max_tokens": 30, "logit_bias": {2: -100.0}, "repetition_penalty": 1.3}
    (done,) = run(made("chain", target, 5), ([1, 2, 3], options))
    (plain,) = run(Engine(target), ([1, 2, 3], options))
    assert done.token_ids == plain.token_ids


def test_learns_from_the_drafts_of_others() -> None:
    """Passes that another drafter's trees made are looked at too, nodes in any order."""
    target = TableModel.random(8, 1, seed=2, sharpness=4.0)
    wide = Custom(lambda row, plan: within(plan, [row.tokens[-1], 1, 2, 3, 4], [-1, 0, 0, 1, 2]))

    class Turns(FixedController):
        def plan(self, rows):
            return [Plan("lookahead" if len(row.tokens) % 3 == 0 else "custom", 4, 2, 8) for row in rows]

    drafter = LookaheadDrafter()
    engine = Engine(target, [wide, drafter], Turns("custom", 4, 2, 8))
    row = engine.add([1, 0], SamplingParams(max_tokens=40))
    best = target.logits[:8].argmax(-1).tolist()
    learned: set[int] = set()
    while not row.done:
        engine.step()
        if row.id in drafter._rows:
            pool = drafter._rows[row.id].pool
            for token in range(8):
                for after in pool.after((token,)):
                    assert after == best[token] or token in row.tokens[: row.n_prompt]
                    learned.add(token)
    assert {1, 2, 3, 4} <= learned
    assert tuple(row.output) == Truth(target, reuse=False)(row)
