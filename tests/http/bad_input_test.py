#!/usr/bin/env python3
"""Every field of every body with values that it cannot have: a 400 that names the field, at once, with nothing admitted.

    tests/http/bad_input_test.py --lorad build/dev/lorad [--limit-ms 10]

Standard library only. Which fields there are, and what each may be, is read from /openapi.json, so a new field is in the matrix as soon as it
is described (and a test of the server says that all are).
"""

import argparse
import http.client
import json
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import Server, check, check_equal  # noqa: E402

MEGABYTE = 1 << 20
# A machine that is busy with something else makes some requests slow, not all of many.
TRIES = 3
TRIES_LATER = 300

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
BODIES = {
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
    "/v1/embeddings": {"input": "x"},
    "/v1/completions/render": {"prompt": "x"},
    "/v1/chat/completions/render": CHAT,
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
    "/v1/adapters": {"name": "new", "adapters": [{"name": "pirate", "scale": 0.5}]},
    "/v1/adapters/validate": {"files": {"adapter_config.json": "sha256:" + "0" * 64}},
    "/v1/adapters/{name}/activate": {},
    "/v1/adapters/{name}/deactivate": {},
    "/v1/adapters/{name}/rollback": {},
    "/v1/adapters/{name}/validate": {},
    "/v1/load_lora_adapter": {"lora_name": "new", "lora_path": "/nowhere"},
    "/v1/unload_lora_adapter": {"lora_name": "nobody"},
    "/load_lora_adapter": {"lora_name": "new", "lora_path": "/nowhere"},
    "/unload_lora_adapter": {"lora_name": "nobody"},
}

# What excludes the field, so that it is the field that is at fault.
EXCLUDES = {("/tokenize", "messages"): "prompt", ("/v1/adapters", "files"): "adapters", ("/v1/adapters/validate", "path"): "files"}

# One value of each JSON type that is of no other type's kind, as it stands in a body.
OF_TYPE = {"string": '"text"', "number": "1.5", "boolean": "true", "array": "[[{}]]", "object": '{"x": [1]}'}
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999")
LARGE = (2**31, 2**32, 2**53, 2**63, 2**64, 10**30, -2**31 - 1, -2**63 - 1)


class Document:
    def __init__(self, document):
        self.document = document

    def resolved(self, schema):
        while "$ref" in schema:
            where = self.document
            for part in schema["$ref"][2:].split("/"):
                where = where[part]
            schema = where
        return schema

    def properties(self, schema):
        schema = self.resolved(schema)
        out = dict(schema.get("properties", {}))
        for part in schema.get("allOf", []) + schema.get("anyOf", []):
            out = {**self.properties(part), **out}
        return out

    def body_schema(self, path):
        return self.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]

    def alternatives(self, schema):
        schema = self.resolved(schema)
        return [a for part in schema["anyOf"] for a in self.alternatives(part)] if "anyOf" in schema else [schema]


def type_of(value):
    return {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}[type(value)]


def types_of(alternative):
    """The JSON types that it takes; None: any value at all."""
    if "const" in alternative or "enum" in alternative:
        return {type_of(v) for v in alternative.get("enum", [alternative.get("const")])}
    if "type" not in alternative:
        return None
    kinds = alternative["type"] if isinstance(alternative["type"], list) else [alternative["type"]]
    return {"number" if kind == "integer" else kind for kind in kinds}


def bad_values(alternatives):
    """Texts of JSON values that none of the alternatives takes."""
    allowed = [types_of(a) for a in alternatives]
    out = [*NO_NUMBERS, "[" * 100 + "]" * 100, '{"a":' * 100 + "1" + "}" * 100]
    if None in allowed:
        return out
    types = set().union(*allowed)
    out += [text for kind, text in OF_TYPE.items() if kind not in types]
    by_type = {kind: [a for a, kinds in zip(alternatives, allowed) if kind in kinds] for kind in types}
    if "string" not in types:
        out += ['""', '"' + "x" * MEGABYTE + '"']
    for one in by_type.get("string", []):
        if "enum" in one or "const" in one:
            if all("enum" in o or "const" in o for o in by_type["string"]):
                out += ['"nonsense"', '"' + "x" * MEGABYTE + '"']
        elif len(by_type["string"]) == 1:
            out += ['""'] * (one.get("minLength", 0) > 0) + ['"' + "x" * MEGABYTE + '"'] * ("maxLength" in one or "pattern" in one)
    numbers = [a for a in by_type.get("number", []) if "enum" not in a and "const" not in a]
    if len(numbers) == 1:
        one = numbers[0]
        # Where the document has no end, the model has one: the size of its hidden states.
        low, high = one.get("minimum", one.get("exclusiveMinimum")), one.get("maximum", 2**31 - 1)
        out += [str(low - 1), str(high + 1), "-1e300", "1e300"]
        out += [str(low)] * ("exclusiveMinimum" in one)
        out += [str(n) for n in LARGE if not low <= n <= high]
        out += ["1.5", "1e2"] * (one["type"] == "integer" or "integer" in one["type"])
    elif not numbers and "number" in types:
        out.append("77")
    if "array" in types:
        out += ["[NaN]", "[[[[1.5]]]]"]
    return out


def body_with(base, field, text):
    """The body with one more field, whose value is any text."""
    rest = "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in base.items() if k != field)
    return f"{{{json.dumps(field)}: {text}{rest}}}".encode()


class Client:
    def __init__(self, server, limit_ms):
        self.server, self.limit_ms = server, limit_ms
        self.connection = None
        self.slow = []  # to be tried again later

    def post(self, path, body):
        """Status, JSON and milliseconds."""
        for again in (True, False):
            if self.connection is None:
                self.connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
                self.connection.connect()
            began = time.perf_counter()
            try:
                self.connection.request("POST", path, body, {"Content-Type": "application/json"})
                response = self.connection.getresponse()
                text = response.read()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                # The server lets a connection go after a number of requests.
                self.connection = None
                check(again, "the server closed a new connection")
                continue
            ms = (time.perf_counter() - began) * 1000
            if response.will_close:
                self.connection.close()
                self.connection = None
            return response.status, json.loads(text), ms


def state_of(server):
    text = server.request("GET", "/metrics")[1]
    names = ("lorad_steps_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:num_requests",
             "lorad_adapter_loads_total", 'lorad_http_responses_total{class="5xx"}')
    return [line for line in text.splitlines() if line.startswith(names)], server.request("GET", "/v1/adapters")[1]


def short(body):
    text = body.decode()
    return text if len(text) < 200 else f"{text[:120]}... ({len(text)} bytes)"


def refused(client, path, body, field, times, failures):
    best = 1e9
    for _ in range(TRIES):
        status, answer, ms = client.post(path, body)
        best = min(best, ms)
        if best < client.limit_ms / 2:
            break
    times.append((best, path, field, len(body)))
    if best >= client.limit_ms:
        client.slow.append((path, body, field))
    error = answer.get("error") or {}
    # Anthropic's errors have no param: there the message begins with it.
    param = (error.get("param") or "") if "param" in error else error.get("message", "").split(": ")[0]
    if status != 400 or not (param == field or param.startswith((field + ".", field + "["))):
        failures.append(f"{path} {short(body)}: {status} {json.dumps(answer)[:300]}")
    elif field not in error["message"] and error.get("code") != "context_length_exceeded":
        failures.append(f"{path} {short(body)}: the message does not name the field: {error['message']}")


def check_matrix(client, document, times, failures):
    n_fields = 0
    for path, item in document.document["paths"].items():
        if "post" not in item or path == "/lora-adapters":
            continue
        # Forms, and jobs and models trained by calls, whose bodies tests of the server have: this server trains nothing; nor bodies where there are none.
        if "application/json" not in item["post"].get("requestBody", {}).get("content", {}) or path.startswith(("/v1/fine_tuning/", "/api/v1/")):
            continue
        target = path.replace("{name}", "pirate")
        for field, schema in document.properties(document.body_schema(path)).items():
            n_fields += 1
            base = {key: value for key, value in BODIES[path].items() if key != EXCLUDES.get((path, field))}
            values = bad_values(document.alternatives(schema))
            for text in dict.fromkeys(values):
                refused(client, target, body_with(base, field, text), field, times, failures)
            good = json.dumps(base.get(field, None))
            refused(client, target, body_with(base, field, f"{good}, {json.dumps(field)}: {good}"), field, times, failures)
    return n_fields


MESSAGE = CHAT["messages"][0]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
STRICT_JSON = {"type": "json_object"}
# (path, what contradicts what, the field that is named)
CONTRADICTIONS = [
    ("/v1/completions", {"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
    ("/v1/completions", {"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ("/v1/completions", {"max_tokens": 0}, "max_tokens"),
    ("/v1/completions", {"n": 3, "best_of": 2}, "best_of"),
    ("/v1/completions", {"best_of": 2, "stream": True}, "best_of"),
    ("/v1/completions", {"prompt": ["a"] * 100, "n": 2}, "n"),
    ("/v1/completions", {"prompt": ["a"] * 100, "best_of": 2}, "best_of"),
    ("/v1/completions", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("/v1/completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ("/v1/completions", {"adapter": "pirate", "adapters": [{"name": "shout"}]}, "adapter"),
    ("/v1/completions", {"adapter": "pirate", "lora": [{"id": 0, "scale": 1}]}, "adapter"),
    ("/v1/completions", {"model": "pirate", "adapters": [{"name": "shout"}]}, "adapters"),
    ("/v1/completions", {"adapters": [{"name": "pirate"}, {"name": "pirate"}]}, "adapters"),
    ("/v1/completions", {"logit_bias": {"1": 1, "01": 1}}, "logit_bias"),
    ("/v1/completions", {"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ("/v1/completions", {"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
    ("/v1/completions", {"structured_outputs": {}}, "structured_outputs"),
    ("/v1/completions", {"response_format": STRICT_JSON, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ("/v1/completions", {"response_format": STRICT_JSON, "ignore_eos": True}, "ignore_eos"),
    ("/v1/completions", {"max_tokens": 100000}, "max_tokens"),
    ("/v1/completions", {"prompt": [1] * 5000}, "prompt"),
    ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs"),
    ("/v1/chat/completions", {"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    ("/v1/chat/completions", {"tool_choice": "required"}, "tool_choice"),
    ("/v1/chat/completions", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ("/v1/chat/completions", {"tools": [TOOL, TOOL]}, "tools"),
    ("/v1/chat/completions", {"tools": [TOOL], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    ("/v1/chat/completions", {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages"),
    ("/v1/chat/completions", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ("/v1/chat/completions", {"messages": [dict(MESSAGE, content="word " * 3000)]}, "messages"),
    ("/v1/adapters", {"files": {"a": "sha256:" + "0" * 64}}, "files"),
    ("/v1/adapters", {"expected_generation": "0" * 64}, "expected_generation"),
    ("/v1/adapters/validate", {"path": "/x"}, "files"),
]


def check_contradictions(client, times, failures):
    for path, fields, field in CONTRADICTIONS:
        refused(client, path, json.dumps({**BODIES[path], **fields}).encode(), field, times, failures)


def check_broken_bodies(client, document, times, failures):
    """What is no JSON object at all has no field to name; it is refused as fast."""
    for path in BODIES.keys() & document.document["paths"].keys():
        target = path.replace("{name}", "pirate")
        for body in (b"{", b'{"a"', b"[]", b"7", b'"x"', b"null", b"\xff\xfe", b"[" * 100000, b"{" * 1000, b'{"a":' * 5000, b'{"x": "\\ud800"}',
                     b'{"x": 01}', b"x" * MEGABYTE):
            status, answer, ms = client.post(target, body)
            error = answer.get("error") or {}
            if status != 400 or error.get("code", error.get("type")) not in ("invalid_request", "invalid_request_error"):
                failures.append(f"{path} {body[:60]}: {status} {json.dumps(answer)[:200]}")
            times.append((ms, path, "(body)", len(body)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--limit-ms", type=float, default=10.0, help="for each refusal, the best of some tries")
    args = parser.parse_args()
    with Server(args.lorad, adapters=("pirate", "shout")) as server:
        client = Client(server, args.limit_ms)
        document = Document(server.request("GET", "/openapi.json")[1])
        before = state_of(server)
        times, failures = [], []
        began = time.monotonic()
        n_fields = check_matrix(client, document, times, failures)
        check_contradictions(client, times, failures)
        check_broken_bodies(client, document, times, failures)
        seconds = time.monotonic() - began
        after = state_of(server)
        slow = []
        for path, body, field in client.slow:
            best = args.limit_ms
            for _ in range(TRIES_LATER):
                best = min(best, client.post(path, body)[2])
                if best < args.limit_ms:
                    break
            if best >= args.limit_ms:
                slow.append((best, path, field, len(body)))
        ordered = sorted(t[0] for t in times)
        print(f"{n_fields} fields, {len(times)} refusals in {seconds:.1f} s: median {statistics.median(ordered):.2f} ms, "
              f"99 % within {ordered[int(0.99 * len(ordered))]:.2f} ms, the slowest {ordered[-1]:.2f} ms, {len(client.slow)} tried again")
        for failure in failures[:60]:
            print("FAIL", failure)
        for ms, path, field, size in sorted(slow, reverse=True)[:20]:
            print(f"SLOW {ms:.1f} ms: {path} {field} ({size} bytes)")
        check_equal(failures[60:], [], "more failures")
        check(not failures and not slow, f"{len(failures)} not refused as they should be, {len(slow)} too slowly")
        check_equal(after, before, "what the server did meanwhile")
        check(n_fields > 200 and len(times) > 2000, f"the matrix has shrunk: {n_fields} fields, {len(times)} requests")
        check_equal(server.post("/v1/completions", prompt="x", max_tokens=1)[0], 200, "an answer afterwards")
    print("bad input: passed")


if __name__ == "__main__":
    main()
