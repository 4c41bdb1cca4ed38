#!/usr/bin/env python3
"""T18: a process killed at any system call of an upload, a replacement, a deletion or an activation loses nothing it has acknowledged, and leaves nothing half."""
# beside others: yes

import http.client
import random
import signal
import threading
import time

from frame import check, check_equal, lanes, main, spread

from adapter_checks import FILES, digest_of, files_of
from faults import store_folder


class Life:
    """Calls to a daemon, one after another, and what an observer knows of them; ends when the daemon does."""

    def __init__(self, random, names):
        self.random, self.names = random, names
        self.known = {}       # name -> (generation, pinned) as acknowledged
        self.under_way = None  # (name, what it may be after the call)
        self.failure = None    # an answer that should not be

    def step(self, server):
        name = self.random.choice(["a", "b", "c"])
        files = files_of(self.random.choice(self.names))
        content = {file: f"sha256:{digest_of(data)}" for file, data in files.items()}
        generation = digest_of("".join(f"{content[file][7:]}  {file}\n" for file in FILES).encode())
        act = self.random.choice(["put", "put", "delete", "activate", "deactivate"])
        before = self.known.get(name)
        if act == "put":
            for file, data in files.items():
                check_equal(server.request("PUT", f"/v1/adapters/blobs/{content[file]}", raw=data)[0], 201, "upload")
            self.under_way = (name, (generation, before[1] if before else False))
            check_equal(server.post("/v1/adapters", name=name, files=content, replace=True)[0], 201, "registration")
        elif before is None:
            return
        elif act == "delete":
            self.under_way = (name, None)
            check_equal(server.request("DELETE", f"/v1/adapters/{name}")[0], 200, "deletion")
        else:
            self.under_way = (name, (before[0], act == "activate"))
            check_equal(server.post(f"/v1/adapters/{name}/{act}", **({"pin": True} if act == "activate" else {}))[0], 200, act)
        self.acknowledge()

    def acknowledge(self):
        name, after = self.under_way
        if after is None:
            self.known.pop(name, None)
        else:
            self.known[name] = after
        self.under_way = None

    def run(self, server):
        try:
            while True:
                self.step(server)
        except (OSError, http.client.HTTPException):
            pass  # it was killed
        except AssertionError as failure:
            self.failure = failure


def listed(server):
    adapters = server.request("GET", "/v1/adapters")[1]
    adapters = adapters["data"]
    return {a["id"]: (a["generation"], bool(a.get("pinned"))) for a in adapters}


def live_and_die(card, lane, n_kills):
    """One store and its observer, killed n_kills times."""
    state = card.memory / f"state-{lane}"
    flags = ("--state-dir", str(state), "--log-level", "error", "--max-loras", "4")
    choose = random.Random(card.seed * 1000 + lane)
    life = Life(choose, ["pirate", "shout", "json"])
    for kill in range(n_kills + 1):
        where = f"store {lane}, kill {kill}"
        with card.server(*flags) as server:
            found = listed(server)
            if found != life.known:
                name, _ = life.under_way or (None, None)
                check(name is not None, f"{where}: {found}, acknowledged was {life.known}")
                life.acknowledge()
                check_equal(found, life.known, f"{where}: as before or after the call about {name}")
            life.under_way = None
            for name in found:
                status, answer = server.post("/v1/completions", model=name, prompt="x", max_tokens=1)
                check_equal(status, 200, f"{where}: {name} is half there: {answer}")
            store = store_folder(state)
            check_equal([*(store / "incoming").iterdir(), *(store / "damaged").iterdir(), *store.glob("*.new")], [], "left over")
            if kill == n_kills:
                break
            worker = threading.Thread(target=life.run, args=(server,))
            worker.start()
            time.sleep(choose.uniform(0.01, 0.6))
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            worker.join()
            check(life.failure is None, f"{where}: {life.failure}")


def kill_at_random_points(card, n_kills):
    """Several stores side by side: most of the time goes into starts."""
    n_lanes = lanes(card)
    spread(range(n_lanes), [(lane,) for lane in range(n_lanes)], lambda _, lane: live_and_die(card, lane, len(range(lane, n_kills, n_lanes))))
    card.figure("kills of the daemon", n_kills)
    card.figure("acknowledged and lost", 0)
    card.trials += n_kills


def run(card):
    card.gtest("killed before its system calls" if card.quick else "killed before each of its system calls", "store_faults",
               "KilledStore.*", env={"LORAD_TEST_KILLS": "50" if card.quick else "0", "TMPDIR": str(card.memory)}, seconds=3600, less_when_quick=True)
    card.gtest("a thousand adapters open, and nothing of them is read", "store_faults", "BitRot.ThousandAdaptersOpenAtOnce", env={"LORAD_TEST_ADAPTERS": "1000"})
    if "opened in ms" in card.figures:
        with card.part("within two seconds"):
            card.limit("opened in ms", float(card.figures.pop("opened in ms")), 2000)
    if not card.quick:
        card.gtest("ended at every call of the file system, with and without a loss of power", "adapters_tests", "CrashTest.*", seconds=3600)
    with card.part("the daemon, killed at random points"):
        kill_at_random_points(card, 2 if card.quick else 200)
    if card.quick:
        card.short_of("all system calls and 200 kills of the daemon: tests/scorecard.sh --tier nightly --only T18")


if __name__ == "__main__":
    main("T18", run)
