#!/usr/bin/env python3
"""T7: what a client can make the daemon hold in memory, before anybody knows who it is and after."""
# beside others: yes
# sanitizers: no, judges memory

import concurrent.futures
import json
import pathlib
import resource
import time

from frame import check, check_equal, main  # first: it finds the others

import raw_http

KIB, MIB = 1024, 1 << 20
LIMIT = 4 * MIB  # --body-bytes-max
# What large texts may take and leave. A MiB of text at a time takes some 350 MiB, bodies and what is read of them the rest.
PEAK_MAX, LEFT_MAX = 1024 * MIB, 64 * MIB
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: lorad.test\r\nContent-Type: application/json\r\n"


def status_of(server, name):
    for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * KIB
    raise AssertionError(f"no {name}")


def reset_peak(server):
    pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


def flood(address, head, piece, n_bytes):
    """Sends the head, then pieces until n_bytes or the server's end. Returns (status or None, bytes that were taken)."""
    with raw_http.connect(address, 20) as peer:
        n_sent = 0
        try:
            peer.sendall(head)
            while n_sent < n_bytes:
                peer.sendall(piece)
                n_sent += len(piece)
        except OSError:
            pass
        answer = b""
        try:
            while not raw_http.statuses(answer) and (got := peer.recv(65536)):
                answer += got
        except OSError:
            pass
    return (raw_http.statuses(answer) or [None])[0], n_sent


def form(n_parts):
    body = b"".join(b"--b\r\nContent-Disposition: form-data; name=\"p%d\"\r\n\r\nx\r\n" % i for i in range(n_parts)) + b"--b--\r\n"
    return b"POST /v1/adapters HTTP/1.1\r\nHost: lorad.test\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n" % len(body), body


def text_body(**fields):
    return json.dumps(dict({"model": "base"}, **fields)).encode()


def large_texts(card):
    """Sequences of large bodies and texts, of which a tokenizer makes hundreds of times their size: what stays when they are over."""
    n_rounds, n_clients = (2, 6) if card.quick else (20, 16)
    bodies = [("/tokenize", text_body(prompt="1" * 250_000), 200), ("/tokenize", text_body(prompt="word " * 50_000), 200),
              ("/tokenize", text_body(prompt="1" * 3_900_000), 413), ("/tokenize", text_body(prompt=" " * 3_900_000), 413),
              ("/v1/completions", text_body(prompt=" " * 3_900_000, max_tokens=1), 400), ("/v1/completions", text_body(prompt="é" * 120_000, max_tokens=1), 400),
              ("/v1/chat/completions", text_body(messages=[{"role": "user", "content": "1" * 200_000}], max_tokens=1), 400),
              ("/v1/completions", text_body(prompt="x", max_tokens=1, metadata={"k": "m" * 3_900_000}), 200)]
    with card.server("--body-bytes-max", str(LIMIT)) as server, concurrent.futures.ThreadPoolExecutor(n_clients) as pool:
        for path, body, _ in bodies:
            server.request("POST", path, raw=body[:100] + b'"}')
        server.post("/tokenize", model="base", prompt="some text")
        time.sleep(1.5)
        base, slowest_refusal = status_of(server, "VmRSS"), 0.0

        def ask(job):
            path, body, status = job
            began = time.monotonic()
            found, answer = server.request("POST", path, raw=body)
            check(found == status, f"{path}, {len(body)} bytes: {found}, expected {status}: {str(answer)[:200]}")
            return time.monotonic() - began if status == 413 else 0.0

        reset_peak(server)
        for _ in range(n_rounds):
            slowest_refusal = max(slowest_refusal, *pool.map(ask, bodies * 2))
        card.trials += 2 * n_rounds * len(bodies)
        peak = status_of(server, "VmHWM") - base
        # The memory goes back within a second of the last of them.
        end = time.monotonic() + 20
        while (left := status_of(server, "VmRSS") - base) > LEFT_MAX and time.monotonic() < end:
            time.sleep(0.2)
        card.figure("large texts: peak over base in MiB", peak / MIB)
        card.figure("large texts: left in MiB", left / MIB)
        card.limit("a text far too long: refused in s", slowest_refusal, 2)
        check(peak <= PEAK_MAX, f"{peak / MIB:.0f} MiB over the base while they run")
        check(left <= LEFT_MAX, f"{left / MIB:.0f} MiB are left of {n_rounds} rounds")


def run(card):
    with card.part("large texts and bodies leave nothing behind"):
        large_texts(card)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    n_bytes = 8 * MIB if card.quick else 256 * MIB
    n_attackers = 24 if card.quick else 200
    form_head, form_body = form(10000)
    attacks = {
        "one long line": (b"GET /", b"a" * 65536, (414, 431, None)),
        "one long field": (HEAD + b"X: ", b"a" * 65536, (431, None)),
        "many fields": (HEAD, b"X: y\r\n" * 10000, (431, None)),
        "chunks of one byte": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10000, (411, None)),
        "no length": (HEAD + b"\r\n", b"x" * 65536, (400, None)),
        "gzip": (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1000\r\n\r\n", b"\x1f\x8b" * 32768, (415,)),
        "br": (HEAD + b"Content-Encoding: br\r\nContent-Length: 1000\r\n\r\n", b"x" * 65536, (415,)),
        "zstd": (HEAD + b"Content-Encoding: zstd\r\nContent-Length: 1000\r\n\r\n", b"x" * 65536, (415,)),
        "10,000 parts of a form": (form_head, form_body, (400, 411, 413, 415, 422, None)),
        "a body over the limit": (HEAD + b"Content-Length: %d\r\n\r\n" % n_bytes, b"x" * 65536, (413, None)),
    }
    with card.server("--body-bytes-max", str(LIMIT)) as server:
        address = (server.host, server.port)
        for _ in range(3):
            flood(address, *attacks["gzip"][:2], 65536)
        base = status_of(server, "VmRSS")
        with card.part("each attack alone: nothing stays, nothing grows"), concurrent.futures.ThreadPoolExecutor(4) as pool:
            for name, (head, piece, statuses) in attacks.items():
                reset_peak(server)
                before = status_of(server, "VmRSS")
                for status, _ in pool.map(lambda _, h=head, p=piece: flood(address, h, p, n_bytes if len(p) != len(form_body) else 1), range(4)):
                    check(status in statuses, f"{name}: status {status}")
                grown = (status_of(server, "VmHWM") - before) / 4
                card.say(f"{name}: {grown / KIB:.0f} KiB for each of 4")
                check(grown <= LIMIT * 1.1, f"{name}: {grown / KIB:.0f} KiB for a connection")
        with card.part(f"{n_attackers} attackers at once"), concurrent.futures.ThreadPoolExecutor(n_attackers) as pool:
            reset_peak(server)
            jobs = [(head, piece) for head, piece, _ in attacks.values() for _ in range(max(1, n_attackers // len(attacks)))]
            list(pool.map(lambda job: flood(address, *job, n_bytes), jobs))
            peak = status_of(server, "VmHWM") - base
            card.figure("peak over base in MiB", peak / MIB)
            card.trials += len(jobs)
            check(peak <= 256 * MIB, f"{peak / MIB:.0f} MiB over the base")
        n_held = 400 if card.quick else 2000
        for name, begin in {"half heads": HEAD + b"X: " + b"a" * 31 * KIB, "half bodies": HEAD + b"Content-Length: 60000\r\n\r\n" + b"x" * 59000}.items():
            with card.part(f"{name}: at most 64 KiB for a connection"):
                time.sleep(0.5)
                before = status_of(server, "VmRSS")
                held = [raw_http.connect(address) for _ in range(n_held)]
                for peer in held:
                    peer.sendall(begin)
                time.sleep(1)
                grown = (status_of(server, "VmRSS") - before) / n_held
                card.figure(f"{name}: KiB for a connection", grown / KIB)
                for peer in held:
                    peer.close()
                card.trials += n_held
                check(grown <= 64 * KIB, f"{grown / KIB:.1f} KiB")
        with card.part("the server is as it was"):
            check_equal(server.request("GET", "/health/live")[0], 200, "health")
    if card.quick:
        card.short_of("200 attackers of 256 MiB; tests/scorecard.sh --tier nightly --only T7")


if __name__ == "__main__":
    main("T7", run)
