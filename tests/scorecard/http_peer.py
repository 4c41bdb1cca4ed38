#!/usr/bin/env python3
"""The requests of T6 and the slow clients of T8 against any server that is running: one row of a table, for comparisons on loopback.

    http_peer.py --name llama-server --address 127.0.0.1:8080 [--slow 500] [--seconds 17]
"""

import argparse
import collections
import concurrent.futures
import json
import random
import statistics
import time

import framing
import raw_http
import slow_clients

GET = b"GET /health HTTP/1.1\r\nHost: lorad.test\r\nConnection: close\r\n\r\n"


def framing_row(address):
    """What became of the malformed requests, in numbers of requests."""
    random.seed(1)
    out = collections.Counter()

    def ask(job):
        request, n_segments = job
        cut = random.randrange(1, len(request))
        try:
            return raw_http.exchange(address, [request] if n_segments == 1 else [request[:cut], request[cut:]], seconds=2.0)
        except OSError:
            return None, None

    jobs = [(request, n) for _, request in framing.malformed() for n in (1, 2)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for answer, closing in pool.map(ask, jobs):
            if answer is None:
                out["no connection"] += 1
                continue
            found = raw_http.statuses(answer)
            out["requests"] += 1
            out["answered twice or more"] += len(found) > 1
            out["after a 4xx more was answered"] += len(found) > 1 and 400 <= found[0] < 500
            out["first answer is no 4xx or 505"] += bool(found) and not (400 <= found[0] < 500 or found[0] == 505)
            out["no answer"] += not found
            out["not closed within 1 s"] += closing is None or closing > 1
    return dict(out)


def p99_of_healthy(address, n=200):
    out = []
    for _ in range(n):
        began = time.monotonic()
        try:
            answer, _ = raw_http.exchange(address, [GET], seconds=15, enough=1)
            taken = time.monotonic() - began if raw_http.statuses(answer) else 15.0
        except OSError:
            taken = 15.0
        out.append(taken)
        if sum(out) > 30:
            break
    return statistics.quantiles(out, n=100)[98] if len(out) > 2 else max(out)


def slow_row(address, kind, n, seconds):
    base = p99_of_healthy(address)
    attacker = slow_clients.start(address, kind, n, seconds)
    attacker.stdout.readline()
    under = p99_of_healthy(address)
    report = json.loads(attacker.communicate()[0])
    return {"healthy p99 ms before": round(base * 1000, 1), "during": round(under * 1000, 1),
            "longest held s": round(max(report["longest_s"], report["oldest_open_s"]), 1), "closed": report["closed"], "refused": report["refused"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--slow", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=17)
    args = parser.parse_args()
    host, port = args.address.rsplit(":", 1)
    address = (host, int(port))
    row = {"name": args.name, "framing": framing_row(address)}
    for kind in ("heads", "bodies"):
        row[f"{args.slow} slow {kind}"] = slow_row(address, kind, args.slow, args.seconds)
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
