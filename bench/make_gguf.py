#!/usr/bin/env python3
"""Writes a GGUF model with random weights in a real shape, for benchmarks of quantized weights.

usage: make_gguf.py OUT.gguf SHAPE {q8_0|q4_k|q6_k|q4_k_m}       SHAPE as make_model.py has it

q4_k_m is the mix of llama.cpp's Q4_K_M: q6_K for the output layer and, in half of the layers, for v and down. The blocks are one random piece of each type, over and over, with
scales that give weights of the size that a model has. There is no tokenizer: prompts are token ids. Needs python3 with numpy.
"""
import struct
import sys

import numpy as np

from make_model import SHAPES

ALIGN = 32
TYPES = {"f32": (0, 1, 4), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "q6_k": (14, 256, 210)}  # number, weights and bytes of a block
PIECE = 1 << 15  # blocks that are random


def halves(value: float, n: int) -> np.ndarray:
    return np.full(n, value, "<f2").view(np.uint8).reshape(n, 2)


def random_blocks(kind: str) -> np.ndarray:
    """PIECE blocks whose weights have a standard deviation of about 0.02."""
    blocks = np.random.default_rng(54).integers(0, 256, (PIECE, TYPES[kind][2]), dtype=np.uint8)
    if kind == "q8_0":
        blocks[:, 0:2] = halves(2.7e-4, PIECE)
    if kind == "q4_k":
        blocks[:, 0:2] = halves(1e-4, PIECE)
        blocks[:, 2:4] = halves(7.5e-4, PIECE)
    if kind == "q6_k":
        blocks[:, 208:210] = halves(1.5e-5, PIECE)
    return blocks.reshape(-1)


def has_more_bits(layer: int, n: int) -> bool:
    return layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2


def tensors_of(shape: dict, kind: str):
    """name, (rows, columns) or (elements,), type; columns are what GGUF names first."""
    h, kv, q, ff, n = shape["h"], shape["kv"] * shape["d"], shape["heads"] * shape["d"], shape["ff"], shape["layers"]
    base = "q4_k" if kind == "q4_k_m" else kind
    yield "token_embd.weight", (shape["vocab"], h), base
    for layer in range(n):
        more = "q6_k" if kind == "q4_k_m" and has_more_bits(layer, n) else base
        block = f"blk.{layer}."
        for name, size in (("attn_norm.weight", h), ("ffn_norm.weight", h), ("attn_q.bias", q), ("attn_k.bias", kv), ("attn_v.bias", kv)):
            yield block + name, (size,), "f32"
        for name, rows, columns, of in (("attn_q", q, h, base), ("attn_k", kv, h, base), ("attn_v", kv, h, more), ("attn_output", h, q, base), ("ffn_gate", ff, h, base),
                                        ("ffn_up", ff, h, base), ("ffn_down", h, ff, more)):
            yield f"{block}{name}.weight", (rows, columns), of
    yield "output_norm.weight", (h,), "f32"
    if not shape["tied"]:
        yield "output.weight", (shape["vocab"], h), "q6_k" if kind == "q4_k_m" else base


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def field(key: str, value) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def n_bytes(shape, kind: str) -> int:
    _, weights, size = TYPES[kind]
    return int(np.prod(shape)) // weights * size


def main() -> None:
    out, name, kind = sys.argv[1:]
    shape = SHAPES[name]
    fields = {"general.architecture": "qwen2", "general.quantization_version": 2, "qwen2.block_count": shape["layers"], "qwen2.context_length": 32768,
              "qwen2.embedding_length": shape["h"], "qwen2.feed_forward_length": shape["ff"], "qwen2.attention.head_count": shape["heads"],
              "qwen2.attention.head_count_kv": shape["kv"], "qwen2.attention.layer_norm_rms_epsilon": 1e-6, "qwen2.rope.freq_base": 1e6, "qwen2.vocab_size": shape["vocab"]}
    tensors = list(tensors_of(shape, kind))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(field(k, v) for k, v in fields.items())
    offset = 0
    for tensor, size, of in tensors:
        head += text(tensor) + struct.pack("<I", len(size)) + b"".join(struct.pack("<Q", d) for d in reversed(size)) + struct.pack("<IQ", TYPES[of][0], offset)
        offset += -(-n_bytes(size, of) // ALIGN) * ALIGN
    blocks = {of: random_blocks(of) for of in {t[2] for t in tensors} - {"f32"}}
    with open(out, "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGN))
        for tensor, size, of in tensors:
            left = n_bytes(size, of)
            if of == "f32":
                file.write((np.zeros(size, "<f4") if tensor.endswith("bias") else np.ones(size, "<f4")).tobytes())
            else:
                for begin in range(0, left, blocks[of].size):
                    file.write(blocks[of][:min(blocks[of].size, left - begin)].data)
            file.write(b"\0" * (-left % ALIGN))


if __name__ == "__main__":
    main()
