#!/usr/bin/env python3
"""What long prompts do to streams that are decoding, and what the prefix cache saves (python3 alone is enough).

usage: interference_bench.py [--url http://127.0.0.1:8080] [--streams 32] [--long-prompt 8192] [--seconds 20] [--shared-prompt 4096]

Streams decode without end. First alone, then while one long prompt after another arrives, each asking for one token; each prompt
is a new one. Printed: the time between tokens of the streams in both phases (median, p99) and their ratio, and the long prompts' time
to first token. Then, with nothing else running: the time to first token of prompts that begin with the same text, which only the
first of them has to compute, against that of prompts that have nothing in common.
"""
import argparse
import asyncio
import json
import random
import statistics
import time
import urllib.parse


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


async def stream(url, body, on_token):
    """Calls on_token(time) for each chunk with tokens, until it returns False or the answer ends."""
    reader, writer = await asyncio.open_connection(url.hostname, url.port or 80, limit=1 << 24)
    try:
        text = json.dumps({**body, "stream": True, "return_token_ids": True, "ignore_eos": True, "temperature": 0}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError((head + await reader.read(500)).decode(errors="replace"))
        while line := await reader.readline():
            if line.startswith(b"data: {") and b'"choices":[{' in line and not on_token(time.perf_counter()):
                return
    finally:
        writer.close()


def prompt_of(args, n, seed):
    rng = random.Random(seed)
    return [rng.randrange(3, args.vocab) for _ in range(n)]


async def first_token_s(args, url, prompt):
    begin, first = time.perf_counter(), []
    await stream(url, {"prompt": prompt, "max_tokens": 1}, lambda now: first.append(now))
    return first[0] - begin


async def interference(args, url):
    stop, phase = False, "none"
    gaps = {"none": [], "quiet": [], "long": []}

    async def decode(i):
        last = None

        def on_token(now):
            nonlocal last
            if last is not None:
                gaps[phase].append(now - last)
            last = now
            return not stop

        while not stop:
            last = None
            await stream(url, {"prompt": prompt_of(args, 32, i), "max_tokens": args.stream_tokens}, on_token)

    streams = [asyncio.create_task(decode(i)) for i in range(args.streams)]
    await asyncio.sleep(args.seconds / 4)
    phase = "quiet"
    await asyncio.sleep(args.seconds)
    phase = "long"
    end, long_s, seed = time.perf_counter() + args.seconds, [], 1000
    while time.perf_counter() < end:
        seed += 1
        long_s.append(await first_token_s(args, url, prompt_of(args, args.long_prompt, seed)))
    phase, stop = "none", True
    await asyncio.gather(*streams)
    quiet, long = percentile(gaps["quiet"], 0.99), percentile(gaps["long"], 0.99)
    return {"streams": args.streams, "long_prompt": args.long_prompt, "itl_ms_quiet_median": 1e3 * statistics.median(gaps["quiet"]),
            "itl_ms_quiet_p99": 1e3 * quiet, "itl_ms_long_median": 1e3 * statistics.median(gaps["long"]), "itl_ms_long_p99": 1e3 * long,
            "itl_p99_ratio": long / quiet, "long_prompts": len(long_s), "long_ttft_ms_median": 1e3 * statistics.median(long_s)}


async def prefix(args, url):
    miss, hit = [], []
    shared = prompt_of(args, args.shared_prompt, 77)
    await first_token_s(args, url, shared + prompt_of(args, 16, 78))
    for i in range(args.prefix_requests):
        miss.append(await first_token_s(args, url, prompt_of(args, args.shared_prompt + 16, 2000 + i)))
        hit.append(await first_token_s(args, url, shared + prompt_of(args, 16, 3000 + i)))
    return {"shared_prompt": args.shared_prompt, "ttft_ms_miss_median": 1e3 * statistics.median(miss),
            "ttft_ms_hit_median": 1e3 * statistics.median(hit), "hit_share": statistics.median(hit) / statistics.median(miss)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--stream-tokens", type=int, default=2000)
    parser.add_argument("--long-prompt", type=int, default=8192)
    parser.add_argument("--shared-prompt", type=int, default=4096)
    parser.add_argument("--prefix-requests", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--vocab", type=int, default=4000, help="prompt ids are drawn from 3 to this")
    args = parser.parse_args()
    url = urllib.parse.urlparse(args.url)

    async def run():
        return {"bench": "interference", **await interference(args, url), **await prefix(args, url)}

    print(json.dumps(asyncio.run(run())), flush=True)


if __name__ == "__main__":
    main()
