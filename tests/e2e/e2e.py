#!/usr/bin/env python3
"""Drives the real binary over HTTP with the demo model: every route, streaming, mixed adapters, refusals, signals.

    tests/e2e/e2e.py --lorad build/dev/lorad [--only NAME]

Standard library only; the official openai client is exercised too where it is installed. Exits 1 if a check fails.
"""

import argparse
import ast
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import adapter_checks
import client_checks
import gateway_checks
import generate_checks
import merge_checks
import sampling_checks
import swap_race
import tool_checks
from harness import ADAPTERS, DEFAULT_PORT, MODEL, SAMPLES, Server, check, check_equal, check_error, free_port, take_default_port, wait_until

# A near-tie may be broken otherwise by other arithmetic; what follows it then says nothing.
CLEAR_MARGIN = 0.05


def clear_prefix(output):
    """How many of the expected ids come before the first near-tie."""
    for i, margin in enumerate(output["margins"]):
        if margin < CLEAR_MARGIN:
            return i
    return len(output["ids"])


# --- checks with the shared server ----------------------------------------------------------------------------------

def check_samples_token_for_token(server):
    """All samples of base and adapters at once: mixed batches answer as the reference did alone."""
    jobs = [(sample, model) for sample in SAMPLES for model in ("base",) + ADAPTERS]

    def run(job):
        sample, model = job
        expected = sample["outputs"][model]
        status, body = server.post("/v1/chat/completions", model=model, messages=sample["messages"], temperature=0,
                                   max_tokens=64, return_token_ids=True)
        check_equal(status, 200, f"{sample['id']} {model}: {body}")
        check_equal(body["prompt_token_ids"], sample["prompt_ids"], f"prompt of {sample['id']}")
        n = clear_prefix(expected)
        check_equal(body["choices"][0]["token_ids"][:n], expected["ids"][:n], f"{sample['id']} {model}")
        if n == len(expected["ids"]):
            check_equal(body["choices"][0]["message"]["content"], expected["text"], f"text of {sample['id']} {model}")
            check_equal(body["choices"][0]["finish_reason"], expected["finish"], f"end of {sample['id']} {model}")
            check_equal(body["usage"]["completion_tokens"], len(expected["ids"]), "usage")

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        list(pool.map(run, jobs))
    check(server.metric("lorad_step_sequences_max") > 4, "requests did not share steps")
    check_equal(server.metric("lorad_step_adapters_max"), 4.0, "adapters in one step")


def check_models(server):
    status, body = server.request("GET", "/v1/models")
    check_equal(status, 200, "status")
    cards = {card["id"]: card for card in body["data"]}
    check_equal(set(cards), {"base", *ADAPTERS}, "models")
    check_equal(cards["base"]["parent"], None, "parent of the base")
    check_equal(cards["pirate"]["parent"], "base", "parent of an adapter")
    check_equal(cards["base"]["max_model_len"], 2048, "context")
    check_equal(server.request("GET", "/v1/models/pirate")[1]["id"], "pirate", "one card")
    check_error(server.request("GET", "/v1/models/nobody"), 404, "model_not_found")


def check_streams_add_up(server):
    prompt = SAMPLES[0]["messages"]
    _, whole = server.post("/v1/chat/completions", model="pirate", messages=prompt, temperature=0)
    chunks = list(server.events("/v1/chat/completions", model="pirate", messages=prompt, temperature=0,
                                stream_options={"include_usage": True}))
    check_equal({c["object"] for c in chunks}, {"chat.completion.chunk"}, "object")
    check_equal(len({c["id"] for c in chunks}), 1, "ids")
    check_equal(chunks[0]["choices"][0]["delta"]["role"], "assistant", "role of the first chunk")
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    check_equal(text, whole["choices"][0]["message"]["content"], "text")
    check_equal([c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1], "stop", "finish reason")
    check_equal(chunks[-1]["choices"], [], "last chunk")
    check_equal(chunks[-1]["usage"], whole["usage"], "usage")
    check(all(c["usage"] is None for c in chunks[:-1]), "usage before the end")


def check_completions_as_text_and_ids(server):
    sample = SAMPLES[0]
    by_text = server.post("/v1/completions", model="base", prompt=sample["prompt"], temperature=0, max_tokens=20,
                          return_token_ids=True)[1]
    by_ids = server.post("/v1/completions", model="base", prompt=sample["prompt_ids"], temperature=0, max_tokens=20)[1]
    check_equal(by_text["choices"][0]["prompt_token_ids"], sample["prompt_ids"], "prompt ids")
    check_equal(by_text["choices"][0]["text"], by_ids["choices"][0]["text"], "text")
    check_equal(by_text["object"], "text_completion", "object")
    chunks = list(server.events("/v1/completions", model="base", prompt=sample["prompt"], temperature=0, max_tokens=20,
                                return_token_ids=True))
    ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    check_equal(ids, by_text["choices"][0]["token_ids"], "streamed ids")
    check_equal("".join(c["choices"][0]["text"] for c in chunks), by_text["choices"][0]["text"], "streamed text")


def check_limits_and_stops(server):
    sample = SAMPLES[0]
    full = server.post("/v1/completions", prompt=sample["prompt"], temperature=0, max_tokens=30)[1]["choices"][0]["text"]
    short = server.post("/v1/completions", prompt=sample["prompt"], temperature=0, max_tokens=3)[1]
    check_equal(short["choices"][0]["finish_reason"], "length", "finish reason")
    check_equal(short["usage"]["completion_tokens"], 3, "tokens")
    check(full.startswith(short["choices"][0]["text"]), "a shorter answer begins like the longer one")
    stop = full.split()[3]
    stopped = server.post("/v1/completions", prompt=sample["prompt"], temperature=0, max_tokens=30, stop=[stop, "xyz"])[1]
    check_equal(stopped["choices"][0]["text"], full[:full.index(stop)], "text before the stop string")
    check_equal(stopped["choices"][0]["finish_reason"], "stop", "finish reason")
    endless = server.post("/v1/completions", prompt=sample["prompt"], temperature=0, max_tokens=80, ignore_eos=True)[1]
    check_equal(endless["usage"]["completion_tokens"], 80, "tokens with ignore_eos")


def check_seeds(server):
    def sampled(seed, temperature=1.2):
        body = server.post("/v1/completions", model="base", prompt=SAMPLES[5]["prompt"], temperature=temperature, top_p=1,
                           max_tokens=24, seed=seed, ignore_eos=True, return_token_ids=True)[1]
        return tuple(body["choices"][0]["token_ids"])

    alone = sampled(7)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(sampled, [7, 1, 7, 2, 7, 3, 7, 4]))
    check(all(ids == alone for ids in together[::2]), "the same seed gives the same tokens in any company")
    check(len(set(together)) >= 4, "other seeds give other tokens")


def check_refusals(server):
    def completion(**body):
        return server.post("/v1/completions", **dict({"model": "base", "prompt": "Hello"}, **body))

    check_error(completion(model="nobody"), 404, "model_not_found", "model")
    check_error(completion(model="base:nobody"), 404, "adapter_not_found", "model")
    check_error(completion(max_tokens=5000), 400, "context_length_exceeded", "max_tokens", ["2048", "5001"])
    check_error(completion(temperature="hot"), 400, "invalid_request", "temperature")
    check_error(completion(temperature=-1), 400, "invalid_request", "temperature")
    check_error(completion(top_p=0), 400, "invalid_request", "top_p")
    check_error(completion(max_tokens=0), 400, "invalid_request", "max_tokens")
    check_error(completion(prompt=[]), 400, "invalid_request", "prompt")
    check_error(completion(prompt=[1, 4096]), 400, "invalid_request", "prompt[1]")
    for name, value in (("suffix", "x"), ("use_beam_search", True), ("length_penalty", 2), ("chat_template", "x")):
        check_error(completion(**{name: value}), 400, "unsupported_parameter", name, [name])
    check_error(server.request("POST", "/v1/completions", raw='{"prompt": }'), 400, "invalid_request",
                contains=["line 1", "column"])
    check_error(server.request("POST", "/v1/completions", raw=b"\xff\xfe"), 400, "invalid_request")
    check_error(server.request("POST", "/v1/completions", raw="[" * 100000), 400, "invalid_request")
    check_error(server.post("/v1/chat/completions", messages=[]), 400, "invalid_request", "messages")
    check_error(server.post("/v1/chat/completions", messages=[{"role": "user"}]), 400, "invalid_request", "messages[0].content")
    check_error(server.request("GET", "/nothing"), 404, "not_found")
    check_error(server.request("GET", "/v1/completions"), 405, "method_not_allowed")
    check_error(server.request("DELETE", "/v1/models"), 405, "method_not_allowed")
    check_equal(completion(max_tokens=1, unknown_field={"a": 1}, n=1, presence_penalty=0)[0], 200, "neutral values")


def check_adapters_come_and_go(server):
    """Loading and unloading while others decode; a running request keeps what it began with."""
    sample = SAMPLES[0]
    path = str(MODEL / "adapters/shout")
    status, body = server.post("/v1/load_lora_adapter", lora_name="guest", lora_path=path)
    check_equal(status, 200, f"load: {body}")
    check_equal(body["rank"], 16, "rank")
    expected = server.post("/v1/chat/completions", model="guest", messages=sample["messages"], temperature=0)[1]
    check_equal(expected["choices"][0]["message"]["content"], sample["outputs"]["shout"]["text"], "guest answers as shout")
    check_error(server.post("/v1/load_lora_adapter", lora_name="guest", lora_path=path), 400, "adapter_already_loaded")

    long_request = {"model": "guest", "prompt": sample["prompt"], "temperature": 0, "max_tokens": 200, "ignore_eos": True}
    quiet = server.post("/v1/completions", **long_request)[1]["choices"][0]["text"]
    stream = server.events("/v1/completions", **long_request)
    text = next(stream)["choices"][0]["text"]
    check_equal(server.post("/v1/unload_lora_adapter", lora_name="guest")[0], 200, "unload")
    check_error(server.post("/v1/completions", **long_request), 404, "model_not_found")
    pirate = str(MODEL / "adapters/pirate")
    check_equal(server.post("/v1/load_lora_adapter", lora_name="guest", lora_path=pirate)[0], 200, "load another as guest")
    text += "".join(chunk["choices"][0]["text"] for chunk in stream)
    check_equal(text, quiet, "the running request kept its weights")
    now = server.post("/v1/chat/completions", model="guest", messages=sample["messages"], temperature=0)[1]
    check_equal(now["choices"][0]["message"]["content"], sample["outputs"]["pirate"]["text"], "guest answers as pirate now")
    listed = {a["id"]: a for a in server.request("GET", "/v1/lora_adapters")[1]["data"] if a["state"] != "draining"}
    check_equal(set(listed), {"guest", *ADAPTERS}, "adapters")
    check_equal(server.post("/v1/unload_lora_adapter", lora_name="guest")[0], 200, "unload")
    check_error(server.post("/v1/unload_lora_adapter", lora_name="guest"), 404, "adapter_not_found")
    check_error(server.post("/v1/load_lora_adapter", lora_name="x", lora_path="/nonexistent/x"), 404, "adapter_not_found")
    check_error(server.post("/v1/load_lora_adapter", lora_name="x"), 400, "invalid_request", "lora_path")


def check_broken_adapter_is_refused(server):
    with tempfile.TemporaryDirectory() as folder:
        broken = pathlib.Path(folder) / "broken"
        shutil.copytree(MODEL / "adapters/pirate", broken)
        config = json.loads((broken / "adapter_config.json").read_text())
        config["r"] = 5
        (broken / "adapter_config.json").write_text(json.dumps(config))
        check_error(server.post("/v1/load_lora_adapter", lora_name="broken", lora_path=str(broken)), 422, "adapter_invalid",
                    contains=["lora_A", "expected", "found"])
        config["r"], config["peft_type"] = 8, "IA3"
        (broken / "adapter_config.json").write_text(json.dumps(config))
        check_error(server.post("/v1/load_lora_adapter", lora_name="broken", lora_path=str(broken)), 422,
                    "adapter_unsupported", contains=["IA3"])
        (broken / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
        config["peft_type"] = "LORA"
        (broken / "adapter_config.json").write_text(json.dumps(config))
        check_error(server.post("/v1/load_lora_adapter", lora_name="broken", lora_path=str(broken)), 422, "adapter_invalid")
    check("broken" not in str(server.request("GET", "/v1/models")[1]), "a refused adapter is not listed")


def check_disconnect_cancels(server):
    for stream in (False, True):
        before = server.metric('vllm:request_success_total{model_name="base",finished_reason="abort"}')
        body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True, "stream": stream})
        connection = socket.create_connection((server.host, server.port))
        connection.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode())
        wait_until(lambda: server.metric("vllm:num_requests_running") == 1, "a running request")
        connection.close()
        wait_until(lambda: server.metric("vllm:num_requests_running") == 0, f"nothing runs for a client that left (stream: {stream})")
        after = server.metric('vllm:request_success_total{model_name="base",finished_reason="abort"}')
        check_equal(after - before, 1.0, "aborted requests")
        check_equal(server.metric("vllm:kv_cache_usage_perc"), 0.0, "KV cache in use")


def check_metrics(server):
    _, text = server.request("GET", "/metrics")
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
                 "vllm:lora_requests_info", "vllm:cache_config_info", "vllm:time_to_first_token_seconds_bucket",
                 "vllm:inter_token_latency_seconds_sum", "vllm:e2e_request_latency_seconds_count", "lorad_steps_total",
                 "lorad_adapters_resident", "lorad_device_info"):
        check(re.search(rf"(?m)^{re.escape(name)}\{{", text), f"no metric {name}")
    for line in text.splitlines():
        check(line.startswith("# ") or re.match(r'^[a-zA-Z_:][\w:]*(\{([a-z_]+="([^"\\]|\\.)*",?)*\})? [-+\d.e]+(inf|nan)?$', line),
              f"not in Prometheus' format: {line}")


def check_openai_client(server):
    try:
        import openai
    except ImportError:
        print("    the openai client is not installed: its checks are left out")
        return
    client = openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="none", max_retries=0)
    check("pirate" in [m.id for m in client.models.list()], "models.list")
    check_equal(client.models.retrieve("pirate").id, "pirate", "models.retrieve")
    sample = SAMPLES[0]
    answer = client.chat.completions.create(model="pirate", messages=sample["messages"], temperature=0)
    check_equal(answer.choices[0].message.content, sample["outputs"]["pirate"]["text"], "chat")
    check_equal(answer.choices[0].finish_reason, "stop", "finish reason")
    text, usage = "", None
    for chunk in client.chat.completions.create(model="json", messages=sample["messages"], temperature=0, stream=True,
                                                stream_options={"include_usage": True}):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    check_equal(text, sample["outputs"]["json"]["text"], "streamed chat")
    check(usage and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "usage")
    mixed = client.chat.completions.create(model="base", messages=sample["messages"], temperature=0,
                                           extra_body={"adapters": [{"name": "pirate", "scale": 1.0}]})
    check_equal(mixed.choices[0].message.content, answer.choices[0].message.content, "chat with a list of adapters")
    check_equal(mixed.adapter_generation, answer.adapter_generation, "generation")
    completion = client.completions.create(model="base", prompt=sample["prompt"], temperature=0, max_tokens=30)
    check_equal(completion.choices[0].text, sample["outputs"]["base"]["text"], "completion")
    try:
        client.chat.completions.create(model="nobody", messages=sample["messages"])
        raise AssertionError("an unknown model was accepted")
    except openai.NotFoundError as error:
        check_equal(error.code, "model_not_found", "code")
    try:
        client.completions.create(model="base", prompt="a", suffix="b")
        raise AssertionError("a suffix was accepted")
    except openai.BadRequestError as error:
        check_equal((error.code, error.param), ("unsupported_parameter", "suffix"), "refusal")


# --- checks that start their own process -----------------------------------------------------------------------------

def check_sigterm_drains(lorad):
    with Server(lorad, "--drain-timeout-s", "600", adapters=("pirate",)) as server:
        stream = server.events("/v1/completions", model="pirate", prompt=[1, 2, 3], max_tokens=600, ignore_eos=True,
                               return_token_ids=True)
        n_tokens = len(next(stream)["choices"][0]["token_ids"])
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/health/ready")[0] == 503, "not ready while draining")
        check_equal(server.request("GET", "/health/live")[0], 200, "liveness while draining")
        check_error(server.post("/v1/completions", prompt=[1]), 503, "service_unavailable")
        n_tokens += sum(len(chunk["choices"][0]["token_ids"]) for chunk in stream)
        check_equal(n_tokens, 600, "tokens of the request that was running")
        check_equal(server.process.wait(30), 0, "exit status")


def check_sighup_reloads(lorad):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "lorad.toml")
        file.write_text('log_level = "info"\n')
        with Server(lorad, "--config", str(file), adapters=()) as server:
            def reload(text, expected):
                file.write_text(text)
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: expected in server.log_text(), f"{expected!r} in the log")
            reload('log_level = "info"\ndrain_timeout_s = 7\n', "changed: drain-timeout-s")
            reload('log_level = "loud"\n', "configuration not taken, the old one stays")
            reload('log_level = "info"\nmax_num_seqs = 3\n', "a restart is needed for: max-num-seqs")
            check_equal(server.request("GET", "/health/ready")[0], 200, "readiness after reloads")


def check_closed_standard_streams(lorad):
    """Connections must not get the descriptors to which the log is written."""
    port = free_port()
    process = subprocess.Popen(["sh", "-c", f"exec '{lorad}' serve --model '{MODEL / 'base'}' --port {port} --state-dir none --log-level debug <&- >&- 2>&-"])
    try:
        for _ in range(600):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                    connection.sendall(b"GET /health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    answer = b""
                    while piece := connection.recv(4096):
                        answer += piece
                check(answer.startswith(b"HTTP/1.1 "), f"answer {answer!r}")
                check(answer.endswith(b"}"), f"answer {answer!r}")
                if b" 200 OK" in answer:
                    break
            except ConnectionRefusedError:
                pass
            time.sleep(0.1)
        for fd in range(3):
            check_equal(os.readlink(f"/proc/{process.pid}/fd/{fd}"), "/dev/null", f"descriptor {fd}")
    finally:
        process.terminate()
        check_equal(process.wait(30), 0, "exit status")


def check_second_signal_ends_at_once(lorad):
    with Server(lorad, "--drain-timeout-s", "600", adapters=()) as server:
        stream = server.events("/v1/completions", prompt=[1, 2, 3], max_tokens=2000, ignore_eos=True)
        next(stream)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: server.request("GET", "/health/ready")[0] == 503, "the first is heard")
        server.process.send_signal(signal.SIGINT)
        check_equal(server.process.wait(60), 130, "exit status")


def check_small_cache_preempts_and_still_answers(lorad):
    """Twelve KV blocks for eight sequences that want three or four each."""
    with Server(lorad, "--batch-invariant", "--num-kv-blocks", "12", "--max-model-len", "256", "--max-num-seqs", "8", adapters=("pirate",)) as server:
        def run(i):
            body = {"model": "pirate" if i % 2 else "base", "prompt": [5 + i] * 20, "max_tokens": 140, "ignore_eos": True,
                    "temperature": 0, "return_token_ids": True}
            status, answer = server.post("/v1/completions", **body)
            check_equal(status, 200, str(answer))
            return answer["choices"][0]["token_ids"]

        alone = [run(i) for i in range(8)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(run, range(8)))
        check(server.metric("vllm:num_preemptions_total") > 0, "nothing was preempted")
        check_equal([len(ids) for ids in together], [140] * 8, "tokens")
        check_equal(together, alone, "answers in company")


def check_batch_invariant_answers_are_equal_bit_for_bit(lorad):
    with Server(lorad, "--batch-invariant", adapters=("pirate", "shout")) as server:
        def run(i):
            body = {"model": ("base", "pirate", "shout")[i % 3], "prompt": [3 + i] * (5 + 3 * i), "max_tokens": 60,
                    "ignore_eos": True, "temperature": 1.5, "top_p": 1, "seed": i, "return_token_ids": True}
            return server.post("/v1/completions", **body)[1]["choices"][0]["token_ids"]

        alone = [run(i) for i in range(9)]
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            check_equal(list(pool.map(run, range(9))), alone, "sampled answers in company")


def check_a_full_queue_is_429(lorad):
    with Server(lorad, "--max-num-seqs", "1", "--max-queue", "1", "--http-threads", "16", adapters=()) as server:
        def run(_):
            return server.post("/v1/completions", prompt=[1, 2], max_tokens=300, ignore_eos=True)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            first = pool.submit(run, 0)
            while server.metric("vllm:num_requests_running") < 1 and not first.done():
                time.sleep(0.01)
            answers = [*pool.map(run, range(7)), first.result()]
        statuses = sorted(status for status, _ in answers)
        check(statuses.count(200) >= 2 and 429 in statuses, f"statuses {statuses}")
        refused = next(a for a in answers if a[0] == 429)
        check_error(refused, 429, "server_overloaded")


def check_start_up_errors(lorad):
    base = str(MODEL / "base")

    def fails(arguments, *contains, env=None):
        environment = {**os.environ, "LORAD_STATE_DIR": "none", "LORAD_PORT": "0", **(env or {})}
        result = subprocess.run([lorad, *arguments], capture_output=True, text=True, timeout=60, env=environment)
        errors = [line for line in result.stderr.splitlines() if line.startswith("lorad: error: ")]
        check_equal(result.returncode, 1, f"exit status of {arguments}: {result.stderr}")
        check_equal(len(errors), 1, f"error lines of {arguments}: {result.stderr}")
        for text in contains:
            check(text in errors[0], f"{text!r} is not in {errors[0]!r}")

    fails(["serve"], "--model")
    fails(["serve", "--model", "/nonexistent"], "/nonexistent")
    fails(["serve", "--model", base, "--port", "70000"], "--port", "65535")
    fails(["serve", "--model", base, "--lora", "x=/nonexistent"], "/nonexistent")
    fails(["serve", "--model", base], "LORAD_PORT", "abc", env={"LORAD_PORT": "abc"})
    fails(["serve", "--nonsense"], "--nonsense")
    fails(["serve", "--model", base], "Vulkan", env={"VK_DRIVER_FILES": "/nonexistent.json", "VK_ICD_FILENAMES": "/nonexistent.json"})
    fails(["logits", "--model", base, "--tokens", "1,99999", "--out", "/dev/null"], "99999", "4096")
    fails(["generate", "--model", base, "--tokens", "nothing.txt"], "nothing.txt")
    fails(["generate", "--model", base, "--tokens", "/"], "\"/\"")
    fails(["generate", "--model", base, "--tokens", "/dev/zero"], "larger than")
    fails(["generate", "--model", base, "--prompt", "hi", "--temperature", "nan"], "--temperature", "nan")
    fails(["generate", "--model", base, "--prompt", ""], "no tokens")
    fails(["sevre", "--model", base], "no command", "sevre")
    fails(["serve", "--config", "/"], "a folder")
    fails(["serve", "--model", base, "--host", ""], "host")
    fails(["serve", "--model", base, "--num-kv-blocks", "1"], "1 KV cache blocks are too few")
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "model"
        shutil.copytree(base, copy)
        with open(copy / "model.safetensors", "r+b") as file:
            file.truncate(100000)
        fails(["serve", "--model", str(copy)], "model.safetensors")
        config = json.loads((copy / "config.json").read_text())
        config["architectures"] = ["MambaForCausalLM"]
        (copy / "config.json").write_text(json.dumps(config))
        fails(["serve", "--model", str(copy)], "MambaForCausalLM")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        fails(["serve", "--model", base, "--port", str(taken.getsockname()[1])], "cannot listen")
    # Of all programs here only this one asks for the default port; main() or an earlier daemon has it.
    fails(["serve", "--model", base, "--port", str(DEFAULT_PORT)], f"cannot listen on 127.0.0.1:{DEFAULT_PORT}")


def check_command_line(lorad):
    def run(*arguments):
        return subprocess.run([lorad, *arguments], capture_output=True, text=True, timeout=120, check=True).stdout

    help_text = run("--help") + run("serve", "--help")
    for word in ("serve", "devices", "logits", "generate", "profile", "--model", "--lora", "--config", "LORAD_"):
        check(word in help_text, f"{word} is not in the help")
    devices = json.loads(run("devices", "--json"))
    check_equal(sum(device["chosen"] for device in devices), 1, "chosen devices")
    sample, base = SAMPLES[0], str(MODEL / "base")
    ids = ",".join(map(str, sample["prompt_ids"]))
    for model in ("base", "formal"):
        adapter = [] if model == "base" else ["--adapter", str(MODEL / "adapters" / model)]
        answer = json.loads(run("generate", "--model", base, *adapter, "--tokens", ids, "--json"))
        check_equal(answer, {"token_ids": sample["outputs"][model]["ids"], "text": sample["outputs"][model]["text"]}, model)
    with tempfile.TemporaryDirectory() as folder:
        run("logits", "--model", base, "--tokens", ids, "--out", f"{folder}/x.npy", "--all-positions")
        data = pathlib.Path(folder, "x.npy").read_bytes()
        check(data.startswith(b"\x93NUMPY"), "npy magic")
        size = int.from_bytes(data[8:10], "little")
        header = ast.literal_eval(data[10:10 + size].decode())
        check_equal((header["shape"], header["descr"]), ((len(sample["prompt_ids"]), 4096), "<f4"), "npy header")
        check_equal(len(data), 10 + size + 4 * 4096 * len(sample["prompt_ids"]), "npy size")
    profile = json.loads(run("profile", "--model", base, "--rows", "2", "--repeats", "2", "--json"))
    check(profile["kernels"] and profile["total_us"] > 0, "profile")


SHARED = [check_models, check_samples_token_for_token, check_streams_add_up, check_completions_as_text_and_ids,
          check_limits_and_stops, check_refusals, check_broken_adapter_is_refused,
          check_disconnect_cancels, *adapter_checks.SHARED, *merge_checks.SHARED,
          *generate_checks.SHARED, *tool_checks.SHARED, *client_checks.SHARED, *sampling_checks.SHARED, *gateway_checks.SHARED, check_metrics, check_openai_client]
# What an answer is compared with ran in other company: only these kernels promise that it is the same.
INVARIANT = [check_seeds, check_adapters_come_and_go, *adapter_checks.INVARIANT, *generate_checks.INVARIANT]
OWN = [check_sigterm_drains, check_sighup_reloads, check_closed_standard_streams, check_second_signal_ends_at_once,
       check_small_cache_preempts_and_still_answers,
       check_batch_invariant_answers_are_equal_bit_for_bit, check_a_full_queue_is_429, check_start_up_errors,
       check_command_line, *adapter_checks.OWN, *client_checks.OWN, *merge_checks.OWN, *swap_race.OWN]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--only", default="", help="run the checks whose name contains this, or one of these: a,b")
    parser.add_argument("--without", default="", help="leave these out: a,b")
    args = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, which programs inherit
    left_out = set(filter(None, args.without.split(",")))
    unknown = left_out - {test.__name__ for test in (*SHARED, *INVARIANT, *OWN)}
    if unknown:
        parser.error(f"no check is called {', '.join(sorted(unknown))}")
    failed = []
    default_port = take_default_port()

    def wanted(test):
        return test.__name__ not in left_out and any(part in test.__name__ for part in args.only.split(","))

    def run(test, argument):
        begin = time.monotonic()
        try:
            test(argument)
            print(f"ok   {test.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        except Exception:  # every check is to be heard
            failed.append(test.__name__)
            print(f"FAIL {test.__name__}\n{traceback.format_exc()}", flush=True)

    for tests, flags in ((SHARED, ()), (INVARIANT, ("--batch-invariant",))):
        shared = [test for test in tests if wanted(test)]
        if shared:
            with Server(args.lorad, *flags, env={"LORAD_MAX_QUEUE": "200"}) as server:
                for test in shared:
                    run(test, server)
                if failed:
                    print("--- the server's log\n" + server.log_text()[-4000:])
            if server.process.returncode != 0:
                failed.append(f"exit status {server.process.returncode}")
    for test in OWN:
        if wanted(test):
            run(test, args.lorad)
    if default_port:
        default_port.close()
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
