#!/usr/bin/env python3
"""T3: no file is accepted that other readers of the format refuse, and whatever does not fit the base is refused with the tensor, what was expected and what found."""
# beside others: yes

import json
import math
import pathlib
import random
import struct
import subprocess
import sys

from frame import ROOT, check, check_equal, main

import adapter_cases as cases

REFERENCE = ROOT / "build/safetensors-reference"  # the format's own package, in an environment of its own
N_FILES, N_SEMANTIC = 5000, 500


# ------------------------------------------------------------------------------------------------- files of the format

def generated(source):
    """A header with tensors of all types and shapes; half of them are then bent in one way."""
    tensors = []
    at = 0
    for i in range(source.randrange(0, 7)):
        dtype = source.choice(sorted(cases.BYTES))
        shape = [source.choice([0, 1, 1, 2, 3, 5]) for _ in range(source.randrange(0, 4))]
        n = math.prod(shape) * cases.BYTES[dtype]
        name = source.choice(["w", "a.b", "x", "\u00e9", "\U0001f600", "", " ", "\\", '"', "a\n"]) + str(i)
        tensors.append([name, {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}])
        at += n
    data = bytes(source.randrange(256) for _ in range(at))
    if source.random() < 0.3:
        source.shuffle(tensors)
    metadata = source.choice([None, None, {}, {"format": "pt"}, {"a": "b" * 50}, {"n": 1}, {"x": None}, [], "text", {"x": {"y": "z"}}])
    text = None
    if source.random() < 0.5 and tensors:
        name, entry = source.choice(tensors)
        begin, end = entry["data_offsets"]
        bend = source.randrange(22)
        big = source.choice([2**31, 2**32, 2**53 + 1, 2**63, 2**64 - 1, 2**64])
        if bend == 0:
            entry["data_offsets"] = [begin + 1, end + 1]
        elif bend == 1:
            entry["data_offsets"] = [end, begin]
        elif bend == 2:
            entry["data_offsets"] = [begin, end + source.choice([-1, 1, 4])]
        elif bend == 3:
            entry["data_offsets"] = [begin]
        elif bend == 4:
            entry["data_offsets"] = [begin, end, end]
        elif bend == 5:
            entry["shape"] = entry["shape"] + [source.choice([0, 1, 2, -1, big])]
        elif bend == 6:
            entry["shape"] = [big, big] + entry["shape"]
        elif bend == 7:
            entry["dtype"] = source.choice(["f32", "F8", "", "FLOAT", "C64", 7, None, "F4", "F8_E8M0"])
        elif bend == 8:
            del entry[source.choice(sorted(entry))]
        elif bend == 9:
            entry["extra"] = 1
        elif bend == 10:
            entry["shape"] = source.choice([None, {}, "2", 2, [2.0], [True], ["2"], [[2]], [1e2]])
        elif bend == 11:
            entry["data_offsets"] = source.choice([None, {}, [None, None], [0.0, 4.0], ["0", "4"], [False, True], [begin, big], [-1, end]])
        elif bend == 12:
            data += b"x" * source.randrange(1, 9)
        elif bend == 13:
            data = data[:-1]
        elif bend == 14:
            tensors.append([name + "2", dict(entry)])  # the same bytes twice
        elif bend == 15:
            tensors[source.randrange(len(tensors))][1]["data_offsets"] = [begin, end]
        elif bend == 16:
            tensors.append([name, entry])  # written twice
            text = "{" + ",".join(f"{json.dumps(n)}:{json.dumps(e)}" for n, e in tensors) + "}"
        elif bend == 17:
            text = json.dumps({n: e for n, e in tensors})[:-1] + source.choice([",}", "]", "", "} x", "}}", "}\x00", "}\n\n"])
        elif bend == 18:
            text = source.choice([" ", "\n", "\t", "\ufeff", "\x00", "//c\n", ""]) + json.dumps({n: e for n, e in tensors})
        elif bend == 19:
            text = source.choice(["null", "[]", "7", '"x"', "{}", "", "{", "true", "{'a':1}"])
        elif bend == 20:
            text = json.dumps({n: e for n, e in tensors}).replace("0", source.choice(["00", "0.0", "0e0", "-0", "+0", "0x0", "NaN"]), 1)
        else:
            text = json.dumps({n: [e] for n, e in tensors})
    if text is None:
        header = {n: e for n, e in tensors}
        if metadata is not None:
            header = {"__metadata__": metadata, **header} if source.random() < 0.8 else {**header, "__metadata__": metadata}
        text = json.dumps(header, ensure_ascii=source.random() < 0.5, indent=source.choice([None, None, None, 1]))
    raw = text.encode("utf-8", "surrogatepass")
    raw += b" " * source.choice([0, -len(raw) % 8, 1, 100])
    length = len(raw)
    if source.random() < 0.03:
        length += source.choice([-1, 1, 7, 1000])
    return struct.pack("<Q", max(0, length)) + raw + data


THEIRS = """
import json, struct, sys
from safetensors import deserialize
data = sys.stdin.buffer.read()
at = 0
while at < len(data):
    n = struct.unpack_from("<Q", data, at)[0]
    try:
        found = [[name, entry["dtype"], list(entry["shape"]), len(entry["data"])] for name, entry in deserialize(data[at + 8:at + 8 + n])]
        print(json.dumps(sorted(found)))
    except Exception:
        print("null")
    at += 8 + n
"""


def theirs(files):
    """What the format's own package finds in each file; None where it refuses."""
    run = subprocess.run([REFERENCE / "bin/python", "-c", THEIRS], input=b"".join(struct.pack("<Q", len(f)) + f for f in files), capture_output=True,
                         timeout=600, check=False)
    check_equal(run.returncode, 0, run.stderr.decode()[-500:])
    return [json.loads(line) for line in run.stdout.splitlines()]


def installed():
    if not (REFERENCE / "done").exists():
        for command in ([sys.executable, "-m", "venv", REFERENCE], [REFERENCE / "bin/pip", "install", "-q", "safetensors>=0.5,<1"]):
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                return False
        (REFERENCE / "done").touch()
    return True


# ------------------------------------------------------------------------------------------------------ what does not fit

UNNAMED = "a name ending in .lora_A.weight or .lora_B.weight, or another that PEFT writes"
LEFT_OUT = ("a module that target_modules and layers_to_transform name", "one that they leave out")
NOWHERE = ("a linear layer under model.layers.N, the embedding, the output layer or a norm", "a module the base does not have there")


def semantic_cases(source):
    """(files, code, the first thing that is refused: (tensor, expected, found), or a text of the message)"""
    out = []

    def add(config, tensors, code, reason):
        out.append(({cases.CONFIG: json.dumps(config).encode(), cases.WEIGHTS: cases.safetensors(tensors)}, code, reason))

    def fresh():
        modules = sorted(source.sample(sorted(cases.MODULES), 3))
        rank = source.choice([2, 4])
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": [m.split(".")[1] for m in modules]}
        return modules, rank, config, cases.sound_tensors(source, rank, modules)

    while len(out) < N_SEMANTIC:
        modules, rank, config, tensors = fresh()
        layer, module, part = source.randrange(2), source.choice(modules), source.choice("AB")
        name = cases.tensor_name(layer, module, part)
        k, n = cases.MODULES[module]
        shape = [rank, k] if part == "A" else [n, rank]
        kind = len(out) % 16
        if kind == 0:  # a shape
            bent = source.choice([[shape[0] + 1, shape[1]], [shape[0], shape[1] + 1], [shape[0], shape[1] - 1], shape[:1], shape + [1], [0, shape[1]], shape[::-1]])
            if bent == shape:
                continue
            tensors[name] = ("F32", bent, bytes(4 * math.prod(bent)))
            add(config, tensors, "adapter_invalid", (name, str(shape), str(bent)))
        elif kind == 1:  # a type
            dtype = source.choice(["F64", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "U64"])
            tensors[name] = (dtype, shape, bytes(math.prod(shape) * cases.BYTES[dtype]))
            add(config, tensors, "adapter_invalid", (name, "type F32, F16 or BF16", dtype))
        elif kind == 2:  # half of a pair
            del tensors[name]
            add(config, tensors, "adapter_invalid", (name, str(shape), "none"))
        elif kind == 3:  # a pair that the config names
            for which in "AB":
                del tensors[cases.tensor_name(layer, module, which)]
            add(config, tensors, "adapter_invalid", (cases.tensor_name(layer, module, "A"), "a tensor, as target_modules names the module", "none"))
        elif kind == 4:  # a config for another base: it names nothing of this one
            config["target_modules"] = source.choice([["c_attn"], ["query_key_value", "dense"], ".*no_such", ["proj"]])
            # In the order in which the base's modules are looked at.
            order = [m for m in cases.MODULES if m not in ("self_attn.o_proj", "mlp.down_proj")] + ["self_attn.o_proj", "mlp.down_proj"]
            first = min(modules, key=order.index)
            add(config, tensors, "adapter_invalid", (cases.tensor_name(0, first, "A"), *LEFT_OUT))
        elif kind == 5:  # a layer that the base does not have
            far = source.choice([2, 3, 99, 2**31, 2**32, 2**32 + 1, 2**64])
            tensors[cases.tensor_name(far, module, part)] = tensors[name]
            add(config, tensors, "adapter_invalid", (cases.tensor_name(far, module, part), "layers 0 to 1", f"layer {far}"))
        elif kind == 6:  # a module that it does not have
            wrong = source.choice(["self_attn.z_proj", "mlp.q_proj", "self_attn.qproj", "block_sparse_moe.gate", "mlp.experts.0.w1"])
            tensors[cases.tensor_name(layer, wrong, part)] = tensors[name]
            add(config, tensors, "adapter_invalid", (cases.tensor_name(layer, wrong, part), "a linear layer of LlamaForCausalLM",
                                                     f"{wrong}, which the base does not have"))
        elif kind == 7:  # another tree of names; a layer written otherwise
            wrong = name.replace(*source.choice([("model.layers", "mudel.layers"), ("model.layers", "transformer.h"), ("layers.", "layers.0"), ("layers.", "layers.-"),
                                                 ("layers.", "layers.+"), ("layers.", "layers. ")]))
            tensors[wrong] = tensors.pop(name)
            out.append(({cases.CONFIG: json.dumps(config).encode(), cases.WEIGHTS: cases.safetensors(tensors)}, "adapter_invalid", [(wrong, *NOWHERE)]))
        elif kind == 8:  # no name of LoRA at all
            wrong = source.choice(["x", "", "lora", name + ".x", name.upper(), "a\u0000b", "\u00e9", "w" * 5000])
            tensors[wrong] = ("F32", [1], bytes(4))
            out.append(({cases.CONFIG: json.dumps(config).encode(), cases.WEIGHTS: cases.safetensors(tensors)}, "adapter_invalid", [(None, UNNAMED, "another name")]))
        elif kind == 9:  # a rank that is not the config's
            other = rank + source.choice([-1, 1, 4])
            for which, bent in (("A", [other, k]), ("B", [n, other])):
                tensors[cases.tensor_name(layer, module, which)] = ("F32", bent, bytes(4 * math.prod(bent)))
            add(config, tensors, "adapter_invalid", (cases.tensor_name(layer, module, "A"), str([rank, k]), str([other, k])))
        elif kind in (10, 11):  # numbers
            row, column = source.randrange(shape[0]), source.randrange(shape[1])
            dtype = source.choice(["F32", "BF16", "F16"])
            bad = source.choice([math.nan, math.inf, -math.inf] + ([1e38, -1e38] if dtype != "F16" else []))
            values = [0.5] * math.prod(shape)
            values[row * shape[1] + column] = bad
            tensors[name] = (dtype, shape, cases.packed(values, dtype))
            finite = math.isfinite(bad)
            out.append(({cases.CONFIG: json.dumps(config).encode(), cases.WEIGHTS: cases.safetensors(tensors)}, "adapter_invalid",
                        [(name, "numbers up to 1.04858e+06" if finite else "finite numbers", None if finite else f"infinity or NaN at [{row}, {column}]")]))
        elif kind == 12:  # a fully trained layer, another method
            wrong, what = source.choice([(f"base_model.model.model.layers.{layer}.{module}.weight", "a fully trained linear layer, which is not supported"),
                                         (f"base_model.model.model.layers.{layer}.{module}.base_layer.weight", "a fully trained linear layer, which is not supported")])
            tensors[wrong] = ("F32", [1], bytes(4))
            add(config, tensors, "adapter_unsupported", (wrong, "LoRA, or a fully trained embedding, output layer or norm", what))
        elif kind == 13:  # magnitudes and biases that the config asks for
            key, suffix = source.choice([("use_dora", ".lora_magnitude_vector"), ("lora_bias", ".lora_B.bias")])
            config[key] = True
            first = min(modules, key=list(cases.MODULES).index)
            width = cases.MODULES[first][1]
            add(config, tensors, "adapter_invalid", (f"base_model.model.model.layers.0.{first}{suffix}", f"[{width}]", "none"))
        else:  # a field of the config
            field, value, code, text = source.choice(CONFIG_FIELDS)
            config[field] = value
            add(config, tensors, code, text)
    return out


CONFIG_FIELDS = [
    ("r", 0, "adapter_invalid", "r: expected a rank of 1 to 512, found 0"),
    ("r", -1, "adapter_invalid", "r: expected a rank of 1 to 512, found -1"),
    ("r", 513, "adapter_unsupported", "r: rank 513; at most 512 is supported"),
    ("r", 2**31, "adapter_unsupported", "r: rank 2147483648; at most 512 is supported"),
    ("r", 2**63, "adapter_invalid", "r: expected integer from"),
    ("r", "4", "adapter_invalid", 'r: expected integer, found string "4"'),
    ("r", 4.5, "adapter_invalid", "r: expected integer, found number 4.5"),
    ("r", True, "adapter_invalid", "r: expected integer, found true"),
    ("r", [4], "adapter_invalid", "r: expected integer, found array of 1"),
    ("lora_alpha", "8", "adapter_invalid", 'lora_alpha: expected number, found string "8"'),
    ("lora_alpha", True, "adapter_invalid", "lora_alpha: expected number, found true"),
    ("lora_alpha", 1e30, "adapter_invalid", "lora_alpha: expected at most"),
    ("lora_alpha", 1e300, "adapter_invalid", "lora_alpha: expected a number within float32"),
    ("lora_alpha", None, "adapter_invalid", "lora_alpha: required, but missing"),
    ("peft_type", "LOHA", "adapter_unsupported", "LoHa"),
    ("peft_type", "PROMPT_TUNING", "adapter_unsupported", "peft_type"),
    ("peft_type", None, "adapter_invalid", "peft_type: required, but missing"),
    ("peft_type", 7, "adapter_invalid", "peft_type: expected string, found number 7"),
    ("use_rslora", 1, "adapter_invalid", "use_rslora: expected true or false, found number 1"),
    ("use_dora", "yes", "adapter_invalid", 'use_dora: expected true or false, found string "yes"'),
    ("bias", "x", "adapter_invalid", 'bias: expected none, all or lora_only, found "x"'),
    ("target_modules", 7, "adapter_invalid", "target_modules: expected string or array of strings, found number 7"),
    ("target_modules", [7], "adapter_invalid", "target_modules[0]: expected string, found number 7"),
    ("target_modules", "(", "adapter_invalid", "target_modules: not a regular expression"),
    ("layers_to_transform", ["a"], "adapter_invalid", 'layers_to_transform[0]: expected integer, found string "a"'),
    ("rank_pattern", [1], "adapter_invalid", "rank_pattern: expected object, found array of 1"),
    ("rank_pattern", {"q_proj": "2"}, "adapter_invalid", 'rank_pattern.q_proj: expected integer, found string "2"'),
    ("alpha_pattern", {"q_proj": "x"}, "adapter_invalid", 'alpha_pattern.q_proj: expected number, found string "x"'),
    ("modules_to_save", 7, "adapter_invalid", "modules_to_save: expected array, found number 7"),
    ("modules_to_save", ["zzz"], "adapter_invalid", "modules_to_save: zzz: expected the embedding, the output layer or norms, found a module that the base does not have"),
    ("modules_to_save", ["lm_head"], "adapter_invalid", "base_model.model.lm_head.weight: expected a tensor, as modules_to_save names the module, found none"),
    ("layer_replication", [[0, 1]], "adapter_unsupported", "not supported: layer_replication"),
    ("new_thing", 1, "adapter_unsupported", "not supported: new_thing"),
    ("init_lora_weights", "pissa", "adapter_unsupported", "init_lora_weights"),
    ("trainable_token_indices", [99], "adapter_invalid", "trainable_token_indices: expected tokens 0 to 15, found 99"),
    ("alora_invocation_tokens", [1, 99], "adapter_invalid", "alora_invocation_tokens: expected tokens 0 to 15, found 99"),
]


def is_exact(answer, reason):
    if isinstance(reason, str):
        return reason in answer["message"]
    refused = [(m["tensor"], m["expected"], m["found"]) for m in answer["report"]["refused"]]
    if isinstance(reason, tuple):
        return bool(refused) and refused[0] == reason
    return any(all(want is None or want == got for want, got in zip(reason[0], found)) for found in refused)


def run(card):
    source = random.Random(card.seed)
    program = card.build / "tests/adapter_reader"
    files = [generated(source) for _ in range(N_FILES)]
    n_accepted = n_more = 0
    with card.part(f"{N_FILES} files of the format, against a reader of another make"):
        for data, answer in zip(files, cases.read_all(program, [{"header": data} for data in files])):
            try:
                expected = cases.reference(data)
            except cases.Refused:
                expected = None
            if "code" in answer:
                cases.check_refusal(answer, {"header": data})
                n_more += expected is not None
            else:
                n_accepted += 1
                check_equal(answer["tensors"], expected, f"tensors of {data[:300]}")
        check(n_accepted > N_FILES // 5 and n_more == 0, f"{n_accepted} accepted; {n_more} refused that the format allows")
    wants_theirs = not card.quick or (REFERENCE / "done").exists()
    if wants_theirs and installed():
        with card.part("against the format's own package"):
            n_stricter = 0
            for data, answer, found in zip(files, cases.read_all(program, [{"header": data} for data in files]), theirs(files)):
                if "code" in answer:
                    n_stricter += found is not None
                    continue
                ours = sorted([t["name"], t["dtype"], t["shape"], t["bytes"]] for t in answer["tensors"])
                check_equal(ours, found, f"the format's own package, for {data[:300]}")
            card.figure("accepted by the package, refused here", n_stricter)
    else:
        card.short_of("the format's own package: tests/scorecard.sh --tier nightly --only T3 installs it")
    matrix = semantic_cases(source)
    with card.part(f"{len(matrix)} cases that do not fit, each with its reason"):
        missed = []
        for (adapter, code, reason), answer in zip(matrix, cases.read_all(program, [adapter for adapter, _, _ in matrix])):
            check("code" in answer, f"accepted: {reason} {cases.short(adapter)}")
            cases.check_refusal(answer, adapter)
            if answer["code"] != code or not is_exact(answer, reason):
                missed.append(f"{code} {reason}: {answer['code']} {answer['message'][:300]}")
        check(not missed, f"{len(missed)} of {len(matrix)}: {missed[:5]}")
    adapters = [cases.sound_adapter(source) for _ in range(300)]
    with card.part("sound adapters are taken, each tensor by its module"):
        piped = [{cases.CONFIG: json.dumps(config).encode(), cases.WEIGHTS: cases.safetensors(tensors)} for config, tensors in adapters]
        for adapter, answer in zip(piped, cases.read_all(program, piped)):
            check("code" not in answer, answer.get("message"))
            expected = cases.modules_of(adapter)
            check_equal({m["name"] for m in answer["report"]["modules"]}, set(expected), "modules")
    card.figure("accepted and equal", n_accepted)
    card.figure("accepted that the reference refuses", 0)
    card.figure("refused with the exact reason", f"{len(matrix)} of {len(matrix)}")
    card.trials += len(files) + len(matrix)


if __name__ == "__main__":
    main("T3", run)
