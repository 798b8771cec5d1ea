"""Drafts from a datastore: estimates against counting by hand, plans, walks, options, and equality with plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import counter, fixed, run

from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan
from surefoot.core.tree import DraftTree, depths
from surefoot.drafters.datastore_build import write
from surefoot.drafters.retrieval import LEVELS, LONGEST, RELIABILITY, RetrievalDrafter
from surefoot.errors import BackendError, BadRequest, VocabMismatch

VOCAB = 40


@dataclass
class Line:
    """As much of a row as a drafter reads."""

    tokens: list[int]
    id: int = 0


def build(path: Path, documents: Sequence[Sequence[int]], vocab: int = VOCAB) -> Path:
    arrays = [np.array(document, np.int32) for document in documents]
    return write(path, arrays, fingerprint="ab" * 32, vocab_size=vocab, model="tiny", folder="texts").path


def drafter(path: Path, documents: Sequence[Sequence[int]], **options: object) -> RetrievalDrafter:
    return RetrievalDrafter(build(path / "store", documents), **options)  # type: ignore[arg-type]


def ask(made: RetrievalDrafter, tokens: list[int], plan: Plan) -> DraftTree:
    (tree,) = made.propose([Line(list(tokens))], [plan])
    tree.check(VOCAB, 1 + max(plan.nodes, 0))
    assert tree.tokens[0] == tokens[-1]
    assert tree.q is None
    assert max(depths(tree.parents.tolist())) <= plan.depth
    assert tree.source.tolist() == [0] + [4] * (len(tree) - 1)
    assert np.bincount(tree.parents.numpy()[1:], minlength=1).max() <= max(plan.width, 0) or len(tree) == 1
    return tree


def chain(k: int, floor: float = 0.0) -> Plan:
    return Plan(depth=k, nodes=k, floor=floor)


def chance(n: int) -> float:
    return RELIABILITY[min(n, LONGEST)]


# ---- against counting by hand

texts = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=30), min_size=1, max_size=5)


def by_hand(documents: list[list[int]], tail: list[int], longest: int, least: int) -> dict[int, float]:
    """The mixture of the three longest matches, each with its own continuations."""
    by_length: dict[int, list[int]] = {}
    for document in documents:
        for e in range(1, len(document)):
            n = 0
            while n < min(longest, len(tail), e) and document[e - 1 - n] == tail[-1 - n]:
                n += 1
            if n >= least:
                by_length.setdefault(n, []).append(document[e])
    law: dict[int, float] = {}
    left = 1.0
    for n in sorted(by_length, reverse=True)[:3]:
        for token in by_length[n]:
            law[token] = law.get(token, 0.0) + left * chance(n) / len(by_length[n])
        left *= 1 - chance(n)
    return law


@settings(max_examples=150, deadline=None)
@given(texts, st.lists(st.integers(0, 3), min_size=1, max_size=10), st.integers(1, 6), st.integers(1, 3))
def test_estimates_equal_counts(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], tail: list[int], longest: int, least: int
) -> None:
    least = min(least, longest)
    made = drafter(tmp_path_factory.mktemp("s"), documents, max_match=longest, min_match=least, sample=1000)
    wanted = by_hand(documents, tail, longest, least)
    assert made.law(made.find(tail[-longest:])) == pytest.approx(wanted)
    found = made.walk(Line(tail)).candidates(9)  # type: ignore[arg-type]
    assert {token for token, _ in found} == set(wanted)
    masses = [wanted[token] for token, _ in found]
    assert masses == pytest.approx(sorted(masses, reverse=True))
    tree = ask(made, tail, Plan(depth=1, nodes=2, width=2))
    best = sorted((mass for mass in wanted.values() if mass >= 0.01), reverse=True)[:2]
    assert [wanted[token] for token in tree.tokens.tolist()[1:]] == pytest.approx(best)


STORY = [[*range(10, 30)], [1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [1, 2, 3, 6, 8], [9, 9, 2, 3, 30]]


def test_a_chain_copies_the_most_frequent_continuation(tmp_path: Path) -> None:
    made = drafter(tmp_path, STORY)
    assert ask(made, [0, 12, 13, 14], chain(5)).tokens.tolist() == [14, 15, 16, 17, 18, 19]
    assert ask(made, [1, 2, 3], chain(4)).tokens.tolist()[:2] == [3, 6]
    assert ask(made, [28, 29], chain(4)).tokens.tolist() == [29], "a document ends there"
    assert ask(made, [27, 28], chain(4)).tokens.tolist() == [28, 29]
    assert ask(made, [35, 14], chain(4)).tokens.tolist() == [14], "one token is too little to match"
    assert len(ask(drafter(tmp_path, STORY, min_match=1), [35, 14], chain(4))) == 5
    assert len(ask(made, [14], chain(4))) == 1


def test_the_longest_match_wins(tmp_path: Path) -> None:
    made = drafter(tmp_path, STORY)
    assert ask(made, [9, 2, 3], chain(1)).tokens.tolist() == [3, 30]
    assert ask(drafter(tmp_path, STORY, max_match=2), [9, 2, 3], chain(1)).tokens.tolist() == [3, 6]


def test_a_tree_branches_where_places_disagree(tmp_path: Path) -> None:
    tree = ask(drafter(tmp_path, STORY), [1, 2, 3], Plan(depth=2, nodes=9, width=3))
    edges = {(tree.tokens[p].item(), t) for t, p in zip(tree.tokens.tolist()[1:], tree.parents.tolist()[1:])}
    assert {(3, 6), (3, 4), (4, 5), (6, 7), (6, 8)} <= edges
    assert tree.tokens.tolist()[1] == 6


def test_budgets_and_floor(tmp_path: Path) -> None:
    made = drafter(tmp_path, STORY)
    row = [10, 11, 12]
    plans = (
        Plan(),
        Plan(depth=3, nodes=9),
        Plan(depth=9, nodes=2),
        Plan(depth=4, nodes=4, width=0),
        Plan(depth=3, nodes=9, width=2),
    )
    assert [len(ask(made, row, plan)) - 1 for plan in plans] == [0, 3, 2, 0, 3]
    floor = chance(3) * chance(4)
    for width in (1, 2):
        assert len(ask(made, row, Plan(depth=9, nodes=9, width=width, floor=floor - 1e-9))) == 3
        assert len(ask(made, row, Plan(depth=9, nodes=9, width=width, floor=floor + 1e-9))) == 2
    mixed = ask(made, [1, 2, 3], Plan(depth=1, nodes=9, floor=chance(3) * 2 / 3 - 1e-9))
    assert mixed.tokens.tolist() == [3, 6]
    assert len(ask(made, [1, 2, 3], Plan(depth=1, nodes=9, floor=0.6))) == 1


def test_a_walk_goes_on_and_looks_anew_where_it_was_left(tmp_path: Path) -> None:
    made = drafter(tmp_path, STORY)
    start = made.walk(Line([1, 2, 3]))  # type: ignore[arg-type]
    first = start.candidates(9)
    assert [token for token, _ in first] == [6, 30, 4], "two of three places of the longest match, then all of the next"
    assert {token for token, _ in start.after(6).candidates(9)} == {7, 8}
    assert start.after(4).after(5).candidates(9) == []
    other = start.after(35).after(20).after(21)
    assert [token for token, _ in other.candidates(1)] == [22]
    assert start.candidates(9) == first, "looking and going on change nothing"
    assert start.candidates(1) == first[:1]
    assert start.candidates(0) == []
    assert made.walk(Line([12, 13])).after(14).after(15).candidates(2)[0][0] == 16  # type: ignore[arg-type]


def test_levels_tell_long_matches_and_agreement_apart(tmp_path: Path) -> None:
    documents = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]] + [[20, 21, 22]] * 9 + [[30, 31, 32], [30, 31, 33]]
    made = drafter(tmp_path, documents)

    def level(tail: list[int]) -> int:
        return made.walk(Line(tail)).candidates(1)[0][1]  # type: ignore[arg-type]

    lone, long, many, split = level([1, 2]), level([*range(1, 9)]), level([20, 21]), level([30, 31])
    assert all(0 <= one < len(LEVELS) for one in (lone, long, many, split))
    assert LEVELS[long] > LEVELS[lone]
    assert LEVELS[many] > LEVELS[lone] > LEVELS[split]
    assert all(0 < value < 1 for value in LEVELS)


def test_ids_beyond_the_vocabulary_match_nothing_and_are_never_drafted(tmp_path: Path) -> None:
    made = drafter(tmp_path, STORY)
    assert len(ask(made, [39, 39], chain(3))) == 1
    (tree,) = made.propose([Line([12, 10_000, 13])], [chain(3)])
    assert len(tree) == 1


# ---- stores and options


@pytest.mark.parametrize("store", [None, "", 3, True])
def test_a_store_is_needed(store: object) -> None:
    with pytest.raises(BadRequest, match=r"store=.*surefoot datastore build"):
        RetrievalDrafter(store)  # type: ignore[arg-type]


def test_a_store_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = build(tmp_path / "s", STORY)
    assert RetrievalDrafter(path, fingerprint="ab" * 32).stats()["tokens"] == sum(map(len, STORY))
    with pytest.raises(VocabMismatch, match=r"another tokenizer.*build it anew: surefoot datastore build texts --model MODEL"):
        RetrievalDrafter(path, fingerprint="cd" * 32)
    assert path.exists(), "it is whole, and someone else's"


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    path = build(tmp_path / "s", STORY)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BackendError, match="build it anew"):
        RetrievalDrafter(str(path))
    with pytest.raises(BadRequest, match="cannot be read"):
        RetrievalDrafter(str(path))


@pytest.mark.parametrize(
    "options,named",
    [
        ({"max_match": 0}, "max_match"),
        ({"max_match": 33}, "max_match"),
        ({"min_match": 0}, "min_match"),
        ({"max_match": 2, "min_match": 3}, "min_match"),
        ({"sample": 0}, "sample"),
        ({"sample": 2.5}, "sample"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, options: dict, named: str) -> None:
    with pytest.raises(BadRequest, match=f"{named}="):
        drafter(tmp_path, STORY, **options)


# ---- in an engine

GROWING = [[*range(40), *range(15)], [3, 4, 5, 30], [3, 4, 5, 31]]
PROMPTS: list[list[int]] = [[3, 4, 5], [0, 1], [38, 39], [7]]


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 7}])
def test_tokens_equal_plain_decoding(tmp_path: Path, k: int, width: int, options: dict) -> None:
    target = counter(certainty=4.0)
    made = drafter(tmp_path, GROWING)
    requests = [(prompt, {"max_tokens": 12 + 5 * i, **options}) for i, prompt in enumerate(PROMPTS)]
    plain = [run(Engine(target), request)[0].token_ids for request in requests]
    engine = fixed(target, made, k, width, nodes=3 * k)
    batch = run(engine, *requests)
    assert [one.token_ids for one in batch] == plain
    assert [run(engine, request)[0].token_ids for request in requests] == plain
    assert sum(one.stats.accepted_tokens for one in batch) > 0


def test_answers_of_one_request_beside_a_row_that_is_cancelled(tmp_path: Path) -> None:
    target = counter(certainty=4.0)
    params = SamplingParams.build({"max_tokens": 10, "temperature": 1.0, "seed": 3, "n": 3})
    found = []
    for engine in (Engine(target), fixed(target, drafter(tmp_path, GROWING), 4, 2, 8)):
        gone = engine.add([0, 1, 2], SamplingParams.build({"max_tokens": 50}))
        rows = engine.submit([3, 4, 5], params)
        engine.step()
        engine.abort(gone)
        while not all(row.done for row in rows):
            engine.step()
        found.append([row.output for row in rows])
    assert found[0] == found[1]
