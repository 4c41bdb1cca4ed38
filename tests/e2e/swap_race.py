"""The swap race over HTTP: 64 greedy streams over 8 names in room for 4 while others load, replace, roll back, activate, pin and
remove. With batch-invariant kernels every stream's tokens are those that its generation answers alone: not one may differ.

LORAD_TEST_CALLS is how many such calls are made (tests/run.sh --slow: 10,000), LORAD_TEST_SEED repeats a run.
"""

import collections
import http.client
import json
import os
import pathlib
import random
import tempfile
import threading
import time
import urllib.parse

from adapter_checks import FILES, delete, files_of, generation_of, put_blob, registered
from harness import ADAPTERS, MODEL, SAMPLES, Server, check, check_equal

NAMES = [f"race/{i}" for i in range(8)]
STREAMS, CALLERS, TOKENS = 64, 8, 16
PROMPTS = [sample["prompt_ids"] for sample in SAMPLES[:3]]
# What an answer may be while its name is being removed or its place is waited for.
FAIR = {"model_not_found", "adapter_not_found", "adapter_busy"}


def contents():
    """Eight adapters that answer otherwise: the demo model's four, as they are and at another scale."""
    all_of_them = []
    for name in ADAPTERS:
        files = files_of(name)
        config = json.loads(files[FILES[0]])
        other = dict(files, **{FILES[0]: json.dumps(dict(config, lora_alpha=config["lora_alpha"] * 0.3)).encode()})
        all_of_them += [files, other]
    return all_of_them


class Client:
    """One connection that stays open."""

    def __init__(self, server):
        self.address = (server.host, server.port)
        self.connection = None

    def call(self, method, path, body=None):
        if self.connection is None:
            self.connection = http.client.HTTPConnection(*self.address, timeout=300)
        try:
            self.connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            response = self.connection.getresponse()
            text = response.read()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # The daemon ends a connection after 1,000 requests or 5 idle seconds; nothing of this request was begun.
            self.connection.close()
            self.connection = None
            return self.call(method, path, body)
        return response.status, json.loads(text) if text else None

    def tokens(self, model, prompt, n):
        status, body = self.call("POST", "/v1/completions", {"model": model, "prompt": PROMPTS[prompt], "temperature": 0, "max_tokens": n,
                                                             "ignore_eos": True, "return_token_ids": True})
        return status, body


class Race:
    def __init__(self, server, n_calls, seed):
        self.server, self.n_calls, self.seed = server, n_calls, seed
        self.contents = contents()
        self.digests = [{file: put_blob(server, data) for file, data in files.items()} for files in self.contents]
        self.alone = {}  # generation -> tokens of each prompt
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.failures = []
        self.over = threading.Event()

    def learn(self):
        """What each content answers alone, also at other lengths of the batch: one after the other, nothing else running."""
        client = Client(self.server)
        for i, files in enumerate(self.contents):
            generation = registered(self.server, NAMES[i], files)["generation"]
            check_equal(generation, generation_of(files), "generation")
            answers = [client.tokens(NAMES[i], prompt, TOKENS)[1] for prompt in range(len(PROMPTS))]
            self.alone[generation] = [answer["choices"][0]["token_ids"] for answer in answers]
        check_equal(len({json.dumps(tokens) for tokens in self.alone.values()}), len(self.contents), "contents that answer otherwise")

    def fail(self, what):
        with self.lock:
            self.failures.append(what)
        self.over.set()

    def stream(self, number):
        client, choose = Client(self.server), random.Random(self.seed * 1000 + number)
        while not self.over.is_set():
            prompt, n = choose.randrange(len(PROMPTS)), choose.randint(1, TOKENS)
            status, body = client.tokens(choose.choice(NAMES), prompt, n)
            if status != 200:
                code = body["error"]["code"]
                self.count("refused: " + code)
                if code not in FAIR:
                    self.fail(f"a stream got {status} {body}")
                continue
            choice = body["choices"][0]
            expected = self.alone[body["adapter_generation"]][prompt][:n]
            removed = choice["finish_reason"] == "adapter_removed"
            if removed:
                expected = expected[:len(choice["token_ids"])]
            if choice["token_ids"] != expected:
                self.fail(f"{body['adapter_generation'][:12]}, prompt {prompt}: expected {expected}, found {choice['token_ids']}")
            self.count("streams cut off by removal" if removed else "whole streams")
            self.count("tokens", len(expected))

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def change(self, client, choose):
        name = choose.choice(NAMES)
        path = f"/v1/adapters/{urllib.parse.quote(name, safe='')}"
        content = choose.randrange(len(self.contents))
        what = choose.choice(("load", "load", "replace", "replace", "rollback", "activate", "deactivate", "drain", "now"))
        if what == "load":
            # As it was given to load() in the first place: a folder.
            return what, client.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": self.folders[content], "load_inplace": True})
        if what == "replace":
            # The name may be gone, and may come back, at any moment: both ways to bring it are tried.
            return what, client.call("POST", "/v1/adapters", {"name": name, "files": self.digests[content], "replace": True})
        if what == "rollback":
            return what, client.call("POST", path + "/rollback", {})
        if what == "activate":
            # One pin at a time, or all of the room could be pinned.
            return what, client.call("POST", path + "/activate", {"mode": "unmerged", "pin": name == NAMES[0] and choose.random() < 0.5})
        if what == "deactivate":
            return what, client.call("POST", path + "/deactivate", {})
        return what, client.call("DELETE", f"{path}?mode={what}&timeout_ms={choose.choice((0, 0, 50))}")

    def caller(self, number):
        client, choose = Client(self.server), random.Random(self.seed * 77 + number)
        n = self.n_calls // CALLERS
        for i in range(20 * n):
            # However the machine shares its time: until enough streams came to their end among the calls.
            if self.over.is_set() or (i >= n and self.counts["whole streams"] >= STREAMS):
                return
            what, (status, body) = self.change(client, choose)
            self.count(f"{what} {status}")
            # Files that nothing is made of any more may be collected between upload and use; they are brought again.
            if status == 404 and body["error"]["code"] == "adapter_file_not_found":
                for files in self.contents:
                    for data in files.values():
                        put_blob(self.server, data)
            elif status >= 500 and body["error"]["code"] not in FAIR:
                self.fail(f"{what} got {status} {body}")

    def run(self):
        with tempfile.TemporaryDirectory() as root:
            self.folders = []
            for i, files in enumerate(self.contents):
                folder = pathlib.Path(root, str(i))
                folder.mkdir()
                for name, data in files.items():
                    (folder / name).write_bytes(data)
                self.folders.append(str(folder))
            self.learn()
            streams = [threading.Thread(target=self.guarded, args=(self.stream, i)) for i in range(STREAMS)]
            callers = [threading.Thread(target=self.guarded, args=(self.caller, i)) for i in range(CALLERS)]
            for thread in streams + callers:
                thread.start()
            for thread in callers:
                thread.join()
            self.over.set()
            for thread in streams:
                thread.join()

    def guarded(self, body, number):
        try:
            body(number)
        except Exception as error:  # told below, by the main thread
            self.fail(f"{body.__name__} {number}: {error!r}")


def check_swap_race(lorad):
    n_calls, seed = int(os.environ.get("LORAD_TEST_CALLS", 100)), int(os.environ.get("LORAD_TEST_SEED", time.time_ns() % 10**6))
    begin = time.monotonic()
    with Server(lorad, "--batch-invariant", "--max-loras", "4", "--max-num-seqs", str(STREAMS), "--max-queue", "200", "--adapter-wait-s", "3600",
                adapters=()) as server:
        race = Race(server, n_calls, seed)
        race.run()
        seconds = time.monotonic() - begin
        print(f"     seed {seed}, {seconds:.0f} s: " + ", ".join(f"{n} {what}" for what, n in sorted(race.counts.items())), flush=True)
        check(not race.failures, f"seed {seed}: {race.failures[:3]}")
        check(race.counts["whole streams"] >= STREAMS, "too few streams to say anything")
        for name in NAMES:
            if server.request("GET", f"/v1/adapters/{urllib.parse.quote(name, safe='')}")[0] == 200:
                delete(server, name, "?mode=now&timeout_ms=5000")
        check_equal(server.request("GET", "/v1/adapters")[1]["data"], [], "adapters that are left")
        check_equal(server.metric("lorad_adapter_device_bytes"), 0, "device bytes that are left")


def check_cycles_leave_nothing(lorad):
    """Loads and unloads, with an answer in between: device bytes and open files are where they were; memory too, where the cycles are enough to tell."""
    n_cycles = int(os.environ.get("LORAD_TEST_CYCLES", 20))
    with Server(lorad, adapters=()) as server:
        process = pathlib.Path("/proc", str(server.process.pid))
        # An adapter of the demo model takes 0.4 MiB; a leak of one in each of 1,000 cycles would be 400 MiB, in each of 20 nothing to see. The
        # sanitizers keep freed memory.
        counts_memory = n_cycles >= 200 and "libasan" not in (process / "maps").read_text()
        client = Client(server)

        def cycle(i):
            name, path = f"cycle{i % 3}", str(MODEL / "adapters" / ADAPTERS[i % 4])
            check_equal(client.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})[0], 200, "load")
            if i % 10 == 0:
                check_equal(client.tokens(name, 0, 2)[0], 200, "an answer")
            check_equal(client.call("DELETE", f"/v1/adapters/{name}?timeout_ms=10000")[1]["in_flight"], 0, "requests that hold it")

        def state():
            status = (process / "status").read_text()
            resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
            return server.metric("lorad_adapter_device_bytes"), resident, len(list((process / "fd").iterdir()))

        for i in range(20):
            cycle(i)
        before = state()
        for i in range(n_cycles):
            cycle(i)
        after = state()
        print(f"     {n_cycles} cycles: device bytes {before[0]:.0f} -> {after[0]:.0f}, KiB resident {before[1]} -> {after[1]}, open files {before[2]} -> {after[2]}", flush=True)
        check_equal((before[0], after[0]), (0, 0), "device bytes")
        # Connections of the checks themselves come and go.
        check(after[2] <= before[2] + 3, f"open files: {before[2]} before, {after[2]} after")
        check(not counts_memory or after[1] <= before[1] + 32 * 1024, f"memory grew from {before[1]} to {after[1]} KiB")


OWN = [check_swap_race, check_cycles_leave_nothing]
