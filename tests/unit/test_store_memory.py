"""A million tokens through the stores of ``suffix`` and ``ngram``: what is held is bounded, and said truthfully."""

from __future__ import annotations

import gc
import random
import tracemalloc

import psutil
import pytest
from toys_suffix import Line, ask, chain, whole

from surefoot.core.protocols import Plan
from surefoot.drafters.ngram import PICKS, NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.drafters.suffix_store import ContextStore

MILLION = 1_000_000


def text(size: int, seed: int = 0) -> list[int]:
    """Runs of common and rare tokens, and spans copied from earlier on."""
    rng = random.Random(seed)
    common = [rng.randrange(49_152) for _ in range(2_000)]
    out: list[int] = []
    while len(out) < size:
        if out and rng.random() < 0.4:
            start = rng.randrange(len(out))
            out += out[start : start + rng.randrange(2, 40)]
        else:
            out += [common[int(2_000 * rng.random() ** 3)] for _ in range(rng.randrange(3, 20))]
    return out[:size]


@pytest.fixture(scope="module")
def book() -> list[int]:
    return text(MILLION)


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def traced(make) -> tuple[int, object]:
    """Bytes that ``make()`` allocated and kept, and its result."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        gc.collect()
        return tracemalloc.get_traced_memory()[0], made
    finally:
        tracemalloc.stop()


def test_the_shared_store_holds_its_cap_over_a_million_tokens(book: list[int]) -> None:
    drafter = SuffixDrafter(max_match=4, shared_tokens=16_384)
    told, real = [], []
    for i, start in enumerate(range(0, MILLION, 1000)):
        row = Line(book[start : start + 1000], i, 0)
        drafter.guess(row, Plan())  # the row takes part
        drafter.forget([row])
        stats = drafter.stats()
        assert stats["shared_tokens"] <= 16_384
        assert stats["rows"] == 0
        if i % 100 == 99:
            told.append(stats["bytes"])
            real.append(resident())
    assert max(told[3:]) <= 1.1 * max(told[:3])
    assert max(told) < 10 << 20
    assert max(real) - real[1] < 16 << 20
    fresh = ContextStore(4, 16_384)
    for start in range(MILLION - 17_000, MILLION, 1000):
        fresh.add_sequence(book[start : start + 1000])
    shared = drafter._shared
    assert whole(fresh, shared.end - fresh.end) == whole(shared), "after all that the counts are those of what is left"


def test_a_row_of_a_million_tokens_is_held_to_the_default_caps(book: list[int]) -> None:
    before = resident()
    suffix = SuffixDrafter()
    ask(suffix, book, chain(8))
    grown, stats = resident() - before, suffix.stats()
    assert stats["tokens"] == 1 << 18
    assert stats["bytes"] < 200 << 20
    assert grown < 1.5 * stats["bytes"]  # memory that was freed before is used again, so no lower bound holds
    suffix.forget([Line(book, 0, len(book))])
    assert suffix.stats()["bytes"] == 0


@pytest.mark.parametrize("arrives", ["at once", "by parts"])
def test_a_row_beyond_its_cap_keeps_the_counts_of_what_is_left(book: list[int], arrives: str) -> None:
    drafter = SuffixDrafter(max_local_tokens=5_000)
    step = 20_000 if arrives == "at once" else 777
    for end in range(step, 40_001, step):
        ask(drafter, book[:end], chain(1))
        assert drafter.stats()["tokens"] == min(end, 5_000)
        assert drafter.stats()["bytes"] < 6 << 20
    store = drafter._rows[0].store
    fresh = ContextStore(8)
    fresh.restore(book[end - 5_000 - 8 : end], 8)
    assert whole(fresh, store.end - fresh.end) == whole(store)


@pytest.mark.parametrize("pick", PICKS)
def test_a_row_of_a_million_tokens_in_the_ngram_drafter(book: list[int], pick: str) -> None:
    drafter = NgramDrafter(pick=pick, max_tokens=20_000)
    rows = [Line(book[:size], 0) for size in (MILLION - 30_000, MILLION - 10_000, MILLION)]

    def learn() -> None:
        for row in rows:
            drafter.propose([row], [chain(8)])
            assert drafter.stats()["tokens"] == 20_000

    real, _ = traced(learn)
    told = drafter.stats()["bytes"]
    assert 0.5 < told / real < 2.0
    assert real < 25 << 20


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_the_suffix_store_tells_its_size(book: list[int], depth: int) -> None:
    store = ContextStore(depth, 20_000)
    real, _ = traced(lambda: store.add(book[:30_000]))
    assert 0.6 < store.nbytes / real < 2.0
