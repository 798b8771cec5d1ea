"""The packaged model with taps, with cuts and with heads: no token differs from those of the untouched graph.

The heads know nothing, but an exit behind the last layers but two agrees with the model often, so drafts are accepted, too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from surefoot.control.fixed import FixedController
from surefoot.core.completion import Completion
from surefoot.core.engine import Engine
from surefoot.drafters.eagle import EagleLane
from surefoot.drafters.early_exit import ExitLane
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.head_source import HeadSource
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.drafters.hydra import HydraLane
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.heads.eagle import Eagle
from surefoot.heads.eagle_layer import LayerConfig
from surefoot.heads.exit import Exit, ExitConfig
from surefoot.heads.hydra import Hydra, HydraConfig
from surefoot.loader import Target, open_target
from surefoot.trained import compiler

PROMPTS = Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl"
LENGTH, EVERY, CUT = 48, 8, 28

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def plain() -> Target:
    return open_target("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def tapped() -> Target:
    return open_target("smollm2-135m-instruct", taps=lambda layers: (2, layers // 2, layers + 1))


@pytest.fixture(scope="module")
def prompts(plain: Target) -> list[list[int]]:
    lines = PROMPTS.read_text("utf-8").splitlines()[::EVERY]
    return [plain.codec.prompt([{"role": "user", "content": json.loads(line)["prompt"]}]) for line in lines]


def answers(target: Target, prompts: list[list[int]], *options) -> list[Completion]:
    engine = Engine(target.model, *options, codec=target.codec)
    found = [engine.generate(p, max_tokens=LENGTH, temperature=0.0) for p in prompts]
    engine.close()
    return found


@pytest.fixture(scope="module")
def wanted(plain: Target, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    return [tuple(c.token_ids) for c in answers(plain, prompts)]


def same(found: list[Completion], wanted: list[tuple[int, ...]]) -> None:
    assert [tuple(c.token_ids) for c in found] == wanted


def drafters(target: Target, kind: str) -> tuple[list, FixedController]:
    ends, traits = target.model.ends(), target.model.traits
    size, vocab, ids = traits.hidden_size, traits.vocab_size, torch.arange(0, traits.vocab_size, 12)
    torch.manual_seed(0)
    if kind == "eagle":
        layer = LayerConfig.of(
            {"hidden_size": size, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 256}
        )
        lane = EagleLane(Eagle(layer, ends, ids), traits.n_layers, compile=compiler(target))
    else:
        config = HydraConfig(size, vocab, (2, traits.n_layers // 2, traits.last), inner=64)
        lane = HydraLane(Hydra(config, ends, ids), ends, layer=config.taps, compile=compiler(target))
    head = HeadDrafter(lane, vocab, name="eagle" if kind == "eagle" else "hydra", known=target.codec.vocab_size, source=2)
    if kind != "hybrid":
        return [head], FixedController(kind, 3)
    suffix = SuffixDrafter(source=1)
    return [suffix, head, HybridDrafter([suffix, HeadSource(head)], ask=0.0)], FixedController("hybrid", 6)


def test_taps_change_no_token(tapped: Target, prompts: list[list[int]], wanted: list[tuple[int, ...]]) -> None:
    assert tapped.model.traits.exact
    same(answers(tapped, prompts), wanted)


@pytest.mark.parametrize("kind", ["hydra", "eagle", "hybrid"])
def test_heads_that_know_nothing_change_no_token(
    kind: str, tapped: Target, prompts: list[list[int]], wanted: list[tuple[int, ...]]
) -> None:
    found = answers(tapped, prompts, *drafters(tapped, kind))
    same(found, wanted)
    assert sum(c.stats.draft_tokens for c in found) > 100


def test_early_exit_changes_no_token(prompts: list[list[int]], wanted: list[tuple[int, ...]]) -> None:
    target = open_target("smollm2-135m-instruct", cut=CUT)
    assert target.model.traits.exact
    head = Exit(ExitConfig("bare", CUT), target.model.ends())
    lane = ExitLane(head, target.model, compile=compiler(target))
    drafter = HeadDrafter(lane, target.model.traits.vocab_size, name="early_exit", known=target.codec.vocab_size)
    found = answers(target, prompts, [drafter], FixedController("early_exit", 3))
    same(found, wanted)
    assert sum(c.stats.accepted_tokens for c in found) > 50
