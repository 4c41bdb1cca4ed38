#!/usr/bin/env python3
"""OpenAI's Python client trains an adapter of the demo model and asks it: files, jobs, events, checkpoints, and what is refused.

    tests/http/run.sh fine_tuning --lorad build/dev/lorad
"""

import argparse
import io
import json
import pathlib
import sys
import tarfile
import tempfile
import time
import urllib.request

import openai

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
sys.path.insert(0, str(HERE.parent.parent / "deploy"))

from harness import Server, check, check_equal  # noqa: E402
from train_one import chats  # noqa: E402

QUESTION = "What is the capital of Norway?"


def refused(call, status, text):
    try:
        call()
    except openai.APIStatusError as error:
        check_equal(error.status_code, status, str(error))
        check(text in str(error), f"{text!r} is not in {error}")
        return error
    raise AssertionError(f"expected a refusal with {text!r}")


def finished(client, job):
    while job.status in ("validating_files", "queued", "running"):
        time.sleep(0.2)
        job = client.fine_tuning.jobs.retrieve(job.id)
    return job


def check_files(client):
    content = "".join(json.dumps(chat) + "\n" for chat in chats(32)).encode()
    file = client.files.create(file=("chats.jsonl", content), purpose="fine-tune")
    check_equal((file.object, file.bytes, file.filename, file.purpose, file.status), ("file", len(content), "chats.jsonl", "fine-tune", "processed"), "file")
    check_equal(client.files.retrieve(file.id), file, "retrieved file")
    check(file.id in [one.id for one in client.files.list()], "the list lacks it")
    check_equal([one.id for one in client.files.list(purpose="batch")], [], "files of another purpose")
    check_equal(client.files.content(file.id).read(), content, "content")
    other = client.files.create(file=io.BytesIO(content), purpose="fine-tune")
    check(client.files.delete(other.id).deleted, "deleted")
    refused(lambda: client.files.retrieve(other.id), 404, "no file is called")
    refused(lambda: client.files.create(file=("x.jsonl", b"{}"), purpose="batch"), 400, "purpose")
    return file


def check_job(client, server, file):
    job = client.fine_tuning.jobs.create(
        model="base", training_file=file.id, suffix="loud", seed=1, metadata={"team": "a"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 4, "batch_size": 8, "learning_rate_multiplier": "auto"}}},
        extra_body={"lora_r": 8, "learning_rate": 2e-3, "validation_split": 0.1})
    check_equal((job.object, job.model, job.user_provided_suffix, job.training_file), ("fine_tuning.job", "base", "loud", file.id), "job")
    check(job.status in ("validating_files", "queued", "running"), job.status)
    check_equal(job.id, next(one.id for one in client.fine_tuning.jobs.list(metadata={"team": "a"})), "the list's first")
    job = finished(client, job)
    check_equal(job.status, "succeeded", str(job.error))
    check_equal(job.fine_tuned_model, "loud", "name")
    check_equal(job.hyperparameters.n_epochs, 4, "epochs")
    check(job.trained_tokens > 0 and job.finished_at >= job.created_at, "tokens and times")
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=5))
    check_equal(events[0].message, "The job has successfully completed", "the last event")
    check_equal(events[-1].message, f"Created fine-tuning job: {job.id}", "the first event, over pages")
    losses = [event.data["train_loss"] for event in reversed(events) if event.type == "metrics" and "train_loss" in event.data]
    check(losses[-1] < 0.5 * losses[0], f"losses {losses}")
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id))
    check_equal(len(checkpoints), 3, "checkpoints")
    check(checkpoints[0].step_number > checkpoints[1].step_number and checkpoints[0].metrics.full_valid_loss is not None, "checkpoints, the newest first")
    csv = client.files.content(job.result_files[0]).read().decode().splitlines()
    check(csv[0].startswith("step,train_loss"), csv[0])
    answer = client.chat.completions.create(model=job.fine_tuned_model, temperature=0, max_tokens=32, messages=[{"role": "user", "content": QUESTION}]).choices[0].message.content
    check(answer == answer.upper() and "OSLO" in answer, answer)
    with urllib.request.urlopen(f"http://{server.host}:{server.port}/v1/fine_tuning/jobs/{job.id}/adapter") as response:
        names = tarfile.open(fileobj=io.BytesIO(response.read())).getnames()
    check_equal(sorted(names), ["README.md", "adapter_config.json", "adapter_model.safetensors", "lorad_training.json"], "archive")
    stream = urllib.request.urlopen(f"http://{server.host}:{server.port}/v1/fine_tuning/jobs/{job.id}/events?stream=true").read().decode()
    check(stream.endswith("data: [DONE]\n\n"), stream[-100:])
    return job


def check_control(client, file):
    job = client.fine_tuning.jobs.create(model="base", training_file=file.id, suffix="slow", hyperparameters={"n_epochs": 50, "batch_size": 1})
    while client.fine_tuning.jobs.retrieve(job.id).status != "running":
        time.sleep(0.05)
    check_equal(client.fine_tuning.jobs.pause(job.id).status, "paused", "paused")
    check(client.fine_tuning.jobs.resume(job.id).status in ("queued", "running"), "resumed")
    check_equal(client.fine_tuning.jobs.cancel(job.id).status, "cancelled", "cancelled")
    refused(lambda: client.fine_tuning.jobs.cancel(job.id), 400, "cannot be cancelled")


def check_refusals(client, file):
    create = client.fine_tuning.jobs.create
    refused(lambda: create(model="base", training_file="file-nothing"), 400, "training_file")
    refused(lambda: create(model="nobody", training_file=file.id), 404, "nobody")
    refused(lambda: create(model="base", training_file=file.id, method={"type": "dpo"}), 400, "dpo")
    refused(lambda: create(model="base", training_file=file.id, integrations=[{"type": "wandb", "wandb": {"project": "x"}}]), 400, "integrations")
    refused(lambda: create(model="base", training_file=file.id, suffix="base"), 400, "suffix")
    bad = client.files.create(file=("bad.jsonl", b'{"messages": [{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}]}\n'), purpose="fine-tune")
    job = finished(client, create(model="base", training_file=bad.id))
    check_equal((job.status, job.error.code, job.error.param), ("failed", "invalid_training_file", "training_file"), "bad file")
    check("line 1: messages[1].role" in job.error.message, job.error.message)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as state, Server(arguments.lorad, "--state-dir", state, "--served-model-name", "base", adapters=()) as server:
        client = openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="none", timeout=300)
        file = check_files(client)
        check_refusals(client, file)
        check_job(client, server, file)
        check_control(client, file)
    print("fine_tuning: OpenAI's client trains an adapter and asks it")


if __name__ == "__main__":
    main()
