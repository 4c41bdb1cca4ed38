#!/usr/bin/env python3
"""T15: SIGTERM under load drops nothing that was accepted, refuses what comes after, ends what takes too long with an error, and is over in time."""
# beside others: yes

import collections
import contextlib
import hashlib
import http.client
import os
import random
import signal
import socket
import subprocess
import threading
import time

from frame import ADAPTERS, MODEL, check, check_equal, main  # first: it finds the others

from service import BlockedSync, Crowd, Manager, ask, status_of
from streams import is_ready, wait_for

DRAIN_S = 30  # longer than what the crowd asks for takes
# What was sent this shortly before the signal may not have been taken yet, and is refused like what comes after. A commit's machine may be slower than
# any such time: there only what had its answer's head before the signal is known to have been taken.
ON_ITS_WAY_S = 0.1
READY_S, LAST_S, AT_ONCE_S = 0.1, 1.5, 1.0
# A drain of 1 s, 5 s in which workers may still end and 2 s in which they are told that their clients are gone; and the work that is left.
STUCK_END_S = 12
EXIT_AT_ONCE = 130  # server/ops/signals.h


def taken_before(card, answers, signalled):
    if card.quick:
        return [a for a in answers if a.heard is not None and a.heard < signalled]
    return [a for a in answers if a.sent < signalled - ON_ITS_WAY_S]


def one_drain(card, rng, totals, times):
    """A crowd, then SIGTERM at some moment: every request that was sent before it ends well."""
    with card.server("--drain-timeout-s", str(DRAIN_S), adapters=ADAPTERS[:2]) as server:
        crowd = Crowd(server.host, server.port, n_clients=8, n_tokens=(2, 60), adapters=ADAPTERS[:2], seed=rng.randrange(1 << 30))
        check(wait_for(lambda: crowd.answers, 60) is not None, "no answers")
        time.sleep(rng.uniform(0.0, 1.0))
        probe, seen = threading.Event(), []

        def watch():
            while not probe.is_set():
                asked = time.monotonic()
                seen.append((asked, status_of(server.host, server.port, "/health/ready")))
                time.sleep(0.005)

        watcher = threading.Thread(target=watch)
        watcher.start()
        signalled = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        late = []
        for _ in range(5):
            time.sleep(0.1)
            if server.process.poll() is None:
                late.append(ask(server.host, server.port, {"model": "base", "prompt": [5], "max_tokens": 1, "ignore_eos": True, "return_token_ids": True}))
        code = server.process.wait(10 * DRAIN_S)
        ended = time.monotonic()
        probe.set()
        watcher.join()
        answers = crowd.stop()
        accepted = taken_before(card, answers, signalled)
        totals.update(a.kind for a in accepted)
        check_equal(code, 0, "exit status")
        check({a.kind for a in accepted} <= {"done"}, f"endings of what was taken before the signal: {[a for a in accepted if a.kind != 'done'][:3]}")
        # The signal is heard, at the latest, when the first request is refused: from there on none is taken, and readiness fails.
        refusals = [a.ended for a in answers + late if a.kind in ("503", "refused", "lost") and a.ended > signalled]
        heard = min(refusals, default=ended) if card.quick else signalled + ON_ITS_WAY_S
        between = {a.kind for a in answers if a not in accepted and a.sent <= heard}
        check(between <= {"done", "503", "refused", "lost"}, f"endings of what was sent about the time of the signal: {between}")
        after = {a.kind for a in answers + late if a.sent > heard}
        check(after <= {"503", "refused", "lost"}, f"endings of what was sent after the signal: {after}")
        still_ready = [when for when, status in seen if when > signalled and status == 200]
        check(not any(when > heard for when in still_ready), f"ready while requests are refused, {max(still_ready, default=0) - signalled:.3f} s after the signal")
        times["ready after the signal s"] = max(times.get("ready after the signal s", 0), max(still_ready, default=signalled) - signalled)
        last = max([a.ended for a in answers if a.kind == "done"] + [signalled])
        times["exit after last s"] = max(times.get("exit after last s", 0), ended - last)
        return sum(a.ended > signalled for a in accepted)


def too_long(card, n):
    """Streams that take longer than the drain: an error event, and exit 0 in time."""
    for i in range(n):
        with card.server("--drain-timeout-s", "0", adapters=()) as server:
            crowd = Crowd(server.host, server.port, n_clients=4, n_tokens=(400, 400), seed=card.seed + i, only_streams=True)
            check(wait_for(lambda: server.metric("vllm:generation_tokens_total") > 40, 60) is not None, "nobody gets tokens")
            time.sleep(0.3)
            signalled = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            check_equal(server.process.wait(60), 0, "exit status")
            card.limit("a drain of 0 s took s", time.monotonic() - signalled, AT_ONCE_S)
            kinds = collections.Counter(a.kind for a in taken_before(card, crowd.stop(), signalled))
            check(kinds["error event"] and set(kinds) <= {"error event", "done"}, f"endings: {dict(kinds)}")
            card.trials += sum(kinds.values())


def second_signal(card, n):
    for _ in range(n):
        with card.server("--drain-timeout-s", "60", adapters=()) as server:
            crowd = Crowd(server.host, server.port, n_clients=4, n_tokens=(400, 400), seed=card.seed, only_streams=True)
            check(wait_for(lambda: server.metric("vllm:generation_tokens_total") > 40, 60) is not None, "nobody gets tokens")
            server.process.send_signal(signal.SIGTERM)
            check(wait_for(lambda: not is_ready(server), 30) is not None, "the first signal is not heard")
            check(server.process.poll() is None, "it ended before its streams")
            second = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            # A drain to its end, sixty seconds at most, exits 0.
            check_equal(server.process.wait(60), EXIT_AT_ONCE, "exit status after the second signal")
            card.limit("exit after the second signal s", time.monotonic() - second, AT_ONCE_S)
            crowd.stop()


class Activated:
    """What lorad.socket does: the socket is ours and stays; each process inherits it as descriptor 3."""

    def __init__(self, card):
        self.card, self.listener = card, socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(512)
        self.host, self.port = self.listener.getsockname()

    def start(self):
        manager = Manager(self.card.folder)
        environment = dict(os.environ, LISTEN_FDS="1", LISTEN_FDNAMES="http", **manager.env)
        command = ["sh", "-c", 'export LISTEN_PID=$$; exec "$@"', "sh", self.card.lorad, "serve", "--model", str(MODEL / "base"), "--state-dir", "none",
                   "--drain-timeout-s", str(DRAIN_S)]
        listener = self.listener.fileno()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
                                   preexec_fn=(lambda: os.set_inheritable(3, True)) if listener == 3 else lambda: os.dup2(listener, 3))
        manager.wait("READY", 60)
        return process


def is_gone(server):
    """Ended, though its parent may not have been told yet: not before the tracer of a thread lets go."""
    try:
        with open(f"/proc/{server.process.pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def stuck_workers(card):
    """The only worker stands in a system call that does not return: probes have their answers, and SIGTERM ends the process when the drain is over."""
    with card.server("--drain-timeout-s", "1", "--http-threads", "1", "--state-dir", str(card.folder / "stuck"), adapters=()) as server:
        blob = os.urandom(1000)
        stuck = BlockedSync(server.process.pid)
        path = f"/v1/adapters/blobs/sha256:{hashlib.sha256(blob).hexdigest()}"
        clients = [threading.Thread(target=lost, args=(server, "PUT", path, blob))]
        clients[0].start()
        try:
            check(stuck.caught.wait(30) and stuck.error is None, f"no upload syncs a file: {stuck.error}")
            clients += [threading.Thread(target=lost, args=(server, "GET", "/v1/models", None)) for _ in range(4)]
            for client in clients[1:]:
                client.start()
            time.sleep(0.2)
            for probe in ("/health/live", "/health/ready", "/health"):
                began = time.monotonic()
                check_equal(status_of(server.host, server.port, probe, 10), 200, probe)
                card.limit("stuck workers: slowest probe in s", time.monotonic() - began, AT_ONCE_S)
            signalled = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            check(wait_for(lambda: is_gone(server), 4 * STUCK_END_S, 0.05) is not None, "a worker that stands still keeps the process")
            card.limit("stuck workers: SIGTERM to the end in s", time.monotonic() - signalled, STUCK_END_S)
        finally:
            stuck.release()
        check_equal(server.process.wait(20), 0, "exit status")
        for client in clients:
            client.join(40)
            check(not client.is_alive(), "a client that never hears of the end")
        card.trials += len(clients)


def lost(server, method, path, body):
    """A request that nobody answers."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request(method, path, body)
        connection.getresponse().read()
    connection.close()


def restarts(card, n):
    """With an inherited socket clients see no refusal while one process ends and the next begins."""
    activated = Activated(card)
    process = activated.start()
    crowd = Crowd(activated.host, activated.port, n_clients=4, n_tokens=(2, 40), adapters=("base",), seed=card.seed)
    for _ in range(n):
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        check_equal(process.wait(30), 0, "exit status")
        process = activated.start()
    time.sleep(0.5)
    answers = crowd.stop()
    process.terminate()
    check_equal(process.wait(30), 0, "exit status")
    kinds = collections.Counter(a.kind for a in answers)
    check(set(kinds) <= {"done", "503"} and kinds["done"], f"endings over {n} restarts: {dict(kinds)}: {[a for a in answers if a.kind not in ('done', '503')][:3]}")
    card.figure("restarts", n)
    card.figure("refused over restarts", kinds["refused"] + kinds["lost"])
    card.trials += len(answers)


def run(card):
    n = 3 if card.quick else 100
    rng, totals, times = random.Random(card.seed), collections.Counter(), {}
    with card.part("SIGTERM under load"):
        n_running = sum(one_drain(card, rng, totals, times) for _ in range(n))
        check(n_running >= n, f"{n_running} requests in {n} cycles were under way at the signal: too few to say anything")
        for (name, value), limit in zip(times.items(), (READY_S, LAST_S)):
            card.limit(name, value, limit)
    card.figure("cycles", n)
    card.figure("dropped", sum(count for kind, count in totals.items() if kind != "done"))
    card.trials += sum(totals.values())
    with card.part("streams that take too long end with an error"):
        too_long(card, 1 if card.quick else 20)
    with card.part("probes and the end need no worker"):
        stuck_workers(card)
    with card.part("the second SIGTERM ends it at once"):
        second_signal(card, 1 if card.quick else 10)
    with card.part("an inherited socket refuses nobody over a restart"):
        restarts(card, 1 if card.quick else 20)
    if card.quick:
        card.short_of("100 cycles; tests/scorecard.sh --tier nightly --only T15")


if __name__ == "__main__":
    main("T15", run)
