#!/usr/bin/env python3
"""Asks one question of the base model and of every adapter at the same time, streaming, and prints the answers side by side.

    deploy/ask_all.py [--url http://127.0.0.1:8080] [--question TEXT] [--max-tokens N]

Standard library only. Exits 1 if any request fails.
"""

import argparse
import http.client
import json
import re
import shutil
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.parse
import urllib.request


class Answer:
    """One streamed reply: its text, token count and times in seconds since the common start."""

    def __init__(self, model):
        self.model, self.text, self.error = model, "", None
        self.tokens, self.first, self.last = 0, None, None


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


def stream(url, answer, question, max_tokens, barrier):
    """Fills `answer` from one chat request; starts together with all others."""
    body = json.dumps({
        "model": answer.model, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
        "max_tokens": max_tokens, "messages": [{"role": "user", "content": question}]})
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=300)
    try:
        connection.connect()
        barrier.wait()
        begin = time.monotonic()
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            answer.error = f"HTTP {response.status}: {response.read().decode(errors='replace').strip()[:300]}"
            return
        for raw in response:
            line = raw.decode().strip()
            if not line.startswith("data:") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[len("data:"):])
            if "error" in chunk:
                answer.error = str(chunk["error"])
            for choice in chunk.get("choices", []):
                piece = (choice.get("delta") or {}).get("content")
                if piece:
                    answer.last = time.monotonic() - begin
                    answer.first = answer.first or answer.last
                    answer.text += piece
            if chunk.get("usage"):
                answer.tokens = chunk["usage"]["completion_tokens"]
    except (OSError, ValueError, http.client.HTTPException, threading.BrokenBarrierError) as error:
        answer.error = f"{type(error).__name__}: {error}"
        barrier.abort()
    finally:
        connection.close()


def metric(text, name):
    """The value of the first sample of `name`, or None."""
    match = re.search(rf"(?m)^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.eE+]+)", text)
    return float(match.group(1)) if match else None


def labels(text, name):
    """The labels of the first sample of `name`."""
    match = re.search(rf"(?m)^{re.escape(name)}\{{(.*)\}} ", text)
    return dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(1))) if match else {}


def print_side_by_side(answers):
    width = max(18, (shutil.get_terminal_size((130, 24)).columns - 3 * (len(answers) - 1)) // len(answers))
    columns = [[a.model, "-" * width] + textwrap.wrap(a.error or a.text, width) for a in answers]
    for row in range(max(len(c) for c in columns)):
        print(" | ".join((c[row] if row < len(c) else "").ljust(width) for c in columns).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--question", default="Could you tell me who you are?")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    url = args.url.rstrip("/")

    models = [m["id"] for m in json.loads(get(f"{url}/v1/models"))["data"]]
    answers = [Answer(model) for model in models]
    barrier = threading.Barrier(len(answers))
    threads = [threading.Thread(target=stream, args=(url, a, args.question, args.max_tokens, barrier)) for a in answers]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - begin
    metrics = get(f"{url}/metrics")

    print(f"\nQ: {args.question}\n")
    print_side_by_side(answers)
    good = [a for a in answers if not a.error]
    tokens = sum(a.tokens for a in good)
    print()
    device = labels(metrics, "lorad_device_info")
    name = device.get("name") or device.get("device") or "unknown"
    software = device.get("type") == "cpu" or "llvmpipe" in name
    print(f"device:    {name}" + (" - no Vulkan GPU was found, so this is lavapipe, the software device" if software else ""))
    if good and wall > 0:
        singles = [a.tokens / a.last for a in good if a.last]
        print(f"speed:     {tokens} tokens in {wall:.2f} s, {tokens / wall:.0f} tokens/s together"
              + (f", {min(singles):.0f} to {max(singles):.0f} tokens/s each" if singles else ""))
    shared = metric(metrics, "lorad_step_sequences_max")
    adapters = metric(metrics, "lorad_step_adapters_max")
    if shared is not None:
        print(f"batching:  up to {shared:.0f} requests shared one step of the engine"
              + (f", with {adapters:.0f} different adapters in it" if adapters is not None else ""))
    for answer in answers:
        if answer.error:
            print(f"error: {answer.model}: {answer.error}", file=sys.stderr)
    return 0 if len(good) == len(answers) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError, KeyError, urllib.error.URLError) as problem:
        sys.exit(f"ask_all: {problem}")
