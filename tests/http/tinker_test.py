#!/usr/bin/env python3
"""Tinker's Python client trains adapters of the demo model and samples from them: supervised, by importance sampling, saved and loaded states, other
clients' losses, keys, and what is refused.

    tests/http/run.sh tinker --lorad build/dev/lorad
"""

import argparse
import json
import math
import os
import pathlib
import sys
import tempfile
import time

os.environ["TINKER_TELEMETRY"] = "0"

import tinker  # noqa: E402
from tinker import types  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
sys.path.insert(0, str(HERE.parent.parent / "deploy"))

from harness import MODEL, Server, check, check_equal  # noqa: E402
from train_one import chats  # noqa: E402

ADAM = {"learning_rate": 2e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def near(got, want, tolerance, what):
    check(abs(got - want) <= tolerance * max(1.0, abs(want)), f"{what}: {got}, expected {want}")


def datum(tokens, labels):
    """As a line of a training file has it: what is trained is where the label is a token."""
    weights = [0.0 if label < 0 else 1.0 for label in labels[1:]]
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                       loss_fn_inputs={"target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1]),
                                       "weights": types.TensorData(data=weights, dtype="float32", shape=[len(weights)])})


def tokens_of(server, chat):
    def tokenized(messages, more):
        status, answer = server.request("POST", "/tokenize", {"messages": messages, "add_generation_prompt": more})
        check_equal(status, 200, str(answer))
        return answer["tokens"]
    messages = chat["messages"]
    whole, prompt = tokenized(messages, False), tokenized(messages[:-1], True)
    check_equal(whole[:len(prompt)], prompt, "the prompt is what the chat begins with")
    return whole, [-100] * len(prompt) + whole[len(prompt):]


def refused(call, text, kind=Exception):
    try:
        call()
    except kind as error:
        check(text in str(error), f"{text!r} is not in {error}")
        return error
    raise AssertionError(f"expected a refusal with {text!r}")


def job_losses(server, examples, n_epochs):
    """Of a fine-tuning job on the same tokens, all of them in each step."""
    lines = "".join(json.dumps({"tokens": tokens, "labels": labels}) + "\n" for tokens, labels in examples)
    boundary = "tinker-test"
    form = (f"--{boundary}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--{boundary}\r\n"
            f"Content-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{lines}\r\n--{boundary}--\r\n").encode()
    import urllib.request
    request = urllib.request.Request(f"http://{server.host}:{server.port}/v1/files", form, {"Content-Type": f"multipart/form-data; boundary={boundary}"})
    file = json.load(urllib.request.urlopen(request))
    status, job = server.request("POST", "/v1/fine_tuning/jobs", {
        "model": "base", "training_file": file["id"], "suffix": "beside", "seed": 3, "lora_r": 8, "lora_alpha": 32, "learning_rate": ADAM["learning_rate"],
        "lr_scheduler": "constant", "warmup_steps": 0, "weight_decay": 0, "max_grad_norm": 0, "adam_beta2": ADAM["beta2"], "adam_epsilon": ADAM["eps"],
        "hyperparameters": {"n_epochs": n_epochs, "batch_size": len(examples)}})
    check_equal(status, 200, str(job))
    while job["status"] not in ("succeeded", "failed", "cancelled"):
        time.sleep(0.1)
        job = server.request("GET", f"/v1/fine_tuning/jobs/{job['id']}")[1]
    check_equal(job["status"], "succeeded", str(job.get("error")))
    events = server.request("GET", f"/v1/fine_tuning/jobs/{job['id']}/events?limit=100")[1]["data"]
    return [event["data"]["train_loss"] for event in reversed(events) if event["type"] == "metrics" and "train_loss" in (event["data"] or {})]


def check_supervised(service, server):
    """Losses of a job on the same data, from the same start, until both are the same adapter."""
    examples = [tokens_of(server, chat) for chat in chats(8)]
    data = [datum(*one) for one in examples]
    n_trained = sum(sum(one.loss_fn_inputs["weights"].data) for one in data)
    client = service.create_lora_training_client(base_model="base", rank=8, seed=3, train_unembed=False).result()
    info = client.get_info()
    check_equal((info.model_data.model_name, info.lora_rank, info.is_lora), ("base", 8, True), "info")
    losses = []
    for _ in range(4):
        backward = client.forward_backward(data, "cross_entropy")
        step = client.optim_step(types.AdamParams(**ADAM))  # before the result is there
        output = backward.result()
        check(step.result().metrics["grad_norm"] > 0, "the norm of the gradients")
        losses.append(output.metrics["loss:sum"] / n_trained)
        by_hand = -sum(sum(l * w for l, w in zip(one["logprobs"].data, given.loss_fn_inputs["weights"].data))
                       for one, given in zip(output.loss_fn_outputs, data))
        near(output.metrics["loss:sum"], by_hand, 1e-4, "the loss is the sum of weighted log-probabilities")
        check_equal([len(one["logprobs"].data) for one in output.loss_fn_outputs], [one.model_input.length for one in data], "lengths")
    wanted = job_losses(server, examples, 4)
    check_equal(len(wanted), 4, "steps of the job")
    for got, want in zip(losses, wanted):
        # Sums over rows are cut at other places, and Adam takes the sign of what is tiny.
        near(got, want, 2e-4, "loss of a step as a job has it")
    check(losses[-1] < 0.8 * losses[0], f"losses {losses}")
    # Two calls add up to the gradients of one: the same norm.
    def norm(parts):
        for part in parts:
            client.forward_backward(part, "cross_entropy")
        return client.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics["grad_norm"]
    near(norm([data[:3], data[3:]]), norm([data]), 1e-4, "norm of added gradients")
    return client, examples, data


def check_sampling(service, server, client, examples, data):
    path = client.save_weights_for_sampler("one").result().path
    check_equal(path, f"tinker://{client.model_id}/sampler_weights/one", "path")
    sampler = service.create_sampling_client(model_path=path).result()
    check_equal(sampler.get_base_model(), "base", "base")
    prompt = types.ModelInput.from_ints(examples[0][0][:12])
    greedy = sampler.sample(prompt, num_samples=2, sampling_params=types.SamplingParams(max_tokens=8, temperature=0.0)).result()
    first = greedy.sequences[0]
    check_equal([list(one.tokens) for one in greedy.sequences], [list(first.tokens)] * 2, "two greedy samples")
    check_equal(len(first.logprobs), len(first.tokens), "log-probabilities")
    # What another client of the same adapter gets by its name.
    name = client.model_id.replace(":train:", "-") + "-one"
    status, answer = server.request("POST", "/v1/completions", {"model": name, "prompt": examples[0][0][:12], "max_tokens": 8, "temperature": 0,
                                                                "logprobs": 0, "return_token_ids": True})
    check_equal(status, 200, str(answer))
    check_equal(list(first.tokens)[:len(answer["choices"][0]["token_ids"])], answer["choices"][0]["token_ids"], "tokens by name")
    # Log-probabilities of the sampler are the trainer's.
    forward = client.forward([data[0]], "cross_entropy").result()
    tokens = examples[0][0]
    scored = sampler.compute_logprobs(types.ModelInput.from_ints(tokens)).result()
    check_equal((len(scored), scored[0]), (len(tokens), None), "the first token has none")
    for got, want in zip(scored[1:], forward.loss_fn_outputs[0]["logprobs"].data):
        near(got, want, 1e-2, "log-probability of the sampler beside the trainer's")
    tail = sampler.compute_logprobs(types.ModelInput.from_ints(tokens), prompt_logprobs_last_n=3).result()
    check_equal(tail[:-3], [None] * (len(tokens) - 3), "not scored")
    near(tail[-1], scored[-1], 1e-3, "the last one")
    base = service.create_sampling_client(base_model="base").result()
    of_base = base.compute_logprobs(types.ModelInput.from_ints(tokens)).result()
    check(max(abs(one - other) for one, other in zip(of_base[1:], scored[1:])) > 1e-2, "the base is another model")
    stopped = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=8, temperature=0.0, stop=[first.tokens[2]])).result().sequences[0]
    check_equal((list(stopped.tokens), stopped.stop_reason), (list(first.tokens)[:list(first.tokens).index(first.tokens[2]) + 1], "stop"), "stopped at a token")
    endless = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=30, temperature=0.0, stop=[])).result().sequences[0]
    check_equal((len(endless.tokens), endless.stop_reason), (30, "length"), "nothing ends it")
    seeded = [list(sampler.sample(prompt, 1, types.SamplingParams(max_tokens=8, seed=5)).result().sequences[0].tokens) for _ in range(2)]
    check_equal(seeded[0], seeded[1], "the same seed")


def check_importance_sampling(service):
    """A loop that rewards one token: its probability grows, from the sampler's own log-probabilities."""
    client = service.create_lora_training_client(base_model="base", rank=8, seed=5, train_unembed=False).result()
    prompt = [10, 200, 31]
    wanted, before = None, None
    for step in range(6):
        sampler = client.save_weights_and_get_sampling_client().result()
        sampled = sampler.sample(types.ModelInput.from_ints(prompt), num_samples=32, sampling_params=types.SamplingParams(max_tokens=1, seed=step)).result()
        firsts = [one.tokens[0] for one in sampled.sequences]
        if wanted is None:
            wanted = max(sorted(set(firsts)), key=firsts.count)
            before = sampler.compute_logprobs(types.ModelInput.from_ints(prompt + [wanted])).result()[-1]
            check(before < -0.1, f"a token that could be more probable: {before}")
        rewards = [float(token == wanted) for token in firsts]
        baseline = sum(rewards) / len(rewards)
        n = len(prompt)
        data = [types.Datum(model_input=types.ModelInput.from_ints(prompt), loss_fn_inputs={
            "target_tokens": types.TensorData(data=prompt[1:] + [one.tokens[0]], dtype="int64", shape=[n]),
            "logprobs": types.TensorData(data=[0.0] * (n - 1) + [one.logprobs[0]], dtype="float32", shape=[n]),
            "advantages": types.TensorData(data=[0.0] * (n - 1) + [reward - baseline], dtype="float32", shape=[n])})
            for one, reward in zip(sampled.sequences, rewards)]
        output = client.forward_backward(data, "importance_sampling").result()
        # The sampler is the trainer's present adapter: each ratio is 1.
        if 0 < baseline < 1:
            check(output.metrics["rollout_train_logprobs_abs_diff:max"] < 1e-2, str(output.metrics))
        near(output.metrics["loss:sum"], -sum(reward - baseline for reward in rewards), 1e-1, "ratios of one")
        client.optim_step(types.AdamParams(learning_rate=2e-3)).result()
    after = client.save_weights_and_get_sampling_client().result().compute_logprobs(types.ModelInput.from_ints(prompt + [wanted])).result()[-1]
    check(after > before + 0.05, f"the rewarded token's log-probability went from {before} to {after}")


def check_states(service, client, data):
    path = client.save_state("kept").result().path
    refused(lambda: client.save_state("kept").result(), "overwrite is false")
    client.save_state("kept", overwrite=True).result()
    def next_losses(of, n=2):
        losses = []
        for _ in range(n):
            losses.append(of.forward_backward(data, "cross_entropy").result().metrics["loss:sum"])
            of.optim_step(types.AdamParams(**ADAM)).result()
        return losses
    wanted = next_losses(client)
    again = service.create_training_client_from_state_with_optimizer(path).result()
    check_equal(again.get_info().lora_rank, client.get_info().lora_rank, "rank of the state")
    check_equal(next_losses(again), wanted, "a state goes on with the same bits")


def check_refusals(service, client, data, server):
    refused(lambda: client.forward_backward(data[:1], "ppo").result(), 'loss_fn: "ppo" is not there')
    refused(lambda: client.forward_backward(data[:1], "cross_entropy", {"x": 1.0}).result(), "loss_fn_config")
    bad = types.Datum(model_input=data[0].model_input, loss_fn_inputs={"target_tokens": types.TensorData(data=[1], dtype="int64", shape=[1])})
    refused(lambda: client.forward_backward([bad], "cross_entropy").result(), "target_tokens: 1 values: expected")
    refused(lambda: client.optim_step(types.DimuonParams(learning_rate=0.1)).result(), "adamw is there alone")
    refused(lambda: client.optim_step(types.AdamParams(beta1=1.5)).result(), "adam_params.beta1: expected a number from 0 to below 1")
    refused(lambda: service.create_lora_training_client(base_model="other", rank=8).result(), "base_model: expected")
    refused(lambda: service.create_sampling_client(model_path="tinker://nobody/sampler_weights/x").result(), "nothing is kept as")
    refused(lambda: service.create_training_client_from_state("tinker://nobody/weights/x").result(), "no state is called")
    # A call that failed holds up none behind it.
    check(math.isfinite(client.forward_backward(data[:1], "cross_entropy").result().metrics["loss:sum"]), "the next call")
    client.optim_step(types.AdamParams(learning_rate=0.0)).result()
    status, answer = server.request("GET", "/api/v1/training_runs")
    check_equal((status, "is not there" in answer["error"]["message"]), (404, True), str(answer))


def check_unembed(service, data):
    """All modules, as the client asks for them where nobody says it."""
    client = service.create_lora_training_client(base_model="base", rank=4, seed=1).result()
    first = client.forward_backward(data, "cross_entropy").result().metrics["loss:sum"]
    client.optim_step(types.AdamParams(**ADAM)).result()
    second = client.forward_backward(data, "cross_entropy").result()
    check(second.metrics["loss:sum"] < first, "the loss falls")
    sampler = client.save_weights_and_get_sampling_client().result()
    tokens = data[0].model_input.to_ints()
    scored = sampler.compute_logprobs(types.ModelInput.from_ints(tokens)).result()
    for got, want in zip(scored[1:], second.loss_fn_outputs[0]["logprobs"].data):
        near(got, want, 1e-2, "log-probability with a pair on the output layer")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", required=True)
    args = parser.parse_args()
    lorad = str(pathlib.Path(args.lorad).resolve())
    with tempfile.TemporaryDirectory() as state, Server(lorad, "--state-dir", state, "--training-models", "4", adapters=()) as server:
        os.environ["TINKER_BASE_URL"] = f"http://{server.host}:{server.port}"
        os.environ["TINKER_API_KEY"] = "tml-none"
        check_equal([one.model_name for one in tinker.RestClient().get_server_capabilities().result().supported_models], ["base"], "capabilities")
        service = tinker.ServiceClient()
        client, examples, data = check_supervised(service, server)
        check_sampling(service, server, client, examples, data)
        check_importance_sampling(service)
        check_states(service, client, data)
        check_refusals(service, client, data, server)
        service.create_lora_training_client(base_model="base", rank=8, train_unembed=False).result()
        refused(lambda: service.create_lora_training_client(base_model="base", rank=8).result(), "4 models of this key")
        service.close("success").result()
        check_unembed(tinker.ServiceClient(), data)
        check_equal(server.request("GET", "/health/ready")[0], 200, "the server afterwards")


if __name__ == "__main__":
    main()
