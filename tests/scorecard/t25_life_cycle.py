#!/usr/bin/env python3
"""T25: sixteen clients register, replace, activate, delete and generate at once; what each saw can have happened in one order, and none waits long."""
# beside others: yes

import collections
import http.client
import json
import random
import sys
import threading
import time

from frame import ADAPTERS, ROOT, check, check_equal, main
from linearize import Call, anomaly

sys.path.insert(0, str(ROOT / "tests/e2e"))

import swap_race  # noqa: E402
from adapter_checks import generation_of, put_blob  # noqa: E402

CLIENTS, NAMES = 16, [f"life-{i}" for i in range(6)]
SECONDS_MAX = 2.0
# What a call may get besides its success: the state's answers and, under pressure, that there is no place.
BUSY = {"lora_load_busy", "server_overloaded", "lora_generation_conflict"}


class Life:
    def __init__(self, server, n_calls, seed):
        self.server, self.n_calls, self.seed = server, n_calls, seed
        self.contents = swap_race.contents()
        self.digests = [{file: put_blob(server, data) for file, data in files.items()} for files in self.contents]
        self.generations = [generation_of(files) for files in self.contents]
        self.alone = {}  # generation -> tokens
        self.lock = threading.Lock()
        self.history = {name: [] for name in NAMES}
        self.counts, self.failures, self.slowest = collections.Counter(), [], (0, "")

    def call(self, connection, method, path, body=None):
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else {}

    def learn(self):
        """What each content answers alone."""
        for i, digests in enumerate(self.digests):
            check_equal(self.server.post("/v1/adapters", name="learn", files=digests, replace=True)[0] // 100, 2, "registering")
            body = self.server.post("/v1/completions", model="learn", prompt=swap_race.PROMPTS[0], max_tokens=6, temperature=0, ignore_eos=True,
                                    return_token_ids=True)[1]
            self.alone[self.generations[i]] = body["choices"][0]["token_ids"]
        self.server.request("DELETE", "/v1/adapters/learn")

    def one(self, connection, choose):
        """One random call: (what, status, body, Call of the history or nothing)."""
        name, i = choose.choice(NAMES), choose.randrange(len(self.contents))
        path, generation = f"/v1/adapters/{name}", self.generations[i]
        what = choose.choice(("put", "put", "put new", "delete", "read", "generate", "generate", "generate 16", "activate", "deactivate"))
        begin = time.monotonic()
        if what in ("put", "put new"):
            status, body = self.call(connection, "POST", "/v1/adapters", {"name": name, "files": self.digests[i], "replace": what == "put"})
            found = generation if status // 100 == 2 else "exists" if body["error"]["code"] == "adapter_already_loaded" else None
            if status // 100 == 2:
                check_equal(body["generation"], generation, "generation of what was registered")
            seen = Call(begin, time.monotonic(), what, found) if found else None
        elif what == "delete":
            status, body = self.call(connection, "DELETE", path + choose.choice(("", "?mode=now")))
            seen = Call(begin, time.monotonic(), what, body.get("generation") if status == 200 else None) if status in (200, 404) else None
        elif what == "read":
            status, body = self.call(connection, "GET", path)
            seen = Call(begin, time.monotonic(), what, body.get("generation") if status == 200 else None) if status in (200, 404) else None
        elif what.startswith("generate"):
            n = 16 if what.endswith("16") else 1
            status, body = self.call(connection, "POST", "/v1/completions", {"model": name, "prompt": swap_race.PROMPTS[0], "max_tokens": 6 if n == 1 else 3, "n": n,
                                                                               "temperature": 0, "ignore_eos": True, "return_token_ids": True})
            seen = Call(begin, time.monotonic(), "read", body.get("adapter_generation") if status == 200 else None) if status in (200, 404) else None
            if status == 200:
                for choice in body["choices"]:
                    expected = self.alone[body["adapter_generation"]][:6 if n == 1 else 3]
                    if choice["finish_reason"] == "adapter_removed":
                        expected = expected[:len(choice["token_ids"])]
                    check_equal(choice["token_ids"], expected, f"tokens of {body['adapter_generation'][:12]}")
        else:
            status, body = self.call(connection, "POST", f"{path}/{what}", {"mode": "unmerged"} if what == "activate" else {})
            seen = None
        return name, what, status, body, seen, time.monotonic() - begin

    def client(self, number):
        choose = random.Random(self.seed * 1000 + number)
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=300)  # connects anew where the daemon says that it closes
        try:
            for _ in range(self.n_calls // CLIENTS):
                if self.failures:
                    return
                name, what, status, body, seen, seconds = self.one(connection, choose)
                code = body.get("error", {}).get("code")
                if code == "adapter_file_not_found":  # collected after the last name that needed it went
                    for files in self.contents:
                        for data in files.values():
                            put_blob(self.server, data)
                if status >= 500 or (status >= 400 and status != 404 and code not in BUSY and code != "adapter_already_loaded"):
                    raise AssertionError(f"{what} {name}: {status} {body}")
                with self.lock:
                    self.counts[f"{what} {status}"] += 1
                    if seen:
                        self.history[name].append(seen)
                    if seconds > self.slowest[0]:
                        self.slowest = (seconds, what)
        except Exception as error:  # told by the main thread
            self.failures.append(f"client {number}: {error!r}")

    def run(self):
        self.learn()
        threads = [threading.Thread(target=self.client, args=(i,), daemon=True) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # a read of its calls that takes 300 s (uploads 120 s) is a failure


def self_test():
    """The checker itself: histories that are in order, and some that are not."""
    def history(*calls):
        return [Call(*call) for call in calls]

    good = history((0, 1, "put", "a"), (0.5, 2, "put", "b"), (1.5, 3, "read", "a"), (2.5, 4, "delete", "a"), (3.9, 5, "read", None))
    check(anomaly(good) is None, "a history in order is called an anomaly")
    for bad in (history((0, 1, "put", "a"), (2, 3, "read", "b")),
                history((0, 1, "put", "a"), (2, 3, "put", "b"), (4, 5, "read", "a")),
                history((0, 1, "put", "a"), (2, 3, "delete", "a"), (4, 5, "read", "a")),
                history((0, 1, "put", "a"), (2, 5, "put", "b"), (2.5, 3, "read", "b"), (3.5, 4, "read", "a")),
                history((0, 1, "put new", "a"), (2, 3, "put new", "b"))):
        check(anomaly(bad) is not None, f"not seen: {bad}")


def run(card):
    with card.part("the checker finds histories without an order"):
        self_test()
    n_calls = 320 if card.quick else 100_000
    with card.part("what the clients saw can have happened in one order; no call waits long"):
        flags = ("--batch-invariant", "--max-loras", "4", "--max-num-seqs", "64", "--max-queue", "600", "--http-threads", "64",
                 "--adapter-wait-s", "3600")  # how long one waits for its turn is the machine's speed
        with card.server(*flags, adapters=ADAPTERS[:1]) as server:
            life = Life(server, n_calls, card.seed)
            life.run()
            check(not life.failures, f"seed {card.seed}: {life.failures[:3]}")
            for name, history in life.history.items():
                wrong = anomaly(history)
                if wrong is not None:
                    near = [call for call in history if call.end >= wrong.begin - 0.2 and call.begin <= wrong.end]
                    raise AssertionError(f"seed {card.seed}, {name}: no order explains {wrong}; near it: {near[:12]}")
            n = sum(life.counts.values())
            card.trials += n
            card.figure("calls", n)
            card.figure("of the history", sum(len(history) for history in life.history.values()))
            card.limit("slowest call s", life.slowest[0], SECONDS_MAX, life.slowest[1])
            for name in NAMES:
                server.request("DELETE", f"/v1/adapters/{name}?mode=now&timeout_ms=5000")
            check_equal(server.metric("lorad_adapter_leases"), 0, "leases at the end")
    if card.quick:
        card.short_of("100,000 calls: tests/scorecard.sh --tier nightly --only T25")


if __name__ == "__main__":
    main("T25", run)
