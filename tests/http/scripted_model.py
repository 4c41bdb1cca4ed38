"""A Llama model of 512 tokens that says what it is told, token by token: answers with chosen borders of tokens, no grammar needed.

A chat whose last message is "[s:NAME]" is answered with the pieces of that script, each one token, then the end.
"""

import json
import pathlib

import numpy
from safetensors.numpy import save_file

SIZE = 512


def byte_letters():
    """How a byte-level tokenizer spells bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, more = {byte: chr(byte) for byte in plain}, 0
    for byte in range(256):
        if byte not in letters:
            letters[byte], more = chr(256 + more), more + 1
    return letters


def distinct(pieces, used):
    """The pieces, where one that is used already is joined with a neighbour."""
    at = 0
    while at < len(pieces):
        if pieces[at] not in used and pieces[at] not in pieces[:at]:
            at += 1
        elif at + 1 < len(pieces):
            pieces[at] += pieces.pop(at + 1)
        else:
            assert at > 0, f"two scripts are {pieces}"
            pieces[at - 1] += pieces.pop(at)
            at -= 1
    return pieces


def tokens_of(scripts):
    """Spellings, which of them are special, and which token follows which."""
    letters, tokens, follows, used = byte_letters(), [("<eos>", True)], {}, set()
    for name, chunks in scripts.items():
        last = len(tokens)
        tokens.append((f"[s:{name}]", True))
        for piece in distinct([chunk.encode() for chunk in chunks], used):
            used.add(piece)
            follows[last] = last = len(tokens)
            tokens.append(("".join(letters[byte] for byte in piece), False))
        follows[last] = 0
    assert len(tokens) <= SIZE, f"{len(tokens)} tokens"
    return tokens + [(f"Z{i}Z", False) for i in range(len(tokens), SIZE)], follows


def build(folder, scripts):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pieces, follows = tokens_of(scripts)

    def write(file, value):
        (folder / file).write_text(json.dumps(value, ensure_ascii=False))

    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, (text, special) in enumerate(pieces) if special]
    write("tokenizer.json", {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level,
                             "post_processor": None, "decoder": level, "added_tokens": added,
                             "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": [[text, -1.0] for text, _ in pieces]}})
    write("tokenizer_config.json", {"eos_token": "<eos>", "chat_template": "{{ messages[-1].content }}"})
    write("generation_config.json", {"eos_token_id": 0})
    write("config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": SIZE, "intermediate_size": 16,
                          "num_hidden_layers": 1, "num_attention_heads": SIZE // 64, "num_key_value_heads": 1, "head_dim": 64,
                          "vocab_size": SIZE, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048,
                          "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 0, "torch_dtype": "float32"})
    # Each token is a direction of its own; the head alone says which follows.
    head = numpy.zeros((SIZE, SIZE), numpy.float32)
    for token, following in follows.items():
        head[following, token] = 1
    layer, ones = "model.layers.0.", numpy.ones(SIZE, numpy.float32)
    shapes = {"self_attn.q_proj": (SIZE, SIZE), "self_attn.k_proj": (64, SIZE), "self_attn.v_proj": (64, SIZE), "self_attn.o_proj": (SIZE, SIZE),
              "mlp.gate_proj": (16, SIZE), "mlp.up_proj": (16, SIZE), "mlp.down_proj": (SIZE, 16)}
    save_file({"model.embed_tokens.weight": numpy.eye(SIZE, dtype=numpy.float32), "lm_head.weight": head, "model.norm.weight": ones,
               layer + "input_layernorm.weight": ones.copy(), layer + "post_attention_layernorm.weight": ones.copy(),
               **{f"{layer}{name}.weight": numpy.zeros(shape, numpy.float32) for name, shape in shapes.items()}},
              folder / "model.safetensors")
