#!/usr/bin/env python3
"""A checkpoint of less than a million weights that any machine runs, emulated ones too:  make_tiny_model.py FOLDER

Four layers of a llama with a token a byte. Weights are random but always the same ones (`unit` of families/make_families.py); rows of the head other
than those of printable ASCII are zero, so that greedy answers are lines of text. Needs nothing but Python.
"""
import json
import math
import struct
import sys
from pathlib import Path

LAYERS, HEADS, KV, DIM, HIDDEN, INNER, VOCAB = 4, 4, 2, 64, 128, 256, 264
PRINTABLE = range(0x21, 0x7F)

CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
              num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM, vocab_size=VOCAB, max_position_embeddings=8192, hidden_act="silu",
              rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, attention_bias=False, mlp_bias=False, torch_dtype="bfloat16",
              bos_token_id=256, eos_token_id=256, pad_token_id=256)


def unit(name, count):
    """Numbers in [-1, 1): FNV-1a of the name, splitmix64 from there on."""
    mask = 2**64 - 1
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & mask
    for i in range(1, count + 1):
        z = seed + i * 0x9E3779B97F4A7C15 & mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        z ^= z >> 31
        yield (z >> 40) / 2**23 - 1.0


def bfloat16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def shapes():
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for layer in range(LAYERS):
        for part, shape in {"self_attn.q_proj": [HEADS * DIM, HIDDEN], "self_attn.k_proj": [KV * DIM, HIDDEN], "self_attn.v_proj": [KV * DIM, HIDDEN],
                            "self_attn.o_proj": [HIDDEN, HEADS * DIM], "mlp.gate_proj": [INNER, HIDDEN], "mlp.up_proj": [INNER, HIDDEN],
                            "mlp.down_proj": [HIDDEN, INNER], "input_layernorm": [HIDDEN], "post_attention_layernorm": [HIDDEN]}.items():
            yield f"model.layers.{layer}.{part}.weight", shape
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]


def tensor(name, shape):
    """Its elements in bfloat16: norms about 1, matrices such that their outputs are about as large as their inputs."""
    base, spread = (1.0, 0.5) if name.endswith("norm.weight") else (0.0, 1.0 if "embed" in name else math.sqrt(3.0 / shape[-1]))
    values = [bfloat16(base + spread * u) for u in unit(name, math.prod(shape))]
    if name == "lm_head.weight":
        for row in set(range(VOCAB)) - set(PRINTABLE):
            values[row * HIDDEN:(row + 1) * HIDDEN] = [0] * HIDDEN
    return struct.pack(f"<{len(values)}H", *values)


def tokenizer():
    """A token a byte, under the names that byte-level BPE gives them."""
    shown = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    hidden = [b for b in range(256) if b not in shown]
    vocab = {chr(b if b in shown else 256 + hidden.index(b)): b for b in range(256)} | {"<|end|>": 256}
    end = dict(id=256, content="<|end|>", single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=[end], normalizer=None, pre_tokenizer=level, post_processor=None, decoder=level,
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                           byte_fallback=False, ignore_merges=False, vocab=vocab, merges=[]))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    header, data = {}, b""
    for name, shape in shapes():
        begin = len(data)
        data += tensor(name, shape)
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[begin, len(data)])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    for name, content in {"config.json": CONFIG, "tokenizer.json": tokenizer(), "generation_config.json": dict(eos_token_id=256),
                          "tokenizer_config.json": dict(chat_template=template, eos_token="<|end|>")}.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
