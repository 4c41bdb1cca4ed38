#!/usr/bin/env python3
"""What works on which model family: the program serves the golden model of each family, every feature is asked of it, and answers or is refused by name. The table of
docs/MODELS.md is what comes out; without --write it has to be there as it is.

    tests/e2e/family_features.py --lorad build/dev/lorad [--write] [--few] [--only gpt-oss]

With --few the families that differ most are asked, and have to be in the table as they are: what the suite runs, the slow set asks all.
Standard library only. The golden models have random weights and no tokenizer: they get one of single bytes.
"""

import argparse
import json
import math
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

from harness import ROOT, Server, check, check_equal

GOLDENS = ROOT / "tests/goldens"
PAGE = ROOT / "docs/MODELS.md"
BEGIN, END = "<!-- made by tests/e2e/family_features.py --write -->", "<!-- end of what is made -->"
FAMILIES = [
    ("Llama", "llama-scaled"), ("Llama with biases", "llama-biased"), ("Mistral", "mistral-window"), ("Qwen2", "qwen2-tied"), ("Qwen3", "qwen3"), ("Phi-3", "phi3-sharded"),
    ("Phi-4-mini", "phi4-mini"), ("Gemma 3", "gemma3-nested"), ("Gemma 4", "gemma4-dense"), ("Gemma 4 E2B", "gemma4-e2b"), ("Gemma 4 with experts", "gemma4-moe"),
    ("SmolLM3", "smollm3"), ("OLMo 2", "olmo2"), ("OLMo 3", "olmo3"), ("Granite", "granite"), ("Granite 4", "granite-hybrid"), ("Ministral 3", "ministral3-nested"),
    ("Qwen3.5", "qwen35"), ("Qwen3.5 MoE", "qwen35-moe"), ("Qwen3-Next", "qwen3-next"), ("LFM2", "lfm2"), ("gpt-oss", "gpt-oss"),
]
# Plain layers; layers with inputs of their own and shared keys; delta nets, gates and experts; Mamba.
FEW = {"qwen2-tied", "gemma4-e2b", "qwen35-moe", "granite-hybrid"}
PROMPT = "Once upon a time there was a daemon that served many adapters over one base, and all of them shared its steps."


class Refused(Exception):
    """The program says by name that it does not do this."""


class NothingToAsk(Exception):
    """The family has no such thing."""


def found_in_goldens(kind, model):
    for folder in (GOLDENS / kind / model, GOLDENS / "families" / kind / model):
        if folder.is_dir():
            return folder
    raise AssertionError(f"{model}: no golden {kind}")


def write_tokenizer(folder, config):
    """One token for each byte, from id 16 on; the ends of texts keep their ids, and nothing stands at the others."""
    text = config.get("text_config", config)
    n = text["vocab_size"]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    character = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    ends = config.get("eos_token_id", text.get("eos_token_id"))
    specials = {i: f"<end-{i}>" for i in (ends if isinstance(ends, list) else [ends]) if i is not None}
    words = {i: f"<none-{i}>" for i in range(n)} | {16 + b: c for b, c in character.items()} | specials
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, word in sorted(specials.items())],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "vocab": {word: i for i, word in words.items()}, "merges": []}}))
    end = specials[min(specials)]
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}" + end + "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": end}))


def read_tensors(file):
    data = file.read_bytes()
    n, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + n + entry["data_offsets"][0]:8 + n + entry["data_offsets"][1]]) for name, entry in header.items()}


def write_tensors(file, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


class Family:
    def __init__(self, model, scratch):
        self.model, self.scratch = model, scratch
        self.folder = scratch / "model"
        shutil.copytree(found_in_goldens("models", model), self.folder)
        config = json.loads((self.folder / "config.json").read_text())
        write_tokenizer(self.folder, config)
        adapters = found_in_goldens("adapters", model)
        plain = [name for name in ("qv", "plain-r8-qv", "plain-r8", "plain-r4", "qkv", "attention", "delta") if (adapters / name).is_dir()]
        self.plain, dora = adapters / plain[0], adapters / "dora"
        self.dora = dora if dora.is_dir() else self.variant("dora", use_dora=True)
        self.experts = adapters / "experts"
        self.alora = self.variant("alora", alora_invocation_tokens=[16 + ord("X")])

    def variant(self, name, **keys):
        """The plain adapter with other keys in its config; for DoRA with magnitudes of one."""
        folder = self.scratch / name
        shutil.copytree(self.plain, folder)
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | keys))
        if keys.get("use_dora"):
            tensors = read_tensors(folder / "adapter_model.safetensors")
            for tensor, (_, shape, _) in list(tensors.items()):
                if tensor.endswith("lora_B.weight"):
                    tensors[tensor.replace("lora_B.weight", "lora_magnitude_vector")] = ("F32", [shape[0]], struct.pack("<f", 1.0) * shape[0])
            write_tensors(folder / "adapter_model.safetensors", tensors)
        return folder


def ask(server, path, **body):
    """The answer; an error of the client's with a name is a refusal."""
    status, answer = server.post(path, **body)
    if status in (400, 409, 422, 501):
        raise Refused(answer["error"]["message"])
    check_equal(status, 200, f"{path}: {answer}")
    return answer


def complete(server, model="base", prompt=PROMPT, **more):
    answer = ask(server, "/v1/completions", model=model, prompt=prompt, temperature=0, max_tokens=4, ignore_eos=True, return_token_ids=True, **more)
    check_equal(len(answer["choices"][0]["token_ids"]), 4, "tokens")
    return answer


def answers_of(server, model, **more):
    return complete(server, model, **more)["choices"][0]["token_ids"]


def check_changes(server, model, prompt=PROMPT):
    """The adapter's numbers are not the base's; that they are right is what FamilyModel and GoldenAdapter compare."""
    numbers = [complete(server, name, prompt, logprobs=1)["choices"][0]["logprobs"]["token_logprobs"] for name in (model, "base")]
    check(numbers[0] != numbers[1], f"{model} answers as the base does, with the same probabilities: {numbers[0]}")


def log_probabilities(server, family):
    choice = complete(server, logprobs=2, prompt_logprobs=1)["choices"][0]
    check(all(math.isfinite(value) and value <= 0 for value in choice["logprobs"]["token_logprobs"]), f"{choice['logprobs']}")
    check_equal(len(choice["prompt_logprobs"]), len(PROMPT), "positions of the prompt")


def structured_output(server, family):
    schema = {"type": "json_schema", "json_schema": {"name": "word", "strict": True, "schema": {"enum": ["alpha", "beta"]}}}
    answer = ask(server, "/v1/chat/completions", model="base", messages=[{"role": "user", "content": "A word."}], max_tokens=16, temperature=0, response_format=schema)
    check(json.loads(answer["choices"][0]["message"]["content"]) in ("alpha", "beta"), str(answer))


def embeddings(server, family):
    values = ask(server, "/v1/embeddings", model="base", input=PROMPT)["data"][0]["embedding"]
    check(abs(sum(v * v for v in values) - 1) < 1e-2, f"a vector of length {sum(v * v for v in values)}")


def prefix_cache(server, family):
    prompt = "Prefixes are kept. " * 12
    first = complete(server, prompt=prompt)
    second = complete(server, prompt=prompt)
    check_equal(second["choices"][0]["token_ids"], first["choices"][0]["token_ids"], "tokens with what was kept")
    check(second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16, f"{second['usage']}")


def load(server, name, folder):
    ask(server, "/v1/load_lora_adapter", lora_name=name, lora_path=str(folder))


def lora(server, family):
    load(server, "plain", family.plain)
    check_changes(server, "plain")


def dora(server, family):
    load(server, "dora", family.dora)
    check_changes(server, "dora")


def lora_on_experts(server, family):
    if not family.experts.is_dir():
        raise NothingToAsk
    load(server, "experts", family.experts)
    check_changes(server, "experts")


def activated_lora(server, family):
    load(server, "alora", family.alora)
    check_equal(answers_of(server, "alora"), answers_of(server, "base"), "an adapter that nothing invoked answers as the base does")
    check_changes(server, "alora", PROMPT + "X")


def merged(server, family):
    """Of the adapter that the column before loaded."""
    status, answer = server.post("/v1/adapters/plain/activate", mode="merged")
    if status in (400, 409, 422):
        raise Refused(answer["error"]["message"])
    check_equal((status, answer.get("mode")), (200, "merged"), str(answer))
    check_changes(server, "plain")
    server.post("/v1/adapters/plain/deactivate")


def training(server, family):
    boundary, line = "a1b2c3", json.dumps({"text": PROMPT})
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n',
             f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{line}\r\n', f"--{boundary}--\r\n"]
    kept = dict(server.headers)
    server.headers["Content-Type"] = f"multipart/form-data; boundary={boundary}"
    status, file = server.request("POST", "/v1/files", raw="".join(parts).encode())
    server.headers = kept
    check_equal(status, 200, str(file))
    job = ask(server, "/v1/fine_tuning/jobs", model="base", training_file=file["id"], suffix="trained", max_steps=1, hyperparameters={"batch_size": 1})
    end = time.monotonic() + 600
    while job["status"] in ("validating_files", "queued", "running"):
        check(time.monotonic() < end, f"a job that does not end: {job}")
        time.sleep(0.1)
        _, job = server.request("GET", f"/v1/fine_tuning/jobs/{job['id']}")
    check_equal(job["status"], "succeeded", f"{job['error']}")
    answers_of(server, "trained")


def generate(lorad, model, *flags):
    done = subprocess.run([lorad, "generate", "--model", str(model), "--prompt", PROMPT, "--max-tokens", "4", "--ignore-eos", "--json", *flags], capture_output=True, text=True)
    refuse_if_said(done)
    check_equal(len(json.loads(done.stdout)["token_ids"]), 4, "tokens")
    return done.stdout


def refuse_if_said(done):
    """What a command prints in its one line of an error."""
    if done.returncode == 1 and "error" in done.stderr:
        raise Refused(done.stderr.strip().splitlines()[-1].split("error", 1)[1].lstrip(": "))
    check_equal(done.returncode, 0, done.stderr)


def keys_in_8_bits(lorad, family):
    generate(lorad, family.folder, "--kv-cache-dtype", "int8")


def weights_in_8_bits(lorad, family):
    generate(lorad, family.folder, "--quantize", "q8_0", "--quantized-weights", "keep")


def written_as_gguf(lorad, family):
    """The file answers as the folder does that is quantized in the same way while it is loaded."""
    file = family.scratch / "written.gguf"
    refuse_if_said(subprocess.run([lorad, "quantize", "--model", str(family.folder), "--type", "q8_0", "--out", str(file)], capture_output=True, text=True))
    check_equal(generate(lorad, file), generate(lorad, family.folder, "--quantize", "q8_0"), "tokens of the file")


SERVED = [("log-probabilities", log_probabilities), ("structured output", structured_output), ("embeddings", embeddings), ("prefix cache", prefix_cache), ("LoRA", lora), ("merged", merged),
          ("DoRA", dora), ("LoRA on experts", lora_on_experts), ("activated LoRA", activated_lora), ("training", training)]
STARTED = [("keys and values in 8 bits", keys_in_8_bits), ("`--quantize`", weights_in_8_bits), ("`lorad quantize`", written_as_gguf)]


def of_family(lorad, model):
    """What came of each feature, as the table says it, and why where it is refused."""
    results = {}

    def attempt(name, feature, on, family):
        try:
            feature(on, family)
            results[name] = ("yes", "")
        except NothingToAsk:
            results[name] = ("", "")
        except Refused as refusal:
            check(len(str(refusal)) > 20, f"{model}, {name}: a refusal that says little: {refusal}")
            results[name] = ("refused", str(refusal))
        except AssertionError as error:
            raise AssertionError(f"{model}, {name}: {error}") from error

    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        family = Family(model, scratch)
        with Server(lorad, "--served-model-name", "base", "--max-model-len", "512", "--max-num-batched-tokens", "256", "--state-dir", str(scratch / "state"), adapters=(),
                    model=family.folder) as server:
            server.timeout = 600  # a software device compiles kernels for a while
            answers_of(server, "base")
            for name, feature in SERVED:
                attempt(name, feature, server, family)
        for name, feature in STARTED:
            attempt(name, feature, lorad, family)
    return results


def lines_of(results):
    """The table's head and its rows."""
    names = [name for name, _ in SERVED + STARTED]
    lines = ["| | " + " | ".join(names) + " |", "|---|" + ":---:|" * len(names)]
    return lines + [f"| {family} | " + " | ".join(of_features[name][0] for name in names) + " |" for family, of_features in results.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--write", action="store_true", help="the table into docs/MODELS.md")
    parser.add_argument("--few", action="store_true", help="the families that differ most; their rows are compared")
    parser.add_argument("--only", action="append", help="golden models; nothing is compared or written then")
    args = parser.parse_args()
    wanted = set(args.only or (FEW if args.few else (model for _, model in FAMILIES)))
    unknown = wanted - {model for _, model in FAMILIES}
    if unknown:
        parser.error(f"no golden model of a family is called {', '.join(sorted(unknown))}")
    if args.write and (args.few or args.only):
        parser.error("--write asks all families")
    results, failures = {}, []
    for family, model in FAMILIES:
        if model not in wanted:
            continue
        try:
            results[family] = of_family(args.lorad, model)
        except AssertionError as error:  # told at the end, with those of the others
            failures.append(str(error))
            print(f"{family}: failed: {error}", flush=True)
            continue
        said = "; ".join(f"{name}: {why}" for name, (_, why) in results[family].items() if why)
        print(f"{family}: {said or 'everything works'}", flush=True)
    check(not failures, "\n".join(failures))
    lines = lines_of(results)
    if args.only:
        print("\n".join(lines))
        return
    table = "\n".join([BEGIN, *lines, END])
    page = PAGE.read_text()
    there = re.search(re.escape(BEGIN) + ".*?" + re.escape(END), page, re.DOTALL)
    check(there, f"{PAGE}: no place for the table ({BEGIN})")
    if args.few:
        missing = [line for line in lines if line not in there[0].splitlines()]
        check(not missing, f"{PAGE} says otherwise of these; tests/e2e/family_features.py --write makes it\n" + "\n".join(missing))
    elif args.write:
        PAGE.write_text(page[:there.start()] + table + page[there.end():])
    else:
        check(there[0] == table, f"{PAGE} says otherwise; tests/e2e/family_features.py --write makes it\n{table}")
    print("family features: passed")


if __name__ == "__main__":
    sys.exit(main())
