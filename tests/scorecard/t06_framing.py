#!/usr/bin/env python3
"""T6: no bytes of one request are ever taken for another one."""
# beside others: yes

import collections
import concurrent.futures
import shutil

from frame import check, check_equal, main  # first: it finds the others

import framing
import proxies
import raw_http

N_THREADS = 8
HANG_S = 30  # well beyond the guard's own deadlines


def judge(kind, request, answer, closing):
    """What is wrong with this answer to a malformed request; None: nothing."""
    found = raw_http.statuses(answer)
    if not found:
        return "no answer"
    if len(found) > 1:
        return f"answered {len(found)} times: {found}"
    if not (400 <= found[0] < 500 or found[0] == 505):
        return f"status {found[0]}"
    if found[0] == 408:
        return "waited for more until its deadline"
    if closing is None:
        return f"not closed within {HANG_S} s"
    return None


def run(card):
    cases = list(framing.malformed())
    check(len({request for _, request in cases}) >= 300, f"only {len(cases)} requests")
    wrong, closings, answered = [], [], collections.Counter()
    with card.server() as server:
        address = (server.host, server.port)

        def ask(job):
            kind, request, n_segments = job
            cut = card.random.randrange(1, len(request))
            segments = [request] if n_segments == 1 else [request[:cut], request[cut:]]
            return kind, request, n_segments, *raw_http.exchange(address, segments, seconds=HANG_S)

        with card.part("malformed requests, each in one and in two segments"), concurrent.futures.ThreadPoolExecutor(N_THREADS) as pool:
            jobs = [(kind, request, n) for kind, request in cases for n in (1, 2)]
            for kind, request, n_segments, answer, closing in pool.map(ask, jobs):
                problem = judge(kind, request, answer, closing)
                answered.update(raw_http.statuses(answer)[:1])
                if closing is not None:
                    closings.append(closing)
                if problem:
                    wrong.append(f"{kind}, {n_segments} segments: {problem}: {request[:120]!r}")
            check(not wrong, f"{len(wrong)} of {len(jobs)}: " + "; ".join(wrong[:6]))
            card.limit("slowest close in s", max(closings), 1.0)
        with card.part("well-formed requests are taken, whole and byte by byte"):
            for request, n_answers in framing.well_formed():
                for segments in ([request], [request[i:i + 1] for i in range(min(len(request), 200))] + [request[200:]]):
                    answer, _ = raw_http.exchange(address, [s for s in segments if s], seconds=HANG_S, pause=0, enough=n_answers)
                    check_equal(raw_http.statuses(answer), [200] * n_answers, f"{request[:100]!r}")
        with card.part("the server is as it was"):
            check_equal(server.request("GET", "/health/live")[0], 200, "health")
    card.trials += 2 * len(cases)
    card.figure("requests", len(cases))
    card.figure("smuggled", sum("answered" in text for text in wrong))
    card.figure("statuses", " ".join(f"{status}:{n}" for status, n in sorted(answered.items())))
    if card.quick:
        return card.short_of("behind nginx and HAProxy; tests/scorecard.sh --tier nightly --only T6")
    for proxy in (proxies.Nginx, proxies.Haproxy):
        if shutil.which(proxy.program) is None:
            card.short_of(f"{proxy.program} is not installed")
            continue
        with card.part(f"behind {proxy.program}"), card.server() as server, proxy(card.folder, server) as front:
            n_wrong = proxies.count_mixed_up(front.address, cases, card.random)
            check_equal(n_wrong, 0, "answers that belonged to another request")
            card.trials += 2 * len(cases)


if __name__ == "__main__":
    main("T6", run)
