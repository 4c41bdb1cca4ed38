#!/usr/bin/env python3
"""T26: one tenant sends ten times its quota, the longest prompts with an adapter of the highest rank; three others behave.

Two measurements. Light: the three ask now and then; how much longer do they wait for a first token while the fourth floods? Backlogged: all four
always have requests waiting, the fourth has no quota; how much of an equal share does each of the three get, by the cost that the server counts (a prompt token 1,
a generated one 2)?
"""
# beside others: yes

import contextlib
import http.client
import json
import pathlib
import struct
import threading
import time

from frame import MODEL, check, main
from t10_authorisation import key_file, key_of

RANK = 128
LONGEST = 480  # tokens of a prompt that just fits
CALM = ("one", "two", "three")
N_GAPS = 50  # between tokens, of which half are judged
PATIENCE_S = 30


def padded_adapter(folder):
    """The demo adapter with zeros up to a rank that costs: the same answers for more work."""
    source = MODEL / "adapters/pirate"
    config = json.loads((source / "adapter_config.json").read_text())
    data = (source / "adapter_model.safetensors").read_bytes()
    n_header = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + n_header]), data[8 + n_header:]
    rank = config["r"]
    out_header, out = {}, b""
    for name, tensor in sorted((k, v) for k, v in header.items() if k != "__metadata__"):
        begin, end = tensor["data_offsets"]
        raw, (rows, columns) = body[begin:end], tensor["shape"]
        size = (end - begin) // (rows * columns)
        if "lora_A" in name:
            raw, shape = raw + b"\0" * ((RANK - rank) * columns * size), [RANK, columns]
        else:
            row = columns * size
            raw, shape = b"".join(raw[i:i + row] + b"\0" * ((RANK - rank) * size) for i in range(0, len(raw), row)), [rows, RANK]
        out_header[name] = {"dtype": tensor["dtype"], "shape": shape, "data_offsets": [len(out), len(out) + len(raw)]}
        out += raw
    config.update(r=RANK, lora_alpha=config["lora_alpha"] * RANK / rank)
    target = pathlib.Path(folder) / "highest-rank"
    target.mkdir()
    (target / "adapter_config.json").write_text(json.dumps(config))
    text = json.dumps(out_header).encode()
    (target / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + out)
    return target


class Client:
    """What one tenant's requests have come to."""

    def __init__(self, server, key):
        self.server, self.key = server, key
        self.first_s, self.statuses, self.retry_after, self.cost = [], {}, [], 0
        self.counts_from, self.counts_until = 0.0, float("inf")
        self.lock = threading.Lock()

    def ask(self, model, prompt, n_tokens):
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=120)
        began = time.monotonic()
        body = {"model": model, "prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, "stream": True, "temperature": 0, "stream_options": {"include_usage": True}}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "Authorization": f"Bearer {key_of(self.key)}"})
            response = connection.getresponse()
            first, usage = None, None
            if response.status != 200:
                response.read()
            else:
                for line in response:
                    if not line.startswith(b"data: {"):
                        continue
                    first = first or time.monotonic() - began
                    usage = json.loads(line[6:]).get("usage") or usage
            with self.lock:
                self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
                if response.status == 429:
                    self.retry_after.append(int(response.getheader("Retry-After") or 0))
                if first is not None:
                    self.first_s.append(first)
                if usage and self.counts_from <= time.monotonic() <= self.counts_until:
                    self.cost += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] + 2 * usage["completion_tokens"]
            return response.status
        finally:
            connection.close()


def together(seconds, *workers):
    """Runs each until the time is over; what fails in one fails all."""
    until, failed = time.monotonic() + seconds, []

    def run(work):
        try:
            while time.monotonic() < until and not failed:
                if work() == 429:
                    time.sleep(0.2)
        except Exception as error:  # told in the main thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def p99(values):
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def light(card, server, seconds, flood):
    """The calm ones' clients and the flooding one's, after so many seconds."""
    calm, noisy = [Client(server, name) for name in CALM], Client(server, "limited")

    def behave(client):
        status = client.ask("pirate", [card.random.randrange(10, 4000) for _ in range(48)], 16)
        time.sleep(0.3)
        return status

    def shout():
        # Eight clients that ask again 0.2 s after a refusal: far more than ten times the quota's 12 requests a minute.
        return noisy.ask("highest", [card.random.randrange(10, 4000) for _ in range(LONGEST)], 16)

    together(seconds, *[lambda client=client: behave(client) for client in calm], *([shout] * 8 if flood else []))
    return calm, noisy


def backlogged(card, server, seconds):
    calm, noisy = [Client(server, name) for name in CALM], Client(server, "noisy")
    # What ends in this time counts: not the beginning, when nobody has had anything, nor the end, when requests of all sizes are only finished.
    for client in (*calm, noisy):
        client.counts_from, client.counts_until = time.monotonic() + seconds / 6, time.monotonic() + seconds

    def ask(client, model, n_prompt):
        return client.ask(model, [card.random.randrange(10, 4000) for _ in range(n_prompt)], 16)

    together(seconds, *[lambda client=client: ask(client, "pirate", 64) for client in calm for _ in range(4)], *[lambda: ask(noisy, "highest", LONGEST)] * 12)
    return calm, noisy


def slow_grammar(n_terms):
    """Its masks take milliseconds: any of many terms may follow anywhere, and each may be what has come."""
    terms = "\n".join(f"T{i}: /[a-z ]*{chr(97 + i % 26)}[a-z ]{{{i % 40}}}/" for i in range(n_terms))
    return "start: (" + "|".join(f"T{i}" for i in range(n_terms)) + ")*\n" + terms


class Gaps(threading.Thread):
    """One key's stream after stream: how long each token was waited for."""

    def __init__(self, server, key):
        super().__init__(daemon=True)
        self.client, self.gaps, self.over, self.failed = (server.host, server.port, key), [], threading.Event(), None
        self.start()

    def run(self):
        host, port, key = self.client
        body = {"model": "base", "prompt": "x", "max_tokens": 450, "ignore_eos": True, "temperature": 0, "stream": True}
        while not self.over.is_set():
            connection = http.client.HTTPConnection(host, port, timeout=120)
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "Authorization": f"Bearer {key_of(key)}"})
            response = connection.getresponse()
            if response.status != 200:
                self.failed = response.status
                return
            last = None
            for line in response:
                if self.over.is_set():
                    break
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    if last is not None:
                        self.gaps.append((now, now - last))
                    last = now
            connection.close()

    def between(self, begin, end):
        check(self.failed is None, f"the calm stream's answer: {self.failed}")
        return [gap for at, gap in self.gaps if begin <= at <= end]

    def wait_for(self, n, begin, seconds):
        """Until there are more than so many since then: a busy machine takes its time."""
        end = time.monotonic() + seconds
        while len(self.between(begin, end)) <= n and time.monotonic() < end:
            time.sleep(0.05)


def masks(card, server, seconds):
    """A stream's gaps between tokens alone, and beside another key's flood of grammars whose masks are slow."""
    calm, noisy = Gaps(server, "one"), Client(server, "noisy")
    calm.wait_for(10, 0.0, PATIENCE_S)
    begin = time.monotonic()
    time.sleep(seconds)
    calm.wait_for(N_GAPS, begin, PATIENCE_S)
    alone = calm.between(begin, time.monotonic())
    flood = {"model": "base", "prompt": "once upon a time there", "temperature": 1.5, "logit_bias": {"2": -100}, "structured_outputs": {"grammar": slow_grammar(120)}}

    until = 0.0

    # Their answers may take long; whoever sends them leaves when the time is over.
    def shout():
        connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(dict(flood, max_tokens=20, n=2, stream=True)),
                           {"Content-Type": "application/json", "Authorization": f"Bearer {key_of(noisy.key)}"})
        response = connection.getresponse()
        with noisy.lock:
            noisy.statuses[response.status] = noisy.statuses.get(response.status, 0) + 1
        connection.sock.settimeout(max(0.1, until - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            while response.readline():
                pass
        connection.close()
        return response.status

    begin, beside = time.monotonic(), []
    while len(beside) <= N_GAPS and time.monotonic() < begin + PATIENCE_S:
        until = time.monotonic() + seconds
        together(seconds, *[shout] * 8)
        beside = calm.between(begin, time.monotonic())
    calm.over.set()
    check(set(noisy.statuses) <= {200, 429} and noisy.statuses.get(200), f"answers with a slow grammar: {noisy.statuses}")
    check(len(alone) > N_GAPS and len(beside) > N_GAPS, f"{len(alone)} and {len(beside)} tokens")
    card.trials += len(beside)
    card.figure("gap between tokens p99, alone and beside slow grammars, ms", f"{1000 * p99(alone):.1f} {1000 * p99(beside):.1f}")
    card.limit("gap p99 beside slow grammars, of alone", p99(beside) / p99(alone), 1.2)
    # On the same processor as the grammars it is what the system gives it; without budgets each gap is the sum of the masks' times, a second and more.
    median = sorted(beside)[len(beside) // 2]
    check(median < 0.25, f"half of the gaps are longer than {median:.2f} s beside slow grammars")


def run(card):
    card.gtest("pools have shares, and masks a budget", "server_tests", "SharedPlaces.*:SharesTest.*:MaskPool.*:TimeDebts.*:Draws/*Masks.*")
    card.gtest("the service of two backlogged tenants", "server_tests", "FairShare.TheServiceOfTwoBackloggedTenantsStaysWithinTheBound:"
                                                                        "FairEngine.AFloodOfOneTenantDoesNotHoldUpAnother:Quotas.*:TenantsTest.TokensHaveAQuota")
    card.gtest("the prompts of tenants share the rows of steps", "server_tests", "FairPrompts.*:FairEngine.AShortPromptIsInTheNextStepThoughALongOneIsHalfComputed:"
                                                                                 "FairEngine.PromptsOfBackloggedTenantsAreComputedAlike:SchedulerSimulation.*")
    adapter = padded_adapter(card.folder)
    path = key_file(card.folder, **{name: {} for name in CALM}, noisy={"max_queued_requests": 8},
                    limited={"requests_per_minute": 12, "tokens_per_minute": 12000, "max_queued_requests": 2})
    seconds = 1 if card.quick else 90
    if card.quick:
        card.short_of("90 s of each: --tier nightly")
    flags = ("--api-key-file", path, "--max-model-len", "512", "--lora", f"highest={adapter}", "--no-prefix-cache")
    with card.server(*flags, adapters=("pirate",)) as server:
        light(card, server, 1 if card.quick else 2, False)
        with card.part("the offender is told to wait, the others are not"):
            alone, _ = light(card, server, seconds, False)
            beside, noisy = light(card, server, seconds, True)
            check(noisy.statuses.get(429, 0) > 0, f"the offender's answers: {noisy.statuses}")
            check(all(1 <= s <= 60 for s in noisy.retry_after), f"Retry-After: {sorted(set(noisy.retry_after))}")
            for client in (*alone, *beside):
                check(set(client.statuses) == {200}, f"a calm tenant's answers: {client.statuses}")
            card.figure("offender refused", noisy.statuses.get(429, 0) / sum(noisy.statuses.values()))
            base = p99([s for client in alone for s in client.first_s])
            with_noise = p99([s for client in beside for s in client.first_s])
            card.figure("p99 first token alone, s", base)
            card.trials += sum(len(client.first_s) for client in beside)
            card.grade("p99 first token, beside to alone", with_noise / base, 1.5)
        with card.part("a stream beside grammars whose masks are slow"):
            masks(card, server, max(seconds, 2))
    # Few places, so that somebody always waits for one.
    with card.server(*flags, "--max-num-seqs", "4", adapters=("pirate",)) as server:
        with card.part("an equal share for whoever always asks"):
            calm, noisy = backlogged(card, server, seconds)
            for client in (*calm, noisy):
                check(set(client.statuses) <= {200, 429} and client.statuses.get(200), f"answers of {client.key}: {client.statuses}")
            if card.quick:  # too short for shares
                return
            fair = (sum(client.cost for client in calm) + noisy.cost) / 4
            least = min(client.cost for client in calm) / fair
            card.grade("least share of a calm tenant", least, 0.9, better="higher")
            # Found: 1.0; with one tenant for all keys, where only adapters share, 0.67.
            check(least > 0.75, f"shares {[round(client.cost / fair, 2) for client in calm]} and {noisy.cost / fair:.2f}")


if __name__ == "__main__":
    main("T26", run)
