"""Horizontal cascades: who drafts where, behind what, and within which plan."""

from __future__ import annotations

import pytest
from toys import Custom, counter

from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan
from surefoot.core.tree import DraftTree
from surefoot.drafters.horizontal import HorizontalDrafter
from surefoot.errors import BadRequest

VOCAB = 40


def counting(source: int, name: str, most: int = 99) -> Custom:
    """Counts on from the row's last token, ``most`` tokens at a time, and keeps the rows that it was asked for."""

    def one(row, plan):
        drafter.asked.append([*row.tokens])
        last = row.tokens[-1]
        n = min(plan.depth, plan.nodes, most)
        tokens = [(last + i + 1) % VOCAB for i in range(n)]
        for depth, token in enumerate(tokens, 1):
            if plan.stop is not None and plan.stop(None, token, depth):
                return DraftTree.chain([last, *tokens[:depth]], None, source)
        return DraftTree.chain([last, *tokens], None, source)

    drafter = Custom(one, source, name)
    drafter.asked = []
    return drafter


def made(lengths, k: int, mosts=(99, 99, 99)):
    parts = [counting(i + 1, f"part{i + 1}", most) for i, most in zip(range(len(lengths)), mosts)]
    drafter = HorizontalDrafter(parts, lengths, source=9)
    return Engine(counter(VOCAB), [*parts, drafter], FixedController("horizontal", k), reuse=False), parts, drafter


def draft(lengths, plan: Plan, mosts=(99, 99, 99), **options):
    engine, parts, drafter = made(lengths, 4, mosts)
    row = engine.add([3, 4, 5], SamplingParams(max_tokens=30, **options))
    engine.step()
    (tree,) = drafter.propose([row], [plan])
    return tree, parts


@pytest.mark.parametrize(
    "lengths, plan, mosts, sources",
    [
        ((2, 3), Plan("h", 9, 1, 9), (99, 99, 99), [1, 1, 2, 2, 2]),
        ((2, 3), Plan("h", 4, 1, 9), (99, 99, 99), [1, 1, 2, 2]),
        ((2, 3), Plan("h", 9, 1, 3), (99, 99, 99), [1, 1, 2]),
        ((2, 3), Plan("h", 1, 1, 1), (99, 99, 99), [1]),
        ((2, 3), Plan("h", 0, 1, 0), (99, 99, 99), []),
        ((2, 3), Plan("h", 9, 1, 9), (1, 99, 99), [1, 2, 2, 2]),  # the next goes on where one ends early
        ((2, 3), Plan("h", 9, 1, 9), (0, 99, 99), [2, 2, 2]),
        ((2, 3, 1), Plan("h", 9, 1, 9), (99, 0, 99), [1, 1, 3]),
        ((1, 1, 1), Plan("h", 9, 4, 9), (99, 99, 99), [1, 2, 3]),
    ],
)
def test_who_drafts_where(lengths, plan, mosts, sources):
    tree, parts = draft(lengths, plan, mosts)
    assert tree.source.tolist() == [0, *sources]
    assert tree.tokens.tolist() == [6 + i for i in range(len(sources) + 1)]
    assert tree.parents.tolist() == list(range(-1, len(sources)))
    assert tree.q is None
    for part in parts:
        for asked in part.plans:
            assert 1 <= asked.depth == asked.nodes <= plan.depth
            assert asked.width == 1
            assert asked.cut is None


def test_each_part_stands_behind_what_was_drafted():
    _, parts = draft((2, 3), Plan("h", 9, 1, 9))
    assert [part.asked for part in parts] == [[[3, 4, 5, 6]], [[3, 4, 5, 6, 7, 8]]]


def test_a_stop_counts_from_the_start_and_ends_the_draft():
    asked = []

    def stop(law, token, depth):
        asked.append((token, depth))
        return depth == 3

    tree, parts = draft((2, 3, 2), Plan("h", 9, 1, 9, stop=stop))
    assert asked == [(7, 1), (8, 2), (9, 3)]
    assert tree.source.tolist() == [0, 1, 1, 2]
    assert not parts[2].asked, "a later part went on behind a stop"


def test_what_is_free_counts_from_the_start():
    _, parts = draft((2, 3), Plan("h", 9, 1, 9, free=3))
    assert [part.plans[0].free for part in parts] == [3, 1]


def test_options_that_leave_no_way_on_end_the_draft():
    """A choice of one answer is over behind what the first part drafts."""

    def over(row, path):
        raise BadRequest("no token is possible")

    from surefoot.drafters import horizontal

    kept = horizontal.shadow
    horizontal.shadow = over
    try:
        tree, parts = draft((2, 3), Plan("h", 9, 1, 9))
    finally:
        horizontal.shadow = kept
    assert tree.source.tolist() == [0, 1, 1]
    assert not parts[1].asked


def test_rows_are_asked_for_together():
    engine, parts, drafter = made((1, 2), 3)
    rows = [engine.add([n], SamplingParams(max_tokens=20)) for n in (3, 9, 20)]
    engine.step()
    asked = []
    kept = parts[1].propose
    parts[1].propose = lambda rows, plans: asked.append(len(rows)) or kept(rows, plans)
    plans = [Plan("h", 3, 1, 3), Plan("h", 1, 1, 1), Plan("h", 2, 1, 2)]
    trees = drafter.propose(rows, plans)
    assert asked == [2]
    assert [t.tokens.tolist() for t in trees] == [[4, 5, 6, 7], [10, 11], [21, 22, 23]]


@pytest.mark.parametrize("lengths", [(1, 1), (2, 6), (3, 1, 2)])
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}])
def test_tokens_equal_plain_decoding(lengths, k, options):
    plain = Engine(counter(VOCAB)).generate([1, 2], max_tokens=40, **options)
    engine, parts, _ = made(lengths, k)
    done = engine.generate([1, 2], max_tokens=40, **options)
    assert done.token_ids == plain.token_ids
    drafted = min(k, sum(lengths))
    assert done.stats.mean_acceptance_length > 0.8 * (drafted + 1)
    assert len(done.stats.by_source) == sum(k > sum(lengths[:i]) for i in range(len(lengths)))
    assert all(part.forgotten for part in parts), "the engine tells parts of rows that ended"


@pytest.mark.parametrize(
    "n, lengths, says",
    [
        (0, (), "0 lengths for 0 drafters"),
        (2, (1,), "1 lengths for 2 drafters"),
        (1, (0,), "length 0"),
        (1, (True,), "length True"),
        (1, (1.5,), "length 1.5"),
    ],
)
def test_wrong_lengths_are_refused(n, lengths, says):
    with pytest.raises(BadRequest, match=says):
        HorizontalDrafter([counting(i + 1, f"p{i}") for i in range(n)], lengths)
