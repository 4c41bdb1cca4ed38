#!/usr/bin/env python3
"""The same tests of the HTTP surface against lorad and against a packaged llama-server, one after the other; a markdown table of both.

    tests/http/beside_llama_server.py --lorad build/dev/lorad --llama-server 'build/peers/run llama-server' --llama-model build/peers/tiny.gguf
                                      [--only framing,memory,...] [--json FILE]

Standard library only. bench/peers/get_llama_cpp.sh build/peers unpacks Debian's llama.cpp; bench/peers/make_gguf.py model build/peers/tiny.gguf tiny
f16 writes a model (needs numpy). lorad serves the demo model on lavapipe. llama-server computes on one thread of the CPU, its fastest on a machine
that does other things too (threads that wait for each other are slow there); LLAMA_ARG_... in the environment changes that. Both have SLOTS places
and otherwise their own defaults. Every test has a server of its own: one that ends spoils no other. What is found is in the table, and fails nothing.
Ask the servers nothing else meanwhile.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scorecard"))

from frame import ROOT, Server, check, free_port, use_software_device  # noqa: E402

import framing  # noqa: E402
import raw_http  # noqa: E402
import slow_clients  # noqa: E402
from streams import Stream, metrics, wait_for  # noqa: E402
from t07_memory import HEAD, MIB, flood, reset_peak, status_of  # noqa: E402
from t13_vanishing_clients import Client  # noqa: E402
from t14_stalled_readers import Stalled, look, request_of  # noqa: E402

SLOTS = 4
PROMPT = [5, 6, 7]
LLAMA_CONTEXT = 16384  # of each slot: tokens of its model are faster than those of lorad's, and streams must last as long
LONG_S = 40            # how long streams would take that were left to themselves
DRAIN_S = 15           # and those that SIGTERM meets: half of lorad's --drain-timeout-s
PATIENCE_S = 120       # what is not over by then is "not within"
FRAMING_S = 15         # for an answer and the end of its connection
N_HALF_HEADS, N_PROBES, ATTACK_S, PROBE_S = 300, 20, 30, 5
N_TRIES = 3


class Lorad(Server):
    name = "lorad"
    busy = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    context = 2048

    def __init__(self, args):
        super().__init__(args.lorad, "--max-num-seqs", str(SLOTS), adapters=())


class LlamaServer(Server):
    name = "llama-server"
    busy = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    context = LLAMA_CONTEXT

    def __init__(self, args):
        self.headers = {"Content-Type": "application/json"}
        self.host = "127.0.0.1"
        self.port = free_port()
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log", delete=False)
        command = [*shlex.split(args.llama_server), "--model", args.llama_model, "--host", self.host, "--port", str(self.port), "--metrics",
                   "--parallel", str(SLOTS), "--ctx-size", str(SLOTS * LLAMA_CONTEXT)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env={"LLAMA_ARG_THREADS": "1", **os.environ})
        check(wait_for(self.is_healthy, 120, 0.1) is not None, f"llama-server does not start: {self.log_text()[-2000:]}")

    def is_healthy(self):
        check(self.process.poll() is None, f"llama-server ended with {self.process.returncode}: {self.log_text()[-2000:]}")
        try:
            return self.request("GET", "/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def __exit__(self, *what):
        if self.process.poll() is None:
            self.process.kill()  # SIGTERM has a test of its own
            self.process.wait()
        super().__exit__(*what)


def n_busy(server):
    return sum(metrics(server, server.busy).values())


def free_after(server, seconds=PATIENCE_S):
    """Seconds until no request runs or waits; None: not within that time."""
    return wait_for(lambda: n_busy(server) == 0, seconds, 0.01)


def in_seconds(value, limit=PATIENCE_S):
    return f"not within {limit} s" if value is None else f"{value:.2f} s" if value < 1 else f"{value:.1f} s"


def tokens_for(server, seconds, n_streams=SLOTS):
    """How many tokens each of these streams takes so long for, or what the context has room for. The first round warms up."""
    for n in (8, 100):
        began = time.monotonic()
        streams = [Stream(server, "base", PROMPT, n) for _ in range(n_streams)]
        for stream in streams:
            stream.join()
        check(all(stream.done for stream in streams), f"{server.name}: a stream did not end: {streams[0].error or streams[0].cut}")
    a_token = (time.monotonic() - began) / n
    return int(min(server.context - 100, seconds / a_token)), a_token


# Each test yields (row of the table, what stands there, the figures behind it).

def verdict(answer, closing):
    found = [status for status in raw_http.statuses(answer) if status >= 200]
    if not found:
        return "no answer"
    if found[0] < 400:
        return "taken as valid (2xx)"
    if len(found) > 1:
        return "a second reply behind a refusal"
    if found[0] >= 500 and found[0] != 505:
        return f"status {found[0]}"
    return "refused and closed" if closing is not None else "refused, left open"


def test_framing(server):
    """The corpus of T6; /health, which both have, stands for its /version."""
    def ask(case):
        kind, request = case
        answer, closing = raw_http.exchange((server.host, server.port), [request.replace(b"/version", b"/health")], seconds=FRAMING_S)
        return verdict(answer, closing), kind, raw_http.statuses(answer), repr(request[:100])

    cases = list(framing.malformed())
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, cases))
    counts = collections.Counter(found for found, *_ in answers)
    text = ", ".join(f"{n} {found}" for found, n in counts.most_common())
    yield f"{len(cases)} malformed requests", text, [answer for answer in answers if answer[0] != "refused and closed"]
    n_right = 0
    for request, n in framing.well_formed():
        answer, _ = raw_http.exchange((server.host, server.port), [request.replace(b"/version", b"/health")], seconds=FRAMING_S, enough=n)
        n_right += raw_http.statuses(answer) == [200] * n
    yield "well-formed ones, answered as they should be", f"{n_right} of {len(list(framing.well_formed()))}", n_right


def test_memory(server):
    endless = {"of the request's first line": (b"GET /", b"a" * 65536), "of header fields": (HEAD, b"X: y\r\n" * 10000),
               "of a chunked body": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n")}
    server.request("GET", "/health")
    for name, (head, piece) in endless.items():
        reset_peak(server)
        before = status_of(server, "VmRSS")
        status, n_sent = flood((server.host, server.port), head, piece, 64 * MIB)
        grown = max(0, status_of(server, "VmHWM") - before) / MIB
        yield f"64 MiB {name}: memory taken", f"{grown:.0f} MiB ({status or 'closed'})", {"MiB": grown, "status": status, "MiB sent": n_sent / MIB}


def test_slow(server):
    """GET /health on a connection of its own, beside clients that send their heads byte by byte."""
    request = b"GET /health HTTP/1.1\r\nHost: lorad.test\r\nConnection: close\r\n\r\n"

    def probe():
        began = time.monotonic()
        try:
            answer, _ = raw_http.exchange((server.host, server.port), [request], seconds=PROBE_S, enough=1)
        except OSError:
            answer = b""
        time.sleep(0.1)
        return raw_http.statuses(answer) == [200], time.monotonic() - began - 0.1

    alone = [probe() for _ in range(N_PROBES)]
    attackers = slow_clients.start((server.host, server.port), "heads", N_HALF_HEADS, ATTACK_S)
    attackers.stdout.readline()
    end, beside = time.monotonic() + ATTACK_S - 2 * PROBE_S, []
    while len(beside) < N_PROBES and time.monotonic() < end:
        beside.append(probe())
    held = json.loads(attackers.communicate()[0])
    text = " / ".join(f"{sum(ok for ok, _ in probes)} of {len(probes)}, slowest {1000 * max(took for _, took in probes):.0f} ms"
                      for probes in (alone, beside))
    yield f"`/health`, answered within {PROBE_S} s, alone / beside {N_HALF_HEADS} half-sent heads", text, {"alone": alone, "beside": beside}
    longest = max(held["longest_s"], held["oldest_open_s"])
    yield "the longest that a half-sent head is held", f"{longest:.1f} s" if held["longest_s"] else f"to the end ({ATTACK_S} s)", held


def post(server, path, body):
    """(status or None, milliseconds, begin of the answer) on a connection of its own."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    began = time.monotonic()
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read().decode(errors="replace")
        status = response.status
    except (OSError, http.client.HTTPException) as error:
        status, answer = None, repr(error)
    finally:
        connection.close()
    return status, 1000 * (time.monotonic() - began), answer[:200]


HOSTILE = {
    "100,000 arrays in one another": b'{"prompt":"x","max_tokens":1,"x":' + b"[" * 100000 + b"]" * 100000 + b"}",
    "100,000 objects in one another": b'{"prompt":"x","max_tokens":1,"x":' + b'{"a":' * 100000 + b"1" + b"}" * 100000 + b"}",
    "a million brackets, none closed": b"[" * 1000000,
    "two million values": b'{"prompt":"x","max_tokens":1,"x":[' + b"1," * 1999999 + b"1]}",
    "a key twice": b'{"prompt":"x","max_tokens":1,"max_tokens":2}',
    "a number of 100,000 digits": b'{"prompt":"x","max_tokens":1,"seed":' + b"1" * 100000 + b"}",
    "1e999": b'{"prompt":"x","max_tokens":1,"temperature":1e999}',
    "half a surrogate pair": b'{"prompt":"\\ud800","max_tokens":1}',
    "bytes that are not UTF-8": b'{"prompt":"\xff\xfe","max_tokens":1}',
    "UTF-16": '{"prompt":"x","max_tokens":1}'.encode("utf-16"),
    "more behind the end": b'{"prompt":"x","max_tokens":1}{"prompt":"y"}',
    "a comment": b'{"prompt":"x",/* */"max_tokens":1}',
}
MANY_KEYS = b'{"prompt":"x","max_tokens":1,"x":{' + b",".join(b'"k%d":1' % i for i in range(100000)) + b"}}"


def test_json(server):
    statuses, times, all_found = collections.defaultdict(list), [], {}
    for name, body in HOSTILE.items():
        tries = [post(server, "/v1/completions", body) for _ in range(N_TRIES)]
        status, ms, answer = min(tries, key=lambda found: found[1])
        all_found[name] = {"statuses": [found[0] for found in tries], "ms": round(ms, 1), "answer": answer}
        statuses["no answer" if status is None else str(status)].append(name)
        times.append(ms)
    text = ", ".join(f"{len(names)} {status}" + f" ({'; '.join(names)})" * (status[0] != "4") for status, names in sorted(statuses.items()))
    yield f"{len(HOSTILE)} hostile JSON bodies", text, all_found
    yield f"the slowest of them (best of {N_TRIES} times)", f"{max(times):.0f} ms", max(times)
    status, ms, answer = post(server, "/v1/completions", MANY_KEYS)
    yield "valid JSON, 100,000 keys in a field that neither knows", f"{status or 'no answer'}, {ms:.0f} ms", answer


BAD_VALUES = {
    "temperature": ("NaN", "-1", '"hot"', "1e999", "[1]"),
    "top_p": ("-0.5", "1.5", '"x"', "{}"),
    "top_k": ('"x"', "1.5"),
    "min_p": ("-1", "2", '"x"'),
    "n": ("-1", "0", "1.5", '"two"', "1000000"),
    "max_tokens": ("-5", '"many"', "1.5", "{}"),
    "stop": ("5", "[1]", '{"a":1}'),
    "logit_bias": ('"x"', '{"5":"x"}', '{"999999999":1}'),
    "presence_penalty": ('"x"', "1e999"),
    "frequency_penalty": ('"x"', "-1e999"),
    "seed": ('"x"', "1.5", "1e30"),
    "stream": ('"yes"', "1"),
    "logprobs": ("-1", '"x"'),
}


def test_parameters(server):
    counts, taken = collections.Counter(), {}
    cases = [(field, text) for field, texts in BAD_VALUES.items() for text in texts]
    for field, text in cases:
        few = "" if field == "max_tokens" else '"max_tokens":2,'
        status, _, answer = post(server, "/v1/completions", f'{{"prompt":"x",{few}"{field}":{text}}}'.encode())
        counts["no answer" if status is None else f"{status // 100}xx"] += 1
        if status is None or not 400 <= status < 500:
            taken[f"{field}={text}"] = [status, answer]
    yield f"{len(cases)} bad values of parameters", ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items(), reverse=True)), taken


def test_vanish(server):
    """SLOTS streams are closed by their clients; requests that run are the servers' own figure."""
    n, a_token = tokens_for(server, LONG_S)
    check(free_after(server) is not None, "not free at the start")
    found = {}
    for way, stream in (("fin", True), ("rst", True), ("fin", False), ("rst", False)):
        body = {"model": "base", "prompt": PROMPT, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": stream}
        clients = [Client(server, body) for _ in range(SLOTS)]
        check(wait_for(lambda: n_busy(server) == SLOTS, 30) is not None, f"{n_busy(server)} run")
        if stream:
            for client in clients:
                client.has_token()
        time.sleep(1)
        check(n_busy(server) == SLOTS, f"{n_busy(server)} run, after a second")
        for client in clients:
            client.vanish(way)
        found[way, stream] = free_after(server)
        if found[way, stream] is None:
            break
    for stream, what in ((True, "streams"), (False, "answers in one piece")):
        times = [seconds for (_, streamed), seconds in found.items() if streamed == stream]
        yield (f"{SLOTS} clients of {what} of about {LONG_S} s vanish (FIN / RST): nothing runs after", " / ".join(map(in_seconds, times)),
               {"seconds": times, "tokens": n, "left to themselves s": n * a_token})


def test_stall(server):
    """A stream with log-probabilities, some hundred bytes for a token, whose client does not read: the kernel takes what fits into its buffers."""
    n, a_token = tokens_for(server, LONG_S, 1)
    Stream(server, "base", PROMPT, 8, logprobs=20).join()  # what their first use takes in memory stays
    check(free_after(server) is not None, "not free at the start")
    before = status_of(server, "VmRSS")
    reset_peak(server)
    client = Stalled(server, request_of(server, "base", n))
    began, free = time.monotonic(), None
    check(wait_for(lambda: n_busy(server) == 1, 30) is not None, f"{n_busy(server)} run")
    while time.monotonic() < began + PATIENCE_S and (free is None or client.cut is None):
        look(server, [client])
        if free is None and n_busy(server) == 0:
            free = time.monotonic() - began
        time.sleep(0.05)
    grown = (status_of(server, "VmHWM") - before) / MIB
    cut = client.cut and client.cut - client.changed
    client.socket.close()
    text = f"{in_seconds(free)}; {in_seconds(cut)}"
    data = {"nothing runs": free, "last byte taken": client.changed - began, "cut": cut, "tokens": n, "left to itself": n * a_token, "MiB": grown}
    yield f"a client stops reading a stream of about {LONG_S} s: nothing runs after; closed after the last byte that was taken", text, data


def test_drain(server):
    n, _ = tokens_for(server, DRAIN_S)
    streams = [Stream(server, "base", PROMPT, n, timeout=120) for _ in range(SLOTS)]
    check(wait_for(lambda: n_busy(server) == SLOTS, 30) is not None, f"{n_busy(server)} run")
    time.sleep(1)
    check(all(stream.ended is None for stream in streams), "a stream is over already")
    signalled = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    try:
        code = server.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        code = None
    took = time.monotonic() - signalled
    for stream in streams:
        stream.join(10)
    outcomes = collections.Counter("open without an end" if stream.is_alive() else stream.outcome() for stream in streams)
    text = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    text += f"; exit {code} after {took:.1f} s" if code is not None else f"; runs on for {PATIENCE_S} s"
    ends = [stream.ended and stream.ended - signalled for stream in streams]
    yield f"SIGTERM with {SLOTS} streams of {DRAIN_S} s", text, {"outcomes": outcomes, "exit": code, "seconds": took, "streams over after s": ends}


TESTS = {name.removeprefix("test_"): value for name, value in list(globals().items()) if name.startswith("test_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", default=str(ROOT / "build/dev/lorad"))
    parser.add_argument("--llama-server", required=True, help="the program, with what must stand before it")
    parser.add_argument("--llama-model", required=True, help="a GGUF file")
    parser.add_argument("--only", help=f"some of {','.join(TESTS)}")
    parser.add_argument("--json", help="a file for all figures")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(TESTS)
    if unknown := set(names) - set(TESTS):
        parser.error(f"no test is called {', '.join(sorted(unknown))}")
    use_software_device()
    table, figures = collections.defaultdict(dict), collections.defaultdict(dict)
    for name in names:
        for peer in (Lorad, LlamaServer):
            began = time.monotonic()
            with peer(args) as server:
                for row, text, data in TESTS[name](server):
                    table[row][peer.name] = text
                    figures[row][peer.name] = data
                ended = server.process.poll() if name != "drain" else None
                if ended is not None:
                    table[f"ended in the test {name}"][peer.name] = f"exit {ended}"
            print(f"{name}: {peer.name}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            if args.json:
                pathlib.Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")
    print(f"| | {Lorad.name} | {LlamaServer.name} |\n|---|---|---|")
    for row, cells in table.items():
        print(f"| {row} | {cells.get(Lorad.name, '')} | {cells.get(LlamaServer.name, '')} |")


if __name__ == "__main__":
    main()
