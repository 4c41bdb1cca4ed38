#!/usr/bin/env python3
"""Overload: more requests than the server can compute, and what it makes of them (python3 alone is enough).

usage: overload_bench.py --lorad build/release/lorad [--model deploy/demo-model/base] [--seconds 20] [--factor 4]
       overload_bench.py --lorad ... --idle-streams 500

First the saturation is measured: as many clients as there are places, each sending one request after another. Then requests come
at `factor` times that rate, whether or not earlier ones were answered, to a server whose queue is short. Printed: completed tokens
per second (goodput) of both, the share of the one in the other, how long refusals (429, 503) took, and whether each told when to
come again. With --idle-streams: so many event streams at once, each of which gets a token now and then, and the resident memory
that one of them costs beyond what the server takes without.
"""
import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


class Server:
    def __init__(self, args, *flags):
        self.log = tempfile.TemporaryFile("w+")
        command = [args.lorad, "serve", "--model", args.model, "--port", "0", "--state-dir", "none", "--max-num-seqs",
                   str(args.places), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        match = re.search(r"http://[^:]+:(\d+)", line)
        if not match:
            self.log.seek(0)
            sys.exit(f"the server did not start: {line}{self.log.read()[-2000:]}")
        self.port = int(match[1])

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) * 1024

    def stop(self):
        self.process.terminate()
        self.process.wait()


async def post(port, body, read_on=None):
    """One request on a connection of its own: (status, headers, body, seconds to the status line)."""
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        text = json.dumps(body).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        seconds = time.perf_counter() - begin
        lines = head.decode().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:] if ": " in line)}
        if read_on:
            await read_on(reader)
            return int(lines[0].split()[1]), headers, b"", seconds
        return int(lines[0].split()[1]), headers, await reader.read(), seconds
    finally:
        writer.close()


def body_of(args, i):
    return {"prompt": [3 + (i * 7919 + k * 104729) % 3000 for k in range(args.prompt_tokens)], "max_tokens": args.max_tokens,
            "ignore_eos": True, "temperature": 0}


async def saturation(args, port):
    """Completed tokens per second of as many clients as there are places."""
    end = time.perf_counter() + args.seconds
    tokens, i = [], 0

    async def client():
        nonlocal i
        while time.perf_counter() < end:
            i += 1
            status, _, _, _ = await post(port, body_of(args, i))
            if status == 200 and time.perf_counter() < end:
                tokens.append(args.max_tokens)

    await asyncio.gather(*(client() for _ in range(args.places)))
    return sum(tokens) / args.seconds


async def overload(args, port, rate):
    """Requests at a rate, answered or not."""
    done, refused, other, tasks = [], [], [], []
    begin = time.perf_counter()

    async def one(i):
        try:
            status, headers, _, seconds = await post(port, body_of(args, 100000 + i))
        except OSError as error:
            other.append(repr(error))
            return
        if status == 200:
            done.append(time.perf_counter() - begin)
        elif status in (429, 503):
            refused.append((seconds, "retry-after" in headers))
        else:
            other.append(status)

    i = 0
    while (now := time.perf_counter() - begin) < args.seconds:
        while i < now * rate:
            tasks.append(asyncio.create_task(one(i)))
            i += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    # The queue is full from its first moments on; what was begun before the end and completed after it counts as what was
    # completed before the queue had filled.
    goodput = sum(args.max_tokens for at in done if at < args.seconds) / args.seconds
    times = [seconds for seconds, _ in refused]
    return {"sent": i, "completed": len(done), "refused": len(refused), "other": len(other), "first_other": (other or [None])[0],
            "goodput_tokens_per_s": goodput, "refusal_ms_median": 1e3 * statistics.median(times) if times else None,
            "refusal_ms_p99": 1e3 * percentile(times, 0.99), "refusal_ms_max": 1e3 * max(times, default=0),
            "retry_after_missing": sum(not told for _, told in refused)}


def run_overload(args):
    server = Server(args, "--max-queue", str(args.queue), "--no-prefix-cache")
    try:
        asyncio.run(saturation(argparse.Namespace(**{**vars(args), "seconds": 2.0}), server.port))
        full = asyncio.run(saturation(args, server.port))
        result = asyncio.run(overload(args, server.port, args.factor * full / args.max_tokens))
    finally:
        server.stop()
    return {"bench": "overload", "factor": args.factor, "places": args.places, "queue": args.queue,
            "saturation_tokens_per_s": full, **result, "goodput_share": result["goodput_tokens_per_s"] / full}


async def idle_streams(args, server):
    """Resident bytes that each of many open event streams costs."""
    opened = 0
    before = server.resident_bytes()

    async def stream(i):
        nonlocal opened

        async def read_on(reader):
            nonlocal opened
            await reader.readline()  # the first event or its chunk's size
            opened += 1
            while await reader.readline():
                pass

        status, _, _, _ = await post(server.port, {**body_of(args, i), "stream": True, "max_tokens": args.stream_tokens}, read_on)
        return status

    tasks = [asyncio.create_task(stream(i)) for i in range(args.idle_streams)]
    end = time.perf_counter() + 300
    while opened < args.idle_streams and time.perf_counter() < end and not any(task.done() for task in tasks):
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    held = opened - sum(task.done() for task in tasks)
    during = server.resident_bytes()
    threads = len(os.listdir(f"/proc/{server.process.pid}/task"))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"bench": "idle_streams", "streams": args.idle_streams, "held": held, "threads": threads,
            "resident_mib_before": before / 2**20, "resident_mib_during": during / 2**20,
            "kib_per_stream": (during - before) / 1024 / max(held, 1)}


def run_idle(args):
    args.places, args.prompt_tokens = args.idle_streams, 2
    server = Server(args, "--max-num-batched-tokens", str(max(1024, args.places)), "--max-model-len", str(args.prompt_tokens + args.stream_tokens),
                    "--max-queue", str(args.places), "--no-prefix-cache")
    try:
        # What is allocated once is not a stream's: recordings of steps of all sizes, pages of the KV cache. As many sequences in
        # few requests come to the same without the streams.
        async def warm():
            lists = [{**body_of(args, 0), "max_tokens": 64,
                      "prompt": [body_of(args, i)["prompt"] for i in range(begin, min(begin + 100, args.idle_streams))]}
                     for begin in range(0, args.idle_streams, 100)]
            await asyncio.gather(*(post(server.port, body) for body in lists))

        asyncio.run(warm())
        return asyncio.run(idle_streams(args, server))
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--model", default="deploy/demo-model/base")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--factor", type=float, default=4)
    parser.add_argument("--places", type=int, default=16, help="--max-num-seqs")
    parser.add_argument("--queue", type=int, default=32, help="--max-queue")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--idle-streams", type=int, default=0)
    parser.add_argument("--stream-tokens", type=int, default=1500)
    args = parser.parse_args()
    print(json.dumps(run_idle(args) if args.idle_streams else run_overload(args)), flush=True)


if __name__ == "__main__":
    main()
