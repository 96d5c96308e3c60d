"""Writes rope.json: rotary frequencies as transformers computes them, for configurations of
well-known models.

    pip install torch==2.15.0 transformers==5.24.0 && python3 make_rope.py
"""
import json
import pathlib

from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

BASE = dict(model_type="llama", hidden_size=256, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, vocab_size=64, rms_norm_eps=1e-5,
            bos_token_id=1, eos_token_id=2, tie_word_embeddings=True)
CASES = {
    "smollm2": dict(head_dim=64, max_position_embeddings=8192, rope_theta=100000.0),
    "llama 3.1": dict(head_dim=128, max_position_embeddings=131072, rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192)),
    "llama 3.2": dict(head_dim=64, max_position_embeddings=131072, rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192)),
    "linear, old spelling": dict(head_dim=128, max_position_embeddings=16384, rope_theta=10000.0,
                                 rope_scaling=dict(type="linear", factor=4.0)),
    "qwen yarn": dict(head_dim=128, max_position_embeddings=131072, rope_theta=1000000.0, rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "yarn with mscale": dict(head_dim=64, max_position_embeddings=163840, rope_theta=10000.0, rope_scaling=dict(
        rope_type="yarn", factor=40.0, beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=1.0,
        original_max_position_embeddings=4096)),
    "yarn untruncated": dict(head_dim=64, max_position_embeddings=131072, rope_theta=150000.0, rope_scaling=dict(
        rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
        original_max_position_embeddings=4096)),
}

out = []
for name, case in CASES.items():
    config = AutoConfig.for_model(**BASE | case)
    rotary = LlamaRotaryEmbedding(config)
    out.append({"name": name, "config": BASE | case,
                "inv_freq": [float(v) for v in rotary.inv_freq],
                "attention_factor": float(rotary.attention_scaling)})
text = "[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]\n"
(pathlib.Path(__file__).parent / "rope.json").write_text(text)
