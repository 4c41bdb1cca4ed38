#!/usr/bin/env python3
"""T28: validation has nothing to say; what stands between barriers may run in any order; and a barrier that is left out shows."""

import re
import sys

from frame import ADAPTERS, ROOT, check, check_equal, main
from streams import PROMPTS, answer

sys.path.insert(0, str(ROOT / "tests/vulkan_layer"))

import control  # noqa: E402

# With validation, core and synchronization: each of these programs fails if it says anything (tests/support/test_device.cpp).
WHOLE = {"gpu_tests": "*", "model_tests": "*", "server_tests": "SwapDevice.*:PrefixDevice.*:DrawEngine*:Golden*"}


def traffic(server):
    """Requests of all kinds whose steps differ."""
    for model in ("base", *ADAPTERS):
        answer(server, model, PROMPTS[3], 6)
    for more in ({"temperature": 0.8, "top_p": 0.9, "seed": 1, "n": 3}, {"logprobs": 3, "repetition_penalty": 1.2}, {"echo": True, "logprobs": 1},
                 {"adapters": [{"name": "pirate", "scale": 0.5}, {"name": "json", "scale": 0.5}]}):
        status, body = server.post("/v1/completions", model="base", prompt=PROMPTS[2], max_tokens=6, **more)
        check_equal(status, 200, f"{more}: {body}")
    check_equal(server.post("/v1/embeddings", model="base", input=PROMPTS[1])[0], 200, "embeddings")
    check_equal(server.post("/v1/adapters/pirate/activate", mode="merged")[0], 200, "merging")
    answer(server, "pirate", PROMPTS[1], 6)
    answer(server, "base", PROMPTS[1], 6)
    check_equal(server.post("/v1/adapters/pirate/deactivate")[0], 200, "unmerging")


def validated(card, flags):
    with card.server("--validation", "--log-level", "debug", *flags, adapters=ADAPTERS) as server:
        traffic(server)
        log = server.log_text()
        check("running without validation" not in log, "the validation layer is not installed")
        said = re.findall(r"vulkan validation: .*", log)
        check(not said, f"{len(said)} messages, first: {said and said[0][:500]}")
        card.trials += 1


def run(card):
    with card.part("the daemon under core and synchronization validation: no message"):
        for flags in ((),) if card.quick else ((), ("--batch-invariant",), ("--kv-cache-dtype", "int8"), ("--persistent-decode", "on")):
            validated(card, flags)
    if not card.quick:
        for program, tests in WHOLE.items():
            card.gtest(f"{program} under validation", program, tests, seconds=3600)
    with control.FaultLayer(card.build) as layer:
        env = dict(layer.env(), LORAD_TEST_MUTATIONS="12" if card.quick else "48")
        card.gtest("steps whose commands between barriers are the other way round", "server_tests", "BarrierMutation.WhatStands*", env=env)
        layer.reset()
        card.gtest("barriers that are left out show", "server_tests", "BarrierMutation.ABarrier*", env=env, seconds=3600)
        if not card.quick:
            layer.reset()
            layer.set(control.ORDER, control.REVERSED)
            for program, tests in (("gpu_tests", "*-*Profiler*:*Timestamp*"), ("model_tests", "*")):
                card.gtest(f"{program}, commands between barriers the other way round", program, tests, env=env, seconds=3600)
            card.figure("pieces put in another order", layer.get(control.REORDERED))
    card.short_of("95 % of the barriers seen: of 52, 48 were; not seen are those at the end of a submission, which only the host and the next one need. "
                  "Every one of the 208: some mutants end the process, which the test does not survive")
    if card.quick:
        card.short_of("48 barriers, and all device tests under validation: tests/scorecard.sh --tier nightly --only T28")
    card.release_only("each dispatch at most 500 ms on each GPU; GPU-assisted validation with the newest layers")


if __name__ == "__main__":
    main("T28", run)
