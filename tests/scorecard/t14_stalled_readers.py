#!/usr/bin/env python3
"""T14: clients that stop reading their streams cost the others nothing, are held in little memory, and are cut."""
# beside others: yes

import http.client
import json
import pathlib
import re
import socket
import statistics
import threading
import time

from frame import check, main  # first: it finds the others

from streams import wait_for

KIB = 1024
MODEL_TOKENS = 1900  # the demo model's context is 2,048
ROUNDS = 2           # the machine may have its own troubles: the best round counts
LIMIT = 1.1          # of the p99
GAPS_MIN = 30        # for a quantile
HANG_S = 60          # ten times what a cut may take


def request_of(server, model, n_tokens):
    # Log-probabilities make each part some KiB, so that buffers fill soon.
    body = json.dumps({"model": model, "prompt": [5, 6, 7], "max_tokens": n_tokens, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Stalled:
    def __init__(self, server, request):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((server.host, server.port))
        self.socket.sendall(request)
        self.port = self.socket.getsockname()[1]
        self.n_queued, self.changed, self.cut, self.most = -1, time.monotonic(), None, 0


class Reader(threading.Thread):
    """Reads a stream from its end on again and again; the gaps between its tokens."""

    def __init__(self, server, model):
        super().__init__(daemon=True)
        self.server, self.model, self.gaps, self.stopped = server, model, [], False
        self.start()

    def run(self):
        while not self.stopped:
            connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps({"model": self.model, "prompt": [5, 6], "max_tokens": MODEL_TOKENS, "ignore_eos": True,
                                                                      "stream": True, "priority": -1}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            last = None
            for line in response:
                if self.stopped:
                    break
                if not line.startswith(b"data: {"):
                    continue
                now = time.monotonic()
                if last is not None:
                    self.gaps.append((now, now - last))
                last = now
            connection.close()

    def quantile(self, percent, begin, seconds):
        """Of the gaps in so many seconds; in more of them where the machine is too slow for GAPS_MIN."""
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        found = []

        def enough():
            found[:] = [gap for when, gap in list(self.gaps) if begin <= when <= begin + seconds]
            if len(found) < GAPS_MIN:
                found[:] = [gap for when, gap in list(self.gaps) if when >= begin][:GAPS_MIN]
            return len(found) >= GAPS_MIN
        check(wait_for(enough, HANG_S, 0.1) is not None, f"only {len(found)} tokens were read in {HANG_S} s")
        return statistics.quantiles(found, n=100)[percent - 1]


def look(server, clients):
    """What the kernel has queued for each client (/proc/net/tcp), and which connections the server has closed."""
    now = time.monotonic()
    rows = {}
    for line in pathlib.Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, queues = line.split()[:5]
        if int(local.split(":")[1], 16) == server.port:
            rows[int(remote.split(":")[1], 16)] = (state, int(queues.split(":")[0], 16))
    for client in clients:
        state, n_queued = rows.get(client.port, ("", 0))
        if state == "01":
            client.most = max(client.most, n_queued)
            if n_queued != client.n_queued:
                client.n_queued, client.changed = n_queued, now
        elif client.cut is None:
            client.cut = now


def one_round(card, server, model, n):
    request = request_of(server, model, MODEL_TOKENS)
    reader = Reader(server, model)
    # What the others cost where they do read: the same streams, drained.
    draining = [Stalled(server, request) for _ in range(n)]
    done = threading.Event()

    def drain():
        for client in draining:
            client.socket.setblocking(False)
        while not done.is_set():
            for client in draining:
                try:
                    client.socket.recv(1 << 16)
                except OSError:
                    pass
            time.sleep(0.01)
    drainer = threading.Thread(target=drain, daemon=True)
    drainer.start()
    seconds = 2 if card.quick else 4
    # A few seconds have too few tokens for a p99 on a machine that does other things as well.
    percent = 50 if card.quick else 99
    time.sleep(1)
    base = reader.quantile(percent, time.monotonic(), seconds)
    done.set()
    drainer.join()
    for client in draining:
        client.socket.close()
    time.sleep(1)
    stalled = [Stalled(server, request) for _ in range(n)]
    began = time.monotonic()
    end = began + 5 * HANG_S
    while any(client.cut is None for client in stalled) and time.monotonic() < end:
        look(server, stalled)
        time.sleep(0.1)
    # Steps get longer with their contexts: the same part of the streams' lives. None is cut before it ends.
    check(card.quick or min(client.cut or end for client in stalled) > began + 1 + seconds, "cut too soon for a comparison")
    under = reader.quantile(percent, began + 1, seconds)
    reader.stopped = True
    reader.join(60)
    for client in stalled:
        client.socket.close()
    return base, under, stalled


def run(card):
    n = 8 if card.quick else 200
    flags = ("--max-num-seqs", str(n + 8))
    with card.part(f"{n} clients stop reading"), card.server(*flags, adapters=()) as server:
        model = server.request("GET", "/v1/models")[1]["data"][0]["id"]
        best, slowest_cut = None, 0.0
        for _ in range(1 if card.quick else ROUNDS):
            base, under, stalled = one_round(card, server, model, n)
            n_cut = sum(client.cut is not None for client in stalled)
            check(n_cut == n, f"only {n_cut} of {n} were cut")
            late = max(client.cut - client.changed for client in stalled)
            most = max(client.most for client in stalled)
            check(late <= HANG_S, f"cut {late:.1f} s after the last byte was taken")
            slowest_cut = max(slowest_cut, late)
            check(most + 16 * KIB <= 256 * KIB, f"{most / KIB:.0f} KiB are kept for a stream")
            card.trials += n
            if best is None or under / base < best[1] / best[0]:
                best = (base, under)
            if best[1] <= LIMIT * best[0]:
                break
        card.limit("cut after s", slowest_cut, 6)
        card.figure("KiB kept for a stream", most / KIB)
        card.figure(f"{'median' if card.quick else 'p99'} between tokens of a reader in ms: all read, the others stall", f"{best[0] * 1000:.1f} {best[1] * 1000:.1f}")
        card.limit("time between a reader's tokens: others stall, of all read", best[1] / best[0], LIMIT)
        running = "vllm:num_requests_running"
        check(wait_for(lambda: server.metric(running) <= 1, HANG_S, 0.1) is not None, f"{server.metric(running):.0f} sequences run for nobody")
        _, text = server.request("GET", "/metrics")
        n_stalled = int(re.search(r'lorad_http_connections_refused_total\{reason="stalled"\} (\d+)', text).group(1))
        check(n_stalled >= n, f"{n_stalled} are counted as stalled")
    if card.quick:
        card.short_of("200 clients, the p99 instead of the median: tests/scorecard.sh --tier nightly --only T14")
    card.note("Stalls of the engine thread on I/O: none are possible, it writes to no socket; the p99 of a reader is the measure.")


if __name__ == "__main__":
    main("T14", run)
