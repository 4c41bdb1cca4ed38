#!/usr/bin/env python3
"""Writes a Hugging Face model folder with random weights in a real shape, and PEFT LoRA folders for it, for benchmarks.

usage: make_model.py model   OUT_DIR  SHAPE {f16|bf16}         SHAPE: tiny, 0.5b, 1.5b, 7b (Qwen2.5 shapes), or another
                                                               family's: qwen3.5-4b, gemma3-4b, qwen3-30b-a3b,
                                                               gpt-oss-20b (experts in MXFP4); SHAPE:LAYERS has fewer layers
       make_model.py adapter OUT_DIR  SHAPE RANK SEED          all linear modules but experts and routers, alpha = 2 * RANK, f16
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
SHAPES = {name: dict(shape, family="qwen2") for name, shape in SHAPES.items()}
SHAPES |= {
    "qwen3.5-4b": dict(family="qwen3.5", h=2560, layers=32, heads=16, kv=4, d=256, ff=9216, vocab=248320, tied=True,
                       key_heads=16, value_heads=32, head=128),
    "gemma3-4b": dict(family="gemma3", h=2560, layers=34, heads=8, kv=4, d=256, ff=10240, vocab=262208, tied=True),
    "qwen3-30b-a3b": dict(family="qwen3_moe", h=2048, layers=48, heads=32, kv=4, d=128, ff=6144, vocab=151936, tied=False,
                          experts=128, top=8, expert_ff=768),
    "gpt-oss-20b": dict(family="gpt_oss", h=2880, layers=24, heads=64, kv=8, d=64, ff=2880, vocab=201088, tied=False,
                        experts=32, top=4, expert_ff=2880),
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


def dtype_of(kind: str, dtype: str) -> tuple[str, int]:
    """The name of a tensor's type in the file, and its bytes."""
    return ("U8", 1) if kind in ("codes", "scales") else ({"f16": "F16", "bf16": "BF16"}[dtype], 2)


def bytes_of(shape, kind: str, dtype: str) -> int:
    return dtype_of(kind, dtype)[1] * int(np.prod(shape))


def write_safetensors(path: pathlib.Path, tensors, dtype: str, block: np.ndarray, start: int) -> None:
    """tensors: (name, shape, kind) with kind random, ones, zeros, codes (random bytes) or scales (MXFP4's, of 2^-7); start: the block offset
    before the first."""
    header, offset = {}, 0
    for name, shape, kind in tensors:
        size = bytes_of(shape, kind, dtype)
        header[name] = {"dtype": dtype_of(kind, dtype)[0], "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape, kind in tensors:
            count = int(np.prod(shape))
            if kind in ("ones", "zeros"):
                file.write(np.full(count, one(dtype) if kind == "ones" else 0, "<u2").data)
                continue
            if kind == "scales":
                file.write(np.full(count, 120, "u1").data)
                continue
            if kind == "codes":  # the low bytes of the block's words
                low = (block[:1 << 22] & 0xFF).astype("u1")
                for at in range(0, count, low.size):
                    file.write(low[:min(low.size, count - at)].data)
                continue
            start = (start + 977) % BLOCK
            at, left = start, count
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


def is_delta(s, layer: int) -> bool:
    return s["family"] == "qwen3.5" and layer % 4 != 3


def linear_shapes(s, layer: int = 0):
    """(name, rows, columns) of the linear layers that an adapter changes."""
    h, q, kv, ff = s["h"], s["heads"] * s["d"], s["kv"] * s["d"], s["ff"]
    if is_delta(s, layer):
        keys, values = s["key_heads"] * s["head"], s["value_heads"] * s["head"]
        mixer = [("linear_attn.in_proj_qkv", 2 * keys + values, h), ("linear_attn.in_proj_z", values, h),
                 ("linear_attn.in_proj_b", s["value_heads"], h), ("linear_attn.in_proj_a", s["value_heads"], h),
                 ("linear_attn.out_proj", h, values)]
    else:
        gates = 2 if s["family"] == "qwen3.5" else 1
        mixer = [("self_attn.q_proj", gates * q, h), ("self_attn.k_proj", kv, h), ("self_attn.v_proj", kv, h), ("self_attn.o_proj", h, q)]
    if "experts" in s:
        return mixer
    return mixer + [("mlp.gate_proj", ff, h), ("mlp.up_proj", ff, h), ("mlp.down_proj", h, ff)]


def layer_tensors(s, layer: int):
    h, family, prefix = s["h"], s["family"], f"model.layers.{layer}."
    norm = "zeros" if family in ("qwen3.5", "gemma3") else "ones"  # of w - 1
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family == "gemma3":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    tensors = [(name + ".weight", (h,), norm) for name in norms]
    for name, n, k in linear_shapes(s, layer):
        tensors.append((name + ".weight", (n, k), "random"))
        if name[-6:] in ("q_proj", "k_proj", "v_proj") and family in ("qwen2", "gpt_oss") or name[-6:] == "o_proj" and family == "gpt_oss":
            tensors.append((name + ".bias", (n,), "random"))
    if is_delta(s, layer):
        channels = (2 * s["key_heads"] + s["value_heads"]) * s["head"]
        tensors += [("linear_attn.conv1d.weight", (channels, 1, 4), "random"), ("linear_attn.norm.weight", (s["head"],), "ones"),
                    ("linear_attn.A_log", (s["value_heads"],), "random"), ("linear_attn.dt_bias", (s["value_heads"],), "random")]
    elif family in ("qwen3.5", "gemma3", "qwen3_moe"):
        tensors += [(f"self_attn.{name}_norm.weight", (s["d"],), norm) for name in "qk"]
    if family == "qwen3_moe":
        tensors.append(("mlp.gate.weight", (s["experts"], h), "random"))
        for expert in range(s["experts"]):
            tensors += [(f"mlp.experts.{expert}.{name}_proj.weight", (s["expert_ff"], h), "random") for name in ("gate", "up")]
            tensors.append((f"mlp.experts.{expert}.down_proj.weight", (h, s["expert_ff"]), "random"))
    if family == "gpt_oss":
        e, i = s["experts"], s["expert_ff"]
        tensors += [("self_attn.sinks", (s["heads"],), "random"), ("mlp.router.weight", (e, h), "random"), ("mlp.router.bias", (e,), "random"),
                    ("mlp.experts.gate_up_proj_blocks", (e, 2 * i, h // 32, 16), "codes"), ("mlp.experts.gate_up_proj_scales", (e, 2 * i, h // 32), "scales"),
                    ("mlp.experts.gate_up_proj_bias", (e, 2 * i), "random"), ("mlp.experts.down_proj_blocks", (e, h, i // 32, 16), "codes"),
                    ("mlp.experts.down_proj_scales", (e, h, i // 32), "scales"), ("mlp.experts.down_proj_bias", (e, h), "random")]
    return [(prefix + name, shape, kind) for name, shape, kind in tensors]


def family_config(s):
    """What the family's config.json has beside what all have."""
    if s["family"] == "qwen3.5":
        return {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
                "linear_num_key_heads": s["key_heads"], "linear_num_value_heads": s["value_heads"], "linear_key_head_dim": s["head"],
                "linear_value_head_dim": s["head"], "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    if s["family"] == "gemma3":
        return {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 1024,
                "query_pre_attn_scalar": 256, "layer_types": [("full" if i % 6 == 5 else "sliding") + "_attention" for i in range(s["layers"])],
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
    if s["family"] == "qwen3_moe":
        return {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": s["experts"], "num_experts_per_tok": s["top"],
                "moe_intermediate_size": s["expert_ff"], "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "rope_theta": 1e6,
                "use_sliding_window": False}
    if s["family"] == "gpt_oss":
        return {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": s["experts"], "num_experts_per_tok": s["top"],
                "attention_bias": True, "sliding_window": 128, "swiglu_limit": 7.0, "rms_norm_eps": 1e-5,
                "layer_types": [("full" if i % 2 else "sliding") + "_attention" for i in range(s["layers"])],
                "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                    "original_max_position_embeddings": 4096, "rope_theta": 150000.0},
                "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
                    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1000000.0, "use_sliding_window": False}


def shape_named(name: str):
    """A row of SHAPES, with fewer layers where the name says how many; None: there is none."""
    name, _, layers = name.partition(":")
    if name not in SHAPES or layers and not layers.isdigit():
        return None
    return dict(SHAPES[name], layers=min(int(layers), SHAPES[name]["layers"])) if layers else SHAPES[name]


def make_model(out: pathlib.Path, shape: str, dtype: str) -> None:
    s = shape_named(shape)
    out.mkdir(parents=True, exist_ok=True)
    groups = [[("model.embed_tokens.weight", (s["vocab"], s["h"]), "random")]]
    groups += [layer_tensors(s, layer) for layer in range(s["layers"])]
    tail = [("model.norm.weight", (s["h"],), "zeros" if s["family"] in ("qwen3.5", "gemma3") else "ones")]
    if not s["tied"]:
        tail.append(("lm_head.weight", (s["vocab"], s["h"]), "random"))
    groups.append(tail)

    shards, size = [[]], 0
    for group in groups:
        group_bytes = sum(bytes_of(shape, kind, dtype) for _, shape, kind in group)
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
        for tensor, tensor_shape, kind in tensors:
            weight_map[tensor] = name
            total += bytes_of(tensor_shape, kind, dtype)
    in_parallel(write_safetensors, jobs)
    (out / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (out / "config.json").write_text(json.dumps({
        "vocab_size": s["vocab"], "hidden_size": s["h"],
        "intermediate_size": s["ff"], "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv"], "head_dim": s["d"], "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": s["tied"], "bos_token_id": None,
        "eos_token_id": 2, "torch_dtype": {"f16": "float16", "bf16": "bfloat16"}[dtype]} | family_config(s), indent=1))
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    demo = pathlib.Path(__file__).resolve().parent.parent / "deploy" / "demo-model" / "base"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(demo / name, out / name)


def make_adapters(prefix: str, shape: str, rank: int, n: int) -> None:
    block = random_block("f16", 100, 0.01)
    folders = [(pathlib.Path(f"{prefix}{i}"), i) for i in range(1, n + 1)]
    in_parallel(make_adapter, [(folder, shape, rank, i, block) for folder, i in folders if not (folder / "adapter_config.json").exists()])


def make_adapter(out: pathlib.Path, shape: str, rank: int, seed: int, block=None) -> None:
    s = shape_named(shape)
    block = random_block("f16", seed + 100, 0.01) if block is None else block
    out.mkdir(parents=True, exist_ok=True)
    tensors = []
    for layer in range(s["layers"]):
        for name, n, k in linear_shapes(s, layer):
            prefix = f"base_model.model.model.layers.{layer}.{name}."
            tensors += [(prefix + "lora_A.weight", (rank, k), "random"), (prefix + "lora_B.weight", (n, rank), "random")]
    write_safetensors(out / "adapter_model.safetensors", tensors, "f16", block, seed * 7919)
    (out / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "bias": "none", "use_rslora": False, "use_dora": False, "modules_to_save": None, "rank_pattern": {},
        "alpha_pattern": {}, "fan_in_fan_out": False, "init_lora_weights": True, "inference_mode": True,
        "target_modules": sorted({name.split(".")[1] for layer in range(s["layers"]) for name, _, _ in linear_shapes(s, layer)})}, indent=1))


def main() -> None:
    args = sys.argv[1:]
    if len(args) == 4 and args[0] == "model" and shape_named(args[2]) and args[3] in ("f16", "bf16"):
        make_model(pathlib.Path(args[1]), args[2], args[3])
    elif len(args) == 5 and args[0] == "adapter" and shape_named(args[2]):
        make_adapter(pathlib.Path(args[1]), args[2], int(args[3]), int(args[4]))
    elif len(args) == 5 and args[0] == "adapters" and shape_named(args[2]):
        make_adapters(args[1], args[2], int(args[3]), int(args[4]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
