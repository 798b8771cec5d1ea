"""Token recycling: the top-k without a sort of the vocabulary, what is learned from which node, drafts, and plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ToyCodec, counter, fixed, random_trees, run, tree

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan, Scores, Verdict
from surefoot.core.tree import DraftTree, Forest, depths
from surefoot.drafters.recycle import TOP, RecycleDrafter, top
from surefoot.errors import BadRequest

# ---- the k largest


def check_top(logits: torch.Tensor, k: int) -> None:
    ids, values = top(logits, k)
    wanted, _ = logits.topk(k)
    assert values == wanted.tolist()
    for row, own, said in zip(logits, ids, values, strict=True):
        assert len(set(own)) == k, "an id twice"
        assert row[own].tolist() == said


@pytest.mark.parametrize("vocab", [8, 9, 53, 128, 1000, 2048, 2049, 2175, 2176, 2177, 4099, 49152, 50257])
@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_is_that_of_a_sort(vocab: int, k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab)
    check_top(torch.randn(5, vocab, generator=generator, dtype=dtype), k)


@pytest.mark.parametrize("vocab", [64, 2300, 4097])
def test_ties_and_impossible_tokens(vocab: int) -> None:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 3, (20, vocab), generator=generator).float()
    check_top(coarse, 8)
    check_top(torch.where(coarse > 1, coarse, -torch.inf), 8)
    lone = torch.full((3, vocab), -torch.inf)
    lone[0, vocab - 1] = lone[1, 0] = lone[2, vocab // 2] = 1.0
    check_top(lone, 8)
    assert [own[0] for own in top(lone, 8)[0]] == [vocab - 1, 0, vocab // 2]


def test_the_largest_of_one_block_and_of_the_rest() -> None:
    """All of the best side by side; all of them behind the last whole block."""
    logits = torch.zeros(3, 4100)
    logits[0, 256:264] = torch.arange(8, 0, -1).float()
    logits[1, 4096:4100] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    logits[2, ::512] = torch.arange(9, 0, -1).float()
    ids, _ = top(logits, 8)
    assert ids[0] == list(range(256, 264))
    assert ids[1][:4] == [4096, 4097, 4098, 4099]
    assert ids[2] == [512 * i for i in range(8)]
    view = torch.randn(6, 5000)[1:4, :4500]  # neither contiguous nor the whole vocabulary
    check_top(view, 8)


# ---- what is learned


@dataclass
class Line:
    """As much of a row as the drafter reads."""

    tokens: list[int]
    id: int = 0
    n_prompt: int = 1
    done: bool = False
    prompt_logprobs: list | None = None


VOCAB = 40


def logits(n: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def best(row: torch.Tensor, k: int = TOP) -> list[int]:
    return row.topk(k).indices.tolist()


def names(made: RecycleDrafter, before: int, token: int) -> list[int]:
    return [x for x, _ in made.candidates(before, token, TOP)]


def test_a_chain_teaches_up_to_the_first_refused_tokens() -> None:
    made = RecycleDrafter(VOCAB)
    forest = Forest.pack([DraftTree.chain([5, 6, 7, 8])], min_width=6)
    said = logits(4)
    row = Line([1, 4, 5, 6, 9])  # 6 was kept, then the target said 9
    made.observe([row], forest, Scores(said), [Verdict((1,), 9)])
    for before, token, node in ((4, 5, 0), (5, 6, 1), (6, 7, 2), (7, 8, 3)):
        assert names(made, before, token) == best(said[node])
        assert names(made, 30, token) == best(said[node]), "after one token only"
    assert names(made, 5, 9) == [] == names(made, 1, 4)


def test_the_pair_goes_before_the_single_token() -> None:
    made = RecycleDrafter(VOCAB)
    first, second = logits(1, seed=1), logits(1, seed=2)
    made.observe([Line([1, 5, 3])], Forest.pack([DraftTree.chain([5])]), Scores(first), [Verdict((), 3)])
    made.observe([Line([2, 5, 3])], Forest.pack([DraftTree.chain([5])]), Scores(second), [Verdict((), 3)])
    assert names(made, 1, 5) == best(first[0])
    assert names(made, 2, 5) == best(second[0]) == names(made, 3, 5)
    without = RecycleDrafter(VOCAB, pairs=0)
    for row, said in ((Line([1, 5, 3]), first), (Line([2, 5, 3]), second)):
        without.observe([row], Forest.pack([DraftTree.chain([5])]), Scores(said), [Verdict((), 3)])
    assert names(without, 1, 5) == best(second[0])


def test_pairs_that_share_a_place_are_told_apart() -> None:
    """There is one place: the later pair takes it, and the other falls back on its single token."""
    made = RecycleDrafter(VOCAB, pairs=1)
    said = logits(2)
    made.observe([Line([1, 5, 3])], Forest.pack([DraftTree.chain([5])]), Scores(said[:1]), [Verdict((), 3)])
    assert names(made, 2, 6) == []
    made.observe([Line([2, 6, 3])], Forest.pack([DraftTree.chain([6])]), Scores(said[1:]), [Verdict((), 3)])
    assert [names(made, 1, 5), names(made, 2, 6)] == [best(said[0]), best(said[1])]
    assert names(made, 5, 1) == []


def test_in_a_tree_what_stands_before_a_node_is_its_parent() -> None:
    made = RecycleDrafter(VOCAB, nodes=5)
    drafted = tree([5, 6, 7, 8, 9, 10], [-1, 0, 0, 1, 2, 1])
    said = logits(6)
    made.observe([Line([4, 5, 7, 9, 3])], Forest.pack([drafted]), Scores(said), [Verdict((2, 4), 3)])
    assert names(made, 4, 5) == best(said[0])
    assert names(made, 5, 7) == best(said[2])
    assert names(made, 7, 9) == best(said[4])
    assert names(made, 6, 10) == best(said[5]), "refused, but seen"
    assert names(made, 5, 6) == names(made, 6, 8) == [], "refused before the last that was kept"


def test_no_more_nodes_of_a_row_than_asked() -> None:
    said = logits(8)
    forest = Forest.pack([DraftTree.chain([1, 2, 3, 4, 5, 6, 7, 8])])
    for path, learned in (((), [1, 2, 3]), ((1, 2, 3), [2, 3, 4]), ((1,), [1, 2, 3]), (tuple(range(1, 8)), [6, 7, 8])):
        made = RecycleDrafter(VOCAB, nodes=3)
        made.observe([Line([0, 1, *range(2, 2 + len(path)), 9])], forest, Scores(said), [Verdict(path, 9)])
        assert [token for token in range(10) if names(made, -1, token)] == learned
        for token in learned:
            assert names(made, -1, token) == best(said[token - 1])


def test_several_rows_of_a_pass_each_read_their_own_logits() -> None:
    """Prefill that goes on, prefill that ends, a draft, a row that is only prefilled whole, a row that failed."""
    made = RecycleDrafter(VOCAB)
    trees = [
        DraftTree.chain([1, 2]), DraftTree.chain([3]), DraftTree.chain([5, 6, 7]), DraftTree.chain([10, 11]),
        DraftTree.chain([13]), DraftTree.chain([14]),
    ]  # fmt: skip
    before = [[], [20, 21], [], [], [], []]
    wanted = [False, True, True, False, True, True]
    whole = [False, False, False, True, False, False]
    forest = Forest.pack(trees, before, wanted, 2, [0, 0, 5, 0, 0, 0], whole)
    said = logits(0 + 1 + 3 + 2 + 1 + 1)
    rows = [
        Line([0, 1, 2], n_prompt=3),
        Line([20, 21, 3, 9], 1, n_prompt=3),
        Line([4, 5, 6, 8], 2),
        Line([10, 11, 12], 3, n_prompt=3, prompt_logprobs=[]),
        Line([12, 13], 4),
        Line([12, 14, 15], 5, done=True),
    ]
    verdicts = [None, Verdict((), 9), Verdict((1,), 8), None, None, Verdict((), 15)]
    made.observe(rows, forest, Scores(said), verdicts)
    assert names(made, 21, 3) == best(said[0])
    assert [names(made, 4, 5), names(made, 5, 6), names(made, 6, 7)] == [best(said[i]) for i in (1, 2, 3)]
    assert names(made, -1, 14) == best(said[7])
    assert [t for t in range(VOCAB) if names(made, -1, t)] == [3, 5, 6, 7, 14]


def test_of_a_prompt_that_is_scored_whole_the_last_token_teaches() -> None:
    """With echo and logprobs the pass returns the logits of all prompt tokens."""
    for done in (False, True):
        made = RecycleDrafter(VOCAB)
        forest = Forest.pack([DraftTree.chain([4]), DraftTree.chain([5])], [[1, 2, 3], []], None, 2, None, [True, False])
        said = logits(5)
        row = Line([1, 2, 3, 4, 9], n_prompt=4, prompt_logprobs=[], done=done)
        made.observe([row, Line([6, 5, 7])], forest, Scores(said), [Verdict((), 9), Verdict((), 7)])
        pairs = {(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in made._keys if key >= 0}
        assert pairs == ({(6, 5)} if done else {(3, 4), (6, 5)})
        assert names(made, 3, 4) == best(said[3])
        assert names(made, 6, 5) == best(said[4])
        assert [t for t in range(VOCAB) if names(made, -1, t)] == [4, 5]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_all_that_an_engine_taught_is_what_the_target_says(seed: int, width: int, min_width: int, echo: bool) -> None:
    """A table of order 2: the candidates after a pair are the model's own, whatever was drafted."""
    vocab = 12
    target = TableModel.random(vocab, 2, seed % 7, 1.0, min_width=min_width)
    drafter = RecycleDrafter(vocab, nodes=9)

    class Beside(RecycleDrafter):
        """Drafts at random, so that much is refused."""

        def propose(self, rows, plans):
            return [random_trees(vocab, seed)(row, plan) for row, plan in zip(rows, plans, strict=True)]

    drafter = Beside(vocab, nodes=9, source=1)
    engine = fixed(target, drafter, 3, width, 6, chunk=5, codec=ToyCodec("abcdefghijkl"))
    options = {"logprobs": 1, "echo": True} if echo else {}
    run(
        engine,
        ([seed % vocab], {"max_tokens": 9, **options}),
        ([seed % 5, 3, 4, 1, 7, 7, 2], {"max_tokens": 7, "temperature": 1.0, "seed": seed}),
        ([2, seed % 11, 3], {"max_tokens": 4, **options}),
    )
    seen = 0
    for slot, key in enumerate(drafter._keys.tolist()):
        if key >= 0:
            said = target.next_logits([key >> 32, key & 0xFFFFFFFF])
            assert drafter._pair_next[slot].tolist() == best(said)
            seen += 1
    assert seen > 5
    for token in range(vocab):
        if (own := drafter._next[token].tolist())[0] >= 0:
            assert own in [best(target.next_logits([before, token])) for before in range(vocab)] + [
                best(target.next_logits([token]))
            ]


def test_ids_that_stand_for_nothing_are_never_drafted() -> None:
    said = torch.arange(VOCAB).double()[None]
    made = RecycleDrafter(VOCAB, known=11)
    made.observe([Line([1, 2, 3])], Forest.pack([DraftTree.chain([2])]), Scores(said), [Verdict((), 3)])
    assert names(made, 1, 2) == [10, 9, 8, 7, 6, 5, 4, 3]
    few = RecycleDrafter(VOCAB, known=3)
    few.observe([Line([1, 2, 3])], Forest.pack([DraftTree.chain([2])]), Scores(said), [Verdict((), 3)])
    assert names(few, 1, 2) == [2, 1, 0]


@pytest.mark.parametrize("known", [1, 2])
def test_vocabularies_smaller_than_the_list(known: int) -> None:
    made = RecycleDrafter(known)
    made.observe([Line([0, 0])], Forest.pack([DraftTree.chain([0])]), Scores(logits(1, known)), [Verdict((), 0)])
    assert len(names(made, -1, 0)) == known


def test_levels_tell_rank_certainty_and_kind_apart() -> None:
    made = RecycleDrafter(VOCAB)
    seen = set()
    for lead in (0.5, 1.0, 2.0, 5.0):
        said = torch.zeros(1, VOCAB)
        said[0, 7] = lead
        made.observe([Line([1, 2, 3])], Forest.pack([DraftTree.chain([2])]), Scores(said), [Verdict((), 3)])
        for before in (1, 9):
            levels = [level for _, level in made.candidates(before, 2, TOP)]
            assert len(set(levels)) == 4, "the first ranks, then one for all"
            assert levels[3:] == [levels[3]] * 5
            assert all(0 <= level < len(made.levels) for level in levels)
            chances = [made.levels[level] for level in levels]
            assert chances == sorted(chances, reverse=True)
            seen.add(tuple(levels))
    assert len(seen) == 8
    assert len(made.weights) == len(made.levels) + 2
    for kind in (0, 16):
        firsts = [made.levels[kind + 4 * certain] for certain in range(4)]
        assert firsts == sorted(firsts), "the larger the lead, the surer"


def test_memory_is_fixed() -> None:
    target = TableModel.random(30, 1, 3)
    made = RecycleDrafter(30, pairs=100)
    assert len(made._keys) == 128
    held = made.stats()["bytes"]
    run(fixed(target, made, 4), *[([i], {"max_tokens": 40, "temperature": 1.5, "seed": i}) for i in range(8)])
    assert made.stats()["bytes"] == held
    assert RecycleDrafter(50_000, pairs=0).stats()["bytes"] <= 36 * 50_000
    pairs = RecycleDrafter(1000, pairs=1 << 12).stats()["bytes"] - RecycleDrafter(1000, pairs=0).stats()["bytes"]
    assert pairs <= 48 << 12


@pytest.mark.parametrize("options", [{"pairs": -1}, {"pairs": 1.5}, {"pairs": True}, {"nodes": 0}, {"nodes": "x"}])
def test_bad_options_are_named(options: dict) -> None:
    with pytest.raises(BadRequest, match=f"recycle: {next(iter(options))}="):
        RecycleDrafter(10, **options)


# ---- drafts


def taught() -> RecycleDrafter:
    """After 1 comes 2 (surely) or 5; after 2 comes 3 or 6; after 3 and 5 comes 4."""
    made = RecycleDrafter(VOCAB, pairs=0)
    for token, ranked in ((1, [2, 5]), (2, [3, 6]), (3, [4]), (5, [4])):
        said = torch.full((1, VOCAB), -9.0)
        for rank, x in enumerate(ranked):
            said[0, x] = 5.0 - rank
        made.observe([Line([0, token, 0])], Forest.pack([DraftTree.chain([token])]), Scores(said), [Verdict((), 0)])
    return made


def ask(made: RecycleDrafter, tokens: list[int], plan: Plan) -> DraftTree:
    (drafted,) = made.propose([Line(tokens)], [plan])
    drafted.check(VOCAB, 1 + plan.nodes)
    assert drafted.q is None
    assert drafted.source.tolist() == [0] + [3] * (len(drafted) - 1)
    assert max(depths(drafted.parents.tolist())) <= plan.depth
    return drafted


def test_a_chain_follows_the_best_candidate() -> None:
    made = taught()
    assert ask(made, [0, 1], Plan(depth=3, nodes=3)).tokens.tolist() == [1, 2, 3, 4]
    assert ask(made, [0, 1], Plan(depth=2, nodes=9)).tokens.tolist() == [1, 2, 3]
    assert ask(made, [0, 1], Plan(depth=9, nodes=1)).tokens.tolist() == [1, 2]
    assert ask(made, [0, 1], Plan()).tokens.tolist() == [1]
    assert ask(made, [1], Plan(depth=3, nodes=3)).tokens.tolist() == [1, 2, 3, 4], "a row of one token"
    assert ask(made, [0, 9], Plan(depth=3, nodes=3)).tokens.tolist() == [9], "never seen"


def test_a_tree_takes_the_likeliest_paths() -> None:
    made = taught()
    drafted = ask(made, [0, 1], Plan(depth=2, nodes=4, width=2))
    edges = [(drafted.tokens[p].item(), t) for p, t in zip(drafted.parents.tolist()[1:], drafted.tokens.tolist()[1:])]
    assert edges[0] == (1, 2)
    assert {(1, 2), (2, 3), (1, 5)} <= set(edges)
    wide = ask(made, [0, 1], Plan(depth=1, nodes=20, width=20))
    assert len(wide) == 1 + TOP


@pytest.mark.parametrize("width", [1, 2])
def test_the_floor_ends_paths(width: int) -> None:
    made = taught()
    level = made.candidates(0, 1, 1)[0][1]
    sure = made.levels[level]
    assert len(ask(made, [0, 1], Plan(depth=2, nodes=9, width=width, floor=sure + 1e-9))) == 1
    assert len(ask(made, [0, 1], Plan(depth=2, nodes=9, width=width, floor=sure - 1e-9))) == 2


# ---- in an engine

PROMPTS: list[list[int]] = [[3, 4, 5], [0, 1], [38, 39], [7]]


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 7}])
def test_tokens_equal_plain_decoding(k: int, width: int, options: dict) -> None:
    target = counter(certainty=4.0)
    made = RecycleDrafter(VOCAB)
    requests = [(prompt, {"max_tokens": 42 + 5 * i, **options}) for i, prompt in enumerate(PROMPTS)]
    plain = [run(Engine(target), request)[0].token_ids for request in requests]
    engine = fixed(target, made, k, width, nodes=3 * k)
    batch = run(engine, *requests)
    assert [one.token_ids for one in batch] == plain
    assert [run(engine, request)[0].token_ids for request in requests] == plain
    assert sum(one.stats.accepted_tokens for one in batch) > 0


def test_forks_and_a_row_that_is_cancelled() -> None:
    target = TableModel.random(12, 2, 4, 2.0)
    params = SamplingParams.build({"max_tokens": 10, "temperature": 1.0, "seed": 3, "n": 3})
    found = []
    for engine in (Engine(target), fixed(target, RecycleDrafter(12), 4, 2, 8)):
        gone = engine.add([0, 1, 2], SamplingParams.build({"max_tokens": 50}))
        rows = engine.submit([3, 4, 5], params)
        for _ in range(2):
            engine.step()
        engine.abort(gone)
        while not all(row.done for row in rows):
            engine.step()
        fork = engine.fork(rows[0], [1, 2], SamplingParams(max_tokens=9))
        while not fork.done:
            engine.step()
        found.append([row.output for row in (*rows, fork)])
    assert found[0] == found[1]


def test_what_one_request_taught_helps_the_next() -> None:
    target = counter()
    engine = fixed(target, RecycleDrafter(VOCAB), 4)
    first, second = (run(engine, ([0], {"max_tokens": 30}))[0].stats for _ in range(2))
    assert second.acceptance_rate == 1.0 > first.acceptance_rate
