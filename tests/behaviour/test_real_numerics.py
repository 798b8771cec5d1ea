"""L06, L09, L10, L11 on the packaged model: quantised weights, half precision, real kernels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from behaviour.grid import engine_of, finish, plain, same

from surefoot.core.protocols import Need
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.loader import Target, open_target

PROMPTS = Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl"

pytestmark = pytest.mark.timeout(1800)  # a few seconds a test here; a processor without AVX-512 takes a lot longer


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    opened = open_target("smollm2-135m-instruct")
    yield opened
    assert opened.model.pool.free == opened.model.pool.blocks, "cache blocks leaked"


@pytest.fixture(scope="module")
def prompts(target: Target) -> list[list[int]]:
    lines = PROMPTS.read_text("utf-8").splitlines()
    return [target.codec.prompt([{"role": "user", "content": json.loads(line)["prompt"]}]) for line in lines]


def score(target: Target, slot, tokens: Sequence[int], keep: int = 0) -> torch.Tensor:
    """Logits [N, V] of a chain in one pass; commits the first ``keep`` tokens."""
    model = target.model
    forest = Forest.pack([DraftTree.chain(tokens)], min_width=model.traits.min_width)
    logits = model.score([slot], forest, Need()).logits.clone()
    model.commit([slot], [range(keep)])
    return logits


@pytest.mark.parametrize("k", [2, 5])
def test_L06_lookup_on_quantised_weights(k, target, prompts):
    """Twenty prompts, some of which repeat nothing."""
    bare = [[*range(1000 + 40 * i, 1000 + 40 * i + 12)] for i in range(6)]
    chosen = [*sorted(prompts, key=len)[:14], *bare]
    assert len(chosen) == 20
    engine = engine_of(target.model, NgramDrafter(), k, target.codec)
    found = [finish(engine, p, {"max_tokens": 20}) for p in chosen]
    engine.close()
    for p, each in zip(chosen, found, strict=True):
        same(each, plain(target.model, p, {"max_tokens": 20}, target.codec))
    assert sum(c.stats.accepted_tokens for c in found) > 10


def test_L09_a_row_of_a_block_is_bitwise_the_row_alone(target, prompts):
    assert target.model.traits.exact
    tokens = prompts[2][-32:]
    (alone, other) = target.model.open(2)
    head, tail = tokens[:-9], tokens[-9:]
    score(target, alone, head, len(head))
    score(target, other, head, len(head))
    single = torch.cat([score(target, alone, [t], 1)[:1] for t in tail])
    for k in range(1, 9):
        block = score(target, other, tail[: k + 1])  # nothing is kept: as if all were rejected
        assert torch.equal(block, single[: k + 1]), f"k={k}"
    target.model.close([alone, other])


@pytest.mark.parametrize("k", [1, 4])
def test_L10_its_own_draft_is_always_accepted_in_the_packaged_precision(k, target, prompts):
    vocab = target.model.traits.vocab_size
    engine = engine_of(target.model, ModelDrafter(target.model, vocab), k, target.codec)
    options = {"max_tokens": 48, "ignore_eos": True}  # what is drafted past an end is right, but not kept
    for p in sorted(prompts, key=len)[:3]:
        found = finish(engine, p, options)
        same(found, plain(target.model, p, options, target.codec))
        assert found.stats.accepted_tokens == found.stats.draft_tokens > 0
    engine.close()


def test_L11_the_control_without_a_draft(target, prompts):
    """Plain decoding's own text in one pass: no argmax changes, so speculation has no excuse to differ anywhere."""
    for p in sorted(prompts, key=len)[::16]:
        said = plain(target.model, p, {"max_tokens": 20}, target.codec).token_ids
        (slot,) = target.model.open(1)
        score(target, slot, p[:-1], len(p) - 1)
        block = score(target, slot, [p[-1], *said[:-1]]).argmax(-1).tolist()
        target.model.close([slot])
        assert [i for i, (a, b) in enumerate(zip(block, said, strict=True)) if a != b] == []
        engine = engine_of(target.model, "mixed", 5, target.codec)
        assert finish(engine, p, {"max_tokens": 20}).token_ids == said
        engine.close()
