#!/usr/bin/env python3
"""Write GGUF files of other families with random weights in real shapes, which both llama.cpp and lorad read.

usage: family_gguf.py OUT.gguf {gemma3-4b|qwen3-30b-a3b}[:LAYERS] {f16|bf16}     the shapes of bench/make_model.py
The weights and the vocabulary are make_gguf.py's. Norms and routers are f32, as llama.cpp's own converter has them.
Needs python3 and numpy.
"""
import pathlib
import sys

from make_gguf import kv, write

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from make_model import SHAPES  # noqa: E402

F32 = 0
TYPES = {"f16": 1, "bf16": 30}


def vocabulary(size):
    """Byte-level tokens, made-up ones, and an end of text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    tokens = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    tokens += [f"tok{i}" for i in range(size - 258)] + ["<|endoftext|>", "<|pad|>"]
    return [kv("tokenizer.ggml.model", 8, "gpt2"), kv("tokenizer.ggml.pre", 8, "qwen2"), kv("tokenizer.ggml.tokens", 9, (8, tokens)),
            kv("tokenizer.ggml.token_type", 9, (5, [1] * (size - 2) + [3, 3])), kv("tokenizer.ggml.merges", 9, (8, ["t o", "to k"])),
            kv("tokenizer.ggml.eos_token_id", 4, size - 2), kv("tokenizer.ggml.add_bos_token", 7, False)]


def metadata(arch, s, layers, dtype):
    numbers = {"block_count": layers, "context_length": 32768, "embedding_length": s["h"], "feed_forward_length": s["ff"],
               "attention.head_count": s["heads"], "attention.head_count_kv": s["kv"], "attention.key_length": s["d"],
               "attention.value_length": s["d"]}
    if arch == "gemma3":
        numbers["attention.sliding_window"] = 1024
    if arch == "qwen3moe":
        numbers |= {"expert_count": s["experts"], "expert_used_count": s["top"], "expert_feed_forward_length": s["expert_ff"]}
    return [kv("general.architecture", 8, arch), kv("general.name", 8, arch), kv("general.file_type", 4, 1 if dtype == 1 else 32),
            *(kv(f"{arch}.{name}", 4, value) for name, value in numbers.items()),
            kv(f"{arch}.attention.layer_norm_rms_epsilon", 6, 1e-6), kv(f"{arch}.rope.freq_base", 6, 1e6), *vocabulary(s["vocab"])]


def tensors(arch, s, layers, dtype):
    h, q, k, d = s["h"], s["heads"] * s["d"], s["kv"] * s["d"], s["d"]
    yield "token_embd.weight", (h, s["vocab"]), dtype
    yield "output_norm.weight", (h,), F32
    if not s["tied"]:
        yield "output.weight", (h, s["vocab"]), dtype
    for layer in range(layers):
        matrices = {"attn_q": (h, q), "attn_k": (h, k), "attn_v": (h, k), "attn_output": (q, h)}
        norms = {"attn_norm": h, "attn_q_norm": d, "attn_k_norm": d, "ffn_norm": h}
        if arch == "gemma3":
            matrices |= {"ffn_gate": (h, s["ff"]), "ffn_up": (h, s["ff"]), "ffn_down": (s["ff"], h)}
            norms |= {"post_attention_norm": h, "post_ffw_norm": h}
        else:
            n, ff = s["experts"], s["expert_ff"]
            matrices |= {"ffn_gate_exps": (h, ff, n), "ffn_up_exps": (h, ff, n), "ffn_down_exps": (ff, h, n)}
            yield f"blk.{layer}.ffn_gate_inp.weight", (h, n), F32
        for name, size in norms.items():
            yield f"blk.{layer}.{name}.weight", (size,), F32
        for name, dims in matrices.items():
            yield f"blk.{layer}.{name}.weight", dims, dtype


def main():
    if len(sys.argv) != 4 or sys.argv[3] not in TYPES:
        raise SystemExit(__doc__)
    out, name, dtype = sys.argv[1], sys.argv[2], TYPES[sys.argv[3]]
    name, _, layers = name.partition(":")
    arch = {"gemma3-4b": "gemma3", "qwen3-30b-a3b": "qwen3moe"}[name]
    shape = SHAPES[name]
    n_layers = int(layers or shape["layers"])
    write(out, metadata(arch, shape, n_layers, dtype), list(tensors(arch, shape, n_layers, dtype)), dtype)


if __name__ == "__main__":
    main()
