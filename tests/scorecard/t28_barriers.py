#!/usr/bin/env python3
"""T28: validation has nothing to say; what stands between barriers may run in any order; and a barrier that is left out shows."""
# beside others: yes

import concurrent.futures
import re
import sys

from frame import ADAPTERS, ROOT, check, check_equal, main
from streams import PROMPTS, answer

sys.path.insert(0, str(ROOT / "tests/vulkan_layer"))

import control  # noqa: E402

# Each of these programs runs with validation, core and synchronization, and fails if it says anything (tests/support/test_device.cpp); the first two with
# the commands between barriers the other way round as well, except for what measures time.
TIMES = "*Profiler*:*Timestamp*"
WHOLE = {"model_tests": "*", "gpu_tests": f"*-{TIMES}"}
# The quick form leaves out one barrier in so many.
EVERY_BARRIER = 5
AS_RECORDED = {"gpu_tests": TIMES, "server_tests": "SwapDevice.*:PrefixDevice.*:DrawEngine*:Golden*"}


def traffic(server, merges):
    """Requests of all kinds whose steps differ."""
    for model in ("base", *ADAPTERS):
        answer(server, model, PROMPTS[3], 6)
    for more in ({"temperature": 0.8, "top_p": 0.9, "seed": 1, "n": 3}, {"logprobs": 3, "repetition_penalty": 1.2}, {"echo": True, "logprobs": 1},
                 {"adapters": [{"name": "pirate", "scale": 0.5}, {"name": "json", "scale": 0.5}]}):
        status, body = server.post("/v1/completions", model="base", prompt=PROMPTS[2], max_tokens=6, **more)
        check_equal(status, 200, f"{more}: {body}")
    check_equal(server.post("/v1/embeddings", model="base", input=PROMPTS[1])[0], 200, "embeddings")
    if not merges:
        return
    check_equal(server.post("/v1/adapters/pirate/activate", mode="merged")[0], 200, "merging")
    answer(server, "pirate", PROMPTS[1], 6)
    answer(server, "base", PROMPTS[1], 6)
    check_equal(server.post("/v1/adapters/pirate/deactivate")[0], 200, "unmerging")


def validated(card, flags):
    with card.server("--validation", "--log-level", "debug", *flags, adapters=ADAPTERS) as server:
        traffic(server, merges="--batch-invariant" not in flags)
        log = server.log_text()
        check("running without validation" not in log, "the validation layer is not installed")
        said = re.findall(r"vulkan validation: .*", log)
        check(not said, f"{len(said)} messages, first: {said and said[0][:500]}")
        card.trials += 1


def whole_the_other_way_round(card, program):
    """Returns how many pieces between barriers were put in another order."""
    with control.FaultLayer(card.build) as layer:
        layer.set(control.ORDER, control.REVERSED)
        card.gtest(f"{program} under validation, commands between barriers the other way round", program, WHOLE[program], env=layer.env(), seconds=3600,
                   may_skip=True)
        return layer.get(control.REORDERED)


def whole_as_recorded(card):
    for program, tests in AS_RECORDED.items():
        card.gtest(f"{program} under validation", program, tests, seconds=3600)
    return 0


def run(card):
    with card.part("the daemon under core and synchronization validation: no message"):
        for flags in ((),) if card.quick else ((), ("--batch-invariant",), ("--kv-cache-dtype", "int8"), ("--persistent-decode", "on")):
            validated(card, flags)
    # Compiling takes most of the time: on lavapipe without its optimizer.
    quickly = {"GALLIVM_PERF": "nopt"} if card.quick else {}
    card.gtest("steps whose commands between barriers are the other way round", "server_tests", "BarrierMutation.WhatStands*", env=quickly)
    card.gtest("barriers that are left out show", "server_tests", "BarrierMutation.ABarrier*", seconds=1800,
               env={**quickly, "LORAD_TEST_EVERY_BARRIER": str(EVERY_BARRIER)} if card.quick else None)
    if card.quick:
        card.short_of(f"leaving out each barrier instead of one in {EVERY_BARRIER}: tests/scorecard.sh --tier nightly --only T28")
        card.short_of("all device tests under validation, and with the commands between barriers the other way round: "
                      "tests/scorecard.sh --tier nightly --only T28")
    else:
        # Validation and the compilation of pipelines each keep one core busy.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            jobs = [pool.submit(whole_the_other_way_round, card, program) for program in WHOLE] + [pool.submit(whole_as_recorded, card)]
            card.figure("pieces put in another order", sum(job.result() for job in jobs))
    card.release_only("kernels on matrices, which software devices have not; each dispatch at most 500 ms on each GPU; GPU-assisted validation with the newest layers")


if __name__ == "__main__":
    main("T28", run)
