#!/usr/bin/env python3
"""T13: clients that vanish, at any moment and in any way, leave nothing: no KV block, no adapter held, no token computed for them later."""
# beside others: yes

import dataclasses
import json
import socket
import struct
import time

from frame import ADAPTERS, check, check_equal, main
from streams import PROMPTS, answer, metrics, wait_for

PLACES = 8  # --max-num-seqs
WAYS = ("fin", "rst", "silent")
MOMENTS = ("queued", "prefill", "streaming")
DETECTED_S = {"commit": 10, "nightly": 0.25, "release": 0.25}  # a commit's machine builds and tests other things meanwhile
# Submitted when the close is noticed: the step that runs, and the one behind it.
STEPS_IN_FLIGHT = 2
# Both reach the device's memory and the adapters' leases.
HELD = ("vllm:kv_cache_usage_perc", "lorad_adapter_leases", "vllm:num_requests_running", "vllm:num_requests_waiting", "lorad_waiting_tokens",
        "lorad_adapter_waiting")
TOKENS = "vllm:generation_tokens_total"
ABORTED = 'vllm:request_success_total{model_name="base",finished_reason="abort"}'


@dataclasses.dataclass
class Noticed:
    """Over all groups: the longest time from the close until all was given back, and the most steps that ended when the close must have been noticed."""

    longest_s: float = 0.0
    n_later_steps: float = 0.0


class Client:
    """A request on a bare socket that never reads more than it has to."""

    def __init__(self, server, body):
        self.socket = socket.create_connection((server.host, server.port), timeout=30)
        text = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        self.socket.sendall(head.encode() + text)

    def has_token(self):
        """After the first event of its stream."""
        seen = b""
        while b"data: " not in seen:
            data = self.socket.recv(4096)
            check(data, f"no stream: {seen[:200]}")
            seen += data

    def vanish(self, way):
        if way == "rst":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if way != "silent":
            self.socket.close()


def held(server):
    return metrics(server, HELD)


def n_arrived(server):
    """Of the requests so far, those that run, wait or are at their end."""
    return sum(metrics(server, ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_success_total")).values())


def n_steps(server):
    return sum(metrics(server, ("lorad_steps_total",)).values())


def body_of(choose, moment, n_long):
    stream = moment == "streaming" or choose.random() < 0.5
    n = choose.choice((1, 4)) if moment != "prefill" else 1
    return {"model": choose.choice(("base", *ADAPTERS)), "prompt": [choose.randrange(3, 200) for _ in range(800)] if moment == "prefill" else choose.choice(PROMPTS[:3]),
            "max_tokens": n_long, "n": n, "temperature": 0.8 if n > 1 else 0, "ignore_eos": True, "stream": stream}


def settle(server, start, seconds):
    """Seconds until everything is as it was; fails with what is not."""
    took = wait_for(lambda: held(server) == start, seconds, 0.01)
    check(took is not None, f"not given back: {({k: v for k, v in held(server).items() if v != start[k]})}")
    return took


def group(card, server, start, moment, way, n, noticed):
    choose = card.random
    # The silent ones are at their end some time.
    blockers, n_tokens = [], 100 if way == "silent" else 1100
    if moment == "queued":
        # All places are taken by others, so that these only wait.
        blockers = [Client(server, body_of(choose, "streaming", n_tokens + 100) | {"n": 1, "stream": True}) for _ in range(PLACES)]
        for blocker in blockers:
            blocker.has_token()
    n_others = n_arrived(server)
    clients = [Client(server, body_of(choose, moment, n_tokens)) for _ in range(n)]
    check(wait_for(lambda: n_arrived(server) >= n_others + n, 20, 0.02) is not None, f"{moment}: of {n} requests {n_arrived(server) - n_others} arrived")
    if moment == "streaming":
        time.sleep(choose.random() * 0.1)
    began, n_aborted = time.monotonic(), server.metric(ABORTED)
    for client in clients + blockers:
        client.vanish(way)
    if way == "silent":
        # Nobody can tell these from slow readers: they go when they are at their end, or when they have not read for too long.
        settle(server, start, 120)
        for client in clients + blockers:
            client.socket.close()
    else:
        # Counted in steps, since a step of a busy machine may last for seconds: those in flight when the close must have been noticed, and no other.
        took = wait_for(lambda: held(server) == start, DETECTED_S[card.tier], 0.01)
        if took is None:
            before = n_steps(server)
            settle(server, start, 20)
            noticed.n_later_steps = max(noticed.n_later_steps, n_steps(server) - before)
        noticed.longest_s = max(noticed.longest_s, time.monotonic() - began)
        check(server.metric(ABORTED) - n_aborted > len(blockers), f"{moment}, {way}: they came to their end")
    # What was in flight when all was given back may still end: steps whose rows nobody takes.
    before, n_before = metrics(server, (TOKENS,)), n_steps(server)
    time.sleep(0.05)
    check_equal(metrics(server, (TOKENS,)), before, "tokens after all was given back")
    check(n_steps(server) - n_before <= STEPS_IN_FLIGHT, f"{n_steps(server) - n_before:.0f} steps ended after all was given back, at most the {STEPS_IN_FLIGHT} in flight")
    card.trials += n


def run(card):
    card.gtest("cancelled requests on the fake device: blocks, leases, and no row after the next step", "server_tests",
               "Engine.ACancelled*:Engine.LetsGoOf*:EngineSimulation.*")
    noticed = Noticed()
    flags = ("--max-num-seqs", str(PLACES), "--max-queue", "400", "--max-loras", "4", "--http-threads", "128", "--max-connections-per-address", "0")
    with card.part("clients that vanish over HTTP leave nothing"):
        with card.server(*flags, adapters=ADAPTERS) as server:
            reference = {model: answer(server, model, PROMPTS[1], 32) for model in ("base", *ADAPTERS)}
            wait_for(lambda: not any(held(server).values()), 5)  # the last answer is out before its place is free
            start = held(server)
            check_equal(start, {name: 0 for name in HELD}, "an idle server")
            per_group, rounds = (6, 1) if card.quick else (14, 8)
            for _ in range(rounds):
                for moment in MOMENTS:
                    for way in WAYS:
                        if way == "silent" and card.quick and moment != "streaming":
                            continue
                        group(card, server, start, moment, way, per_group, noticed)
            for model, tokens in reference.items():
                check_equal(answer(server, model, PROMPTS[1], 32), tokens, f"tokens of {model} afterwards")
    card.figure("vanished clients", card.trials)
    card.figure("all of a group gone after ms, worst", 1000 * noticed.longest_s)
    card.figure("steps after it must have been noticed", noticed.n_later_steps)
    with card.part("a closed connection is noticed in time"):
        check(noticed.n_later_steps <= STEPS_IN_FLIGHT,
              f"{noticed.n_later_steps:.0f} steps ended later than {DETECTED_S[card.tier]} s after the close, at most the {STEPS_IN_FLIGHT} in flight")
    if card.quick:
        card.short_of("1,000 clients: tests/scorecard.sh --tier nightly --only T13")


if __name__ == "__main__":
    main("T13", run)
