"""Merged adapters over HTTP with the real program: activated under traffic, the base and others beside them, auto, refusals."""

import concurrent.futures
import threading
import time

from harness import ADAPTERS, MODEL, SAMPLES, Server, check, check_equal, check_error

SAMPLE = SAMPLES[0]
# A near-tie may be broken otherwise by other arithmetic: merged weights are rounded once more.
CLEAR_MARGIN = 0.05


def answer(server, model, n=24):
    status, body = server.post("/v1/completions", model=model, prompt=SAMPLE["prompt_ids"], temperature=0, max_tokens=n,
                               ignore_eos=True, return_token_ids=True)
    check_equal(status, 200, f"{model}: {body}")
    return body["choices"][0]["token_ids"]


def check_answer(server, model, when):
    expected = SAMPLE["outputs"][model]
    n = next((i for i, margin in enumerate(expected["margins"]) if margin < CLEAR_MARGIN), len(expected["ids"]))
    check_equal(answer(server, model, max(n, 1))[:n], expected["ids"][:n], f"{model} {when}")


def activate(server, name, mode):
    status, body = server.post(f"/v1/adapters/{name}/activate", mode=mode)
    check_equal(status, 200, f"{name} as {mode}: {body}")
    check_equal(body["mode"], mode, "mode")


def check_a_merged_adapter_answers_beside_base_and_others(server):
    """One after the other becomes merged while requests of all of them run; every answer stays its own."""
    stop = threading.Event()
    failures = []

    def traffic(model):
        while not stop.is_set():
            try:
                check_answer(server, model, "while merges come and go")
            except Exception as error:  # told below, by the main thread
                failures.append(error)
                return

    before = server.metric("lorad_merges_total")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        running = [pool.submit(traffic, model) for model in ("base",) + ADAPTERS]
        for name in ADAPTERS + ADAPTERS[:1]:
            activate(server, name, "merged")
            time.sleep(0.3)
        server.post(f"/v1/adapters/{ADAPTERS[0]}/deactivate")
        stop.set()
        for future in running:
            future.result()
    check(not failures, f"{failures[:3]}")
    check_equal(server.metric("lorad_merges_total") - before, len(ADAPTERS) + 1, "merges")
    check(server.metric("lorad_merge_gpu_ms_total") > 0, "merges took time")
    check_equal(server.metric("lorad_merged_weights_bytes"), 0, "nothing is merged")


def check_requests_of_the_merged_adapter_alone_run_on_its_weights(server):
    activate(server, "pirate", "merged")
    check(server.metric("lorad_merged_weights_bytes") > 0, "merged weights take memory")
    before = server.metric("lorad_merged_steps_total")
    check_answer(server, "pirate", "merged")
    steps = server.metric("lorad_merged_steps_total")
    check(steps > before, "no step ran on the merged weights")
    for model in ("base", "shout"):
        check_answer(server, model, "beside a merged adapter")
    check_equal(server.metric("lorad_merged_steps_total"), steps, "others ran on the merged weights")
    status, body = server.post("/v1/adapters/pirate/deactivate")
    check_equal(status, 200, f"{body}")
    check_answer(server, "pirate", "unmerged again")
    check_equal(server.metric("lorad_merged_steps_total"), steps, "steps after it was unmerged")


def check_merging_is_refused_where_it_cannot_be(lorad):
    with Server(lorad, "--batch-invariant", adapters=("pirate",)) as server:
        for mode in ("merged", "auto"):
            status, body = server.post("/v1/adapters/pirate/activate", mode=mode)
            check_error((status, body), 400, "invalid_lora_load_policy")
        check_answer(server, "pirate", "after a refusal")
    with Server(lorad, "--merge-memory-mib", "1", adapters=("pirate",)) as server:
        status, body = server.post("/v1/adapters/pirate/activate", mode="merged")
        if status == 507:
            check_error((status, body), 507, "out_of_memory")
            check_answer(server, "pirate", "after a refusal")
        else:
            check(server.metric("lorad_merged_weights_bytes") <= 1 << 20, "more than it may take")


def check_auto_merges_what_dominates(lorad):
    with Server(lorad) as server:
        activate(server, "formal", "auto")
        check_equal(server.metric("lorad_merges_total"), 0, "merged at once")
        deadline = time.monotonic() + 120
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            while server.metric("lorad_merges_total") == 0:
                check(time.monotonic() < deadline, "never merged")
                list(pool.map(lambda _: answer(server, "formal", 200), range(16)))
        check_answer(server, "formal", "merged by itself")
        check(server.metric("lorad_merged_steps_total") > 0, "steps on the merged weights")


SHARED = [check_a_merged_adapter_answers_beside_base_and_others, check_requests_of_the_merged_adapter_alone_run_on_its_weights]
OWN = [check_merging_is_refused_where_it_cannot_be, check_auto_merges_what_dominates]
