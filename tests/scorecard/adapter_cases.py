"""Adapter files for T1 to T3: sound ones, mutants of them, bombs, and a reader of their own to compare with. Made for the base of
tests/faults/adapter_reader.cpp (hidden 8, q 8, k and v 4, ffn 16, 2 layers, vocabulary 16)."""

import json
import math
import pathlib
import re
import struct
import subprocess

HIDDEN, FFN, N_LAYERS = 8, 16, 2
MODULES = {"self_attn.q_proj": (8, 8), "self_attn.k_proj": (8, 4), "self_attn.v_proj": (8, 4), "self_attn.o_proj": (8, 8),
           "mlp.gate_proj": (8, 16), "mlp.up_proj": (8, 16), "mlp.down_proj": (16, 8)}  # k, n
BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
         "F8_E4M3": 1, "F8_E5M2": 1}
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
HEADER_MAX = 1 << 20
# What a refusal of adapter files may say: codes of proto/error.cpp, with their status.
REASONS = {"adapter_invalid": 422, "adapter_unsupported": 422}


def packed(values, dtype):
    if dtype == "F32":
        return struct.pack(f"<{len(values)}f", *values)
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    if dtype == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return bytes(len(values) * BYTES[dtype])


def tensor_name(layer, module, part):
    return f"base_model.model.model.layers.{layer}.{module}.lora_{part}.weight"


def sound_tensors(random, rank, modules, dtype="F32"):
    tensors = {}
    for layer in range(N_LAYERS):
        for module in modules:
            k, n = MODULES[module]
            for part, shape in (("A", [rank, k]), ("B", [n, rank])):
                values = [random.randrange(-64, 65) / 64 for _ in range(shape[0] * shape[1])]
                tensors[tensor_name(layer, module, part)] = (dtype, shape, packed(values, dtype))
    return tensors


def safetensors(tensors, metadata=None, order=None, pad=True, spread=""):
    """The bytes of a file; `order` of the header's entries, `spread` white space in it."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    if order:
        header = {name: header[name] for name in order}
    if metadata is not None:
        header = {"__metadata__": metadata, **header}
    text = json.dumps(header, separators=("," + spread, ":" + spread)).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def sound_adapter(random):
    rank = random.choice([1, 2, 4, 8])
    modules = random.sample(sorted(MODULES), random.randrange(1, len(MODULES) + 1))
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": random.choice([1, 4, 8, 16, 0.5]),
              "target_modules": sorted(m.split(".")[1] for m in modules), "base_model_name_or_path": "a/base", "bias": "none", "lora_dropout": 0.0,
              "use_rslora": random.random() < 0.2, "inference_mode": True, "task_type": "CAUSAL_LM"}
    tensors = sound_tensors(random, rank, modules, random.choice(["F32", "F16", "BF16"]))
    return config, tensors


# -------------------------------------------------------------------------------------------------------------- mutants

NUMBERS = ["0", "-1", "1", "2", "255", "256", "65535", "65536", str(2**31 - 1), str(2**31), str(2**32), str(2**53), str(2**63 - 1), str(2**63),
           str(2**64 - 1), str(2**64), "1e999", "-0", "1.5", "1e2", "NaN", "Infinity", "true", "null", '"4"', "[]", "{}", "[4]", "1" + "0" * 400]
TOKENS = ["{", "}", "[", "]", ":", ",", '"', "\\", "\\u0000", "\\ud800", "\x00", "\xff", "null", "true", '"dtype"', '"shape"', '"data_offsets"',
          '"__metadata__"', '"F32"', '"F99"', '"f32"', " ", "\n", "\ufeff"]


def mutated(random, data, n_first):
    """One to three changes in the first bytes: of a bit, a byte, a number, a token, a cut, a copy."""
    data = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        if not data:
            break
        at = random.randrange(min(len(data), n_first))
        kind = random.randrange(9)
        if kind == 0:
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[at] = random.randrange(256)
        elif kind == 2:
            del data[at:at + random.randrange(1, 9)]
        elif kind == 3:
            data[at:at] = random.choice(TOKENS).encode("latin-1", "replace")
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            begin = random.randrange(len(data))
            data[at:at] = data[begin:begin + random.randrange(60)]
        elif kind == 6:
            data += bytes(random.randrange(256) for _ in range(random.randrange(1, 20)))
        else:
            # A number of the header becomes another one, and the header's length is kept right half of the time.
            found = list(re.finditer(rb"-?\d+", bytes(data[8:n_first])))
            if found:
                match = random.choice(found)
                new = random.choice(NUMBERS).encode()
                length = int.from_bytes(data[:8], "little")
                data[8 + match.start():8 + match.end()] = new
                if kind == 7 and length < 1 << 30:
                    data[:8] = max(0, length + len(new) - (match.end() - match.start())).to_bytes(8, "little")
    return bytes(data)


def mutated_length(random, data):
    """Another length of the header."""
    length = int.from_bytes(data[:8], "little")
    new = random.choice([0, 1, length - 1, length + 1, len(data) - 8, len(data) - 7, len(data), 2**20, 2**20 + 1, 2**31, 2**32, 2**63 - 1, 2**63,
                         2**64 - 1, 2**64 - 8, random.randrange(2**64)])
    return (new % 2**64).to_bytes(8, "little") + data[8:]


def mutant(random):
    """The files of an adapter of which one is changed."""
    config, tensors = sound_adapter(random)
    text = json.dumps(config).encode()
    weights = safetensors(tensors, {"format": "pt"} if random.random() < 0.5 else None)
    n_header = 8 + int.from_bytes(weights[:8], "little")
    choice = random.random()
    if choice < 0.1:
        weights = mutated_length(random, weights)
    elif choice < 0.75:
        weights = mutated(random, weights, n_header if random.random() < 0.9 else len(weights))
    else:
        text = mutated(random, text, len(text))
    return {CONFIG: text, WEIGHTS: weights}


# ------------------------------------------------------------------------------------------- a reader to compare with

class Refused(Exception):
    pass


def _no_duplicates(pairs):
    if len(dict(pairs)) != len(pairs):
        raise Refused("a key twice")
    return dict(pairs)


def _no_constant(text):
    raise Refused(f"{text} is no JSON")


def _strict(text):
    return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def _size(value):
    if type(value) is not int or not 0 <= value < 2**64:
        raise Refused("no size")
    return value


def reference(data, header_max=HEADER_MAX):
    """Tensors of a safetensors file as the format's reference reader takes them (its README and safetensors/src/tensor.rs: a header within the file,
    ranges that tile the data without hole or overlap, sizes that agree), with duplicate keys refused; raises Refused."""
    if len(data) < 8:
        raise Refused("too short")
    n = int.from_bytes(data[:8], "little")
    if n > header_max or n > len(data) - 8:
        raise Refused("the header is too long")
    try:
        header = _strict(data[8:8 + n].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(str(error)) from error
    if type(header) is not dict:
        raise Refused("no object")
    tensors = []
    for name, entry in header.items():
        if name == "__metadata__":
            if type(entry) is not dict or any(type(v) is not str for v in entry.values()):
                raise Refused("metadata")
            continue
        if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise Refused("fields")
        if entry["dtype"] not in BYTES or type(entry["shape"]) is not list:
            raise Refused("dtype, shape")
        shape = [_size(v) for v in entry["shape"]]
        offsets = entry["data_offsets"]
        if type(offsets) is not list or len(offsets) != 2:
            raise Refused("offsets")
        begin, end = (_size(v) for v in offsets)
        n_bytes = BYTES[entry["dtype"]]
        # Stricter than the format's own reader: a zero among the sizes does not excuse an overflow by the others.
        for size in shape:
            n_bytes *= size or 1
            if n_bytes >= 2**64:
                raise Refused("overflow")
        n_bytes *= 0 not in shape
        if end - begin != n_bytes:
            raise Refused("size")
        tensors.append((begin, end, name, entry["dtype"], shape))
    at = 0
    for begin, end, *_ in sorted(tensors, key=lambda t: t[:2]):
        if begin != at:
            raise Refused("hole or overlap")
        at = end
    if at != len(data) - 8 - n:
        raise Refused("bytes behind the last tensor")
    return [{"name": name, "dtype": dtype, "shape": shape, "begin": 8 + n + begin, "bytes": end - begin}
            for begin, end, name, dtype, shape in sorted(tensors, key=lambda t: t[2].encode("utf-8", "surrogatepass"))]


def modules_of(files):
    """What an accepted adapter is: its modules with rank and scale, from the files alone; raises Refused where it should not have been accepted."""
    try:
        config = _strict(files[CONFIG].decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Refused(str(error)) from error
    if type(config) is not dict or config.get("peft_type") != "LORA":
        raise Refused("no LoRA")
    tensors = {t["name"]: t for t in reference(files[WEIGHTS])}
    modules, used = {}, set()
    for name, a in tensors.items():
        match = re.fullmatch(r"base_model\.model\.(model\.layers\.(\d+)\.(\S+))\.lora_A\.weight", name)
        if not match or match.group(3) not in MODULES or int(match.group(2)) >= N_LAYERS:
            continue
        other = name.replace(".lora_A.", ".lora_B.")
        rank = a["shape"][0]
        k, n = MODULES[match.group(3)]
        if a["shape"] != [rank, k] or tensors.get(other, {}).get("shape") != [n, rank]:
            raise Refused(f"{name}: shapes")
        alpha = config.get("lora_alpha", 8)
        if rank == 0 or type(alpha) not in (int, float):
            raise Refused(f"{name}: rank {rank}, lora_alpha {alpha!r}")
        modules[match.group(1)] = (rank, alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)
        used |= {name, other}
    if set(tensors) != used:
        raise Refused(f"tensors without a module: {sorted(set(tensors) - used)[:3]}")
    if not modules:
        raise Refused("no modules")
    return modules


# ------------------------------------------------------------------------------------------------- the reader under test

def _piped(cases):
    for files in cases:
        yield struct.pack("<I", len(files)) + b"".join(struct.pack("<I", len(name.encode())) + name.encode() + struct.pack("<Q", len(data)) + data
                                                       for name, data in files.items())


def read_all(program, cases, *flags, seconds=600):
    """What the program says about each case, in order. Fails where it crashes or a sanitizer speaks."""
    cases = list(cases)
    run = subprocess.run([str(program), *flags], input=b"".join(_piped(cases)), capture_output=True, timeout=seconds, check=False)
    lines = run.stdout.splitlines()
    if run.returncode != 0 or len(lines) != len(cases):
        where = pathlib.Path("/tmp/adapter_reader_case.bin")
        where.write_bytes(b"".join(_piped(cases[len(lines):len(lines) + 1])))
        raise AssertionError(f"{pathlib.Path(program).name} ended with {run.returncode} in case {len(lines)} of {len(cases)} (kept as {where}): "
                             f"{run.stderr.decode(errors='replace')[:1500]}")
    return [json.loads(line) for line in lines]


def check_refusal(answer, files):
    """A code of the closed list, with its status, and a message of one line of UTF-8 without paths or pointers."""
    code, message = answer["code"], answer["message"]
    assert REASONS.get(code) == answer["status"], f"{code} {answer['status']}: {message} of {short(files)}"
    assert message and len(message) <= 8010 and not re.search(r"[\x00-\x1f\x7f]|0x[0-9a-f]{8,}|/home/|/tmp/|std::", message), f"{message!r} of {short(files)}"


def short(files):
    return {name: data[:300] for name, data in files.items()}
