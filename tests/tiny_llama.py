"""Tiny random Llamas: as transformers models, as folders and as GGUF files of the same weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch

VOCAB = 53
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama(kind: str = "Llama", seed: int = 1, **changes):
    """Random weights in float32; biases too, which are zero at first."""
    import transformers as tf

    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "initializer_range": 0.3,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    torch.manual_seed(seed)
    config = getattr(tf, f"{kind}Config")(**{**sizes, **changes})
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):
                parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def save_gguf(model, path: Path, kind: str = "llama", bits: gguf.GGMLQuantizationType | None = None, factors=None) -> Path:
    """As llama.cpp's converter writes it; ``bits`` quantizes the matrices whose rows are long enough."""
    config = model.config
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(8)
    writer.add_key_length(8)

    def add(name: str, x: torch.Tensor) -> None:
        data = x.detach().numpy().astype(np.float32)
        if bits is not None and data.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(data, bits), raw_dtype=bits)
        else:
            writer.add_tensor(name, data)

    for name, x in model.state_dict().items():
        if name == "model.embed_tokens.weight":
            add("token_embd.weight", x)
        elif name == "model.norm.weight":
            add("output_norm.weight", x)
        elif name == "lm_head.weight":
            add("output.weight", x)
        else:
            _, _, layer, rest = name.split(".", 3)
            part, _, what = rest.rpartition(".")
            if kind == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = config.num_attention_heads if "q_proj" in part else config.num_key_value_heads
                halves = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:])
                x = halves.swapaxes(1, 2).reshape(x.shape)
            add(f"blk.{layer}.{_NAMES[part]}.{what}", x)
    if factors is not None:
        add("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
