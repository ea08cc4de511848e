#!/usr/bin/env python3
"""Two blocks (or 64 values) of every element format of GGUF that is imported, and what ggml's own Python package reads in them.

    make_quants.py > quants.json      needs gguf (written with 0.19.0)
"""
import json

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from gguf.constants import GGML_QUANT_SIZES

# Where the float16 scales of a block lie; all other bytes may be anything.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}


def main():
    random = np.random.default_rng(4)
    cases = {}
    for name, scales in SCALES.items():
        kind = GGMLQuantizationType[name]
        _, size = GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (2, size), dtype=np.uint8)
        for at in scales:
            blocks[:, at:at + 2] = random.normal(0, 0.02, (2, 1)).astype(np.float16).view(np.uint8)
        cases[name] = (kind, blocks.reshape(-1))
    values = random.normal(0, 1, 64).astype(np.float32)
    cases["F32"] = (GGMLQuantizationType.F32, values.view(np.uint8))
    cases["F16"] = (GGMLQuantizationType.F16, values.astype(np.float16).view(np.uint8))
    cases["BF16"] = (GGMLQuantizationType.BF16, (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8))
    out = {}
    for name, (kind, data) in cases.items():
        wanted = np.asarray(dequantize(data, kind), dtype=np.float32).reshape(-1)
        assert np.isfinite(wanted).all() and np.unique(wanted).size > 8, name
        out[name] = {"kind": int(kind), "bytes": data.tobytes().hex(), "values": [float(f"{x:.9g}") for x in wanted]}
    print("{" + ",\n".join(f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in out.items()) + "}")


if __name__ == "__main__":
    main()
