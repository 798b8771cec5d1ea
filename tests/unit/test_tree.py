"""core/tree.py: masks and packing against a brute-force reading of the definitions, and every refusal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surefoot.core.tree import PENDING, DraftTree, Forest, ancestor_mask, depths
from surefoot.errors import BadDraft

VOCAB = 11


def tree(parents: Sequence[int], tokens: Sequence[int] | None = None, q: torch.Tensor | None = None) -> DraftTree:
    n = len(parents)
    ids = list(range(n)) if tokens is None else list(tokens)
    return DraftTree(torch.tensor(ids), torch.tensor(parents), q, torch.zeros(n, dtype=torch.int16))


def path(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the root down to ``node``."""
    up = [node]
    while parents[up[-1]] >= 0:
        up.append(parents[up[-1]])
    return up[::-1]


def seen(parents: Sequence[int]) -> np.ndarray:
    n = len(parents)
    return np.array([[j in path(parents, i) for j in range(n)] for i in range(n)], dtype=bool).reshape(n, n)


@st.composite
def shapes(draw: st.DrawFn, most: int = 9) -> list[int]:
    """Parents of a random tree."""
    n = draw(st.integers(1, most))
    return [-1] + [draw(st.integers(0, i - 1)) for i in range(1, n)]


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[bool], int]:
    """Trees, the pending tokens ahead of them, whether logits are wanted, and the backend's least width."""
    n = draw(st.integers(1, 4))
    trees = draw(st.lists(shapes(6), min_size=n, max_size=n))
    before = draw(st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=4), min_size=n, max_size=n))
    wanted = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return trees, before, wanted, draw(st.integers(1, 8))


# masks and depths


@given(shapes())
def test_mask_and_depth_follow_the_path_to_the_root(parents: list[int]) -> None:
    np.testing.assert_array_equal(ancestor_mask(parents), seen(parents))
    assert depths(parents) == [len(path(parents, i)) - 1 for i in range(len(parents))]


def test_mask_of_a_known_tree() -> None:
    got = ancestor_mask([-1, 0, 0, 1, 2])
    assert got.dtype == bool
    assert got.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]


def test_no_nodes() -> None:
    assert ancestor_mask([]).shape == (0, 0)
    assert depths([]) == []


# chains


@pytest.mark.parametrize("n", [1, 2, 5])
def test_chain(n: int) -> None:
    got = DraftTree.chain(list(range(3, 3 + n)), source=7)
    assert len(got) == n
    assert got.tokens.tolist() == list(range(3, 3 + n))
    assert got.parents.tolist() == list(range(-1, n - 1))
    assert got.source.tolist() == [PENDING] + [7] * (n - 1)
    assert (got.tokens.dtype, got.parents.dtype, got.source.dtype) == (torch.int64, torch.int64, torch.int16)
    assert got.q is None
    assert got.check(VOCAB, n) is got
    np.testing.assert_array_equal(ancestor_mask(got.parents.tolist()), np.tri(n, dtype=bool))


# laws


def test_point_proposals_have_no_laws() -> None:
    assert DraftTree.chain([1, 2, 3]).law_rows() == {}


def test_one_law_a_node() -> None:
    q = torch.eye(4, VOCAB)
    laws = tree([-1, 0, 0, 1], q=q).law_rows()
    assert sorted(laws) == [0, 1, 2, 3]
    assert all(torch.equal(laws[i], q[i]) for i in range(4))


@given(shapes())
def test_one_law_a_node_with_children(parents: list[int]) -> None:
    inner = [i for i in range(len(parents)) if i in parents]
    q = torch.arange(len(inner) * VOCAB, dtype=torch.float64).reshape(len(inner), VOCAB)
    laws = tree(parents, q=q).law_rows()
    assert list(laws) == inner
    assert all(torch.equal(laws[node], q[row]) for row, node in enumerate(inner))


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_any_other_number_of_laws_is_refused(count: int) -> None:
    with pytest.raises(BadDraft, match=r"q has \d rows; give 4 .* or 2 "):
        tree([-1, 0, 0, 1], q=torch.zeros(count, VOCAB)).law_rows()


# refusals


@given(shapes())
def test_a_well_formed_tree_passes(parents: list[int]) -> None:
    got = tree(parents)
    assert got.check(VOCAB, len(parents)) is got


def test_equal_tokens_under_different_parents_pass() -> None:
    tree([-1, 0, 0, 1, 2], [5, 1, 2, 1, 1]).check(VOCAB, 5)


@pytest.mark.parametrize(
    "bad, most, message",
    [
        (tree([]), 4, "needs tokens"),
        (DraftTree(torch.arange(2), torch.tensor([-1]), None, torch.zeros(2, dtype=torch.int16)), 4, "equal length"),
        (DraftTree(torch.arange(2), torch.tensor([-1, 0]), None, torch.zeros(1, dtype=torch.int16)), 4, "equal length"),
        (tree([-1, 0, 1]), 2, "3 nodes but the backend takes 2"),
        (tree([0, 0]), 4, "start with -1"),
        (tree([-1, -1]), 4, "earlier nodes"),
        (tree([-1, 1]), 4, "earlier nodes"),
        (tree([-1, 2, 0]), 4, "earlier nodes"),
        (tree([-1, 0], [0, VOCAB]), 4, f"0..{VOCAB - 1}"),
        (tree([-1, 0], [0, -1]), 4, f"0..{VOCAB - 1}"),
        (tree([-1, 0, 0], [3, 4, 4]), 4, "same token"),
        (tree([-1, 0], q=torch.zeros(2, VOCAB + 1)), 4, "the target's vocabulary"),
    ],
)
def test_check_refuses(bad: DraftTree, most: int, message: str) -> None:
    with pytest.raises(BadDraft, match=message) as caught:
        bad.check(VOCAB, most)
    assert "\n" not in str(caught.value)


# packing


@given(rows())
def test_pack_is_the_rows_one_after_the_other(case: tuple[list[list[int]], list[list[int]], list[bool], int]) -> None:
    parents, before, wanted, width = case
    trees = [tree(p, [(i + b) % VOCAB for i in range(len(p))]) for b, p in enumerate(parents)]
    forest = Forest.pack(trees, before, wanted, width)

    assert forest.rows == len(trees)
    assert forest.begins[0] == 0
    assert forest.nodes == len(forest.tokens) == len(forest.parents) == len(forest.depth)
    scored: list[int] = []
    for b, own in enumerate(parents):
        lo, hi = forest.begins[b], forest.begins[b + 1]
        lead, size = len(before[b]), len(before[b]) + len(own)
        assert forest.sizes[b] == size
        assert hi - lo == max(size, width)
        # the chain of pending tokens, the draft below the last of them, then padding that hangs at the end
        got = forest.parents[lo:hi].tolist()
        assert got[:lead] == list(range(-1, lead - 1))
        assert got[lead:size] == [lead - 1 if p < 0 else p + lead for p in own]
        assert got[size:] == list(range(size - 1, hi - lo - 1))
        tokens = forest.tokens[lo:hi].tolist()
        assert tokens[:size] == before[b] + trees[b].tokens.tolist()
        assert all(0 <= t < VOCAB for t in tokens[size:])
        assert forest.depth[lo:hi].tolist() == [len(path(got, i)) - 1 for i in range(hi - lo)]
        assert forest.linear[b] == (got == list(range(-1, hi - lo - 1)))
        np.testing.assert_array_equal(forest.mask(b), seen(got))
        assert forest.roots[b] == (lead if wanted[b] else size)
        scored += [lo + i for i in range(lead, size)] if wanted[b] else []
    assert forest.scored().tolist() == scored
    assert forest.scored().dtype == torch.int64


@given(rows())
def test_padding_is_seen_by_no_real_node(case: tuple[list[list[int]], list[list[int]], list[bool], int]) -> None:
    parents, before, wanted, width = case
    padded = Forest.pack([tree(p) for p in parents], before, wanted, width)
    plain = Forest.pack([tree(p) for p in parents], before, wanted)
    for b, size in enumerate(plain.sizes):
        assert not padded.mask(b)[:size, size:].any()
        np.testing.assert_array_equal(padded.mask(b)[:size, :size], plain.mask(b))


def test_pack_by_hand() -> None:
    forest = Forest.pack(
        [DraftTree.chain([7]), tree([-1, 0, 0], [4, 5, 6])],
        before=[[], [1, 2]],
        wanted=[True, True],
        min_width=2,
    )
    assert forest.tokens.tolist() == [7, 7, 1, 2, 4, 5, 6]
    assert forest.parents.tolist() == [-1, 0, -1, 0, 1, 2, 2]
    assert forest.depth.tolist() == [0, 1, 0, 1, 2, 3, 3]
    assert forest.begins == (0, 2, 7)
    assert forest.sizes == (1, 5)
    assert forest.roots == (0, 2)
    assert forest.linear == (True, False)
    assert forest.scored().tolist() == [0, 4, 5, 6]


def test_defaults_want_all_logits_and_no_padding() -> None:
    forest = Forest.pack([DraftTree.chain([1, 2]), DraftTree.chain([3])])
    assert forest.begins == (0, 2, 3)
    assert forest.scored().tolist() == [0, 1, 2]


def test_prefill_that_wants_no_logits() -> None:
    forest = Forest.pack([DraftTree.chain([3])], before=[[1, 2]], wanted=[False], min_width=2)
    assert forest.nodes == 3
    assert forest.linear == (True,)
    assert forest.scored().shape == (0,)
    assert forest.scored().dtype == torch.int64


def test_no_rows() -> None:
    forest = Forest.pack([])
    assert (forest.rows, forest.nodes) == (0, 0)
    assert forest.scored().tolist() == []
