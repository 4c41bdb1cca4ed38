#!/usr/bin/env python3
"""What adapters cost a running daemon: upload, paging, Zipf traffic over more adapters than fit, merging.

usage: adapters_bench.py --lorad "build/release/lorad" --model DIR --adapters 'DIR{}' [--n 200] [--room 50] [--streams 32]
                         [--only upload,page,zipf,merge]

Starts `lorad serve` itself, twice: with room for --room adapters on the device (the others wait in host memory) and with
room for all. DIR{} is a pattern: bench/make_model.py adapter made DIR1, DIR2, ... of one rank on all linear layers.
Printed: upload of one adapter over loopback until it is resident; time to first token of an adapter in host memory
against a resident one; throughput of Zipf-1.1 traffic with paging against all resident; GPU time of a merge.
"""
import argparse
import asyncio
import hashlib
import json
import pathlib
import random
import statistics
import time

from load import client, runner, servers


class Daemon:
    """One `lorad serve` on its own port; stopped at the end of the with block."""

    def __init__(self, args, room):
        adapter = pathlib.Path(args.adapters.format(1)) / "adapter_model.safetensors"
        mib = adapter.stat().st_size / 2**20
        self.server = servers.lorad(args.lorad, args.model, "--served-model-name", "base", "--max-model-len", "4096", "--max-loras", str(room),
                                    "--adapter-memory-mib", str(int(mib * (room + 0.5)) + 1), "--adapter-ram-mib", str(int(mib * (args.n + 2) * 1.1)))

    def __enter__(self):
        self.server.__enter__()
        self.url, self.must = self.server.url, self.server.must
        return self

    def __exit__(self, *error):
        self.server.__exit__(*error)

    def load(self, args, n):
        self.must("POST", "/v1/load_lora_adapter", {"lora_name": f"a{n}", "lora_path": str(pathlib.Path(args.adapters.format(n)).resolve())})

    def first_token_ms(self, model, seed):
        rng = random.Random(seed)
        body = {"model": model, "prompt": [rng.randrange(3, 4000) for _ in range(32)], "temperature": 0, "max_tokens": 2,
                "ignore_eos": True, "stream": True, "return_token_ids": True}
        outcome = asyncio.run(client.Endpoint(self.url).send("/v1/completions", body))
        if not outcome.ok:
            raise SystemExit(f"{model}: {outcome.error}")
        return 1e3 * outcome.ttft


def upload(daemon, args, results):
    times = []
    for n in range(1, 6):
        folder = pathlib.Path(args.adapters.format(n))
        files = {name: (folder / name).read_bytes() for name in ("adapter_config.json", "adapter_model.safetensors")}
        digests = {name: "sha256:" + hashlib.sha256(data).hexdigest() for name, data in files.items()}
        begin = time.perf_counter()
        for name, data in files.items():
            daemon.must("PUT", f"/v1/adapters/blobs/{digests[name]}", data, "application/octet-stream")
        daemon.must("POST", "/v1/adapters", {"name": f"u{n}", "files": digests})
        daemon.must("POST", f"/v1/adapters/u{n}/activate", {"mode": "unmerged"})
        times.append(time.perf_counter() - begin)
    for n in range(1, 6):
        daemon.must("DELETE", f"/v1/adapters/u{n}")
    results.append({"bench": "upload_to_resident_s", "median": statistics.median(times), "min": min(times), "max": max(times)})


def page(daemon, args, results):
    """Adapters 1..n are loaded in order, so the last `room` are resident and the first ones are in host memory."""
    resident = [daemon.first_token_ms(f"a{args.n}", seed) for seed in range(12)][2:]
    # Each of these pushes out the least recently used one, which is none of those that follow.
    paged = [daemon.first_token_ms(f"a{n}", n) for n in range(1, min(args.n - args.room, 20) + 1)]
    results.append({"bench": "first_token_ms", "resident": statistics.median(resident), "in_host_memory": statistics.median(paged),
                    "difference": statistics.median(paged) - statistics.median(resident),
                    "resident_max": max(resident), "in_host_memory_max": max(paged)})


def traffic(daemon, args, requests, seed):
    settings = {"url": daemon.url, "streams": args.streams, "requests": requests,
                "workload": {"models": [f"a{n}" for n in range(1, args.n + 1)], "mix": "zipf:1.1", "prompt": "128", "output": "64", "vocab": 4000, "seed": seed}}
    return runner.measured(settings)[0]


def zipf(daemon, args, results, room):
    traffic(daemon, args, 2 * args.streams, 3)  # pipelines, and the adapters that this traffic likes
    row = traffic(daemon, args, 12 * args.streams, 4)
    results.append({"bench": "zipf_1.1", "room": room, "adapters": args.n, "streams": args.streams, "tokens_per_s": row["tokens_per_s"],
                    "ttft_ms": row["ttft_ms"], "errors": row["errors"], "first_error": row["first_error"]})
    return row["tokens_per_s"]


def merge(daemon, args, results):
    begin = time.perf_counter()
    reply = daemon.must("POST", f"/v1/adapters/a{args.n}/activate", {"mode": "merged"})
    seconds = time.perf_counter() - begin
    merged = [daemon.first_token_ms(f"a{args.n}", seed) for seed in range(6)][1:]
    results.append({"bench": "merge", "call_s": seconds, "reply": reply, "first_token_ms_merged": statistics.median(merged)})
    daemon.must("POST", f"/v1/adapters/a{args.n}/deactivate", {})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapters", required=True)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--room", type=int, default=50)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--only", default="upload,page,zipf,merge")
    args = parser.parse_args()
    parts, results, rates = args.only.split(","), [], []
    for room in (args.room, args.n):
        if room == args.n and "zipf" not in parts:
            continue
        with Daemon(args, room) as daemon:
            if room == args.room and "upload" in parts:
                upload(daemon, args, results)
            begin = time.perf_counter()
            for n in range(1, args.n + 1):
                daemon.load(args, n)
            results.append({"bench": "load_from_folder_s_each", "room": room, "mean": (time.perf_counter() - begin) / args.n})
            if room == args.room and "page" in parts:
                page(daemon, args, results)
            if "zipf" in parts:
                rates.append(zipf(daemon, args, results, room))
            if room == args.room and "merge" in parts:
                merge(daemon, args, results)
    if len(rates) == 2:
        results.append({"bench": "zipf_1.1_ratio_to_all_resident", "ratio": rates[0] / rates[1]})
    for row in results:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
