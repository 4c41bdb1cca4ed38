#!/usr/bin/env python3
"""T8: clients that take their time take nobody else's."""
# beside others: yes

import concurrent.futures
import json
import re
import shutil
import ssl
import statistics
import subprocess
import time

from frame import ROOT, certificate, check, check_equal, main  # first: it finds the others

import raw_http
import slow_clients
from streams import wait_for
from t10_authorisation import key_file, key_of

GET = b"GET /v1/models HTTP/1.1\r\nHost: lorad.test\r\nConnection: close\r\n\r\n"
ROUNDS = 4  # the machine may have its own troubles: the best round counts


def times_of(ask, n):
    out = []
    for _ in range(n):
        began = time.monotonic()
        ask()
        out.append(time.monotonic() - began)
        time.sleep(0.002)
    return out


def p99(times):
    return statistics.quantiles(times, n=100)[98]


def plain(address):
    def ask():
        answer, _ = raw_http.exchange(address, [GET], seconds=20)
        check_equal(raw_http.statuses(answer), [200], "a healthy client's answer")
    return ask


def over_tls(address):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def ask():
        with context.wrap_socket(raw_http.connect(address, 20), server_hostname="lorad.test") as peer:
            peer.sendall(GET)
            answer = b""
            while piece := peer.recv(65536):
                answer += piece
        check_equal(raw_http.statuses(answer), [200], "a healthy client's answer")
    return ask


def n_open(server_text):
    return int(re.search(r'lorad_http_connections\{state="open"\} (\d+)', server_text).group(1))


def attacked(card, name, address, ask, kinds, seconds, metrics):
    """Healthy clients' times before and while `kinds` ({kind: n}) attack; then everything must be as before within 20 s."""
    n_asked = 150 if card.quick else 600
    times_of(ask, 20)
    base = min(p99(times_of(ask, n_asked)) for _ in range(2))
    attackers = [slow_clients.start(address, kind, n, seconds) for kind, n in kinds.items()]
    try:
        for attacker in attackers:
            check_equal(attacker.stdout.readline().strip(), "attacking", "the attackers")
        end = time.monotonic() + seconds - 4
        found = []
        while len(found) < ROUNDS or time.monotonic() < end - 2:
            found.append(p99(times_of(ask, n_asked)))
            if len(found) >= ROUNDS and time.monotonic() > end:
                break
            time.sleep(0.5)
        reports = [json.loads(attacker.communicate(timeout=seconds + 60)[0]) for attacker in attackers]
    finally:
        for attacker in attackers:
            attacker.kill()
    under = min(found)
    card.figure(f"{name}: healthy p99 in ms before, during", f"{base * 1000:.1f} {under * 1000:.1f}")
    for kind, report in zip(kinds, reports):
        card.say(f"{kind}: {report}")
        if kind in ("heads", "hello"):
            check(report["closed"] >= (1 if card.quick else kinds[kind] * (seconds // 15)), f"{kind}: only {report['closed']} were closed")
            card.limit(f"{kind}: longest held in s", max(report["longest_s"], report["oldest_open_s"]), 15)
        card.trials += kinds[kind]
    card.limit(f"{name}: healthy p99 during, of before", under / base, 2, f"{under * 1000:.1f} ms, {base * 1000:.1f} ms without an attack")
    card.limit(f"{name}: healthy p99 longer by ms", 1000 * (under - base), 50)
    recovered = wait_for(lambda: n_open(metrics()) <= 3, 200, 0.2)
    check(recovered is not None, f"{n_open(metrics())} connections are open 200 s after the attack")
    card.limit(f"{name}: recovered in s", recovered, 20)
    ask()


def large_body(key, n_bytes, n_sent=None):
    """A completion whose body has so many bytes, of which so many are sent; all, where nothing is said."""
    begin, end = b'{"model":"base","prompt":"x","max_tokens":1,"metadata":{"k":"', b'"}}'
    body = begin + b"m" * (n_bytes - len(begin) - len(end)) + end
    head = f"POST /v1/completions HTTP/1.1\r\nHost: lorad.test\r\nAuthorization: Bearer {key_of(key)}\r\nContent-Type: application/json\r\nContent-Length: {n_bytes}\r\n\r\n"
    return head.encode() + body[:n_sent]


def one_key_against_another(card):
    """One key's large bodies come as slowly as they may; another's are answered all the while."""
    n, seconds = (80, 6) if card.quick else (250, 60)
    path = key_file(card.folder, noisy={}, calm={})
    # 32 workers may wait for bodies: half of them for one key's. Bodies of 4 MiB would be 320 MiB together, of 128 that there is room for.
    with card.server("--api-key-file", path, "--http-threads", "64", "--body-bytes-max", str(4 << 20), "--max-connections-per-address", "0", adapters=()) as server:
        address = (server.host, server.port)
        held = [raw_http.connect(address) for _ in range(n)]
        for peer in held:
            peer.sendall(large_body("noisy", 4_000_000, 70_000))
            peer.setblocking(False)
        statuses, times, end = [], [], time.monotonic() + seconds
        while time.monotonic() < end or len(statuses) < 10:
            for peer in held:
                try:
                    peer.send(b"m" * 16_000)
                except OSError:
                    pass
            for n_bytes in (20_000, 100_000, 3_000_000):
                began = time.monotonic()
                answer, _ = raw_http.exchange(address, [large_body("calm", n_bytes).replace(b"Content-Type", b"Connection: close\r\nContent-Type", 1)], seconds=30)
                statuses += raw_http.statuses(answer) or [None]
                times.append(time.monotonic() - began)
            live, _ = raw_http.exchange(address, [b"GET /health/live HTTP/1.1\r\nHost: lorad.test\r\nConnection: close\r\n\r\n"], seconds=10)
            statuses += raw_http.statuses(live) or [None]
        for peer in held:
            peer.close()
        card.figure("beside one key's slow bodies: answered", f"{statuses.count(200)} of {len(statuses)}")
        card.trials += len(statuses)
        check(set(statuses) == {200}, f"another key's answers: { {s: statuses.count(s) for s in set(statuses)} }")
        card.limit("beside one key's slow bodies: slowest in s", max(times), 2)


def run(card):
    card.gtest("shares of workers and memory", "server_tests", "SharedPlaces.*:GuardShares.*")
    with card.part("one key's slow bodies are nobody else's"):
        one_key_against_another(card)
    n = 150 if card.quick else 2000
    seconds = 17 if card.quick else 300
    with card.part("slow heads, slow bodies, clients that do not read, all at once"), card.server("--max-connections", "8192") as server:
        attacked(card, "plain", (server.host, server.port), plain((server.host, server.port)), {"heads": n, "bodies": n, "readers": n}, seconds,
                 lambda: server.request("GET", "/metrics")[1])
    with card.part("half-open TLS handshakes"):
        check(shutil.which("openssl"), "the openssl command is not installed")
        cert, key = certificate(card.folder)
        log = open(card.folder / "tls.log", "w")
        daemon = subprocess.Popen([card.lorad, "serve", "--model", str(ROOT / "deploy/demo-model/base"), "--port", "0", "--state-dir", "none", "--tls-cert", cert,
                                   "--tls-key", key, "--max-connections", "8192"], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            ready = re.search(r"https://127\.0\.0\.1:(\d+)", daemon.stdout.readline())
            check(ready, "the ready line names https")
            address = ("127.0.0.1", int(ready[1]))
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

            def metrics():
                with context.wrap_socket(raw_http.connect(address), server_hostname="lorad.test") as peer:
                    peer.sendall(GET.replace(b"/v1/models", b"/metrics"))
                    answer = b""
                    while piece := peer.recv(65536):
                        answer += piece
                return answer.decode()

            attacked(card, "TLS", address, over_tls(address), {"hello": n if card.quick else 1000}, seconds, metrics)
            check(f"ready: {ready[0]}" in (card.folder / "tls.log").read_text(), "the log's ready line names https")
        finally:
            daemon.terminate()
            daemon.wait(60)
    with card.part("at the cap: told so, or closed, at once"), card.server("--max-connections", "64") as server:
        address = (server.host, server.port)
        held = [raw_http.connect(address) for _ in range(64)]
        for peer in held:
            peer.sendall(b"GET /v1/models HTTP/1.1\r\n")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            def turned_away(_):
                began = time.monotonic()
                answer, closing = raw_http.exchange(address, [GET], seconds=30)
                return raw_http.statuses(answer), closing is not None, time.monotonic() - began
            answers = list(pool.map(turned_away, range(40)))
        check(all(found in ([503], []) and closed for found, closed, _ in answers), f"answers at the cap: {answers}")
        card.limit("at the cap: slowest refusal in s", max(took for *_, took in answers), 1)
        check(any(found == [503] for found, *_ in answers), "nobody was told")
        for peer in held:
            peer.close()
        check(wait_for(lambda: raw_http.statuses(raw_http.exchange(address, [GET], seconds=30)[0]) == [200], 60, 0.1) is not None, "nobody is let in afterwards")
    if card.quick:
        card.short_of(f"2,000 of each for 5 minutes; tests/scorecard.sh --tier nightly --only T8")


if __name__ == "__main__":
    main("T8", run)
