#!/usr/bin/env python3
"""Writes a Hugging Face model folder with random weights in a real shape, and PEFT LoRA folders for it, for benchmarks.

usage: make_model.py model   OUT_DIR  SHAPE {f16|bf16}         SHAPE: tiny, 0.5b, 1.5b, 7b (Qwen2.5 shapes)
       make_model.py adapter OUT_DIR  SHAPE RANK SEED          all seven linear modules, alpha = 2 * RANK, f16
       make_model.py adapters OUT_PREFIX SHAPE RANK N          OUT_PREFIX1 ... OUT_PREFIXN, those that do not exist yet

The values are one random block read at shifting offsets: random enough for timing and for comparing kernel paths, never
zero. Files are written by several processes. Tokenizer files come from deploy/demo-model/base, so a text prompt works though its answer means nothing.
Needs python3 with numpy. The 7b folder takes 15.2 GB.
"""
import json
import multiprocessing
import os
import pathlib
import shutil
import struct
import sys

import numpy as np

SHAPES = {
    "tiny": dict(h=256, layers=4, heads=4, kv=2, d=64, ff=704, vocab=4096, tied=False),
    "0.5b": dict(h=896, layers=24, heads=14, kv=2, d=64, ff=4864, vocab=151936, tied=True),
    "1.5b": dict(h=1536, layers=28, heads=12, kv=2, d=128, ff=8960, vocab=151936, tied=True),
    "7b": dict(h=3584, layers=28, heads=28, kv=4, d=128, ff=18944, vocab=152064, tied=False),
}
SHARD_BYTES = 2 << 30
BLOCK = 1 << 25  # values in the random block


def random_block(dtype: str, seed: int, std: float) -> np.ndarray:
    """BLOCK normal values as 16-bit words of the given type."""
    values = np.random.default_rng(seed).standard_normal(BLOCK, dtype=np.float32) * std
    if dtype == "f16":
        return values.astype("<f2").view("<u2")
    return (values.view("<u4") >> 16).astype("<u2")


def one(dtype: str) -> int:
    return {"f16": 0x3C00, "bf16": 0x3F80}[dtype]


def next_start(tensors, start: int) -> int:
    """The block offset behind these tensors, of which each random one begins a little further on."""
    return (start + 977 * sum(kind == "random" for _, _, kind in tensors)) % BLOCK


def write_safetensors(path: pathlib.Path, tensors, dtype: str, block: np.ndarray, start: int) -> None:
    """tensors: (name, shape, kind) with kind random or ones; start: the block offset before the first."""
    header, offset = {}, 0
    for name, shape, _ in tensors:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": {"f16": "F16", "bf16": "BF16"}[dtype], "shape": list(shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape, kind in tensors:
            left = int(np.prod(shape))
            if kind == "ones":
                file.write(np.full(left, one(dtype), "<u2").data)
                continue
            start = (start + 977) % BLOCK
            at = start
            while left:
                count = min(left, BLOCK - at)
                file.write(block[at:at + count].data)
                left -= count
                at = 0


def in_parallel(function, jobs) -> None:
    """function(*job) for all jobs, each in a process forked from here, a few at a time; the first failure ends it."""
    context, running, left = multiprocessing.get_context("fork"), [], list(jobs)
    while left or running:
        while left and len(running) < (os.cpu_count() or 1):
            process = context.Process(target=function, args=left.pop(0))
            process.start()
            running.append(process)
        process = running.pop(0)
        process.join()
        if process.exitcode != 0:
            sys.exit("a file could not be written")


def linear_shapes(s):
    h, q, kv, ff = s["h"], s["heads"] * s["d"], s["kv"] * s["d"], s["ff"]
    return [("self_attn.q_proj", q, h), ("self_attn.k_proj", kv, h), ("self_attn.v_proj", kv, h),
            ("self_attn.o_proj", h, q), ("mlp.gate_proj", ff, h), ("mlp.up_proj", ff, h), ("mlp.down_proj", h, ff)]


def make_model(out: pathlib.Path, shape: str, dtype: str) -> None:
    s = SHAPES[shape]
    out.mkdir(parents=True, exist_ok=True)
    groups = [[("model.embed_tokens.weight", (s["vocab"], s["h"]), "random")]]
    for layer in range(s["layers"]):
        prefix = f"model.layers.{layer}."
        group = [(prefix + "input_layernorm.weight", (s["h"],), "ones"),
                 (prefix + "post_attention_layernorm.weight", (s["h"],), "ones")]
        for name, n, k in linear_shapes(s):
            group.append((prefix + name + ".weight", (n, k), "random"))
            if name[-6:] in ("q_proj", "k_proj", "v_proj"):
                group.append((prefix + name + ".bias", (n,), "random"))
        groups.append(group)
    tail = [("model.norm.weight", (s["h"],), "ones")]
    if not s["tied"]:
        tail.append(("lm_head.weight", (s["vocab"], s["h"]), "random"))
    groups.append(tail)

    shards, size = [[]], 0
    for group in groups:
        group_bytes = sum(2 * int(np.prod(shape)) for _, shape, _ in group)
        if shards[-1] and size + group_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1] += group
        size += group_bytes
    block, start, weight_map, total, jobs = random_block(dtype, 1, 0.02), 0, {}, 0, []
    for index, tensors in enumerate(shards):
        name = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        jobs.append((out / name, tensors, dtype, block, start))
        start = next_start(tensors, start)
        for tensor, tensor_shape, _ in tensors:
            weight_map[tensor] = name
            total += 2 * int(np.prod(tensor_shape))
    in_parallel(write_safetensors, jobs)
    (out / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (out / "config.json").write_text(json.dumps({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": s["vocab"], "hidden_size": s["h"],
        "intermediate_size": s["ff"], "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv"], "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "use_sliding_window": False, "tie_word_embeddings": s["tied"], "bos_token_id": None,
        "eos_token_id": 2, "torch_dtype": {"f16": "float16", "bf16": "bfloat16"}[dtype]}, indent=1))
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    demo = pathlib.Path(__file__).resolve().parent.parent / "deploy" / "demo-model" / "base"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(demo / name, out / name)


def make_adapters(prefix: str, shape: str, rank: int, n: int) -> None:
    block = random_block("f16", 100, 0.01)
    folders = [(pathlib.Path(f"{prefix}{i}"), i) for i in range(1, n + 1)]
    in_parallel(make_adapter, [(folder, shape, rank, i, block) for folder, i in folders if not (folder / "adapter_config.json").exists()])


def make_adapter(out: pathlib.Path, shape: str, rank: int, seed: int, block=None) -> None:
    s = SHAPES[shape]
    block = random_block("f16", seed + 100, 0.01) if block is None else block
    out.mkdir(parents=True, exist_ok=True)
    tensors = []
    for layer in range(s["layers"]):
        for name, n, k in linear_shapes(s):
            prefix = f"base_model.model.model.layers.{layer}.{name}."
            tensors += [(prefix + "lora_A.weight", (rank, k), "random"), (prefix + "lora_B.weight", (n, rank), "random")]
    write_safetensors(out / "adapter_model.safetensors", tensors, "f16", block, seed * 7919)
    (out / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "bias": "none", "use_rslora": False, "use_dora": False, "modules_to_save": None, "rank_pattern": {},
        "alpha_pattern": {}, "fan_in_fan_out": False, "init_lora_weights": True, "inference_mode": True,
        "target_modules": [name.split(".")[1] for name, _, _ in linear_shapes(s)]}, indent=1))


def main() -> None:
    args = sys.argv[1:]
    if len(args) == 4 and args[0] == "model" and args[2] in SHAPES and args[3] in ("f16", "bf16"):
        make_model(pathlib.Path(args[1]), args[2], args[3])
    elif len(args) == 5 and args[0] == "adapter" and args[2] in SHAPES:
        make_adapter(pathlib.Path(args[1]), args[2], int(args[3]), int(args[4]))
    elif len(args) == 5 and args[0] == "adapters" and args[2] in SHAPES:
        make_adapters(args[1], args[2], int(args[3]), int(args[4]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
