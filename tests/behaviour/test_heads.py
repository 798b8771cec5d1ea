"""Behaviour cases about trained heads and early exit."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_llama import tiny_llama

from surefoot.backends.torch import TorchModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.drafters.early_exit import ExitLane
from surefoot.drafters.head import HeadDrafter
from surefoot.errors import BadRequest, SurefootError, VocabMismatch
from surefoot.heads.attention import AttentionConfig
from surefoot.heads.exit import Exit, ExitConfig
from surefoot.heads.exit_files import save_exit
from surefoot.heads.files import read
from surefoot.heads.hydra import Hydra, HydraConfig
from surefoot.heads.hydra_files import load_hydra, save_hydra
from surefoot.heads.reads import reads

LAYERS = 4
PROMPT = [3, 7, 11, 3, 7, 11, 3]


@pytest.fixture(scope="module")
def model():
    return tiny_llama(num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def target(model):
    return TorchModel(model, cut=tuple(range(1, LAYERS)), trees=False)


def answer(target, drafters=(), controller=None):
    engine = Engine(target, drafters, controller)
    row = engine.add(PROMPT, SamplingParams(max_tokens=40, temperature=0.0))
    while not row.done:
        engine.step()
    engine.close()
    return row


@pytest.mark.parametrize("layer", range(1, LAYERS))
@pytest.mark.parametrize("k", [1, 3, 6])
def test_L14_the_exit_layer_changes_nothing_but_speed(target, layer, k):
    head = Exit(ExitConfig("bare", layer), target.ends())
    drafter = HeadDrafter(ExitLane(head, target), target.traits.vocab_size, name="early_exit")
    row = answer(target, [drafter], FixedController("early_exit", k))
    assert row.output == answer(target).output
    assert row.stats.draft_tokens > 0


def test_L15_an_exit_layer_that_nobody_names_is_asked_for(target, tmp_path):
    size = target.traits.hidden_size
    attention = AttentionConfig.of({"hidden_size": size, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8})
    head = Exit(ExitConfig("kangaroo", 0, attention), target.ends())
    save_exit(tmp_path, head, {}, layout="kangaroo")
    with pytest.raises(BadRequest, match="layer="):
        reads(tmp_path)
    assert reads(tmp_path, layer=2).cut == 2
    with pytest.raises(BadRequest, match="layer="):
        ExitLane(head, target)


@pytest.mark.parametrize("layer", range(1, LAYERS))
def test_L15_drafted_logits_are_those_of_the_truncated_model(model, target, layer):
    """Positions included: the exit reads behind a prompt, at depth 1 and deeper."""
    shorter = copy.deepcopy(model)
    shorter.model.layers = shorter.model.layers[:layer]
    lane = ExitLane(Exit(ExitConfig("bare", layer), target.ends()), target)
    engine = Engine(target, [HeadDrafter(lane, target.traits.vocab_size, name="early_exit")])
    row = engine.add(PROMPT, SamplingParams(max_tokens=20, temperature=0.0))
    for _ in range(4):
        engine.step()
    state, tokens = lane.root(row), list(row.tokens)
    for depth, token in enumerate([row.tokens[-1], 9, 21]):
        if depth:
            tokens.append(token)
        [state], logits = lane.step([state], [token])
        with torch.no_grad():
            whole = shorter(torch.tensor([tokens])).logits[0, -1]
        assert torch.allclose(logits[0], whole, atol=1e-4, rtol=1e-4)
    engine.abort(row)
    engine.close()


@pytest.mark.parametrize("size, vocab", [(48, 53), (32, 61)])
def test_L72_a_head_of_another_model_is_refused_with_both_sizes(target, tmp_path, size, vocab):
    other = tiny_llama(hidden_size=size, vocab_size=vocab)
    ends = TorchModel(other).ends()
    save_hydra(tmp_path, Hydra(HydraConfig(size, vocab, (4,), inner=16), ends))
    with pytest.raises((SurefootError, VocabMismatch)) as caught:
        load_hydra(read(tmp_path), target.ends())
    mine, theirs = (size, 32) if size != 32 else (vocab, 53)
    assert str(mine) in str(caught.value)
    assert str(theirs) in str(caught.value)
