"""Attention of trained heads: the same numbers as transformers' Llama, in one go, with a past, in ragged batches."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from surefoot.errors import Unsupported
from surefoot.heads.attention import Attention, AttentionConfig, causal

SCALINGS = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4},
    {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256, "rope_theta": 1e4,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 1e4},
]  # fmt: skip


def pair(scaling=SCALINGS[0], bias: bool = True):
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=10, max_position_embeddings=1024,
        rope_parameters=scaling, attention_bias=bias,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    theirs = LlamaAttention(config, 0).eval()
    ours = Attention(AttentionConfig.of(config.to_dict())).eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, lambda x, at: theirs(x, position_embeddings=LlamaRotaryEmbedding(config)(x, at), attention_mask=None)[0]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s["rope_type"])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_as_in_transformers_and_step_by_step(scaling, bias):
    ours, theirs = pair(scaling, bias)
    x, at = torch.randn(2, 9, 32), torch.arange(5, 14).expand(2, -1) * 7
    wanted = theirs(x, at)
    torch.testing.assert_close(ours(x, at)[0], wanted, rtol=1e-5, atol=1e-6)
    first, past = ours(x[:, :6], at[:, :6])
    some, new = ours(x[:, 6:8], at[:, 6:8], past)
    past = tuple(torch.cat(each, 2) for each in zip(past, new, strict=True))
    last, _ = ours(x[:, 8:], at[:, 8:], past)
    torch.testing.assert_close(torch.cat((first, some, last), 1), wanted, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_rows_that_have_seen_different_numbers_of_places():
    ours, theirs = pair()
    x, seen = torch.randn(2, 7, 32), torch.tensor([5, 2])
    k, v = torch.full((2, 2, 5, 10), 9.0), torch.full((2, 2, 5, 10), 9.0)
    for b, n in enumerate(seen.tolist()):
        _, (k[b, :, :n], v[b, :, :n]) = ours(x[b : b + 1, :n], torch.arange(n)[None])
    new = torch.stack([x[b, n : n + 2] for b, n in enumerate(seen.tolist())])
    found, _ = ours(new, seen[:, None] + torch.arange(2), (k, v), causal(2, 5, seen))
    for b, n in enumerate(seen.tolist()):
        wanted = theirs(x[b : b + 1, : n + 2], torch.arange(n + 2)[None])[:, -2:]
        torch.testing.assert_close(found[b : b + 1], wanted, rtol=1e-5, atol=1e-6)


def test_old_and_new_names_of_the_rotation_are_read():
    said = {"hidden_size": 32, "num_attention_heads": 4}
    old = AttentionConfig.of(said | {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = AttentionConfig.of(said | {"rope_parameters": {"rope_theta": 7.0, "rope_type": "linear", "factor": 2.0}})
    assert torch.equal(Attention(old).angles, Attention(new).angles)
    assert (old.theta, old.kv_heads, old.head_dim) == (7.0, 4, 8)


def test_what_is_not_known_is_refused():
    with pytest.raises(Unsupported, match="longrope"):
        Attention(AttentionConfig(32, 4, 2, 8, rope={"rope_type": "longrope"}))
    with pytest.raises(Unsupported, match="4 heads over 3 key heads"):
        Attention(AttentionConfig(32, 4, 3, 8))
