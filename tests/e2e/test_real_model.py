"""The packaged model on the fast CPU backend: speculative decoding changes no token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import surefoot
from surefoot.control.fixed import FixedController
from surefoot.core.completion import Completion
from surefoot.core.engine import Engine
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.loader import Target, open_target

PROMPTS = Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl"
LENGTH = 128

pytestmark = pytest.mark.timeout(1800)  # half a minute a test here; a processor without AVX-512 takes a lot longer


@pytest.fixture(scope="module")
def target() -> Target:
    return open_target("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def prompts(target: Target) -> list[list[int]]:
    lines = PROMPTS.read_text("utf-8").splitlines()
    found = [target.codec.prompt([{"role": "user", "content": json.loads(line)["prompt"]}]) for line in lines]
    assert len(found) >= 40
    return found


@pytest.fixture(scope="module")
def plain(target: Target, prompts: list[list[int]]) -> list[Completion]:
    engine = Engine(target.model, codec=target.codec)
    found = [engine.generate(p, max_tokens=LENGTH) for p in prompts]
    engine.close()
    return found


@pytest.fixture
def engines(target: Target) -> Iterator[list[Engine]]:
    made: list[Engine] = []
    yield made
    for engine in made:
        engine.close()
    assert target.model.pool.free == target.model.pool.blocks, "cache blocks leaked"


def assert_same(found: list[Completion], wanted: list[Completion]) -> None:
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.token_ids == b.token_ids, f"prompt {i} differs"
        assert (a.text, a.finish_reason, a.usage) == (b.text, b.finish_reason, b.usage)


def test_the_probe_found_an_exact_class(target: Target) -> None:
    assert target.model.traits.exact


@pytest.mark.parametrize("name", ["ngram", "suffix", "suffix-tree", "script"])
def test_no_token_differs(
    name: str, target: Target, prompts: list[list[int]], plain: list[Completion], engines: list[Engine]
) -> None:
    vocab = target.model.traits.vocab_size
    truth = {tuple(p): c.token_ids for p, c in zip(prompts, plain, strict=True)}
    drafter, controller = {
        "ngram": lambda: (NgramDrafter(), FixedController("ngram", 5)),
        "suffix": lambda: (SuffixDrafter(), FixedController("suffix", 7)),
        "suffix-tree": lambda: (SuffixDrafter(), FixedController("suffix", 4, width=3, nodes=9)),
        "script": lambda: (
            ScriptDrafter(truth, vocab, accuracy=0.6, tree=True),
            FixedController("script", 6, width=2, nodes=12),
        ),
    }[name]()
    engine = Engine(target.model, [drafter], controller, codec=target.codec)
    engines.append(engine)
    found = [engine.generate(p, max_tokens=LENGTH) for p in prompts]
    assert_same(found, plain)
    assert sum(c.stats.accepted_tokens for c in found) > 500
    assert sum(c.stats.passes for c in found) < 0.9 * sum(c.usage.completion_tokens for c in plain)


def test_no_token_differs_in_a_ragged_batch(
    target: Target, prompts: list[list[int]], plain: list[Completion], engines: list[Engine]
) -> None:
    engine = Engine(target.model, [SuffixDrafter()], FixedController("suffix", 4), codec=target.codec, max_rows=8)
    engines.append(engine)
    assert_same(engine.generate_batch(prompts, max_tokens=LENGTH), plain)


def test_a_seed_decides_the_sample_whatever_the_drafter(
    target: Target, prompts: list[list[int]], engines: list[Engine]
) -> None:
    options = {"max_tokens": 48, "temperature": 0.8, "top_p": 0.9, "seed": 11}
    bare = Engine(target.model, codec=target.codec)
    fast = Engine(target.model, [SuffixDrafter()], FixedController("suffix", 5), codec=target.codec)
    engines += [bare, fast]
    for p in prompts[8:20]:
        assert fast.generate(p, **options).token_ids == bare.generate(p, **options).token_ids


def test_the_default_engine(target: Target, prompts: list[list[int]], plain: list[Completion], engines: list[Engine]) -> None:
    engine = surefoot.load()
    engines.append(engine)
    found = [engine.generate(p, max_tokens=LENGTH) for p in prompts[::4]]
    engine.close()
    assert_same(found, plain[::4])
