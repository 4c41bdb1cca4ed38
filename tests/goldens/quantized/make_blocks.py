"""Makes blocks.safetensors: blocks of each of ggml's types and the numbers that the `gguf` package of Python makes of them.

    pip install gguf==0.19.0 safetensors && python3 tests/goldens/quantized/make_blocks.py tests/goldens/quantized/blocks.safetensors

TYPE.blocks is [blocks][bytes], TYPE.values [blocks][numbers] in f32. 24 blocks of random bytes with usual scales, and hostile ones: all bits
clear or set, scales of zero, minus zero, subnormal, negative and the largest. No scale is infinite or no number.
"""
import sys

import gguf
import numpy
import safetensors.numpy
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

# Where the f16 scales lie in a block.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "F16": [0], "BF16": [], "F32": [],
}
HOSTILE_SCALES = numpy.array([0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-14, 1023 * 2.0**-24, 65504, -65504, -1], numpy.float16)
N_RANDOM = 24


def blocks_of(name, random):
    n_numbers, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = random.integers(0, 256, (N_RANDOM, n_bytes), numpy.uint8)
    for at in SCALES[name]:
        blocks[:, at:at + 2] = random.normal(0, 0.01, (N_RANDOM, 1)).astype(numpy.float16).view(numpy.uint8)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(100, 140, N_RANDOM)
    hostile = []
    for fill in (0, 0xff, 0x80, 0x7f, 0x55):
        for scale in HOSTILE_SCALES:
            block = numpy.full(n_bytes, fill, numpy.uint8)
            for at in SCALES[name]:
                block[at:at + 2] = numpy.array([scale]).view(numpy.uint8)
            hostile.append(block)
    if name == "MXFP4":
        for exponent in (0, 1, 2, 127, 254, 255):
            hostile.append(numpy.concatenate([[exponent], numpy.arange(16) * 17]).astype(numpy.uint8))
    all_blocks = numpy.unique(numpy.concatenate([blocks, numpy.array(hostile, numpy.uint8)]), axis=0)
    values = gguf.dequantize(all_blocks, GGMLQuantizationType[name]).reshape(len(all_blocks), n_numbers).astype(numpy.float32)
    keep = ~numpy.isnan(values).any(axis=1)
    return all_blocks[keep], values[keep]


def main():
    random = numpy.random.default_rng(54)
    tensors = {}
    with numpy.errstate(all="ignore"):
        for name in SCALES:
            tensors[f"{name}.blocks"], tensors[f"{name}.values"] = blocks_of(name, random)
    safetensors.numpy.save_file(tensors, sys.argv[1])
    for name, tensor in tensors.items():
        print(name, tensor.shape, tensor.dtype)


if __name__ == "__main__":
    main()
