#!/usr/bin/env python3
"""T16: SIGHUP under load takes a valid configuration as a whole and of a broken one nothing; no request fails, nothing leaks."""
# beside others: yes

import hashlib
import os
import pathlib
import re
import signal
import socket
import threading
import time

from frame import ADAPTERS, check, check_equal, main  # first: it finds the others

from adapter_checks import files_of
from service import Crowd, Manager, status_of

TAKEN, NOT_TAKEN = "configuration read again", "configuration not taken, the old one stays"
BROKEN = ['log_level = "loud"', "no_such_setting = 1", "port = 99999", 'log_level = "info', "drain_timeout_s = -1", "max_num_seqs = 0",
          "max_num_batched_tokens = 1", 'strict = "yes"', "[table]\nx = 1"]


def resources(pid):
    # VmRSS of status leaves out what each processor has not added yet: some hundred KiB on machines with many.
    rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {"fds": len(os.listdir(f"/proc/{pid}/fd")), "threads": len(os.listdir(f"/proc/{pid}/task")),
            "rss_mib": int(re.search(r"(?m)^Rss: +(\d+) kB", rollup)[1]) / 1024}


def settled(pid, seconds=8, before=None):
    """Connections of clients that have left are closed within a moment: the least that there is. Waits longer while there are more than `before`."""
    found, began = resources(pid), time.monotonic()
    while (passed := time.monotonic() - began) < seconds or (before and passed < 60 and any(found[key] > before[key] for key in ("fds", "threads"))):
        time.sleep(0.25)
        found = {key: min(value, found[key]) for key, value in resources(pid).items()}
    return found


class Reloads:
    def __init__(self, server, manager, file):
        self.server, self.manager, self.file, self.n = server, manager, file, 0

    def __call__(self, text):
        """The log's lines about this reload, which is over when the service manager is told so."""
        self.file.write_text(text)
        self.n += 1
        n_bytes = len(self.server.log_text())
        self.server.process.send_signal(signal.SIGHUP)
        self.manager.wait("READY", 60, self.n + 1)
        return [line for line in self.server.log_text()[n_bytes:].splitlines() if TAKEN in line or NOT_TAKEN in line]


def slow_upload(server, seconds, failures):
    """An upload whose bytes come slowly; it must be taken."""
    content = files_of("pirate")["adapter_model.safetensors"]
    digest = hashlib.sha256(content).hexdigest()
    try:
        with socket.create_connection((server.host, server.port), timeout=60) as connection:
            head = f"PUT /v1/adapters/blobs/sha256:{digest} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode())
            n_pieces = 20
            for i in range(n_pieces):
                connection.sendall(content[i * len(content) // n_pieces:(i + 1) * len(content) // n_pieces])
                time.sleep(seconds / n_pieces)
            answer = connection.recv(4096)
            if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
                failures.append(answer[:200])
    except OSError as error:
        failures.append(str(error))


def run(card):
    n = 10 if card.quick else 100
    file = pathlib.Path(card.folder) / "lorad.toml"
    file.write_text("")
    manager = Manager(card.folder)
    flags = ("--config", str(file), "--state-dir", f"{card.folder}/state")
    with card.server(*flags, adapters=ADAPTERS, env=manager.env) as server:
        manager.wait("READY")
        pid, reload = server.process.pid, Reloads(server, manager, file)
        crowd = Crowd(server.host, server.port, n_clients=4, adapters=ADAPTERS, seed=card.seed)
        reload("")  # what is made at the first time only
        time.sleep(1)
        crowd.stop()
        before = settled(pid, 2 if card.quick else 8)
        crowd = Crowd(server.host, server.port, n_clients=4, adapters=ADAPTERS, seed=card.seed + 1)
        not_ready = 0
        with card.part("valid configurations are taken"):
            for i in range(n):
                lines = reload(f"drain_timeout_s = {20 + i}\nlog_level = \"{('info', 'warn')[i % 7 == 6]}\"\n")
                if i % 7 != 6:  # the line is not written at the level "warn"
                    check(len(lines) == 1 and TAKEN in lines[0] and "drain-timeout-s" in lines[0], f"reload {i}: {lines}")
                not_ready += status_of(server.host, server.port, "/health/ready") != 200
        with card.part("of broken ones nothing is taken, with one line that says why"):
            reload("drain_timeout_s = 17\n")
            for i in range(n):
                lines = reload(f"drain_timeout_s = 3\n{BROKEN[i % len(BROKEN)]}\n")
                check(len(lines) == 1 and NOT_TAKEN in lines[0], f"{BROKEN[i % len(BROKEN)]}: {lines}")
                check_equal(server.metric("lorad_config_last_reload_successful"), 0.0, "the metric after a broken one")
                not_ready += status_of(server.host, server.port, "/health/ready") != 200
            lines = reload("drain_timeout_s = 17\n")
            check(len(lines) == 1 and lines[0].endswith("changed: nothing"), f"something of the broken ones was taken: {lines}")
            check_equal(server.metric("lorad_config_last_reload_successful"), 1.0, "the metric after a valid one")
        with card.part("during an upload"):
            failures = []
            upload = threading.Thread(target=slow_upload, args=(server, 2, failures))
            upload.start()
            for i in range(5 if card.quick else 20):
                reload(f"drain_timeout_s = {40 + i}\n")
                time.sleep(0.05)
            upload.join()
            check(not failures, f"the upload failed: {failures}")
        with card.part("no request fails"):
            kinds = {kind: count for kind, count in (crowd.stop() and crowd.kinds()).items()}
            check_equal(set(kinds), {"done"}, f"endings {kinds}")
            check(not_ready < 2 * n, "/health/ready failed after every reload")
            card.limit("times that /health/ready failed", not_ready, 0)  # it does where the engine stands still for a moment
        with card.part("descriptors, threads and memory are as before"):
            after = settled(pid, 3 if card.quick else 10, before)
            card.figure("fds +", after["fds"] - before["fds"])
            card.figure("threads +", after["threads"] - before["threads"])
            check(after["fds"] <= before["fds"] and after["threads"] <= before["threads"], f"before {before}, after {after}")
            # Without requests, whose buffers the allocator keeps as it likes.
            for i in range(2 * n):
                reload(f"drain_timeout_s = {30 + i}\n{BROKEN[i % len(BROKEN)] if i % 2 else ''}\n")
            idle = settled(pid, 1)
            card.figure("rss + MiB", idle["rss_mib"] - after["rss_mib"])
            check(idle["rss_mib"] - after["rss_mib"] <= 0.5, f"before {after}, after {idle}")
        card.figure("requests", kinds.get("done", 0))
        card.figure("failed", sum(count for kind, count in kinds.items() if kind != "done"))
        card.trials += reload.n
    if card.quick:
        card.short_of("100 valid and 100 broken configurations; tests/scorecard.sh --tier nightly --only T16")


if __name__ == "__main__":
    main("T16", run)
