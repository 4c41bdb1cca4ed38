#!/usr/bin/env python3
"""T11: what clients say and what the server keeps to itself is in no log, metric, error or header: canaries in all of it, and all of it searched."""
# beside others: yes

import hashlib
import json
import os
import pathlib
import re
import secrets
import socket
import struct
import time

from frame import MODEL, ROOT, check, check_equal, main
from t10_authorisation import ask, key_file, key_of, routes

ADDRESS = re.compile(rb"0x[0-9a-fA-F]{8,}")
BUILD = re.compile(rb"(?:%s|\.cpp:\d|/usr/(?:include|lib)|nlohmann|httplib|\[json\.exception|std::|__cxx11)" % re.escape(str(ROOT).encode()))


class Canaries:
    def __init__(self):
        self.words = {}

    def __call__(self, kind):
        return self.words.setdefault(kind, f"cnry{secrets.token_hex(8)}")

    def add(self, kind, text):
        self.words[kind] = text

    def found(self, data, kinds=None):
        return [kind for kind, word in self.words.items() if (kinds is None or kind.startswith(kinds)) and word.encode() in data]


class Asker:
    """Sends requests and looks at every answer."""

    def __init__(self, server, canaries):
        self.server, self.canaries, self.n, self.n_errors = server, canaries, 0, 0

    def __call__(self, method, target, body=b"", key=None, headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, head, answer = ask(self.server, method, target, key or key_of("admin"), data, headers, streams=True)
        self.look(f"{method} {target} {data[:200]!r}", status, str(head).encode(), answer, is_read=method == "GET")
        return status, answer

    def look(self, what, status, head, answer, is_read=False):
        self.n += 1
        # What was asked for may hold the prompt, and a report what the uploaded config says; an error, or a header, may not.
        kinds = None if status >= 400 else ("key", "path", "prompt", "completion") if is_read else ("key", "path")
        self.n_errors += status >= 400
        for name, part, its_kinds in (("headers", head, None), ("body", answer, kinds)):
            check(not self.canaries.found(part, its_kinds), f"{what}: canaries {self.canaries.found(part, its_kinds)} in the {name}: {part[:400]!r}")
            check(not ADDRESS.search(part), f"{what}: an address in the {name}: {ADDRESS.findall(part)[:3]}")
            check(not BUILD.search(part), f"{what}: a path or a library in the {name}: {BUILD.findall(part)[:3]}")


def raw(server, data):
    with socket.create_connection((server.host, server.port), 20) as connection:
        connection.settimeout(20)
        connection.sendall(data)
        try:
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except OSError:
            return b""


def talk(ask_one, canaries):
    """Requests that are answered."""
    prompt, system = canaries("prompt"), canaries("prompt of the system")
    texts = []
    for body in ({"prompt": prompt, "max_tokens": 24}, {"prompt": [prompt, prompt], "n": 2, "max_tokens": 4, "echo": True, "logprobs": 3}):
        status, answer = ask_one("POST", "/v1/completions", body)
        check_equal(status, 200, "a completion")
        texts += [choice["text"] for choice in json.loads(answer)["choices"]]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    for more in ({}, {"stream": True}, {"user": canaries("prompt: user")}, {"model": "pirate"}, {"stop": [canaries("prompt: stop")]}):
        check_equal(ask_one("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 8, **more})[0], 200, "a chat")
    tool = {"type": "function", "function": {"name": "f", "description": canaries("prompt: tool"), "parameters": {"type": "object"}}}
    ask_one("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 8, "tools": [tool]})
    ask_one("POST", "/v1/responses", {"input": prompt, "instructions": system, "max_output_tokens": 8})
    ask_one("POST", "/v1/messages", {"messages": messages[1:], "system": system, "max_tokens": 8})
    for path, body in (("/v1/responses", {"input": prompt, "max_output_tokens": 8}), ("/v1/messages", {"messages": messages[1:], "max_tokens": 8})):
        ask_one("POST", path, {**body, "stream": True})
    ask_one("POST", "/v1/embeddings", {"input": [prompt, system]})
    ask_one("POST", "/tokenize", {"prompt": prompt, "return_token_strs": True})
    ask_one("POST", "/v1/chat/completions/render", {"messages": messages})
    longest = max(texts, key=len)
    check(len(longest) >= 12, f"an answer that can be searched for, found {texts}")
    canaries.add("completion", longest[-24:])


def mistake(ask_one, canaries):
    """Requests that are refused, with something to say in each."""
    # A value that is at fault is told; what stands beside it is not.
    prompt, fault = canaries("prompt"), "nonsense"
    chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
    wrong = [{"temperature": 9}, {"max_tokens": -1}, {"n": 10**9}, {"stop": 5}, {"logit_bias": {"x": 1}}, {"model": "nothing"}, {"seed": 1.5}, {"top_logprobs": 3},
             {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": fault, "description": prompt}}}}, {"tools": [{"type": fault, "function": {"description": prompt}}]},
             {"guided_regex": "(a"}, {"guided_grammar": "start: x %"}, {"messages": [{"role": "user", "content": [{"type": "text", "txt": prompt}]}]},
             {"messages": [{"role": "user", "content": {"x": prompt}}]}, {"messages": prompt}, {"messages": []}, {"max_tokens": 10**6}, {"adapters": [{"nme": "x"}]},
             {"chat_template_kwargs": {"messages": prompt}}, {"prompt": prompt, "suffix": "x"}, {"lora": [{"id": 99}]}]
    for fields in wrong:
        for path in ("/v1/chat/completions", "/v1/chat/completions/render", "/v1/responses", "/v1/messages"):
            body = {**chat, **fields}
            if path == "/v1/responses":
                body = {"input": prompt, **{k: v for k, v in fields.items() if k != "messages"}}
            ask_one("POST", path, body)
        ask_one("POST", "/v1/completions", {"prompt": prompt, **{k: v for k, v in fields.items() if k != "messages"}})
    text = json.dumps(chat).encode()
    for cut in (1, 5, len(text) // 2, len(text) - 1):
        check(ask_one("POST", "/v1/chat/completions", text[:cut])[0] == 400, "a body that is cut")
    for bad in (text + b"}", text.replace(b'"user"', b'"\xff\xfe"'), b'{"prompt":"' + prompt.encode() + b'","prompt":"x"}', b"[" * 5000, text.replace(b"4", b"1e999"),
                b'{"prompt":"' + prompt.encode() + b'\x00"}', b'{"x":' + b"[" * 100):
        ask_one("POST", "/v1/completions", bad)
    ask_one("POST", "/v1/completions", {"prompt": f"{prompt} " * 20000})
    ask_one("POST", "/detokenize", {"tokens": [10**9]})


def wander(ask_one, canaries):
    """What may be read; paths and heads that nobody serves."""
    for method, path, _ in routes(ask_one.server):
        if method == "GET" and not path.endswith("/events"):
            ask_one("GET", path.replace("{name}", "pirate").replace("{digest}", "sha256:" + "0" * 64).replace("{file}", "main.js"))
    # A client may see its own path again where a name stands for nothing; never anything of a query, a header or a body.
    query = canaries("prompt in a query")
    for target in (f"/nothing?{query}=1", f"/v1/adapters?limit={'9' * 30}&x={query}", f"/v1/models?{query}", "/%zz", "/v1/adapters/events?after=x", "/v1/adapters/x/activate?a=%"):
        for method in ("GET", "POST", "DELETE", "PATCH", "OPTIONS"):
            if target.startswith("/v1/models") and method == "GET":
                continue
            ask_one(method, target, headers={"X-Other": canaries("prompt in a header"), "User-Agent": canaries("prompt of an agent"),
                                             "Referer": f"http://x/{canaries('prompt in a referer')}"})
    for key in (canaries("key that is wrong"), canaries("key that is wrong") + "x" * 600):
        check_equal(ask_one("GET", "/v1/models", key=key)[0], 401, "a wrong key")
    check_equal(ask_one("GET", "/v1/models", key=key_of("expired"))[0], 401, "an expired key")
    for head in (b"GET /x HTTP/9.9\r\n", b"BREW /x HTTP/1.1\r\n", b"GET x y HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nbad name: 1\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: +5\r\n"):
        answer = raw(ask_one.server, head + b"Host: x\r\nX-A: " + canaries("prompt in a raw head").encode() + b"\r\n\r\n" + canaries("prompt").encode())
        status = int((answer.split(b" ", 2) + [b"", b"400"])[1] or 400) if answer else 400
        ask_one.look(f"{head!r}", status, answer.partition(b"\r\n\r\n")[0], answer.partition(b"\r\n\r\n")[2])


def safetensors(header, body=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def upload(ask_one, canaries, root):
    """Adapters that are taken and such that are not, with something in every field that a config has."""
    folder = MODEL / "adapters/pirate"
    config = json.loads((folder / "adapter_config.json").read_text())
    weights = (folder / "adapter_model.safetensors").read_bytes()
    n_header = struct.unpack("<Q", weights[:8])[0]
    header = json.loads(weights[8:8 + n_header])
    marked_header = {"__metadata__": {"format": "pt", "note": canaries("metadata of weights")}, **{k: v for k, v in header.items() if k != "__metadata__"}}
    marked_config = {**config, "base_model_name_or_path": canaries("metadata: base"), "revision": canaries("metadata: revision"),
                     "auto_mapping": {"x": canaries("metadata: mapping")}}
    marked = safetensors(marked_header, weights[8 + n_header:])

    def put(data):
        digest = hashlib.sha256(data).hexdigest()
        ask_one("PUT", f"/v1/adapters/blobs/sha256:{digest}", data)
        return f"sha256:{digest}"

    def register(name, config_bytes, weight_bytes, **more):
        files = {"adapter_config.json": put(config_bytes), "adapter_model.safetensors": put(weight_bytes)}
        ask_one("POST", "/v1/adapters/validate", {"files": files})
        return ask_one("POST", "/v1/adapters", {"name": name, "files": files, **more})

    good = json.dumps({**config, "revision": canaries("metadata: revision")}).encode()
    status, answer = register("marked", good, marked)
    check(status == 201, f"an adapter with marks: {status} {answer[:300]!r}")
    for target in ("/v1/adapters/marked", "/v1/adapters", "/v1/models", "/v1/lora_adapters"):
        ask_one("GET", target)
    ask_one("POST", "/v1/adapters/marked/activate", {})
    ask_one("POST", "/v1/completions", {"model": "marked", "prompt": canaries("prompt"), "max_tokens": 4})
    ask_one("POST", "/v1/adapters/marked/validate")
    bad_configs = [json.dumps(marked_config | {"r": 100000}).encode(), json.dumps(marked_config).encode()[:-3], b"{}", b"[]", json.dumps(marked_config | {"peft_type": "IA3"}).encode(),
                   json.dumps(marked_config | {"target_modules": ["nothing_proj"]}).encode(), json.dumps(marked_config | {"lora_alpha": "x"}).encode()]
    bad_weights = [marked[:100], marked[:-10], safetensors({**marked_header, "extra": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, b"\0" * 16),
                   struct.pack("<Q", 1 << 60) + b"x", b"", safetensors({"__metadata__": {"note": canaries("metadata of weights")}}), marked[:8] + b"]" + marked[9:]]
    for i, bytes_ in enumerate(bad_configs):
        register(f"bad-{i}", bytes_, marked)
    for i, bytes_ in enumerate(bad_weights):
        register(f"worse-{i}", good, bytes_)
    # Folders of the server: there, broken, not there, outside.
    broken = root / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_bytes(json.dumps(marked_config).encode()[:-2])
    (broken / "adapter_model.safetensors").write_bytes(marked[:500])
    (root / "file").write_text("x")
    link = root / "link"
    link.symlink_to(root / "broken" / "nowhere")
    # A client has guessed the folder, and asks for what it likes: neither is told again, to it or to the log.
    own = canaries("path of a client")
    for path in [f"{root}/{name}" for name in ("broken", "missing", "file", "link", ".", "..", "missing/" * 300, "broken/adapter_config.json", own, "\x00" + own)] + \
            ["broken", "..", f"/etc/{own}", f"/etc/passwd/{own}", f"../{own}\n{own}", "\x00"]:
        for target, body in (("/v1/load_lora_adapter", {"lora_name": "from-path", "lora_path": path}), ("/load_lora_adapter", {"lora_name": "from-path", "lora_path": path}),
                             ("/v1/adapters/validate", {"path": path})):
            ask_one("POST", target, body)


def search_log(log, canaries):
    """From its first line to its last."""
    check(len(log) > 1000, "a log to search")
    n_after = 0
    for line in log.split(b"\n"):
        # At the start, and only there, the operator is told which folders of his own are used.
        n_after += n_after > 0 or b"ready: http" in line
        kinds = None if n_after else ("prompt", "completion", "key", "metadata")
        check(not canaries.found(line, kinds), f"canaries {canaries.found(line, kinds)} in the log: {line!r}")
        check(not ADDRESS.search(line), f"an address in the log: {line!r}")
        check(not n_after or not BUILD.search(line), f"a path or a library in the log: {line!r}")
    check(n_after > 100, f"only {n_after} lines after the start")


def volume(card, server):
    """Refusals: a bounded part of the log, however many there are."""
    n = 300 if card.quick else 3000
    before, began = os.path.getsize(server.log.name), time.monotonic()
    for i in range(n):
        ask(server, "GET", f"/v1/adapters/{'x' * 3000}", "w" * 400 if i % 2 else None)
    grown = os.path.getsize(server.log.name) - before
    lines = pathlib.Path(server.log.name).read_bytes()[before:].splitlines()
    card.figure("log bytes per refused request", grown / n)
    check(grown / n <= 1024, f"{grown / n} bytes of log for each refused request")
    check(max(map(len, lines), default=0) <= 1024, "a line of the log for a refused request")
    # Sixty at once and one a second: a slow machine has more of those seconds.
    allowed = 90 + (time.monotonic() - began)
    check(len(lines) <= allowed, f"{len(lines)} lines for {n} refused requests, at most {allowed:.0f}: they are not rate-limited")
    card.trials += n


def run(card):
    card.gtest("keys are in no message", "server_tests", "KeyFile.SaysLineAndReasonOfWhatIsWrong:KeyFileTest.AFullKeyStandsBesideTheFile")
    for log_format, level in (("text", "info"), ("json", "debug")):
        canaries = Canaries()
        folder = pathlib.Path(card.folder) / log_format / canaries("path")
        root = folder / canaries("path of adapters")
        root.mkdir(parents=True)
        os.mkdir(folder / "keys", 0o700)
        for name in ("admin", "expired"):
            canaries.add(f"key {name}", key_of(name))
            canaries.add(f"key's digest {name}", hashlib.sha256(key_of(name).encode()).hexdigest())
        path = key_file(str(folder / "keys"), admin={"scopes": ["admin"]}, expired={"scopes": ["admin"], "expires": "2020-01-01"})
        api_key = "lorad-" + secrets.token_hex(32)
        canaries.add("key of the environment", api_key)
        with card.server("--api-key-file", path, "--state-dir", str(folder / canaries("path of state")), "--adapter-root", str(root), "--max-model-len", "512",
                         "--log-format", log_format, "--log-level", level, adapters=("pirate",), env={"LORAD_API_KEY": api_key}) as server:
            asker = Asker(server, canaries)
            for name, part in (("answers", lambda: talk(asker, canaries)), ("refused requests", lambda: mistake(asker, canaries)),
                               ("paths, keys and heads", lambda: wander(asker, canaries)), ("adapters", lambda: upload(asker, canaries, root))):
                with card.part(f"{name}, {log_format} log"):
                    part()
            os.link(server.log.name, folder / "log")  # it outlives the server
            with card.part(f"metrics, {log_format} log"):
                metrics = asker("GET", "/metrics")[1]
                check(not canaries.found(metrics), f"canaries {canaries.found(metrics)} in the metrics")
                check(asker.n_errors > 150, f"only {asker.n_errors} refused requests")
            if level == "info":
                with card.part("the log's volume"):
                    volume(card, server)
            card.trials += asker.n
            card.figure("canaries", len(canaries.words))
        with card.part(f"the log from start to end, {log_format}"):
            check_equal(server.process.returncode, 0, "exit status")
            search_log((folder / "log").read_bytes(), canaries)
        check(not list(folder.rglob("core*")), "a core file")


if __name__ == "__main__":
    main("T11", run)
