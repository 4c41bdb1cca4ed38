"""Adapters over HTTP with the real program: upload, mixes, replacement under traffic, and what is refused."""

import concurrent.futures
import hashlib
import json
import pathlib
import shutil
import subprocess
import tempfile
import threading
import urllib.parse

from harness import ADAPTERS, MODEL, SAMPLES, Server, check, check_equal, check_error, wait_until

FILES = ("adapter_config.json", "adapter_model.safetensors")
SAMPLE = SAMPLES[0]


def files_of(name):
    return {file: (MODEL / "adapters" / name / file).read_bytes() for file in FILES}


def digest_of(content):
    return hashlib.sha256(content).hexdigest()


def generation_of(files):
    """sha256sum adapter_config.json adapter_model.safetensors | sha256sum"""
    lines = "".join(f"{digest_of(files[name])}  {name}\n" for name in sorted(files))
    return digest_of(lines.encode())


def put_blob(server, content):
    digest = f"sha256:{digest_of(content)}"
    check_equal(server.request("PUT", f"/v1/adapters/blobs/{digest}", raw=content)[0], 201, "upload of a blob")
    return digest


def register(server, name, files, **more):
    digests = {file: put_blob(server, content) for file, content in files.items()}
    return server.post("/v1/adapters", name=name, files=digests, **more)


def registered(server, name, files, **more):
    status, body = register(server, name, files, **more)
    check_equal(status, 201, f"registration of {name}: {body}")
    return body


def delete(server, name, query=""):
    status, body = server.request("DELETE", f"/v1/adapters/{urllib.parse.quote(name, safe='')}{query}")
    check_equal(status, 200, f"removal of {name}: {body}")
    return body


def completion(server, n=24, **body):
    status, answer = server.post("/v1/completions", **dict(dict(prompt=SAMPLE["prompt_ids"], temperature=0, max_tokens=n,
                                                               ignore_eos=True, return_token_ids=True), **body))
    check_equal(status, 200, f"{body}: {answer}")
    return answer


def ids(server, n=24, **body):
    return completion(server, n, **body)["choices"][0]["token_ids"]


def streamed(server, n, **body):
    return server.events("/v1/completions", prompt=SAMPLE["prompt_ids"], temperature=0, max_tokens=n, ignore_eos=True,
                         return_token_ids=True, **body)


def rest_of(stream):
    chunks = list(stream)
    tokens = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or []]
    return tokens, chunks[-1]["choices"][0]["finish_reason"]


def curl(server, *arguments):
    """Status and JSON of a request that curl makes; None without curl."""
    if shutil.which("curl") is None:
        return None
    *options, path = arguments
    out = subprocess.run(["curl", "-sS", "-w", "\n%{http_code}", *options, f"http://{server.host}:{server.port}{path}"],
                         capture_output=True, text=True, timeout=60, check=True).stdout
    text, status = out.rsplit("\n", 1)
    return int(status), json.loads(text) if text else None


# --- checks with the shared server ----------------------------------------------------------------------------------

def check_an_adapter_is_uploaded_with_curl_and_used(server):
    files = files_of("json")
    with tempfile.TemporaryDirectory() as folder:
        digests = {}
        for name, content in files.items():
            path = pathlib.Path(folder, name)
            path.write_bytes(content)
            digests[name] = f"sha256:{digest_of(content)}"
            answer = curl(server, "-T", str(path), f"/v1/adapters/blobs/{digests[name]}")
            if answer is None:
                put_blob(server, content)
            else:
                check_equal(answer[0], 201, f"curl -T: {answer}")
    body = server.post("/v1/adapters", name="up/loaded", files=digests)[1]
    check_equal(body["generation"], generation_of(files), "generation")
    check_equal(server.request("GET", "/v1/adapters/up%2Floaded")[1]["generation"], body["generation"], "by its name")
    answer = server.post("/v1/chat/completions", model="up/loaded", messages=SAMPLE["messages"], temperature=0)[1]
    check_equal(answer["choices"][0]["message"]["content"], SAMPLE["outputs"]["json"]["text"], "answer")
    check_equal(answer["adapter_generation"], body["generation"], "generation of the answer")
    for chunk in streamed(server, 4, model="base::up/loaded", stream_options={"include_usage": True}):
        check_equal(chunk["adapter_generation"], body["generation"], "generation of a chunk")
    check("adapter_generation" not in completion(server, 2, model="base"), "the base has no generation")
    delete(server, "up/loaded")


def check_a_form_registers_in_one_call(server):
    folder = MODEL / "adapters/formal"
    answer = curl(server, "-F", "name=form", *[x for f in FILES for x in ("-F", f"file=@{folder / f}")], "/v1/adapters")
    if answer is None:
        return
    check_equal(answer[0], 201, f"curl -F: {answer}")
    check_equal(answer[1]["generation"], generation_of(files_of("formal")), "generation")
    check_error(curl(server, "-F", "name=form", "-F", f"file=@{folder / FILES[0]}", "/v1/adapters"), 400,
                "adapter_already_loaded", "name")
    check_error(curl(server, "-F", "name=half", "-F", f"file=@{folder / FILES[0]}", "/v1/adapters"), 422, "adapter_invalid")
    delete(server, "form")


def check_bad_uploads_change_nothing(server):
    before = server.request("GET", "/v1/adapters")[1]
    good = files_of("pirate")
    path = f"/v1/adapters/blobs/sha256:{digest_of(b'hello')}"
    check_error(server.request("PUT", path, raw=b"hullo"), 400, "digest_mismatch")
    check_error(server.request("PUT", path, raw=b"hell"), 400, "digest_mismatch")
    check_equal(server.request("HEAD", path)[0], 404, "nothing was kept")
    check_error(server.request("PUT", "/v1/adapters/blobs/..%2F..%2Fetc%2Fpasswd", raw=b"x"), 400, "invalid_request", "digest")
    for name in ("../x", "/x", "a\nb", "x" * 200, "base", "events"):
        check_error(register(server, name, good), 400, "invalid_lora_name", "name")
    check_error(server.request("POST", "/v1/adapters", raw='{"name":"x","name":"y"}'), 400, "invalid_request")
    check_error(server.post("/v1/adapters", name="x", files={FILES[0]: "sha256:" + "0" * 64}), 404, "adapter_file_not_found", "files")
    check_error(server.post("/v1/adapters", name="x", files={"../" + FILES[0]: "sha256:" + "0" * 64}), 400, "invalid_request", "files")
    pickle = {FILES[0]: good[FILES[0]], "adapter_model.bin": b"\x80\x02ccollections\nOrderedDict\nq\x00."}
    check_error(register(server, "x", pickle), 422, "adapter_unsupported")
    check_error(register(server, "x", dict(good, **{FILES[1]: good[FILES[1]][:5000]})), 422, "adapter_invalid")
    # Tensors under a prefix that the base does not have would load and do nothing elsewhere.
    wrong = good[FILES[1]].replace(b"base_model.model.model.", b"base_model.model.mudel.")
    check_error(register(server, "x", dict(good, **{FILES[1]: wrong})), 422, "adapter_invalid", contains=["mudel"])
    check_equal(server.request("GET", "/v1/adapters")[1], before, "adapters")


def check_validation_is_the_same_report_as_on_the_command_line(server):
    lorad, base = server.process.args[0], str(MODEL / "base")
    files = files_of("formal")
    zero = dict(files)
    header = 8 + int.from_bytes(files[FILES[1]][:8], "little")
    zero[FILES[1]] = files[FILES[1]][:header] + bytes(len(files[FILES[1]]) - header)
    wrong = dict(files, **{FILES[1]: files[FILES[1]].replace(b"base_model.model.model.", b"base_model.model.mudel.")})
    for what, content, fits in (("good", files, True), ("zero", zero, True), ("wrong", wrong, False)):
        with tempfile.TemporaryDirectory() as folder:
            for name, data in content.items():
                pathlib.Path(folder, name).write_bytes(data)
            run = subprocess.run([lorad, "check", "--model", base, "--adapter", folder, "--json"], capture_output=True, text=True, timeout=60)
        offline = json.loads(run.stdout)
        check_equal((run.returncode, offline["fits"]), (0 if fits else 1, fits), f"{what}: {run.stderr}")
        status, online = server.post("/v1/adapters/validate", files={f: put_blob(server, c) for f, c in content.items()})
        check_equal((status, online), (200, offline), what)
        check_equal(online["generation"], generation_of(content), "generation")
    check_equal(offline["refused"] != [], True, "reasons")
    registered(server, "zero", zero)
    check_equal(server.post("/v1/adapters/zero/validate")[1]["changes_something"], False, "an adapter that changes nothing is told so")
    check_equal(ids(server, model="zero"), ids(server, model="base"), "and answers as the base")
    delete(server, "zero")


def check_a_b_a_is_each_adapters_own(server):
    """No state of one adapter reaches another, also where a name gets other weights."""
    alone = {name: ids(server, model=name) for name in ("pirate", "shout")}
    check(alone["pirate"] != alone["shout"], "the two adapters differ")
    for name in ("pirate", "shout", "pirate", "base", "shout", "pirate"):
        check_equal(ids(server, model=name), alone.get(name) or ids(server, model="base"), name)
    registered(server, "same-name", files_of("pirate"))
    check_equal(ids(server, model="same-name"), alone["pirate"], "before the name got other weights")
    registered(server, "same-name", files_of("shout"), replace=True)
    check_equal(ids(server, model="same-name"), alone["shout"], "after")
    back = server.request("POST", "/v1/adapters/same-name/rollback")
    check_equal((back[0], back[1]["generation"]), (200, generation_of(files_of("pirate"))), "rollback")
    check_equal(ids(server, model="same-name"), alone["pirate"], "after the rollback")
    check_error(server.post("/v1/adapters", name="same-name", files={f: f"sha256:{digest_of(c)}" for f, c in files_of("shout").items()},
                            replace=True, expected_generation="0" * 64), 409, "lora_generation_mismatch", "expected_generation")
    delete(server, "same-name")


def check_scale_zero_and_no_adapters_are_the_base(server):
    base = ids(server, 40, model="base")
    for body in ({"adapters": []}, {"lora": []}, {"adapters": [{"name": "pirate", "scale": 0}]},
                 {"adapters": [{"name": "pirate", "scale": 0}, {"name": "shout", "scale": -0.0}]}):
        check_equal(ids(server, 40, **body), base, str(body))
    check(ids(server, 40, model="pirate") != base, "the adapter does something")


def check_mixes_are_sums_in_mixed_batches(server):
    mix = [{"name": "pirate", "scale": 0.5}, {"name": "shout", "scale": 0.5}]
    inline = completion(server, adapters=mix)
    check_equal(server.post("/v1/adapters", name="half-half", adapters=mix)[0], 201, "a mix gets a name")
    named = completion(server, model="half-half")
    check_equal(named["choices"][0]["token_ids"], inline["choices"][0]["token_ids"], "by name and inline")
    check_equal(named["adapter_generation"], inline["adapter_generation"], "digest of the mix")
    check_equal(ids(server, adapters=[{"name": "pirate", "scale": 1}]), ids(server, model="pirate"), "one at scale 1")
    check_equal(ids(server, adapters=[{"name": "pirate", "scale": 0.25}, {"name": "half-half", "scale": 1}]),
                ids(server, adapters=[{"name": "pirate", "scale": 0.75}, {"name": "shout", "scale": 0.5}]), "mixes of mixes")
    uses = [{"model": "base"}, {"model": "half-half"}, {"adapters": mix}, {"model": "shout"},
            {"adapters": [{"name": n, "scale": s} for n, s in zip(ADAPTERS, (0.4, -0.2, 0.3, 1.5))]}] * 2
    alone = [ids(server, **use) for use in uses[:5]] * 2
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        together = list(pool.map(lambda use: ids(server, **use), uses))
    check_equal(together, alone, "answers in company")
    check_error(server.post("/v1/completions", prompt=[1], adapters=[{"name": "nobody"}]), 404, "adapter_not_found", "adapters[0].name")
    check_error(server.post("/v1/completions", prompt=[1], model="shout", adapters=mix), 400, "invalid_request", "adapters")
    check_error(server.post("/v1/completions", prompt=[1], adapters=mix * 5), 400, "invalid_request", "adapters")
    check_error(server.post("/v1/completions", prompt=[1], adapters=[{"name": "pirate", "scale": 1e9}]), 400, "invalid_request",
                "adapters[0].scale")
    delete(server, "half-half")


def check_an_activated_adapter_acts_from_its_tokens_on(server):
    """aLoRA, over HTTP and on the command line: nothing before the last invocation, the adapter from there on."""
    lorad, base = server.process.args[0], str(MODEL / "base")
    invocation, prompt = [4001, 4002], SAMPLE["prompt_ids"]
    files = files_of("pirate")
    config = dict(json.loads(files[FILES[0]]), alora_invocation_tokens=invocation)
    files[FILES[0]] = json.dumps(config).encode()
    digests = {file: put_blob(server, content) for file, content in files.items()}
    check_equal(server.post("/v1/adapters/validate", files=digests)[1]["alora_invocation_tokens"], invocation, "the report")
    check_equal(server.post("/v1/adapters", name="alora", files=digests)[0], 201, "registration")
    half = len(prompt) // 2
    prompts = {"never": prompt, "first": invocation + prompt, "within": prompt[:half] + invocation + prompt[half:],
               "last": prompt + invocation, "twice": invocation + prompt[:half] + invocation + prompt[half:]}
    answers = {when: {model: ids(server, model=model, prompt=tokens) for model in ("alora", "pirate", "base")}
               for when, tokens in prompts.items()}
    check_equal(answers["never"]["alora"], answers["never"]["base"], "without its tokens the base answers")
    check_equal(answers["first"]["alora"], answers["first"]["pirate"], "from the first token on it is the plain adapter")
    for when in ("first", "within", "last", "twice"):
        check(answers[when]["alora"] != answers[when]["base"], f"invoked {when} it does something")
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            pathlib.Path(folder, name).write_bytes(data)
        for when in ("never", "within", "twice"):
            run = subprocess.run([lorad, "generate", "--model", base, "--adapter", folder, "--tokens", ",".join(map(str, prompts[when])),
                                  "--max-tokens", "24", "--ignore-eos", "--batch-invariant", "--json"], capture_output=True, text=True, timeout=120)
            check_equal(json.loads(run.stdout)["token_ids"], answers[when]["alora"], f"the command line, invoked {when}: {run.stderr}")
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        jobs = [(when, pool.submit(ids, server, model="alora", prompt=prompts[when])) for when in list(prompts) * 2]
        for when, job in jobs:
            check_equal(job.result(), answers[when]["alora"], f"in company, invoked {when}")
    check_equal(rest_of(server.events("/v1/completions", prompt=prompts["within"], temperature=0, max_tokens=24, ignore_eos=True,
                                      return_token_ids=True, model="alora"))[0], answers["within"]["alora"], "streamed")
    check_error(server.post("/v1/completions", prompt=[1], adapters=[{"name": "alora"}, {"name": "shout"}]), 422, "adapter_unsupported",
                "adapters", contains=["aLoRA"])
    delete(server, "alora")


def check_names_change_under_streaming_traffic(server):
    first = registered(server, "live", files_of("pirate"))["generation"]
    quiet = ids(server, 250, model="live")
    stream = streamed(server, 250, model="live")
    begun = next(stream)
    second = registered(server, "live", files_of("shout"), replace=True)["generation"]
    check_equal(completion(server, 2, model="live")["adapter_generation"], second, "new requests get the new weights")
    drained = streamed(server, 250, model="live")
    next(drained)
    check(delete(server, "live")["in_flight"] >= 1, "the answer counts requests that still run")
    check_error(server.post("/v1/completions", prompt=[1], model="live"), 404, "model_not_found")
    tokens, reason = rest_of(stream)
    check_equal(begun["choices"][0]["token_ids"] + tokens, quiet, "the running request kept its weights")
    check_equal((begun["adapter_generation"], reason), (first, "length"), "generation and end")
    check_equal(rest_of(drained)[1], "length", "a drained request goes on to its end")

    registered(server, "live", files_of("pirate"))
    ended, other = streamed(server, 1500, model="live"), streamed(server, 120, model="pirate")
    next(ended), next(other)
    body = delete(server, "live", "?mode=now&timeout_ms=10000")
    check_equal((body["deleted"], body["in_flight"]), (True, 0), "removal at once")
    check_equal(rest_of(ended)[1], "adapter_removed", "finish reason")
    check_equal(rest_of(other)[1], "length", "the others go on")


def check_the_faces_of_other_servers(server):
    path = str(MODEL / "adapters/json")
    ok = server.post("/load_lora_adapter", lora_name="sg", lora_path=path, pinned=True)
    check_equal((ok[0], ok[1]["success"], "sg" in ok[1]["loaded_adapters"]), (200, True, True), "SGLang's load")
    check_equal(ids(server, model="base:sg"), ids(server, model="json"), "SGLang's names")
    again = server.post("/load_lora_adapter", lora_name="sg", lora_path=path)
    check_equal((again[0], again[1]["success"]), (400, False), "a name that is taken")
    check_equal(server.post("/unload_lora_adapter", lora_name="sg")[1]["success"], True, "SGLang's unload")

    listed = {entry["path"]: entry["id"] for entry in server.request("GET", "/lora-adapters")[1]}
    check(set(ADAPTERS) <= set(listed), f"llama-server's list: {listed}")
    check_equal(ids(server, lora=[{"id": listed["shout"], "scale": 1.0}]), ids(server, model="shout"), "a request's own scales")
    base = ids(server, model="base")
    check_equal(server.request("POST", "/lora-adapters", [{"id": listed["pirate"], "scale": 1.0}])[1], {"success": True}, "global scales")
    check_equal(ids(server), ids(server, model="pirate"), "they hold for requests that name none")
    check_equal(ids(server, lora=[]), base, "not for those that ask for none")
    check_equal(server.request("POST", "/lora-adapters", [])[0], 200, "back to 0")
    check_equal(ids(server), base, "the base again")
    check_error(server.request("POST", "/lora-adapters", [{"id": 999, "scale": 1}]), 400, "invalid_request", "[0].id")


def check_events_are_told(server):
    from http.client import HTTPConnection
    connection = HTTPConnection(server.host, server.port, timeout=30)
    connection.request("GET", "/v1/adapters/events")
    response = connection.getresponse()
    check_equal((response.status, response.getheader("Content-Type")), (200, "text/event-stream"), "stream of events")
    files = files_of("pirate")
    files[FILES[0]] += b"\n"  # content of its own, not on the device yet
    generation = registered(server, "watched", files)["generation"]
    ids(server, 2, model="watched")
    delete(server, "watched")
    kinds, number = [], 0
    for line in response:
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        check(number == 0 or event["number"] == number + 1, "events have numbers without gaps")
        number = event["number"]
        if event["generation"] == generation:
            kinds.append(event["event"])
        if kinds and kinds[-1] == "removed":
            break
    connection.close()
    check_equal((kinds[0], kinds[-1]), ("registered", "removed"), f"kinds {kinds}")
    check("resident" in kinds, f"kinds {kinds}")


def check_uploads_that_break_off_leave_nothing(server):
    import socket
    stored = server.request("GET", "/v1/adapters")[1]
    content = b"x" * 300000
    path = f"/v1/adapters/blobs/sha256:{digest_of(content)}"
    for _ in range(8):
        connection = socket.create_connection((server.host, server.port))
        connection.sendall(f"PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content[:100000])
        connection.close()

    def is_taken():
        status, _ = server.request("PUT", path, raw=content)
        check(status in (201, 429), f"status {status}")
        return status == 201

    wait_until(is_taken, "a place is free again: an upload works")
    check_equal(server.request("GET", "/v1/adapters")[1], stored, "adapters")


# --- checks that start their own process -----------------------------------------------------------------------------

def check_adapters_take_turns_in_too_little_room(lorad):
    """Four adapters in room for one or two, with names that come and go: everybody gets their own tokens."""
    with Server(lorad, "--max-loras", "2") as server:
        alone = {name: ids(server, 40, model=name) for name in ADAPTERS}
        stop = threading.Event()

        def churn():
            n = 0
            while not stop.is_set():
                registered(server, f"churn{n % 3}", files_of(ADAPTERS[n % 4]), replace=True)
                ids(server, 1, model=f"churn{n % 3}")
                n += 1
            return n

        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            churning = pool.submit(churn)
            jobs = [(name, pool.submit(ids, server, 40, model=name)) for name in ADAPTERS * 4]
            for name, job in jobs:
                check_equal(job.result(), alone[name], name)
            stop.set()
            check(churning.result() > 0, "nothing changed meanwhile")
        for n in range(3):
            server.request("DELETE", f"/v1/adapters/churn{n}?mode=now")
        check_equal(sum(a["active_requests"] for a in server.request("GET", "/v1/adapters")[1]["data"]), 0, "leases that are left")


def check_a_restart_brings_names_back(lorad):
    """Killed, not stopped: names, mixes, history and pins are as they were acknowledged."""
    with tempfile.TemporaryDirectory() as state:
        with Server(lorad, "--state-dir", state, adapters=()) as server:
            first = registered(server, "sql", files_of("pirate"))["generation"]
            second = registered(server, "sql", files_of("json"), replace=True)["generation"]
            registered(server, "loud", files_of("shout"))
            mix = server.post("/v1/adapters", name="mix", adapters=[{"name": "sql", "scale": 0.5}, {"name": "loud", "scale": 0.5}])[1]
            check_equal(server.post("/v1/adapters/loud/activate", mode="unmerged", pin=True)[0], 200, "pin")
            registered(server, "gone", files_of("formal"))
            delete(server, "gone")
            before = {name: ids(server, model=name) for name in ("sql", "loud", "mix")}
            server.process.kill()
            server.process.wait(30)
        with Server(lorad, "--state-dir", state, adapters=()) as server:
            listed = {a["id"]: a for a in server.request("GET", "/v1/adapters")[1]["data"]}
            check_equal(set(listed), {"sql", "loud", "mix"}, "names")
            check_equal(listed["sql"]["generation"], second, "generation")
            check_equal([past["generation"] for past in listed["sql"]["history"]], [first], "history")
            check_equal(listed["mix"]["generation"], mix["generation"], "digest of the mix")
            check_equal((listed["loud"]["pinned"], listed["loud"]["tier"]), (True, "gpu"), "what was pinned is on the device")
            check_equal({name: ids(server, model=name) for name in before}, before, "answers")
            check_equal(server.request("POST", "/v1/adapters/sql/rollback")[1]["generation"], first, "rollback")
            check_equal(ids(server, model="mix"), before["mix"], "a mix stands for what it was made of")
        stored = [path for path in pathlib.Path(state).rglob("*") if path.is_file() and digest_of(files_of("formal")[FILES[1]]) in path.name]
        check_equal(stored, [], "files of a removed adapter")


def check_acknowledged_uploads_stay(lorad):
    """Over others' removals and refusals, and over a kill."""
    files = files_of("pirate")
    with tempfile.TemporaryDirectory() as state:
        with Server(lorad, "--state-dir", state, adapters=()) as server:
            registered(server, "one", files)
            digests = {file: put_blob(server, content) for file, content in files.items()}
            delete(server, "one")
            junk = put_blob(server, b"\x08" + bytes(7) + b"{}      ")
            check_error(server.post("/v1/adapters", name="two", files={**digests, FILES[1]: junk}), 422, "adapter_invalid")
            server.process.kill()
            server.process.wait(30)
        with Server(lorad, "--state-dir", state, adapters=()) as server:
            status, body = server.post("/v1/adapters", name="mine", files=digests)
            check_equal(status, 201, f"registration of what was acknowledged: {body}")
            delete(server, "mine")
            check_error(server.post("/v1/adapters", name="mine", files=digests), 404, "adapter_file_not_found", "files")


def check_a_state_folder_that_goes_away_is_noticed(lorad):
    with tempfile.TemporaryDirectory() as state:
        with Server(lorad, "--state-dir", state, adapters=()) as server:
            registered(server, "one", files_of("pirate"))
            folder = next(pathlib.Path(state).iterdir())
            moved = folder.with_name("moved")
            folder.rename(moved)
            wait_until(lambda: server.request("GET", "/health/ready")[0] == 503, "not ready without its state folder")
            path = f"/v1/adapters/blobs/sha256:{digest_of(b'hello')}"
            check_error(server.request("PUT", path, raw=b"hello"), 503, "lora_store_read_only")
            check_error(server.request("DELETE", "/v1/adapters/one"), 503, "lora_store_read_only")
            check_equal(len(ids(server, 4, model="one")), 4, "what is registered is served")
            moved.rename(folder)
            wait_until(lambda: server.request("GET", "/health/ready")[0] == 200, "ready again")
            check_equal(server.request("PUT", path, raw=b"hello")[0], 201, "an upload")
            shutil.rmtree(folder)
            wait_until(lambda: server.request("GET", "/health/ready")[0] == 503, "not ready without its state folder")


def check_limits_of_uploads(lorad):
    with tempfile.TemporaryDirectory() as state:
        root = pathlib.Path(state) / "root"
        shutil.copytree(MODEL / "adapters/json", root / "json")
        link = root / "link"
        link.symlink_to(MODEL / "adapters/json")
        with Server(lorad, "--state-dir", state, "--adapter-file-mib", "1", "--adapter-root", str(root), adapters=()) as server:
            content = b"x" * ((1 << 20) + 1)
            path = f"/v1/adapters/blobs/sha256:{digest_of(content)}"
            check_error(server.request("PUT", path, raw=content), 413, "lora_adapter_file_too_large")
            check_error(server.request("PUT", path, raw=content[:100]), 400, "digest_mismatch")
            check_error(server.post("/v1/load_lora_adapter", lora_name="x", lora_path="/etc"), 403, "adapter_path_forbidden", "lora_path")
            check_equal(server.post("/v1/load_lora_adapter", lora_name="x", lora_path=str(root / "json"))[0], 200, "below the root")
            delete(server, "x")
            check_error(server.post("/v1/load_lora_adapter", lora_name="x", lora_path=str(link)), 403, "adapter_path_forbidden", "lora_path")
        left = [str(f) for f in pathlib.Path(state).rglob("*") if f.is_file() and root not in f.parents and f.stat().st_size > 10000]
        check_equal(left, [], "files in the store")


SHARED = [check_an_adapter_is_uploaded_with_curl_and_used, check_a_form_registers_in_one_call, check_bad_uploads_change_nothing,
          check_validation_is_the_same_report_as_on_the_command_line,
          check_a_b_a_is_each_adapters_own, check_scale_zero_and_no_adapters_are_the_base, check_the_faces_of_other_servers, check_events_are_told,
          check_uploads_that_break_off_leave_nothing]
INVARIANT = [check_mixes_are_sums_in_mixed_batches, check_an_activated_adapter_acts_from_its_tokens_on, check_names_change_under_streaming_traffic]
OWN = [check_adapters_take_turns_in_too_little_room, check_a_restart_brings_names_back, check_acknowledged_uploads_stay,
       check_a_state_folder_that_goes_away_is_noticed, check_limits_of_uploads]
