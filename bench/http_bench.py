#!/usr/bin/env python3
"""Throughput and latency of an OpenAI-compatible completions endpoint at a fixed concurrency (python3 alone is enough).

usage: http_bench.py [--url http://127.0.0.1:8080] [--streams 1,16] [--requests N] [--prompt-tokens 32] [--max-tokens 64]
                     [--models base,pirate,...] [--llama-loras N] [--vocab 4000] [--json]

Each stream is a client thread that sends one streaming /v1/completions request after another: a prompt of random token
ids, ignore_eos, greedy. Models are dealt round robin over the requests; with --llama-loras so are the N adapters that a
llama-server was started with, in the way it wants them named (one at scale 1, the others at 0). Token ids are asked for,
because random weights make tokens without text, for which no chunk would be sent. Printed per concurrency: completion
tokens per second over the whole run (all streams), time to first token and inter-token latency (median, p99), failures.
"""
import argparse
import http.client
import json
import random
import statistics
import threading
import time
import urllib.parse


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def stream_one(url, body):
    """Runs one request. Returns (seconds to first token, gaps between tokens, completion tokens, error)."""
    connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=600)
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        return None, [], 0, f"{response.status}: {response.read(500).decode(errors='replace')}"
    first, last, gaps, tokens, error = None, None, [], 0, None
    for line in response:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            break
        chunk = json.loads(data)
        if "error" in chunk:
            error = str(chunk["error"])
            break
        now = time.perf_counter()
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
        if not chunk.get("choices"):
            continue
        if first is None:
            first = now - start
        else:
            gaps.append(now - last)
        last = now
    connection.close()
    return first, gaps, tokens, error


def run(args, n_streams):
    url = urllib.parse.urlparse(args.url)
    models = args.models.split(",") if args.models else [None]
    n_requests = args.requests or 2 * n_streams
    lock, jobs = threading.Lock(), list(range(n_requests))
    first_tokens, gaps, errors, total_tokens = [], [], [], [0]

    def client():
        while True:
            with lock:
                if not jobs:
                    return
                job = jobs.pop(0)
            rng = random.Random(args.seed * 100003 + job)
            body = {"prompt": [rng.randrange(3, args.vocab) for _ in range(args.prompt_tokens)], "temperature": 0,
                    "max_tokens": args.max_tokens, "ignore_eos": True, "stream": True,
                    "stream_options": {"include_usage": True}, "return_token_ids": True}
            if models[job % len(models)]:
                body["model"] = models[job % len(models)]
            if args.llama_loras:
                body["lora"] = [{"id": i, "scale": float(i == job % args.llama_loras)} for i in range(args.llama_loras)]
            try:
                first, request_gaps, tokens, error = stream_one(url, body)
            except (OSError, http.client.HTTPException, ValueError) as failure:
                first, request_gaps, tokens, error = None, [], 0, repr(failure)
            with lock:
                total_tokens[0] += tokens
                gaps.extend(request_gaps)
                if first is not None:
                    first_tokens.append(first)
                if error:
                    errors.append(error)

    threads = [threading.Thread(target=client) for _ in range(n_streams)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    return {"bench": "http", "streams": n_streams, "requests": n_requests, "prompt_tokens": args.prompt_tokens,
            "max_tokens": args.max_tokens, "models": models, "tokens_per_s": total_tokens[0] / seconds,
            "ttft_ms_median": 1e3 * statistics.median(first_tokens) if first_tokens else None,
            "ttft_ms_p99": 1e3 * percentile(first_tokens, 0.99),
            "itl_ms_median": 1e3 * statistics.median(gaps) if gaps else None,
            "itl_ms_p99": 1e3 * percentile(gaps, 0.99), "errors": len(errors), "first_error": (errors or [None])[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--requests", type=int, default=0, help="requests in all; default 2 per stream")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--models", default="", help="comma-separated model names, dealt round robin")
    parser.add_argument("--llama-loras", type=int, default=0, help="adapters of a llama-server, dealt round robin")
    parser.add_argument("--vocab", type=int, default=4000, help="prompt ids are drawn from 3 to this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for n_streams in (int(text) for text in args.streams.split(",")):
        result = run(args, n_streams)
        if args.json:
            print(json.dumps(result), flush=True)
        else:
            print(f"{n_streams:4d} streams: {result['tokens_per_s']:9.1f} tok/s   first token "
                  f"{result['ttft_ms_median'] or float('nan'):.1f} ms (p99 {result['ttft_ms_p99']:.1f})   between tokens "
                  f"{result['itl_ms_median'] or float('nan'):.2f} ms (p99 {result['itl_ms_p99']:.2f})   "
                  f"errors {result['errors']} {result['first_error'] or ''}", flush=True)


if __name__ == "__main__":
    main()
