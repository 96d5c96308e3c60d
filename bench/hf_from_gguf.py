"""Writes a Llama-family GGUF file as a folder that vLLM and transformers load: config, tokenizer with
its chat template, and weights in bf16. For serving the default model elsewhere beside our own
server; needs numpy, tokenizers and transformers.

usage: hf_from_gguf.py MODEL.gguf FOLDER
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
# Bytes of a block of 32 weights (GGML's types).
BLOCK = {Q4_1: 20, Q8_0: 34}


class Reader:
    """A GGUF file of version 3: its metadata and its tensors."""

    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        self.at = 8
        if bytes(self.data[:8]) != b"GGUF\x03\0\0\0":
            raise SystemExit(f"{path} is no GGUF file of version 3")
        tensors, pairs = self.scalar("Q"), self.scalar("Q")
        self.meta = {}
        for _ in range(pairs):
            key = self.value(STRING)
            self.meta[key] = self.value(self.scalar("I"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.value(STRING)
            shape = [self.scalar("Q") for _ in range(self.scalar("I"))]
            self.tensors[name] = (shape[::-1], self.scalar("I"), self.scalar("Q"))
        align = self.meta.get("general.alignment", 32)
        self.start = -(-self.at // align) * align

    def scalar(self, form):
        size = struct.calcsize("<" + form)
        raw = bytes(self.data[self.at:self.at + size])
        self.at += size
        return struct.unpack("<" + form, raw)[0]

    def value(self, kind):
        if kind == STRING:
            size = self.scalar("Q")
            self.at += size
            return bytes(self.data[self.at - size:self.at]).decode("utf-8")
        if kind == ARRAY:
            kind, count = self.scalar("I"), self.scalar("Q")
            return [self.value(kind) for _ in range(count)]
        return self.scalar(SCALARS[kind])

    def tensor(self, name):
        """In float32."""
        shape, kind, offset = self.tensors[name]
        count = int(np.prod(shape))
        at = self.start + offset
        if kind in (F32, F16):
            form = np.float32 if kind == F32 else np.float16
            raw = self.data[at:at + count * np.dtype(form).itemsize]
            return raw.view(form).astype(np.float32).reshape(shape)
        if kind not in BLOCK:
            raise SystemExit(f"{name} has GGML type {kind}; F32, F16, Q4_1 and Q8_0 are read")
        blocks = self.data[at:at + count // 32 * BLOCK[kind]].reshape(-1, BLOCK[kind])
        scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        if kind == Q8_0:
            return (blocks[:, 2:].view(np.int8) * scale).reshape(shape)
        least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
        nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        return (nibbles * scale + least).reshape(shape)


def bf16(values):
    """Rounded to the nearest, ties to even, as its bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def unpaired(matrix, heads):
    """Rows of a head in halves, as transformers rotates them; llama.cpp keeps them in pairs."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def weights(gguf, heads, kv_heads):
    """(name in transformers, values) of every tensor."""
    inner = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    outer = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
             "output.weight": "lm_head.weight"}
    for name in gguf.tensors:
        values = gguf.tensor(name)
        if name in outer:
            yield outer[name], values
            continue
        _, layer, part, _ = name.split(".")
        if part in ("attn_q", "attn_k"):
            values = unpaired(values, heads if part == "attn_q" else kv_heads)
        yield f"model.layers.{layer}.{inner[part]}.weight", values


def write_weights(path, tensors):
    """As safetensors."""
    header, bodies, at = {}, [], 0
    for name, values in tensors:
        body = bf16(values).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [at, at + len(body)]}
        bodies.append(body)
        at += len(body)
    head = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.writelines(bodies)


def write_tokenizer(meta, folder):
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    inner = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges))
    # What "smollm" names: every digit alone, then GPT-2's own splits.
    inner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    inner.decoder = decoders.ByteLevel()
    control = [w for w, kind in zip(words, meta["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    inner.add_special_tokens([tokenizers.AddedToken(w, special=True, normalized=False) for w in control])
    whole = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=words[meta["tokenizer.ggml.bos_token_id"]],
        eos_token=words[meta["tokenizer.ggml.eos_token_id"]],
        pad_token=words[meta["tokenizer.ggml.padding_token_id"]],
    )
    whole.chat_template = meta["tokenizer.chat_template"]
    whole.save_pretrained(folder)


def main():
    source, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    gguf = Reader(source)
    meta = gguf.meta
    if (meta["general.architecture"], meta["tokenizer.ggml.pre"]) != ("llama", "smollm"):
        raise SystemExit(f"{source} is no Llama with SmolLM's tokenizer")
    heads, kv_heads = (meta[f"llama.attention.{n}"] for n in ("head_count", "head_count_kv"))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": meta["llama.vocab_size"], "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"], "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": meta["llama.rope.freq_base"], "torch_dtype": "bfloat16",
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(meta, folder)
    write_weights(folder / "model.safetensors", weights(gguf, heads, kv_heads))


if __name__ == "__main__":
    main()
