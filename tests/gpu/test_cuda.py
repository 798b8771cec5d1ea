"""The torch backend on a CUDA device: speculative decoding equals plain decoding there too."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from surefoot.backends.torch import TorchModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.drafters.script import ScriptDrafter
from surefoot.drafters.suffix import SuffixDrafter

VOCAB = 211


@pytest.mark.parametrize("static", [False, True])
def test_speculative_equals_plain_on_cuda(static: bool) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to("cuda")
    target = TorchModel(model, static=static)
    assert target.traits.device.startswith("cuda")
    target.adopt(target.probe())
    plain = Engine(target)
    prompts = [[5, 9, 17, 5, 9], list(range(3, 90)), [7] * 30]
    wanted = [plain.generate(p, max_tokens=60).token_ids for p in prompts]
    truth = {tuple(p): w for p, w in zip(prompts, wanted, strict=True)}
    script = ScriptDrafter(truth, VOCAB, accuracy=0.6, tree=True)
    for drafter, width in ((SuffixDrafter(), 1), (script, 2)):
        engine = Engine(target, [drafter], FixedController(drafter.name, 4, width, 4 * width))
        assert [c.token_ids for c in engine.generate_batch(prompts, max_tokens=60)] == wanted
        engine.close()
    sampled = {"max_tokens": 40, "temperature": 0.9, "top_p": 0.9, "seed": 3}
    engine = Engine(target, [SuffixDrafter()], FixedController("suffix", 4))
    assert engine.generate(prompts[1], **sampled).token_ids == plain.generate(prompts[1], **sampled).token_ids
