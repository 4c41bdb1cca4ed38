#!/usr/bin/env python3
"""T17: what hangs is seen: not ready within 2 s, no watchdog message any more, not alive; what is only slow is not taken for it."""
# beside others: yes

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

from frame import MODEL, ROOT, check, check_equal, main  # first: it finds the others

sys.path.insert(0, str(ROOT / "tests/vulkan_layer"))

from adapter_checks import files_of, registered
from control import HOLD, FaultLayer
from service import BlockedSync, Crowd, Manager, ask, status_of, stopped_threads, until_status

WATCHDOG_S = 4.0  # systemd would end the process this long after the last message
HANG_S = 5
NOT_READY_S = 2
SEEN_S = 60         # by then it is seen on any machine


@contextlib.contextmanager
def held_device(layer):
    """No wait for the device ends and no counter moves: a shader that never returns."""
    layer.set(HOLD, 1)
    try:
        yield
    finally:
        layer.set(HOLD, 0)


def hang(card, part, server, manager, what, stopped, busy):
    """`stopped` makes something stand still: what the probes and the service manager see of it."""
    with card.part(part):
        check(until_status(server.host, server.port, "/health/ready", 200, SEEN_S) is not None, "not ready before")
        crowd = Crowd(server.host, server.port, n_clients=2, seed=card.seed) if busy else None
        time.sleep(0.3)
        with stopped():
            began = time.monotonic()
            not_ready = until_status(server.host, server.port, "/health/ready", 503, SEEN_S)
            check(not_ready is not None, "/health/ready never failed")
            card.limit(f"{what} not ready s", not_ready, NOT_READY_S)
            check(until_status(server.host, server.port, "/health/live", 503, SEEN_S) is not None, "/health/live never failed")
            n_messages = len(manager.times("WATCHDOG"))
            time.sleep(max(WATCHDOG_S / 2, began + WATCHDOG_S - time.monotonic()))  # as often as it is fed otherwise
            check_equal(len(manager.times("WATCHDOG")), n_messages, "watchdog messages while nothing moves")
            card.limit(f"{what} restart s", manager.times("WATCHDOG")[-1] - began + WATCHDOG_S, WATCHDOG_S + NOT_READY_S)
        check(until_status(server.host, server.port, "/health/ready", 200, SEEN_S) is not None, "never ready again after it went on")
        if crowd:
            kinds = (crowd.stop(), crowd.kinds())[1]
            check_equal(set(kinds), {"done"}, "endings of the requests that had to wait")
        card.trials += 1


def slow_disk(card, server):
    """A thread that syncs an upload stands in that system call: everybody else goes on."""
    with card.part("a disk that does not answer holds up nobody but who writes to it"):
        blocked, results = BlockedSync(server.process.pid), []
        upload = threading.Thread(target=lambda: results.append(registered(server, "slow", files_of("pirate"))), daemon=True)
        upload.start()
        check(blocked.caught.wait(60) and blocked.error is None, f"no file was synced: {blocked.error}")
        began, n_not_ready = time.monotonic(), 0
        while time.monotonic() - began < 2.5:
            n_not_ready += status_of(server.host, server.port, "/health/ready") != 200
            answer = ask(server.host, server.port, {"model": "base", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, "return_token_ids": True})
            check_equal(answer.kind, "done", f"a request meanwhile: {answer}")
        check(until_status(server.host, server.port, "/health/ready", 200, SEEN_S) is not None, "not ready beside an upload")
        check(not results, "the upload was over before its file was synced")
        card.limit("not ready beside a slow disk, times", n_not_ready, 0)
        blocked.release()
        upload.join(60)
        check(results, "the upload does not go on")
        card.trials += 1


def long_start(card, factor):
    """The process gets a twentieth of a processor while it loads: a start that takes long but gets on."""
    with card.part("a long start asks for time and is not taken for a hang"):
        manager = Manager(card.folder, WATCHDOG_S)
        process = subprocess.Popen([card.lorad, "serve", "--model", str(MODEL / "base"), "--port", "0", "--state-dir", "none"], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, env=dict(os.environ, **manager.env))
        try:
            began, over = time.monotonic(), threading.Event()

            def throttle():
                while not over.is_set():
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(0.01 * factor)
                    process.send_signal(signal.SIGCONT)
                    time.sleep(0.01)

            thread = threading.Thread(target=throttle)
            thread.start()
            try:
                manager.wait("READY", 600)
            finally:
                over.set()
                thread.join()
            took = time.monotonic() - began
            asked = [when for when in manager.times("EXTEND_TIMEOUT_USEC")]
            check(asked, "it never asked for more time")
            allowed = [int(value) / 1e6 for value in manager.values("EXTEND_TIMEOUT_USEC")]
            # Each message moves the end: the next one, or READY, must come before it.
            card.limit("next message, of the time that one asked for", max((following - when) / seconds for when, seconds, following in
                                                                           zip(asked, allowed, [*asked[1:], manager.times("READY")[0]])), 1)
            check(not manager.times("WATCHDOG") or manager.times("WATCHDOG")[0] >= manager.times("READY")[0], "the watchdog runs only after READY")
            card.figure("long start s", took)
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(30)


def run(card):
    card.gtest("a registry lock that is kept; limits of slow and hung", "server_tests", "Vitals.*:LongStart.*")
    manager = Manager(card.folder, WATCHDOG_S)
    layer = FaultLayer(card.build)
    with layer, card.server("--engine-hang-s", str(HANG_S), "--state-dir", f"{card.folder}/state", adapters=(), env={**manager.env, **layer.env()}) as server:
        pid = server.process.pid
        manager.wait("READY")
        manager.wait("WATCHDOG")
        hang(card, "the engine's thread stops, without requests", server, manager, "engine", lambda: stopped_threads(pid, "lorad-engine"), busy=False)
        hang(card, "a shader never returns", server, manager, "device", lambda: held_device(layer), busy=True)
        hang(card, "the thread that looks at the registry's lock stops", server, manager, "registry", lambda: stopped_threads(pid, "lorad-vitals"), busy=False)
        slow_disk(card, server)
        with card.part("no false alarm under load"):
            seconds = 3 if card.quick else 300
            n_before, began = len(manager.times("WATCHDOG")), time.monotonic()
            log = len(server.log_text())
            crowd = Crowd(server.host, server.port, n_clients=6, n_tokens=(4, 100), seed=card.seed)
            while time.monotonic() - began < seconds:
                check_equal(status_of(server.host, server.port, "/health/live"), 200, "liveness")
                time.sleep(0.1)
            crowd.stop()
            gaps = [b - a for a, b in zip(manager.times("WATCHDOG")[n_before - 1:], manager.times("WATCHDOG")[n_before:])]
            check(gaps, "no watchdog messages")
            card.limit("longest watchdog gap s", max(gaps), WATCHDOG_S)
            check("the server counts as dead" not in server.log_text()[log:], "a false alarm")
    long_start(card, factor=5 if card.quick else 40)
    if card.quick:
        card.short_of("300 s under load, a start of minutes; tests/scorecard.sh --tier nightly --only T17")
    card.release_only("false trips in a soak of 24 h; a shader that never returns on each vendor's driver")


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("T17 stops threads by ptrace, which is Linux's")
    main("T17", run)
