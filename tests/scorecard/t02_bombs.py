#!/usr/bin/env python3
"""T2: lengths, dimensions, counts and depths that ask for everything cost a refusal: on a stack of 256 KiB, with 16 MiB of memory, in a quarter of a second."""
# beside others: yes
# sanitizers: no, judges the stack that the readers take

import http.client
import json
import pathlib
import random
import struct
import time

from frame import check, check_equal, main

import adapter_cases as cases
from adapter_checks import digest_of

STACK_KIB = 256
RSS_KIB_MAX = 16 << 10
MS_MAX = 250
DEPTHS = [1, 2, 3, 4, 8, 63, 64, 65, 100, 1000, 6000, 80_000, 300_000, 1_000_000]
SIZES = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
LARGE = [json.dumps(value).encode() for value in
         [*SIZES, -1, -2**63, "x" * 1_000_000, [1] * 100_000, ["q_proj"] * 100_000, {str(i): i for i in range(50_000)}]]


def with_length(length, rest=b"{}"):
    return struct.pack("<Q", length) + rest


def header_file(text, data=b""):
    return struct.pack("<Q", len(text)) + text + data


def entry(shape, begin=0, end=0, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def header_bombs(n_tensors):
    for power in range(65):
        for length in {2**power - 1, 2**power % 2**64, (2**power + 1) % 2**64}:
            yield with_length(length)
    for a in SIZES:
        for b in SIZES:
            yield header_file(json.dumps({"x": entry([a, b])}).encode())
            yield header_file(json.dumps({"x": entry([a, b], 0, a * b * 4 % 2**64)}).encode())
        yield header_file(json.dumps({"x": entry([1], a, (a + 4) % 2**64)}).encode())
        yield header_file(json.dumps({"x": entry([a] * 8)}).encode())
    yield header_file(json.dumps({"x": entry([1] * 100_000)}).encode())
    # Five million tensors, and as many as a header may have bytes for.
    yield header_file(b'{"__metadata__":{}' + b',"":{"dtype":"I8","shape":[],"data_offsets":[0,0]}' * n_tensors + b"}")
    yield header_file(b'{"__metadata__":{}' + b"".join(b',"%d":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}' % i for i in range(18_000)) + b"}")
    for depth in DEPTHS:
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            yield header_file(opening * depth)
            yield header_file(opening * depth + b"1" + closing * depth)
            yield header_file(b'{"__metadata__":' + opening * depth + b"1" + closing * depth + b"}")
    yield header_file(b"[" + b"[]," * 4_900_000 + b"[]]")
    yield header_file(b"[" + b"1," * 520_000 + b"1]")
    yield header_file(b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(90_000)) + b"}}")
    yield header_file(b'{"' + b"x" * 1_000_000 + b'":' + json.dumps(entry([0])).encode() + b"}")
    yield header_file(b'{"x":' + b"1" * 1_000_000 + b"}")
    yield header_file(b'{"x":"' + b"\\u0000" * 170_000 + b'"}')


def config_bombs(weights):
    sound = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}

    def files(text):
        return {cases.CONFIG: text, cases.WEIGHTS: weights}
    for depth in DEPTHS:
        yield files(b"[" * depth)
        yield files(b'{"peft_type":"LORA","r":4,"x":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}")
    for key in ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules", "layers_to_transform", "modules_to_save"):
        for value in LARGE:
            yield files(json.dumps({k: v for k, v in sound.items() if k != key})[:-1].encode() + b', "' + key.encode() + b'": ' + value + b"}")
    # Expressions that take a backtracking matcher for ever.
    for expression in ("(a+)+$", "(.*.*)*x", "(x|x)*y", "(" * 20_000 + ")" * 20_000, "[a-" * 5000, ".*" * 20_000, "((((a?){30}){30}){30}){30}a", "a{1000000}",
                       "(?:" * 100_000, "\\" * 99_999):
        for key, value in (("target_modules", expression), ("exclude_modules", expression), ("rank_pattern", {expression: 4}),
                           ("layers_pattern", expression)):
            yield files(json.dumps(dict(sound, **{key: value, "layers_to_transform": [0]})).encode())


def gguf_bombs():
    for n_tensors in SIZES:
        for n_fields in (0, 1, 2**32, 2**63, 2**64 - 1):
            yield {"adapter.gguf": b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_fields) + bytes(64)}
    for length in SIZES:
        # A text, then an array of texts and one of arrays, of that length.
        key = struct.pack("<Q", 1) + b"k"
        yield {"adapter.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IQ", 8, length)}
        yield {"adapter.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IIQ", 9, 8, length)}
        yield {"adapter.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<I", 9) + struct.pack("<IQ", 9, length) * 50_000}
        for alignment in (0, 3, 2**31, 2**32 - 1):
            align = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, alignment)
            tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<IQQIQ", 2, length, 2, 0, 2**64 - 8)
            yield {"adapter.gguf": b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + align + tensor}


def body_bombs():
    """Request bodies; each is refused."""
    for depth in DEPTHS[4:]:
        for text in (b"[" * depth, b'{"a":' * depth, b'{"prompt":' + b"[" * depth + b"1" + b"]" * depth + b"}",
                     b'{"messages":[{"role":"user","content":' + b'{"x":' * depth + b"1" + b"}" * depth + b"}]}"):
            yield text
    yield b'{"prompt":[' + b"[]," * 4_900_000 + b"[]]}"  # 14 MiB
    yield b'{"prompt":[' + b"1," * 7_000_000 + b"1]}"
    yield b'{"prompt":"x","logit_bias":{' + b",".join(b'"%d":1' % i for i in range(1_000_000)) + b"}}"
    yield b'{"prompt":"x","stop":[' + b'"a",' * 1_000_000 + b'"a"]}'
    yield b'{"messages":[' + b'{},' * 2_000_000 + b"{}]}"
    yield b'{"messages":[{"role":"user","content":"x"}],"tools":[' + b'{"type":"function"},' * 300_000 + b"{}]}"
    schema = b'{"type":"object","properties":{"a":' * 3000 + b"{}" + b"}}" * 3000
    yield b'{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":' + schema + b"}}}"
    yield b'{"prompt":"x","guided_regex":"' + b"(" * 100_000 + b")" * 100_000 + b'"}'
    yield b'{"prompt":"x","guided_grammar":"root ::= ' + b"(" * 50_000 + b'"}'


def peak_kib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0])


def forget_peak(pid):
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")


def ask(server, method, path, body):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    began = time.perf_counter()
    connection.request(method, path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    ms = (time.perf_counter() - began) * 1000
    connection.close()
    return response.status, json.loads(text), ms


def run(card):
    source = random.Random(card.seed)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    weights = cases.safetensors(cases.sound_tensors(source, 4, ["self_attn.q_proj"]))
    sound = {cases.CONFIG: json.dumps(config).encode(), cases.WEIGHTS: weights}
    bombs = [{"header": data} for data in header_bombs(300_000 if card.quick else 5_000_000)] + list(config_bombs(weights)) + list(gguf_bombs())
    worst_kib = 0.0
    with card.part(f"{len(bombs)} files, on a stack of {STACK_KIB} KiB"):
        answers = cases.read_all(card.build / "tests/adapter_reader", [*bombs, sound], "--rss", "--stack-kib", str(STACK_KIB))
        check("code" not in answers.pop(), "a sound adapter is taken")
        for files, answer in zip(bombs, answers):
            if "code" in answer:
                cases.check_refusal(answer, files)
            elif "header" in files:
                cases.reference(files["header"])  # what is taken is sound
            size = sum(len(data) for data in files.values())
            check(answer["rss_kib"] <= RSS_KIB_MAX, f"{answer['rss_kib']} KiB for {size} bytes: {str(cases.short(files))[:200]}")
            worst_kib = max(worst_kib, answer["rss_kib"])
        card.figure("files: most MiB", worst_kib / 1024)
        times = [answer["ms"] for answer in answers]
        # A machine that does something else makes some slow, not the same ones again and again.
        for _ in range(0 if card.quick else 5):
            slow = [i for i, ms in enumerate(times) if ms > MS_MAX]
            for i, again in zip(slow, cases.read_all(card.build / "tests/adapter_reader", [bombs[i] for i in slow]) if slow else []):
                times[i] = min(times[i], again["ms"])
        card.limit("files: slowest ms", max(times), MS_MAX, str(cases.short(bombs[times.index(max(times))]))[:300])
    if card.quick:
        card.short_of("the same with sanitizers: tests/scorecard.sh --tier nightly --only T1,T2")
    elif (card.build / "tests/adapter_reader_asan").exists():
        with card.part("the same with sanitizers"):
            small = [files for files in bombs if sum(len(data) for data in files.values()) < 3 << 20]
            cases.read_all(card.build / "tests/adapter_reader_asan", small, "--stack-kib", "1024")
    n_bodies = 0
    worst_body_ms, worst_body, worst_body_kib = 0.0, "", 0.0
    with card.part("over HTTP"), card.server("--log-level", "error") as server:
        pid = server.process.pid
        for route in ("/v1/completions", "/v1/chat/completions"):
            check_equal(server.post(route, **({"prompt": "x"} if "chat" not in route else {"messages": [{"role": "user", "content": "x"}]}),
                                    max_tokens=1)[0], 200, "an answer beforehand")
        ask(server, "POST", "/v1/completions", b'"' + b"x" * (15 << 20) + b'"')  # what the program keeps of its largest body from then on
        for body in body_bombs():
            for route in ("/v1/completions", "/v1/chat/completions", "/v1/adapters")[:3 if len(body) < 1 << 20 or not card.quick else 1]:
                best = 1e9
                for _ in range(1 if card.quick else 3):
                    forget_peak(pid)
                    before = peak_kib(pid)
                    status, answer, ms = ask(server, "POST", route, body)
                    best = min(best, ms)
                    grown = peak_kib(pid) - before
                    check(400 <= status < 500 and answer["error"]["code"], f"{status} {str(answer)[:200]} to {body[:60]}")
                    # The bytes that the client has sent are held while they are read: they are its own.
                    check(grown <= RSS_KIB_MAX + len(body) // 1024, f"{route}: {grown} KiB more for {len(body)} bytes {body[:60]}")
                    worst_body_kib = max(worst_body_kib, grown - len(body) / 1024)
                    if best <= MS_MAX:
                        break
                worst_body_ms, worst_body = max((worst_body_ms, worst_body), (best, f"{route} {body[:60]} ({len(body)} bytes)"))
                n_bodies += 1
        card.figure("bodies: most MiB beyond their own", worst_body_kib / 1024)
        card.limit("bodies: slowest ms", worst_body_ms, MS_MAX, worst_body)
        for length in (0, 2**20, 2**31, 2**63, 2**64 - 1):
            data = with_length(length)
            check_equal(server.request("PUT", f"/v1/adapters/blobs/sha256:{digest_of(data)}", raw=data)[0], 201, "an upload")
            check_equal(server.request("PUT", f"/v1/adapters/blobs/sha256:{digest_of(sound[cases.CONFIG])}", raw=sound[cases.CONFIG])[0], 201, "config")
            status, answer = server.post("/v1/adapters", name="x", files={cases.CONFIG: f"sha256:{digest_of(sound[cases.CONFIG])}",
                                                                          cases.WEIGHTS: f"sha256:{digest_of(data)}"})
            check_equal((status, answer["error"]["code"]), (422, "adapter_invalid"), f"a header of {length} bytes")
        check_equal(server.post("/v1/completions", prompt="x", max_tokens=1)[0], 200, "an answer afterwards")
    card.figure("bombs", len(bombs) + n_bodies)
    card.trials += len(bombs) + n_bodies


if __name__ == "__main__":
    main("T2", run)
