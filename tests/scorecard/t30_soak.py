#!/usr/bin/env python3
"""T30: hours at 70 % load with swaps, disconnects, kill -9 and lost devices: memory, descriptors and latency stay, and no token is wrong."""

# ctest: no
# LORAD_SOAK_SECONDS: how long (nightly: an hour, release: 72 hours). One kill -9 and one lost device in each hour, or in all of a shorter run.

import asyncio
import os
import pathlib
import random
import sys
import time

from frame import ADAPTERS, ROOT, Server, check, main
from streams import PROMPTS, metrics, wait_for

sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/vulkan_layer"), str(ROOT / "tests/e2e")]

import control  # noqa: E402
import swap_race  # noqa: E402
from adapter_checks import generation_of, put_blob  # noqa: E402
from load import client  # noqa: E402

PLACES, OUTPUT, SHADOW = 16, 24, 0.01
FLAGS = ("--batch-invariant", "--max-num-seqs", str(PLACES), "--max-queue", "64", "--max-loras", "4")
SECONDS = {"commit": 40, "nightly": 3600, "release": 72 * 3600}
SWAP_S = 10


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def slope_per_hour(samples):
    """Of (time in s, value) by least squares."""
    if len(samples) < 3:
        return 0.0
    n = len(samples)
    mean_t, mean_v = sum(t for t, _ in samples) / n, sum(v for _, v in samples) / n
    over = sum((t - mean_t) ** 2 for t, _ in samples)
    return 3600 * sum((t - mean_t) * (v - mean_v) for t, v in samples) / over if over else 0.0


class Soak:
    def __init__(self, card, layer, seconds):
        self.card, self.layer, self.seconds = card, layer, seconds
        self.state = str(card.folder / "state")
        self.server = None
        self.choose = random.Random(card.seed)
        self.contents = swap_race.contents()
        self.names = {f"soak-{i}": i for i in range(6)}  # name -> index of its content
        self.alone = {}          # (generation or None, prompt) -> tokens
        self.idle_points = []    # of each life of the process: [(time, resident KiB, descriptors, device allocations and bytes)]
        self.latencies = []      # (time, seconds)
        self.n_wrong = self.n_failed = self.n_shadow = self.n_unplanned = self.n_swaps = self.n_hung_up = 0
        self.first_wrong = self.first_failed = None
        self.outage = True       # a planned one: what fails then is not counted
        self.open = 0

    # -------------------------------------------------------------------------------------------------------- the process

    def start(self):
        self.layer.reset()
        self.server = Server(self.card.lorad, *FLAGS, "--state-dir", self.state, adapters=(), env=self.layer.env())
        self.idle_points.append([])
        self.outage = False

    def prepare(self):
        self.start()
        for i, files in enumerate(self.contents):
            self.register("learn", i)
            for prompt in range(len(PROMPTS)):
                self.alone[generation_of(files), prompt] = self.tokens("learn", prompt)[1]
        for prompt in range(len(PROMPTS)):
            self.alone[None, prompt] = self.tokens("base", prompt)[1]
        for name, i in self.names.items():
            self.register(name, i)
        self.server.request("DELETE", "/v1/adapters/learn")

    def register(self, name, i):
        digests = {file: put_blob(self.server, data) for file, data in self.contents[i].items()}
        status, body = self.server.post("/v1/adapters", name=name, files=digests, replace=True)
        check(status // 100 == 2, f"registering: {status} {body}")

    def tokens(self, model, prompt):
        status, body = self.server.post("/v1/completions", model=model, prompt=PROMPTS[prompt], max_tokens=OUTPUT, temperature=0, ignore_eos=True,
                                        return_token_ids=True)
        return (body.get("adapter_generation"), body["choices"][0]["token_ids"]) if status == 200 else (status, body)

    def lose(self, how):
        """Ends the process as planned, and has another one serve."""
        self.outage = True
        if how == "kill":
            self.server.process.kill()
        else:
            self.layer.fail_next(control.SUBMIT, control.DEVICE_LOST)
        self.server.process.wait(60)
        if how == "loss" and self.server.process.returncode != 75:
            self.n_unplanned += 1
        os.unlink(self.server.log.name)
        self.start()

    # ------------------------------------------------------------------------------------------------------------ the load

    def body(self):
        model = self.choose.choice(("base", *self.names))
        return {"model": model, "prompt": self.choose.choice(PROMPTS), "max_tokens": OUTPUT, "ignore_eos": True, "stream": True, "return_token_ids": True,
                "temperature": self.choose.choice((0, 0.8)), "stream_options": {"include_usage": True}}

    async def request(self):
        self.open += 1
        hangs_up, life = self.choose.random() < 0.05, len(self.idle_points)
        began = time.monotonic()
        endpoint = client.Endpoint(f"http://{self.server.host}:{self.server.port}", timeout=120)
        outcome = await endpoint.send("/v1/completions", self.body(), (lambda _: False) if hangs_up else None)
        self.open -= 1
        self.n_hung_up += hangs_up
        if hangs_up:
            return
        if outcome.ok:
            self.latencies.append((began - self.began, outcome.latency))
        elif not self.outage and life == len(self.idle_points):
            self.n_failed += 1
            self.first_failed = self.first_failed or f"{outcome.status} {outcome.error}"

    def shadow(self):
        model, prompt, life = self.choose.choice(("base", *self.names)), self.choose.randrange(len(PROMPTS)), len(self.idle_points)
        try:
            generation, found = self.tokens(model, prompt)
        except (OSError, ValueError, AssertionError):
            return  # counted by others, where it is not an outage
        if self.outage or life != len(self.idle_points) or not isinstance(found, list):
            return
        self.n_shadow += 1
        if found != self.alone.get((generation, prompt)):
            self.n_wrong += 1
            self.first_wrong = self.first_wrong or f"{model} {prompt}: expected {self.alone.get((generation, prompt))}, found {found}"

    def swap(self):
        name, i = self.choose.choice(list(self.names)), self.choose.randrange(len(self.contents))
        try:
            self.register(name, i)
            self.server.post(f"/v1/adapters/{self.choose.choice(list(self.names))}/activate", mode="unmerged")
            self.server.post(f"/v1/adapters/{name}/deactivate")
            self.n_swaps += 1
        except (OSError, ValueError, AssertionError):
            pass

    def idle_point(self):
        """Nothing runs: what the process holds."""
        held = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "lorad_adapter_leases")
        took = wait_for(lambda: not any(metrics(self.server, held).values()), 30, 0.1)
        check(took is not None, f"not idle: {metrics(self.server, held)}")
        process = pathlib.Path("/proc", str(self.server.process.pid))
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        # A software device's memory is the process's, shared: the KV cache gets its pages at its blocks' first use. `layer.live` has what is allocated.
        resident = int(status["VmRSS"].split()[0]) - int(status["RssShmem"].split()[0])
        adapters = metrics(self.server, ("lorad_adapter_device_bytes",))["lorad_adapter_device_bytes"]
        self.idle_points[-1].append((time.monotonic() - self.began, resident, len(list((process / "fd").iterdir())), self.layer.live()[:2], adapters))

    async def saturation(self, seconds):
        """Requests per second of as many at once as there are places."""
        end, n = time.monotonic() + seconds, 0
        self.began = time.monotonic()

        async def one():
            nonlocal n
            while time.monotonic() < end:
                await self.request()
                n += 1

        await asyncio.gather(*(one() for _ in range(PLACES)))
        self.latencies.clear()
        return n / (time.monotonic() - self.began)

    async def run(self):
        self.prepare()
        rate = 0.7 * await self.saturation(5 if self.card.quick else 30)
        self.card.figure("requests/s", rate)
        self.began = time.monotonic()
        hour = min(self.seconds, 3600)
        losses = sorted((base + share * hour, how) for base in range(0, int(self.seconds), int(hour)) for share, how in ((1 / 3, "kill"), (2 / 3, "loss")))
        idles = [i * self.seconds / (8 if self.card.quick else 24 * max(1, self.seconds // 3600)) for i in range(1, 10_000)]
        next_request = next_swap = 0.0
        tasks = set()

        def spawn(awaitable):
            task = asyncio.ensure_future(awaitable)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        while (now := time.monotonic() - self.began) < self.seconds:
            if self.server.process.poll() is not None:
                self.n_unplanned += 1
                self.card.say(f"ended by itself with {self.server.process.returncode}: {self.server.log_text()[-500:]}")
                self.start()
            if losses and now >= losses[0][0]:
                await asyncio.to_thread(self.lose, losses.pop(0)[1])
                next_request = time.monotonic() - self.began
            if now >= idles[0]:
                idles.pop(0)
                await asyncio.gather(*tasks)
                await asyncio.to_thread(self.idle_point)
                next_request = time.monotonic() - self.began
            if now >= next_swap:
                next_swap = now + SWAP_S
                spawn(asyncio.to_thread(self.swap))
            while next_request <= time.monotonic() - self.began:
                next_request += self.choose.expovariate(rate)
                spawn(self.request())
                if self.choose.random() < (0.1 if self.card.quick else SHADOW):
                    spawn(asyncio.to_thread(self.shadow))
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
        self.idle_point()


def run(card):
    seconds = float(os.environ.get("LORAD_SOAK_SECONDS", SECONDS[card.tier]))
    with control.FaultLayer(card.build) as layer:
        soak = Soak(card, layer, seconds)
        with card.part("soak"):
            try:
                asyncio.run(soak.run())
            finally:
                if soak.server:
                    soak.server.process.kill()
                    soak.server.process.wait()
            check(soak.n_failed == 0, f"{soak.n_failed} requests failed, first: {soak.first_failed}")
            check(soak.n_wrong == 0, f"{soak.n_wrong} wrong, first: {soak.first_wrong}")
        card.trials += len(soak.latencies)
        card.figure("hours", seconds / 3600)
        card.figure("requests", len(soak.latencies))
        card.figure("hung up", soak.n_hung_up)
        card.figure("swaps", soak.n_swaps)
        card.figure("shadow checks", soak.n_shadow)
        # The longest life of a process; its first third is warming up.
        life = max(soak.idle_points, key=len)
        steady = life[len(life) // 3:]
        card.grade("RSS slope MiB/h", max(0.0, slope_per_hour([(at, resident / 1024) for at, resident, *_ in steady])), 1)
        card.grade("descriptors more at the end of a life", max((points[-1][2] - points[0][2] for points in soak.idle_points if points), default=0), 0)
        # Device memory in use beside adapters is the same at all idle points; the slabs that hold adapters come and go with them.
        card.grade("device allocations more in steady state", max((p[3][0] for p in steady), default=0) - min((p[3][0] for p in steady), default=0), 0)
        fifth = seconds / 5
        early = percentile([s for at, s in soak.latencies if at < fifth], 0.99)
        late = percentile([s for at, s in soak.latencies if at > seconds - fifth], 0.99)
        card.grade("p99 drift %", max(0.0, 100 * (late / early - 1)) if early else 1e9, 10)
        card.grade("unplanned restarts", soak.n_unplanned, 0)
        card.grade("wrong tokens in the shadow check", soak.n_wrong, 0)
    if seconds < SECONDS["release"]:
        card.short_of(f"72 hours ({seconds / 3600:.2g} h here): --tier release, or LORAD_SOAK_SECONDS")


if __name__ == "__main__":
    main("T30", run)
