#!/usr/bin/env python3
"""Tiny random decoders of every supported family and rotation, and what transformers computes with them.

    make_families.py > families.json      needs torch and transformers (written with torch 2.15, transformers 5.24, float32 on a CPU)

A case is a config.json, the one that transformers saves for it, its tensors as [name, shape, base, spread], tokens, and the logits behind the prompt and behind each token after it.
Element i of a tensor is base + spread * u rounded to bfloat16, u in [-1, 1) from `unit`, so that the weights need not be kept.
Every case names settings whose loss must show: the script fails where the logits without them differ by less than MARGIN.
"""
import copy
import json
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

PROMPT, AFTER, VOCAB, MARGIN = 300, 4, 96, 0.2
LAYERS, HEADS, KV, DIM, HIDDEN, INNER = 3, 2, 1, 64, 64, 96

BASE = dict(hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM,
            vocab_size=VOCAB, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, eos_token_id=0, bos_token_id=1, pad_token_id=0)
GEMMA = BASE | dict(model_type="gemma3_text", rms_norm_eps=1e-6, sliding_window=100, rope_theta=1000000.0, rope_local_base_freq=1000.0, query_pre_attn_scalar=100,
                    layer_types=["sliding_attention", "full_attention", "sliding_attention"], hidden_activation="gelu_pytorch_tanh")
GEMMA.pop("tie_word_embeddings")
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)


def of(kind, **fields):
    return BASE | dict(model_type=kind) | fields


# name: config.json, and the changes to it that must show (None: the field is taken away)
CASES = {
    "llama": (of("llama", attention_bias=False, mlp_bias=False), [dict(rope_theta=9000.0)]),
    "llama-linear": (of("llama", rope_scaling=dict(type="linear", factor=4.0)), [dict(rope_scaling=None)]),
    "llama-dynamic": (of("llama", rope_scaling=dict(rope_type="dynamic", factor=4.0)), [dict(rope_theta=9000.0)]),
    "llama-llama3": (
        of("llama", rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)),
        [dict(rope_scaling=None), dict(rope_scaling=dict(rope_type="linear", factor=8.0))]),
    "mistral": (of("mistral", sliding_window=100), [dict(sliding_window=None), dict(sliding_window=99)]),
    "qwen2": (of("qwen2", use_sliding_window=True, sliding_window=150, max_window_layers=1), [dict(use_sliding_window=False), dict(max_window_layers=2)]),
    "qwen2-yarn": (of("qwen2", rope_scaling=YARN), [dict(rope_scaling=None), dict(rope_scaling=YARN | dict(attention_factor=1.0))]),
    "qwen3": (of("qwen3", tie_word_embeddings=True), [dict(rope_theta=9000.0)]),
    "qwen3-yarn": (
        of("qwen3", max_position_embeddings=128, rope_parameters=YARN | dict(rope_theta=10000.0, attention_factor=1.3, beta_fast=16.0, beta_slow=2.0, truncate=False)),
        [dict(rope_parameters=YARN | dict(rope_theta=10000.0, attention_factor=1.3)), dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))]),
    "gemma3": (GEMMA, [dict(sliding_window=99), dict(rope_local_base_freq=1100.0), dict(rope_theta=100000.0), dict(query_pre_attn_scalar=64),
                       dict(layer_types=["sliding_attention"] * 2 + ["full_attention"])]),
    "gemma3-linear": (GEMMA | dict(rope_scaling=dict(rope_type="linear", factor=8.0), rope_theta=10000.0), [dict(rope_scaling=None)]),
    "gemma3-parameters": (
        {k: v for k, v in GEMMA.items() if k not in ("rope_theta", "rope_local_base_freq")}
        | dict(rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=5000.0), sliding_attention=dict(rope_type="default", rope_theta=700.0))),
        [dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=5000.0), sliding_attention=dict(rope_type="default", rope_theta=700.0))),
         dict(rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=5000.0), sliding_attention=dict(rope_type="default", rope_theta=800.0)))]),
}


def unit(name, count):
    """Numbers in [-1, 1): FNV-1a of the name, splitmix64 from there on."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0


def range_of(name, shape, kind):
    """Base and spread of a tensor."""
    if name.endswith("norm.weight"):
        return 0.0 if kind == "gemma3_text" else 1.0, 0.5
    if name.endswith(".bias"):
        return 0.0, 0.5
    if "embed_tokens" in name or "lm_head" in name:
        return 0.0, 1.0
    return 0.0, round(float(np.sqrt(3.0 / shape[-1])) * (1.2 if "q_proj" in name or "k_proj" in name else 1.0), 4)


def model_of(config):
    config = copy.deepcopy(config)  # transformers fills in what is inside
    kind = config.pop("model_type")
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**config), attn_implementation="eager").float().eval()


def logits_of(config, tensors, tokens):
    model = model_of(config)
    state = {}
    for name, shape, base, spread in tensors:
        values = base + spread * unit(name, int(np.prod(shape)))
        state[name] = torch.tensor(values.astype(np.float32)).to(torch.bfloat16).float().reshape(shape)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(name == "lm_head.weight" for name in missing), (missing, unexpected)
    model.tie_weights()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, PROMPT - 1:].double().numpy()


def main():
    tokens = [int((u + 1.0) / 2.0 * VOCAB) for u in unit("tokens", PROMPT + AFTER)]
    print('{"prompt": %d, "tokens": %s, "cases": {' % (PROMPT, json.dumps(tokens)))
    for at, (name, (config, changes)) in enumerate(CASES.items()):
        kind = config["model_type"]
        shapes = {k: list(v.shape) for k, v in model_of(config).state_dict().items()}
        if config.get("tie_word_embeddings", kind == "gemma3_text"):
            shapes.pop("lm_head.weight", None)
        tensors = [[k, v, *range_of(k, v, kind)] for k, v in shapes.items()]
        logits = logits_of(config, tensors, tokens)
        shown = []
        for change in changes:
            other = {k: v for k, v in (config | change).items() if v is not None or k == "sliding_window"}
            shown.append(float(np.abs(logits_of(other, tensors, tokens) - logits).max()))
        print(f"{name}: logits up to {np.abs(logits).max():.2f}, changes show by {[round(s, 3) for s in shown]}", file=sys.stderr)
        assert min(shown) >= MARGIN, name
        rows = [[round(float(x), 4) for x in row] for row in logits]
        saved = json.loads(model_of(config).config.to_json_string())
        case = json.dumps({"config": config, "saved": saved, "tensors": tensors, "logits": rows}, separators=(",", ":"))
        print(json.dumps(name) + ": " + case + ("," if at + 1 < len(CASES) else ""))
    print("}}")


if __name__ == "__main__":
    main()
