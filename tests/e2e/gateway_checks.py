"""What the Kubernetes Gateway API Inference Extension asks of a model server: its endpoint picker's default configuration is vLLM's names."""

import re
import threading
import time

from harness import SAMPLES, check, check_equal

# Meaning: (name, type, labels that it must have)
GAUGES = {"TotalQueuedRequests": ("vllm:num_requests_waiting", "gauge", ()),
          "TotalRunningRequests": ("vllm:num_requests_running", "gauge", ()),
          "KVCacheUtilization": ("vllm:kv_cache_usage_perc", "gauge", ()),
          "CacheConfig": ("vllm:cache_config_info", "gauge", ("block_size", "num_gpu_blocks")),
          "LoRA": ("vllm:lora_requests_info", "gauge", ("max_lora", "running_lora_adapters", "waiting_lora_adapters"))}


def series(server):
    """Types by name, and samples as (name, labels, value)."""
    text = server.request("GET", "/metrics")[1]
    types = dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text))
    samples = [(name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")), float(value))
               for name, labels, value in re.findall(r"(?m)^([\w:]+)(\{.*\})? (\S+)$", text)]
    return types, samples


def one(samples, name):
    found = [(labels, value) for n, labels, value in samples if n == name]
    check_equal(len(found), 1, f"series of {name}")
    return found[0]


def check_gateway_finds_its_metrics(server):
    types, samples = series(server)
    for meaning, (name, kind, labels) in GAUGES.items():
        check_equal(types.get(name), kind, f"type of {name}, for {meaning}")
        check(set(labels) <= set(one(samples, name)[0]), f"labels of {name}: {one(samples, name)}")
    cache = one(samples, "vllm:cache_config_info")[0]
    check(int(cache["block_size"]) > 0 and int(cache["num_gpu_blocks"]) > 0, f"{cache}")
    check(0 <= one(samples, "vllm:kv_cache_usage_perc")[1] <= 1, "a share is 0 to 1")
    loaded = {labels["adapter_name"]: labels["level"] for name, labels, _ in samples if name == "vllm:lora_adapter_loaded"}
    check(loaded and set(loaded.values()) <= {"gpu", "cpu"}, f"where adapters are: {loaded}")


def check_gateway_sees_who_runs(server):
    """Which adapters have requests, when that changed, and how much of the cache they hold."""
    began = time.time()
    stop = threading.Event()

    def endless(adapter):
        for _ in server.events("/v1/completions", model=adapter, prompt=SAMPLES[0]["prompt"], max_tokens=1500, ignore_eos=True):
            if stop.is_set():
                return

    threads = [threading.Thread(target=endless, args=(name,)) for name in ("pirate", "shout")]
    for thread in threads:
        thread.start()
    try:
        for _ in range(400):
            _, samples = series(server)
            labels, value = one(samples, "vllm:lora_requests_info")
            running = set(filter(None, labels["running_lora_adapters"].split(",")))
            if {"pirate", "shout"} <= running:
                break
            time.sleep(0.02)
        check({"pirate", "shout"} <= running, f"running: {labels}")
        check(began - 1 <= value <= time.time() + 1, f"the value is the time of the last change: {value}")
        check(one(samples, "vllm:num_requests_running")[1] >= 2, "running requests")
        check(one(samples, "vllm:kv_cache_usage_perc")[1] > 0, "share of the cache")
        check(int(labels["max_lora"]) >= 2, f"{labels}")
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    for _ in range(400):
        labels, _ = one(series(server)[1], "vllm:lora_requests_info")
        if not labels["running_lora_adapters"]:
            break
        time.sleep(0.02)
    check_equal(labels["running_lora_adapters"], "", "who runs when nobody does")


SHARED = [check_gateway_finds_its_metrics, check_gateway_sees_who_runs]
