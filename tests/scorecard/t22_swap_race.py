#!/usr/bin/env python3
"""T22: 64 streams over 8 adapters in 4 slots while adapters are loaded, replaced, rolled back, activated and removed: no token is another content's."""
# beside others: yes

import sys
import time
import urllib.parse

from frame import ROOT, check, check_equal, main
from streams import Stream

sys.path.insert(0, str(ROOT / "tests/e2e"))

import swap_race  # noqa: E402
from adapter_checks import delete  # noqa: E402

FULL = {"nightly": {"steps": 3_000_000, "seeds": 20_000, "calls": 10_000, "tokens": 1_000_000},
        "release": {"steps": 100_000_000, "seeds": 200_000, "calls": 10_000, "tokens": 1_000_000}}
QUICK = {"steps": 3000, "seeds": 30, "calls": 64, "tokens": 1500}
ASKED_STEPS = 100_000_000


class Race(swap_race.Race):
    """Every other request is a stream, and calls go on until there were tokens enough."""

    def __init__(self, server, size, seed):
        super().__init__(server, size["calls"], seed)
        self.n_tokens = size["tokens"]

    def caller(self, number):
        round_seed = self.seed
        while not self.over.is_set():
            super().caller(number)
            if self.counts["tokens"] >= self.n_tokens:
                return
            self.seed += 1000
        self.seed = round_seed

    def stream(self, number):
        if number % 2 == 0:
            super().stream(number)
            return
        choose = swap_race.random.Random(self.seed * 1000 + number)
        while not self.over.is_set():
            prompt, n = choose.randrange(len(swap_race.PROMPTS)), choose.randint(1, swap_race.TOKENS)
            stream = Stream(self.server, choose.choice(swap_race.NAMES), swap_race.PROMPTS[prompt], n, timeout=300)
            stream.join()
            outcome = stream.outcome()
            if outcome in ("refused", "error"):
                self.count("refused: " + stream.error["code"])
                if stream.error["code"] not in swap_race.FAIR:
                    self.fail(f"a stream got {stream.status} {stream.error}")
                continue
            if outcome != "whole" or stream.generation not in self.alone:
                self.fail(f"a stream: {outcome}, digest {stream.generation}, {stream.cut!r}")
                continue
            removed = stream.finish == "adapter_removed"
            expected = self.alone[stream.generation][prompt][:len(stream.tokens) if removed else n]
            if stream.tokens != expected:
                self.fail(f"{stream.generation[:12]}, prompt {prompt}: expected {expected}, found {stream.tokens}")
            self.count("streams cut off by removal" if removed else "whole streams")
            self.count("tokens", len(expected))


def over_http(card, size):
    with card.part("over HTTP, each answer with the digest that it was given"):
        began = time.monotonic()
        flags = ("--batch-invariant", "--max-loras", "4", "--max-num-seqs", str(swap_race.STREAMS), "--max-queue", "200",
                 "--adapter-wait-s", "3600")  # 64 streams want 4 slots: how long one waits for its turn is the machine's speed
        with card.server(*flags, adapters=()) as server:
            race = Race(server, size, card.seed)
            race.run()
            counts = race.counts
            card.figure("tokens over HTTP", counts["tokens"])
            card.figure("calls over HTTP", sum(n for what, n in counts.items() if what.split()[0] in
                                               ("load", "replace", "rollback", "activate", "deactivate", "drain", "now")))
            card.trials += counts["tokens"]
            check(not race.failures, f"seed {card.seed}: {race.failures[:3]}")
            check(counts["whole streams"] >= swap_race.STREAMS // 2, f"too few streams to say anything: {dict(counts)}")
            for name in swap_race.NAMES:
                if server.request("GET", f"/v1/adapters/{urllib.parse.quote(name, safe='')}")[0] == 200:
                    delete(server, name, "?mode=now&timeout_ms=5000")
            check_equal(server.request("GET", "/v1/adapters")[1]["data"], [], "adapters that are left")
            check_equal(server.metric("lorad_adapter_device_bytes"), 0, "device bytes that are left")
        card.figure("seconds over HTTP", time.monotonic() - began)


def run(card):
    size = FULL.get(card.tier, QUICK)
    card.gtest("fake device, threads", "server_tests", "SwapRace.*", env={"LORAD_TEST_STEPS": str(size["steps"]), "LORAD_TEST_SEED": str(card.seed)},
               seconds=4 * 3600, less_when_quick=True)
    card.gtest("fake device, deterministic, with faults", "server_tests", "RegistrySimulation.*",
               env={"LORAD_TEST_SEEDS": str(size["seeds"]), "LORAD_TEST_SEED": "0"}, seconds=4 * 3600, less_when_quick=True)
    over_http(card, size)
    if card.quick:
        card.short_of("10,000 calls and 1,000,000 tokens over HTTP: tests/scorecard.sh --tier nightly --only T22")
    if size["steps"] < ASKED_STEPS:
        card.release_only("100 million steps of the fake device in one run: --tier release")
    card.release_only("the race on a GPU: LORAD_TEST_DEVICE, server_tests --gtest_filter=SwapDevice.*")


if __name__ == "__main__":
    main("T22", run)
