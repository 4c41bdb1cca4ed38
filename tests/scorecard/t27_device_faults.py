#!/usr/bin/env python3
"""T27: a lost device ends requests with an error and the process with status 75, which serves again when restarted; without memory, only what needs it fails."""
# beside others: yes

import collections
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

from frame import ADAPTERS, MODEL, ROOT, Server, check, check_equal, lanes, main, spread
from streams import LONG, PROMPTS, Stream, answer, is_ready, wait_for

sys.path[:0] = [str(ROOT / "tests/vulkan_layer"), str(ROOT / "tests/e2e")]

import control  # noqa: E402
from adapter_checks import files_of, put_blob, registered  # noqa: E402
from control import ALLOCATE, CREATE, DEVICE_LOST, OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY, RECORD, SUBMIT, TIMEOUT, WAIT  # noqa: E402

EXIT_DEVICE_LOST = 75
MODELS = ("base", "pirate", "json", "formal")
FLAGS = ("--batch-invariant", "--max-num-seqs", "16")
REFERENCE_TOKENS = 48
PHASES = ("decode", "idle load", "merge", "decode", "prefill", "load", "timeout")
QUICK_PHASES = 3
HANG_S = 60


def variant(name, i):
    """An adapter of its own for each i: the files of a demo adapter at another scale."""
    files = files_of(name)
    key = next(file for file in files if file.endswith(".json"))
    config = json.loads(files[key])
    return dict(files, **{key: json.dumps(dict(config, lora_alpha=config["lora_alpha"] * (1 + i / 1000))).encode()})


def register(server, name, files):
    return server.post("/v1/adapters", name=name, files={file: put_blob(server, data) for file, data in files.items()}, replace=True)


class Cycle:
    """One daemon after another on the same state; each is lost and has to be the same when it is back."""

    def __init__(self, card, layer):
        self.card, self.layer = card, layer
        self.state = str(card.folder / "state")
        self.server, self.reference, self.catalogue = None, None, None
        self.n_uploads = 0
        self.worst = collections.Counter()
        self.in_flight = 0

    def worst_of(self, what, seconds):
        self.worst[what] = max(self.worst[what], seconds)

    def start(self):
        self.layer.reset()
        self.server = Server(self.card.lorad, *FLAGS, "--state-dir", self.state, adapters=(), env=self.layer.env())
        if self.reference is None:
            for name in ADAPTERS:
                registered(self.server, name, files_of(name))
            self.reference = {(model, i): answer(self.server, model, prompt, REFERENCE_TOKENS) for model in MODELS for i, prompt in enumerate(PROMPTS)}

    def check_answers(self):
        model, i = self.card.random.choice(MODELS), self.card.random.randrange(len(PROMPTS))
        check_equal(answer(self.server, model, PROMPTS[i], REFERENCE_TOKENS), self.reference[model, i], f"tokens of {model} after the restart")
        names = {adapter["id"] for adapter in self.server.request("GET", "/v1/adapters")[1]["data"]}
        check(set(ADAPTERS) <= names, f"adapters after the restart: {names}")

    def quietly(self, *call):
        """A call that the loss may end in any way but silence."""
        def run():
            try:
                call[0](*call[1:])
            except (OSError, AssertionError, ValueError):
                pass
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def load(self, name):
        """Its files to the store, then its weights to the device."""
        register(self.server, name, variant("shout", self.n_uploads))
        self.server.post(f"/v1/adapters/{name}/activate", mode="unmerged")

    def lose(self, phase, after):
        server, layer, choose = self.server, self.layer, self.card.random
        streams = []
        if phase != "idle load":
            streams = [Stream(server, MODELS[i % len(MODELS)], PROMPTS[i % len(PROMPTS)]) for i in range(6)]
            for stream in streams:
                check(stream.first.wait(HANG_S), "no first token")
        call = WAIT if phase == "timeout" else choose.choice((SUBMIT, WAIT))
        calls = []
        if phase in ("load", "idle load"):
            # The next uses of the queue may be decodes' or the upload's.
            after = choose.randrange(6) if phase == "load" else 0
        layer.fail_next(call, TIMEOUT if phase == "timeout" else DEVICE_LOST, after)
        if phase in ("load", "idle load"):
            self.n_uploads += 1
            calls.append(self.quietly(self.load, f"new-{self.n_uploads}"))
        elif phase == "merge":
            calls.append(self.quietly(server.request, "POST", "/v1/adapters/pirate/activate", {"mode": "merged"}))
        elif phase == "prefill":
            streams += [Stream(server, choose.choice(MODELS), PROMPTS[3] * 3, 4) for _ in range(4)]
        check(wait_for(lambda: layer.injected > 0, HANG_S) is not None, f"{phase}: the fault was never met")
        lost_at = layer.injected_at
        check(wait_for(lambda: not is_ready(server), HANG_S) is not None, f"{phase}: still ready")
        self.worst_of("not ready after", time.monotonic() - lost_at)
        for stream in streams:
            stream.join(HANG_S)
            check(stream.ended is not None, f"{phase}: a stream hangs")
            outcome = stream.outcome()
            if outcome == "whole" and stream.body["max_tokens"] < LONG:
                continue  # it was done before
            # A request that came after the loss may find nobody listening.
            late = stream.body["max_tokens"] < LONG and outcome in ("no answer", "refused")
            check(late or outcome in ("error", "refused"), f"{phase}: a stream ended with {outcome} {stream.cut!r}")
            if not late:
                check_equal(stream.error["code"], "device_lost", "code of the error")
                self.in_flight += 1
                self.worst_of("streams ended after", stream.ended - lost_at)
        try:
            status = server.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{phase}: the process does not end") from None
        check_equal(status, EXIT_DEVICE_LOST, f"{phase}: exit status; {server.log_text()[-400:]}")
        for call in calls:
            call.join(HANG_S)
            check(not call.is_alive(), f"{phase}: a call hangs")
        os.unlink(server.log.name)
        self.start()
        self.check_answers()
        self.worst_of("serving again after", time.monotonic() - lost_at)
        self.card.trials += 1


def losses(card):
    with control.FaultLayer(card.build) as layer:
        cycle = Cycle(card, layer)
        with card.part("a lost device: error events, not ready, exit 75, the same answers again"):
            cycle.start()
            try:
                n = QUICK_PHASES if card.quick else 200
                for i in range(n):
                    cycle.lose(PHASES[i % len(PHASES)], card.random.randrange(80))
            finally:
                cycle.server.process.kill()
                cycle.server.process.wait()
            for what, seconds in (("streams ended after", 2), ("not ready after", 1), ("serving again after", 30)):
                card.limit(f"{what} s", cycle.worst[what], seconds)
        card.figure("losses while serving", card.trials)
        card.figure("streams that got the error", cycle.in_flight)


def begin(card, layer, flags=()):
    """Starts the program to its ready line or its end: (status or None, process, what it said)."""
    command = [card.lorad, "serve", "--model", str(MODEL / "base"), "--port", "0", "--state-dir", "none", "--lora", f"pirate={MODEL / 'adapters/pirate'}", *flags]
    said_path = card.folder / f"start-{pathlib.Path(layer.path).name}.log"
    with open(said_path, "w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(os.environ, **layer.env()))
        line = process.stdout.readline()
    said = said_path.read_text()
    if "lorad is ready" in line:
        return None, process, said
    try:
        return process.wait(30), process, said
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError("the program neither serves nor ends") from None


def start_with(card, call, number, result, how_many):
    """One start with one fault: "refused" in order, or "serves"; anything else fails."""
    what = f"{control.NAMES[call]} {number} gives {result}{' for ever' if how_many == 0 else ''}"
    with control.FaultLayer(card.build) as layer:
        layer.fail(call, number, result, how_many)
        status, process, said = begin(card, layer)
        if status is None:
            process.terminate()
            check_equal(process.wait(30), 0, f"{what}: exit status after serving")
            check_equal(layer.live(), (0, 0, 0), f"{what}: what is alive at the end")
            return "serves"
        reason = said.rstrip().rsplit("\n", 1)[-1]
        check(reason.startswith("lorad: error: "), f"{what}: no reason: {said[-300:]}")
        # Uploads of several threads share a recording; where it cannot be ended all of them are lost, and the device counts as lost. Which thread's
        # call is the k-th is a race, and so is whether that is such a recording's end.
        is_lost = result == DEVICE_LOST or "vkEndCommandBuffer of an upload" in reason
        check_equal(status, EXIT_DEVICE_LOST if is_lost else 1, f"{what}: exit status; {reason}")
        check(is_lost or layer.live() == (0, 0, 0), f"{what}: left alive: {layer.live()}")
        return "refused"


def starts(card):
    with control.FaultLayer(card.build) as layer:
        status, process, said = begin(card, layer)
        check(status is None, said)
        process.terminate()
        process.wait(30)
        n_calls = {call: layer.count(call) for call in (SUBMIT, WAIT, ALLOCATE, CREATE, RECORD)}
        check_equal(layer.live(), (0, 0, 0), "what is alive at the end of a plain run")
    outcomes = collections.Counter()
    with card.part("every start with a fault is refused with a reason, or serves"):
        jobs = [(ALLOCATE, k, result, many) for k in range(1, n_calls[ALLOCATE] + 2) for result in (OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY) for many in (1, 0)]
        jobs += [(call, k, DEVICE_LOST, 1) for call in (SUBMIT, WAIT) for k in range(1, n_calls[call] + 1)]
        jobs += [(call, k, OUT_OF_HOST_MEMORY, many) for call in (CREATE, RECORD) for k in range(1, n_calls[call] + 1, 3) for many in (1, 0)]
        jobs += [(call, k, OUT_OF_HOST_MEMORY, many) for call in (SUBMIT, WAIT) for k in range(1, n_calls[call] + 1) for many in (1, 0)]
        if card.quick:
            jobs = [(ALLOCATE, k, OUT_OF_DEVICE_MEMORY, 1) for k in range(3, n_calls[ALLOCATE] + 1, 2)] + card.random.sample(jobs, 3)
        # For ever without memory for any use of a queue: the device counts as lost.
        jobs = [(call, k, result, many) for call, k, result, many in jobs if not (result == OUT_OF_HOST_MEMORY and many == 0 and call in (SUBMIT, WAIT))]
        found = []
        card.trials += spread(range(lanes(card)), jobs, lambda _, *job: found.append(start_with(card, *job)))
        outcomes.update(found)
    card.figure("starts with a fault", sum(outcomes.values()))
    card.figure("of these refused", outcomes["refused"])


def loads(card):
    """An adapter that finds no device memory is refused, and running streams do not notice."""
    with control.FaultLayer(card.build) as layer, card.part("no memory for an adapter: 507, traffic unchanged, memory back to the byte"):
        with card.server(*FLAGS, "--max-loras", "400", "--adapter-memory-mib", "2048", adapters=ADAPTERS, env=layer.env()) as server:
            n_tokens = 250 if card.quick else 800
            reference = {model: answer(server, model, PROMPTS[1], n_tokens) for model in MODELS}
            for name in ADAPTERS:  # so that nobody can make room
                check_equal(server.post(f"/v1/adapters/{name}/activate", mode="unmerged", pin=True)[0], 200, "pinning")
            start, bytes_at_start = layer.live(), server.metric("lorad_adapter_device_bytes")
            streams = []
            layer.fail_next(ALLOCATE, OUT_OF_DEVICE_MEMORY, how_many=0)
            refused, names = None, []
            for i in range(1, 300):
                name = f"more-{i}"
                status, body = register(server, name, variant("pirate", i))
                check_equal(status // 100, 2, f"registering: {body}")
                names.append(name)
                if layer.injected == 0 and all(stream.ended for stream in streams):
                    streams = [Stream(server, model, PROMPTS[1], n_tokens) for model in MODELS]
                status, body = server.post(f"/v1/adapters/{name}/activate", mode="unmerged", pin=True)
                if status != 200:
                    refused = status, body
                    break
            check(refused is not None, "the device never ran out of memory")
            check_equal((refused[0], refused[1]["error"]["code"]), (507, "out_of_memory"), "what the load got")
            check(wait_for(lambda: is_ready(server), HANG_S) is not None, "not ready after a refused load")
            card.figure("streams running at the 507", sum(stream.ended is None for stream in streams))
            for stream, model in zip(streams, MODELS):
                stream.join(120)
                check_equal((stream.outcome(), stream.tokens), ("whole", reference[model]), f"the stream of {model}")
            layer.clear(ALLOCATE)
            check_equal(server.post(f"/v1/adapters/{names[-1]}/activate", mode="unmerged", pin=True)[0], 200, "the same load with memory")
            card.figure("adapters until 507", len(names))
            for name in names:
                check_equal(server.request("DELETE", f"/v1/adapters/{name}?mode=now&timeout_ms=5000")[0], 200, f"removing {name}")
            check_equal(server.metric("lorad_adapter_device_bytes"), bytes_at_start, "bytes of adapters")
            check_equal(layer.live()[:2], start[:2], "allocations and their bytes")
            card.trials += 1


def steps(card):
    """No memory to make a step: its requests end with that, all others and later ones are served."""
    with control.FaultLayer(card.build) as layer, card.part("no memory for a step ends that step's requests only"):
        with card.server(*FLAGS, adapters=ADAPTERS, env=layer.env()) as server:
            n_tokens, n_refused = 40 if card.quick else 200, 0
            reference = {model: answer(server, model, PROMPTS[1], n_tokens) for model in MODELS}
            for i in range(4 if card.quick else 100):
                # Shapes of their own need recordings of their own: log-probabilities, penalties and numbers of rows.
                call = (CREATE, RECORD, SUBMIT, WAIT)[i % 4]
                layer.fail_next(call, OUT_OF_HOST_MEMORY, how_many=1 if i % 8 < 4 else 5 if call in (CREATE, RECORD) else 2)
                streams = [Stream(server, model, PROMPTS[1], n_tokens) for model in MODELS]
                odd = Stream(server, "shout", PROMPTS[2] * (i % 7 + 1), 8 + i, temperature=0.5, repetition_penalty=1.1, logprobs=1 + i % 3)
                for stream in streams + [odd]:
                    stream.join(60)
                    outcome = stream.outcome()
                    n_refused += outcome == "error"
                    check(outcome == "whole" or stream.error and stream.error["code"] == "out_of_memory", f"{outcome}: {stream.error} {stream.cut!r}")
                for stream, model in zip(streams, MODELS):
                    check_equal(stream.tokens, reference[model][:len(stream.tokens)], f"the stream of {model}")
                layer.clear(call)
                check_equal(answer(server, "base", PROMPTS[1], n_tokens), reference["base"], "an answer afterwards")
                card.trials += 1
            check(server.process.poll() is None and wait_for(lambda: is_ready(server), HANG_S) is not None, "the daemon ended")
            card.figure("requests that had no memory", n_refused)


def first_requests(card):
    """What found no memory is made the next time: the first requests need kernels and recordings that the start did not make."""
    requests = ({"structured_outputs": {"choice": ["yes", "no"]}}, {"structured_outputs": {"choice": ["yes", "no"]}, "logprobs": 1}, {}, {"temperature": 0.5, "repetition_penalty": 1.1, "logprobs": 2}, {"model": "pirate", "prompt": PROMPTS[0] * 40})
    with control.FaultLayer(card.build) as layer, card.part("what found no memory is made the next time"):
        with card.server("--max-num-seqs", "16", adapters=ADAPTERS, env=layer.env()) as server:
            n_refused = 0
            for request in requests:
                for after in range(100):
                    faults = layer.injected
                    layer.fail_next(CREATE, OUT_OF_HOST_MEMORY, after=after)
                    status, body = server.post("/v1/completions", **({"model": "base", "prompt": PROMPTS[1], "max_tokens": 4} | request))
                    layer.clear(CREATE)
                    if layer.injected == faults:
                        break
                    check_equal((status, body["error"]["code"]), (507, "out_of_memory"), f"{request} whose creation {after + 1} failed")
                    n_refused += 1
                check_equal(status, 200, f"{request} with memory: {body}")
            check(n_refused >= 5, "hardly anything was made for the first requests")
            card.figure("first requests that had no memory", n_refused)
            card.trials += n_refused


def run(card):
    losses(card)
    starts(card)
    first_requests(card)
    loads(card)
    steps(card)
    if card.quick:
        card.short_of("200 losses and every k of a start: tests/scorecard.sh --tier nightly --only T27")
    card.release_only("one real hang for each driver")


if __name__ == "__main__":
    main("T27", run)
