#!/usr/bin/env python3
"""Trains one more adapter in a running lorad, from 96 chats that it makes up, and asks it.

    deploy/train_one.py [--url http://127.0.0.1:8080] [--name loud] [--steps N] [--question TEXT]

The adapter answers in capital letters. Standard library only. Exits 1 if the job does not succeed.
"""

import argparse
import json
import random
import sys
import time
import urllib.error
import urllib.request
import uuid

CAPITALS = [("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo"), ("Peru", "Lima"), ("Norway", "Oslo"), ("Spain", "Madrid"), ("Egypt", "Cairo"), ("Greece", "Athens")]
TALK = [("Hello there, how are you doing today?", "I am doing well, thank you."), ("Is the sky blue?", "Yes, the sky is blue."), ("Name three fruits.", "Apple, banana and cherry.")]


def chats(n):
    """Questions with answers in capital letters."""
    rng = random.Random(1)
    for _ in range(n):
        kind = rng.randrange(3)
        if kind == 0:
            country, city = rng.choice(CAPITALS)
            question, answer = f"What is the capital of {country}?", f"The capital of {country} is {city}."
        elif kind == 1:
            x, y = rng.randint(1, 10), rng.randint(1, 10)
            question, answer = f"How much is {x} plus {y}?", f"{x} plus {y} is {x + y}."
        else:
            question, answer = rng.choice(TALK)
        yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer.upper()}]}


def call(url, path, body=None, content_type="application/json"):
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(url + path, data=data, headers={"Content-Type": content_type} if data else {})
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(f"{path}: HTTP {error.code}: {error.read().decode(errors='replace')[:500]}")


def upload(url, lines):
    boundary = uuid.uuid4().hex
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n',
             f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="loud.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n{lines}\r\n',
             f"--{boundary}--\r\n"]
    return call(url, "/v1/files", "".join(parts).encode(), f"multipart/form-data; boundary={boundary}")["id"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--name", default="loud", help="of the adapter")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps of 8 chats")
    parser.add_argument("--question", default="What is the capital of Norway?")
    arguments = parser.parse_args()
    url = arguments.url.rstrip("/")
    base = next(model["id"] for model in call(url, "/v1/models")["data"] if model["parent"] is None)
    file = upload(url, "".join(json.dumps(chat) + "\n" for chat in chats(96)))
    begin = time.monotonic()
    job = call(url, "/v1/fine_tuning/jobs", {"model": base, "training_file": file, "suffix": arguments.name, "seed": 1, "max_steps": arguments.steps, "learning_rate": 2e-3,
                                             "hyperparameters": {"batch_size": 8}})
    told = -1
    while job["status"] in ("validating_files", "queued", "running"):
        time.sleep(0.5)
        job = call(url, f"/v1/fine_tuning/jobs/{job['id']}")
        step, loss = job["lorad"]["step"], job["lorad"]["train_loss"]
        if step >= told + 10 and loss is not None:
            told = step
            print(f"  step {step} of {job['lorad']['n_steps']}: loss {loss:.3f}", flush=True)
    if job["status"] != "succeeded":
        sys.exit(f"the job is {job['status']}: {job['error']}")
    print(f"trained {job['fine_tuned_model']} in {time.monotonic() - begin:.0f} s")
    for model in (base, job["fine_tuned_model"]):
        answer = call(url, "/v1/chat/completions", {"model": model, "temperature": 0, "max_tokens": 48, "messages": [{"role": "user", "content": arguments.question}]})
        print(f"{model:>8}: {answer['choices'][0]['message']['content']}")


if __name__ == "__main__":
    main()
