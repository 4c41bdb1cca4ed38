#!/usr/bin/env python3
"""T31: grammars, schemas, tools and adapters' chat templates made to overflow, grow, stall or panic: one 4xx each, the daemon goes on, and others get their tokens."""
# beside others: yes
# sanitizers: no, judges memory and time

import http.client
import itertools
import json
import pathlib
import subprocess
import sys
import threading
import time

from frame import MODEL, check, check_equal, main
from adapter_checks import digest_of
from t10_authorisation import key_file, key_of

CODES = {"invalid_request", "input_too_complex", "unsupported_parameter", "context_length_exceeded", "server_overloaded", "rate_limited"}
MESSAGE_MAX = 2000
LIBRARY_WORDS = ("panick", "panic:", "backtrace", "src/", ".rs:", "unwrap", "derivre", "llguidance", "0x0000")
GROWTH_KIB_MAX = 400 << 10
N_LINKS = 4000  # of a chain; with what one schema may have for bytes some are shorter
SOURCE_MAX = 256 << 10


def chain(n, link, last):
    return {"$ref": "#/$defs/d0", "$defs": {**{f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(n)}, f"d{n}": last}}


LINKS = {
    "refs": lambda r: r, "items": lambda r: {"type": "array", "items": r}, "properties": lambda r: {"type": "object", "properties": {"a": r}, "required": ["a"]},
    "anyOf": lambda r: {"anyOf": [r, {"type": "null"}]}, "oneOf": lambda r: {"oneOf": [r, {"type": "null"}]}, "allOf": lambda r: {"allOf": [r, {"type": "string"}]},
    "allOf of one": lambda r: {"allOf": [r]}, "prefixItems": lambda r: {"prefixItems": [r]}, "additional": lambda r: {"additionalProperties": r},
    "patterns": lambda r: {"patternProperties": {"^a": r}}, "if": lambda r: {"if": r, "then": r},
}


def chained_schemas(last=None):
    for name, link in LINKS.items():
        n = N_LINKS
        while len(json.dumps(chain(n, link, {}))) > SOURCE_MAX - 1000:
            n = n * 9 // 10
        yield f"chain of {name}", chain(n, link, last or {"type": "string"})


def schemas():
    yield from chained_schemas()
    yield "many patterns at once", {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(5, 25)]}
    yield "patterns of one bit", {"allOf": [{"type": "string", "pattern": f"^[ab]*a[ab]{{{i}}}$"} for i in range(10, 20)]}
    yield "both ways, 40 times", {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {"type": "string"}}, "$ref": "#/$defs/d0"}
    yield "a product of unions", {"allOf": [{"anyOf": [{"type": "object", "properties": {f"a{i}_{j}": {"type": "string"}}} for j in range(4)]} for i in range(12)]}
    yield "counts", {"type": "array", "minItems": 100_000, "maxItems": 10_000_000, "items": {"type": "string", "minLength": 100_000, "maxLength": 1_000_000}}
    yield "4,000 properties", {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}}
    yield "a large prime", {"type": "integer", "multipleOf": 999999937}
    yield "to itself", {"$ref": "#"}
    yield "a long pointer", {"$ref": "#/" + "/".join(["a"] * 60_000)}
    yield "a file", {"$ref": "file:///etc/passwd"}


def expressions():
    for text in ("(" * 4000 + "a" + ")" * 4000, "(a|" * 4000 + "b" + ")" * 4000, "[" * 60_000, "a" + "?" * 60_000, "a?" * 5000 + "a" * 5000, "((a{1000}){1000}){1000}",
                 "a" + "{1,2}" * 200, "[ab]*a[ab]{24}", "(.*a.{200}){2}", "[^a]" * 60_000, "a" * 260_000, r"\p{L}{0,1000}", "(((a*)*)*)*b",
                 "|".join(f"a{i}b" for i in range(30_000)), "(" + "|".join(f".*a{i}.*" for i in range(3000)) + ")"):
        yield text[:40], text


def grammars():
    def rules(head, link, last):
        return "\n".join([head, *(link.replace("OWN", str(i)).replace("NEXT", str(i + 1)) for i in range(N_LINKS)), last.replace("OWN", str(N_LINKS))])
    yield "rules", rules("start: r0", "rOWN: rNEXT", 'rOWN: "a"')
    yield "rules that may be left out", rules("start: r0", 'rOWN: "x" rNEXT?', 'rOWN: "a"')
    yield "alternatives", rules("start: r0", "?rOWN: rNEXT | rNEXT", 'rOWN: "a"')
    yield "on lines of their own", rules("start: r0", "rOWN:\n  | rNEXT\n", 'rOWN: "a"')
    yield "terminals", rules("start: T0", "TOWN: TNEXT", 'TOWN: "a"')
    yield "terminals beside others", rules("start: T0", 'TOWN: "x" TNEXT', 'TOWN: "a"')
    yield "GBNF", rules("root ::= r0", "rOWN ::= rNEXT", 'rOWN ::= "a"')
    yield "GBNF, left out", rules("root ::= r0", 'rOWN ::= "x" rNEXT?', 'rOWN ::= "a"')
    yield "a schema in it", "start: %json " + json.dumps(chain(3000, LINKS["items"], {}))
    yield "nested JSON", "start: %json " + '{"items":' * 20_000 + "{}" + "}" * 20_000
    yield "nested Lark", "start: " + "%lark { start: " * 60 + '"a"' + " }" * 60
    yield "not", "start: A\nA: " + "~" * 60_000 + "/a/"
    yield "and", "start: A\nA: " + " & ".join(["/a*/"] * 4000)
    yield "brackets", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000
    yield "a long sequence", "start: " + " ".join(['"a"?'] * 20_000)
    yield "many terminals", "start: (" + "|".join(f"T{i}" for i in range(3000)) + ")*\n" + "\n".join(f"T{i}: /.*a{i}.*/" for i in range(3000))
    yield "an intersection", "start: A\nA: /[ab]*a[ab]{20}/ & /[ab]*b[ab]{21}/ & ~/[ab]*a[ab]{23}/"
    yield "a panic of the library", 'start: a::0\na::_: "x" a::incr(_)\n'
    yield "another", 'start: a::0\na::_: a::incr(_) %if lt(_, 60000) | "y"\n'
    yield "substrings", 'start: %regex {"substring_chars": "' + "ab" * 60_000 + '"}'


def bodies():
    """name, route, body."""
    say = {"model": "base", "max_tokens": 3, "temperature": 0}
    for kind, cases in (("json", schemas()), ("regex", expressions()), ("grammar", grammars())):
        for name, source in cases:
            yield f"{kind}: {name}", "/v1/completions", {**say, "prompt": "a", "structured_outputs": {kind: source}}
    chat = {**say, "messages": [{"role": "user", "content": "x"}]}
    schema = dict(chained_schemas())["chain of refs"]
    yield "response_format", "/v1/chat/completions", {**chat, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    yield "responses", "/v1/responses", {"model": "base", "input": "x", "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}}
    yield "messages", "/v1/messages", {**chat, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    for name, parameters in chained_schemas({"type": "object"}):
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        yield f"tools: {name}", "/v1/chat/completions", {**chat, "tools": [tool], "tool_choice": "required"}


GROWS = "{% set ns = namespace(a=START,b=START) %}{% for i in range(60) %}{% set ns.a=[ns.a,ns.a] %}{% set ns.b=[ns.b,ns.b] %}{% endfor %}"
TEMPLATES = {
    "nested": "{% set ns = namespace(a=[]) %}{% for j in range(8) %}{% for i in range(100000) %}{% set ns.a=[ns.a] %}{% endfor %}{% endfor %}x",
    "compared": GROWS.replace("START", "[1]") + "{{ ns.a == ns.b }}",
    "sorted": GROWS.replace("START", "(1,)") + "{{ [ns.a,ns.b]|sort|length }}",
    "looked for": "{% set r=range(100000) %}{% for i in range(100000) %}{% if -1 in r %}{% endif %}{% endfor %}x",
    "split": "{{ ('a '*8000000).split()|length }}",
    "listed": "{{ ('a'*16000000)|list|length }}",
    "indented": "{{ ('a\\n'*1000000)|indent(1000000) }}",
    "elif": "{% if 0 %}" + "{% elif 0 %}" * 50_000 + "{% endif %}",
    "raised": "{{ raise_exception('x'*16000000) }}",
    "formatted": "{{ '%.1000000000f' % 1.5 }}",
}


def peak_kib(server):
    return int(pathlib.Path(f"/proc/{server.process.pid}/status").read_text().split("VmHWM:")[1].split()[0])


def judge(name, answer):
    status, body = answer
    if status == 200:
        return
    check(400 <= status < 500, f"{name}: status {status}: {str(body)[:300]}")
    error = body["error"]
    check(error.get("code", "input_too_complex") in CODES, f"{name}: code {error}")
    message = error["message"]
    check(0 < len(message) <= MESSAGE_MAX, f"{name}: a message of {len(message)} characters")
    check(not any(word in message for word in LIBRARY_WORDS), f"{name}: of the library's inside: {message[:300]}")


def over_http(card):
    with card.part("each of them is one answer"), card.server(adapters=()) as server:
        before, slowest = peak_kib(server), (0.0, "")
        for name, route, body in bodies():
            began = time.monotonic()
            judge(name, server.request("POST", route, body))
            slowest = max(slowest, (time.monotonic() - began, name))
            check(server.process.poll() is None, f"{name}: the daemon ended with {server.process.returncode}")
            card.trials += 1
        check_equal(server.request("POST", "/v1/completions", {"model": "base", "prompt": "a", "max_tokens": 2, "structured_outputs": {"regex": "[ab]+"}})[0], 200,
                    "an honest grammar afterwards")
        card.limit("slowest of them, s", slowest[0], 5, slowest[1])
        card.figure("slowest", slowest[1])
        card.figure("memory grew by MiB", (peak_kib(server) - before) >> 10)
        check(peak_kib(server) - before <= GROWTH_KIB_MAX, f"memory grew by {peak_kib(server) - before} KiB, at most {GROWTH_KIB_MAX}")


def put(server, content):
    digest = f"sha256:{digest_of(content)}"
    check(server.request("PUT", f"/v1/adapters/blobs/{digest}", raw=content)[0] in (200, 201), "upload of a blob")
    return digest


def templates(card):
    files = {path.name: path.read_bytes() for path in (MODEL / "adapters/pirate").iterdir()}
    with card.part("an adapter's template is one answer"), card.server(adapters=()) as server:
        before = peak_kib(server)
        for name, source in TEMPLATES.items():
            listed = {n: put(server, content) for n, content in {**files, "chat_template.jinja": source.encode()}.items()}
            status, body = server.post("/v1/adapters", name="bomb", replace=True, files=listed)
            check(status in (201, 422), f"{name}: registered with {status}: {str(body)[:300]}")
            if status == 201:
                judge(name, server.post("/v1/chat/completions/render", model="bomb", messages=[{"role": "user", "content": "hi"}]))
            check(server.process.poll() is None, f"{name}: the daemon ended with {server.process.returncode}")
            card.trials += 1
        check_equal(server.request("GET", "/health/live")[0], 200, "afterwards")
        check(peak_kib(server) - before <= GROWTH_KIB_MAX, f"memory grew by {peak_kib(server) - before} KiB, at most {GROWTH_KIB_MAX}")


class Streams:
    """Honest clients that read one token after the other; the gaps between them, in seconds."""

    def __init__(self, server, n_streams):
        self.server, self.gaps, self.ends, self.failures, self.lock = server, [], False, [], threading.Lock()
        self.threads = [threading.Thread(target=self.read, args=(i,)) for i in range(n_streams)]
        for thread in self.threads:
            thread.start()

    def read(self, seed):
        try:
            while not self.ends:
                connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=120)
                body = {"model": "base", "prompt": "x", "max_tokens": 500, "ignore_eos": True, "temperature": 1, "seed": seed, "stream": True}
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "Authorization": f"Bearer {key_of('honest')}"})
                response = connection.getresponse()
                check_equal(response.status, 200, "status of an honest stream")
                last = None
                for line in response:
                    if self.ends:
                        break
                    if not line.startswith(b"data: {"):
                        continue
                    now = time.monotonic()
                    if last is not None:
                        with self.lock:
                            self.gaps.append(now - last)
                    last = now
                connection.close()
        except Exception as failure:  # told by the part
            self.failures.append(failure)

    def p99_ms(self, seconds, until=lambda: False):
        with self.lock:
            self.gaps.clear()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            time.sleep(0.1)
        with self.lock:
            found = sorted(self.gaps)
        check(len(found) > 100, f"only {len(found)} tokens came")
        return 1000 * found[int(len(found) * 0.99)]

    def stop(self):
        self.ends = True
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise self.failures[0]


def attack_of(card, server, jobs):
    """A process in which hostile clients send these, [route, body] each."""
    path = card.folder / "hostile.json"
    path.write_text(json.dumps(jobs))
    client = pathlib.Path(__file__).with_name("hostile_client.py")
    return subprocess.Popen([sys.executable, str(client), server.host, str(server.port), key_of("hostile"), str(path), "8"], stdout=subprocess.PIPE, text=True)


def make_programs(card, server):
    """What a device makes once, when somebody's first grammar comes, whoever that is: programs for steps of masked rows beside others, of several sizes."""
    body = {"model": "base", "prompt": "a", "max_tokens": 4, "structured_outputs": {"regex": "[ab]+"}}
    with attack_of(card, server, [["/v1/completions", json.dumps(body)]] * 48) as attack:
        said = attack.communicate()[0]
    check_equal(set(json.loads(said)["statuses"]), {"200"}, "statuses of an honest grammar")


def beside_others(card):
    n_streams, n_hostile, seconds = (4, 30, 2) if card.quick else (32, 1000, 60)
    keys = key_file(card.folder, honest={"tenant": "honest"}, hostile={"tenant": "hostile"})
    with card.part("honest streams beside them"), card.server("--api-key-file", keys, adapters=()) as server:
        # What runs on is h's tokens: here counts what is refused, and what compiling costs others.
        jobs = [(route, {**body, "max_tokens": 1}) for name, route, body in bodies() if route == "/v1/completions"]
        # Nobody else has sent any of these: what is compiled is not kept for the next.
        hostile = [(route, json.dumps({**body, "structured_outputs": {kind: vary(kind, source, i) for kind, source in body["structured_outputs"].items()}}))
                   for i, (route, body) in zip(range(n_hostile), itertools.cycle(jobs))]
        streams = Streams(server, n_streams)
        try:
            time.sleep(2)
            make_programs(card, server)
            alone = streams.p99_ms(seconds)
            with attack_of(card, server, hostile) as attack:
                beside = streams.p99_ms(seconds * 10, until=lambda: attack.poll() is not None)
                said = attack.communicate()[0]
        finally:
            streams.stop()
        statuses = {int(status): n for status, n in json.loads(said)["statuses"].items()}
        check(set(statuses) <= {200, 400, 422, 429}, f"statuses {statuses}")
        check_equal(sum(statuses.values()), n_hostile, "answers")
        check(server.process.poll() is None, "the daemon ended")
        card.trials += n_hostile
        card.figure("p99 alone, ms", alone)
        card.figure("p99 beside, ms", beside)
        card.limit("p99 beside by p99 alone", beside / alone, 1.2)


def vary(kind, source, number):
    if kind == "json":
        return {**source, "title": str(number)}
    return source + ("\n// " + str(number) if kind == "grammar" and "::=" not in source else f"{'' if kind == 'grammar' else number}")


def run(card):
    card.gtest("as deep as they may be", "model_tests", "Forms/Depth.*")
    card.gtest("helpers", "server_tests", "Sandbox.*:Grammars.*:AdmissionTest.*:GrammarMemoryTest.*:IsolatedText.*:Draws/*Masks.*")
    over_http(card)
    templates(card)
    beside_others(card)


if __name__ == "__main__":
    main("T31", run)
