#!/usr/bin/env python3
"""T9: no value of any parameter makes the server fail, takes memory, or slows others down: each that is refused is refused before it is admitted."""
# beside others: yes
# sanitizers: no, judges memory

import http.client
import json
import pathlib
import statistics
import sys
import threading
import time

from frame import ROOT, check, check_equal, main

sys.path.insert(0, str(ROOT / "tests/http"))

NUMBERS = ["-1", "0", "1", "2", "1.5", "-0.0", "2147483647", "2147483648", "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808",
           "18446744073709551615", "18446744073709551616", "-2147483649", "-9223372036854775809", "1e999", "-1e999", "1e-999", "1e308", "NaN", "Infinity", "-Infinity",
           "0x10", "01", "+1", "1_000", "1" * 400]
OTHERS = ["true", "false", "null", '""', '"1"', '"\\u0000"', '"\\ud800"', "[]", "{}", "[1]", "[null]", "[[[[[[]]]]]]", '{"1":1}', '{"a":{}}', '["a","a"]', '"' + "x" * (1 << 20) + '"',
          "[" + "1," * 5000 + "1]", '["' + '","'.join("abcdefgh") + '"]', '{"-1":1}', '{"18446744073709551616":1}', '{"1":1e999}', '{"1":101}', '[-1]', '[1e99]', "[true]"]
FIELDS = ["n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "stop", "stop_token_ids", "logit_bias", "seed",
          "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "echo", "stream", "user", "priority", "allowed_token_ids",
          "bad_words", "adapters", "response_format", "cache_salt", "ignore_eos", "prompt"]
MS_MAX = 10
RSS_KIB_MAX = 16 << 10


def bodies():
    for path, base in (("/v1/completions", '"prompt":"x"'), ("/v1/chat/completions", '"messages":[{"role":"user","content":"x"}]')):
        for field in FIELDS:
            for text in NUMBERS + OTHERS:
                rest = base if field != "prompt" else '"max_tokens":1'
                few = "" if field in ("max_tokens", "max_completion_tokens", "prompt") else ',"max_tokens":2'
                yield path, field, text, f'{{{rest}{few},"{field}":{text}}}'.encode()
            yield path, field, "twice", f'{{{base},"{field}":1,"{field}":1}}'.encode()


class Others:
    """A stream that decodes all the time, and the times between its tokens."""

    def __init__(self, server):
        self.server, self.gaps, self.stopped = server, [], False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stopped:
            before = None
            for _ in self.server.events("/v1/completions", prompt=[5, 6, 7], max_tokens=100, temperature=0, ignore_eos=True):
                now = time.perf_counter()
                if before is not None:
                    self.gaps.append(now - before)
                before = now

    def take(self):
        gaps, self.gaps = self.gaps, []
        return sorted(gaps)

    def stop(self):
        self.stopped = True
        self.thread.join()


def peak_kib(pid):
    return int(pathlib.Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])


class Sender:
    """Sends every case and checks its answer."""

    def __init__(self, server):
        self.server, self.connection = server, None
        self.slow, self.times, self.n_refused = [], [], 0

    def send(self, path, body):
        for again in (True, False):
            try:
                self.connection = self.connection or http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
                began = time.perf_counter()
                self.connection.request("POST", path, body, {"Content-Type": "application/json"})
                response = self.connection.getresponse()
                answer = response.read()
                ms = (time.perf_counter() - began) * 1000
                if response.will_close:
                    self.connection.close()
                    self.connection = None
                return response.status, answer, ms
            except (http.client.HTTPException, OSError):
                self.connection.close()
                self.connection = None
                check(again, f"the server closed a new connection: {body[:100]}")

    def send_all(self, cases):
        for path, field, text, body in cases:
            status, answer, ms = self.send(path, body)
            what = f"{path} {field}={text[:40]}"
            check(status < 500, f"{what}: {status} {answer[:200]}")
            if status == 200:
                check(b"data:" in answer or json.loads(answer), what)
                continue
            error = json.loads(answer)["error"]
            if (status, error["code"]) == (429, "server_overloaded"):
                continue  # taken, and without a turn for --max-request-s: a machine with other work
            check(status in (400, 404, 413) and error["code"], f"{what}: {status} {error}")
            self.n_refused += 1
            self.times.append(ms)
            if ms > MS_MAX:
                self.slow.append((path, body))


def matrix(card, server, cases):
    others = Others(server)
    try:
        time.sleep(2 if card.quick else 10)
        quiet = others.take()
        sender = Sender(server)
        sender.send_all(cases)
        # What the first answers of each kind leave are the device's kernels, which stay, and which of them there are depends on who meets whom in a
        # step. What the requests leave themselves they leave each time.
        least = None
        for _ in range(3):
            pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
            base_kib = peak_kib(server.process.pid)
            sender.send_all(cases)
            grown = peak_kib(server.process.pid) - base_kib
            least = grown if least is None else min(least, grown)
            if least <= RSS_KIB_MAX:
                break
        busy = others.take()
    finally:
        others.stop()
    return quiet, busy, sender.times, sender.slow, sender.n_refused, least


def best_ms(server, path, body, tries):
    best = 1e9
    for _ in range(tries):
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        connection.connect()
        began = time.perf_counter()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        best = min(best, (time.perf_counter() - began) * 1000)
        connection.close()
        if best <= MS_MAX:
            break
    return best


def run(card):
    cases = list(bodies())
    if card.quick:
        cases = card.random.sample(cases, 1000)
    with card.server("--max-model-len", "256", "--max-request-s", "1", "--log-level", "error") as server:
        check_equal(server.post("/v1/completions", prompt="x", max_tokens=1)[0], 200, "an answer beforehand")
        with card.part(f"{len(cases)} values of parameters"):
            quiet, busy, times, slow, n_refused, grown = matrix(card, server, cases)
            check(n_refused > len(cases) // 3, f"only {n_refused} refused")
            check(grown <= RSS_KIB_MAX, f"{grown} KiB more")
            card.figure("refused, median ms", f"{n_refused}, {statistics.median(times):.2f}")
            card.figure("MiB more", grown / 1024)
        with card.part("how long each refusal takes"):
            # Beside a stream that decodes on the same two processors, and others of this machine: what is slow is slow by itself, too.
            worst, where = max(times), ""
            if slow and not card.quick:
                worst, where = max((best_ms(server, path, body, 100), f"{path} {body[:100]}") for path, body in slow)
            card.limit("slowest refusal ms", worst, MS_MAX, where)
        if not card.quick:
            with card.part("others decode on"):
                def p99(values):
                    return values[int(0.99 * (len(values) - 1))] * 1000
                card.figure("ms between others' tokens, p99 quiet and under abuse", f"{p99(quiet):.1f}, {p99(busy):.1f}")
                card.note("lavapipe computes on the processors that refuse: the ratio of others' times says little here")
                check(statistics.median(busy) <= 2 * statistics.median(quiet), "others are slowed down")
        check_equal(server.post("/v1/completions", prompt="x", max_tokens=1)[0], 200, "an answer afterwards")
    if not card.quick:
        card.command("every field of every route", [sys.executable, ROOT / "tests/http/bad_input_test.py", "--lorad", card.lorad], seconds=1800)
        said = card.command("Schemathesis, 10,000 cases", [ROOT / "tests/http/run.sh", "schemathesis", "--lorad", card.lorad, "--cases", "10000", "--seed", card.seed],
                            seconds=3 * 3600)
        cases_line = [line for line in said.splitlines() if line.endswith(" cases")]
        card.figure("Schemathesis", cases_line[-1] if cases_line else "failed")
        card.trials += 10_000
    else:
        card.short_of("Schemathesis: tests/scorecard.sh --tier nightly --only T9")
    card.trials += len(cases)


if __name__ == "__main__":
    main("T9", run)
