"""Writes the golden blocks of `tests/format.rs`: random bytes and what the gguf package makes of them.

    pip install gguf==0.19.0 numpy && python3 make.py
"""
import pathlib

import gguf
import numpy as np

BLOCKS = 64
# Byte offsets of the f16 fields, which must be finite.
HALF_FIELDS = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "F32": [], "F16": [0], "BF16": [],
}

here = pathlib.Path(__file__).parent
rng = np.random.default_rng(20261129)
for name, fields in HALF_FIELDS.items():
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in fields:
        value = rng.normal(0, 0.05, BLOCKS).astype(np.float16)
        value[:4] = [6e-8, -3e-5, 65504, -1]  # subnormals, the largest, a negative scale
        blocks[:, at:at + 2] = value.view(np.uint8).reshape(BLOCKS, 2)
    if name == "F32":
        blocks = rng.normal(0, 1, BLOCKS).astype(np.float32).view(np.uint8).reshape(BLOCKS, size)
    if name == "BF16":
        blocks[:, 1] &= 0xBF  # an exponent below the one of infinity
    values = gguf.quants.dequantize(blocks.reshape(-1), kind).astype(np.float32)
    (here / f"{name}.blocks").write_bytes(blocks.tobytes())
    (here / f"{name}.f32").write_bytes(values.tobytes())
