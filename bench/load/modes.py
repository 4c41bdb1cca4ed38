"""What is compared with what: interference, prefix cache, schema output, overload, idle streams, the client itself."""
import asyncio
import json
import multiprocessing
import random
import statistics
import time

import stats

from load import client, measure, runner, servers, workload


def _prompt(args, n, seed):
    rng = random.Random(seed)
    return [rng.randrange(3, args.vocab) for _ in range(n)]


def _body(args, n_prompt, seed, max_tokens, **more):
    return {"prompt": _prompt(args, n_prompt, seed), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "return_token_ids": True, **({"model": args.models.split(",")[0]} if args.models else {}), **more}


async def _first_token(endpoint, body):
    outcome = await endpoint.send("/v1/completions", body)
    if outcome.ttft is None:
        raise SystemExit(f"no first token: {outcome.error}")
    return outcome.ttft


async def interference(args, endpoint):
    """Time between tokens of streams that decode, alone and while one long prompt after another arrives."""
    phase, stop = "none", False
    gaps = {"none": [], "quiet": [], "long": []}

    async def decode(i):
        nonlocal stop
        while not stop:
            last = None

            def on_token(now):
                nonlocal last
                if last is not None:
                    gaps[phase].append(now - last)
                last = now
                return not stop

            outcome = await endpoint.send("/v1/completions", _body(args, 32, i, args.stream_tokens), on_token)
            if outcome.first is None:
                stop = True
                raise SystemExit(f"a stream got no tokens: {outcome.error}")

    tasks = [asyncio.create_task(decode(i)) for i in range(args.streams)]
    await asyncio.sleep(args.seconds / 4)
    phase = "quiet"
    await asyncio.sleep(args.seconds)
    phase = "long"
    end, long_s, seed = time.perf_counter() + args.seconds, [], 1000
    while time.perf_counter() < end:
        seed += 1
        long_s.append(await _first_token(endpoint, _body(args, args.long_prompt, seed, 1)))
    phase, stop = "none", True
    await asyncio.gather(*tasks)
    if not gaps["quiet"] or not gaps["long"]:
        raise SystemExit("too few tokens in a phase: give more --seconds")
    quiet, long = measure.spread(gaps["quiet"]), measure.spread(gaps["long"])
    return {"case": "interference", "streams": args.streams, "long_prompt": args.long_prompt, "itl_ms_quiet": quiet, "itl_ms_long": long,
            "itl_p99_ratio": long["p99"] / quiet["p99"], "itl_p50_ratio": long["p50"] / quiet["p50"], "long_prompts": len(long_s),
            "long_ttft_ms": measure.spread(long_s)}


async def prefix(args, endpoint):
    """Time to first token of prompts with a common beginning, which is computed once, against prompts with nothing in common."""
    miss, hit = [], []
    shared = _prompt(args, args.shared_prompt, 77)

    async def first(prompt):
        return await _first_token(endpoint, {**_body(args, 1, 0, 1), "prompt": prompt})

    for i in range(2):  # pipelines; and the common part is computed
        await first(_prompt(args, args.shared_prompt + 16, 5000 + i))
        await first(shared + _prompt(args, 16, 78 + i))
    for i in range(args.prefix_requests):
        miss.append(await first(_prompt(args, args.shared_prompt + 16, 2000 + i)))
        hit.append(await first(shared + _prompt(args, 16, 3000 + i)))
    share = statistics.median(hit) / statistics.median(miss)
    return {"case": "prefix", "shared_prompt": args.shared_prompt, "ttft_ms_miss": measure.spread(miss), "ttft_ms_hit": measure.spread(hit),
            "hit_share": share, "hit_share_interval": stats.bootstrap_ratio(miss, hit), "samples": len(hit)}


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags", "address"],
          "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}},
                         "address": {"type": "object", "additionalProperties": False, "required": ["street", "city", "zip"],
                                     "properties": {"street": {"type": "string"}, "city": {"type": "string"}, "zip": {"type": "string"}}}}}


def schema(args, settings):
    """The same load with and without response_format, in turns; tokens per second of all streams, and per request."""
    # A grammar ends an answer when it is complete, so what is compared is the time for a token, not for an answer.
    # Ids are asked for because tokens of random weights may have no text.
    shape = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    formats = {"free": {"return_token_ids": True}, "schema": {"return_token_ids": True, "ignore_eos": None, "response_format": shape}}
    base = {**settings, "workload": {**settings["workload"], "api": "chat"}}
    rates, tpots, rows, index = {"free": [], "schema": []}, {"free": [], "schema": []}, {}, 0
    for round_ in range(args.rounds + 1):
        for name, extra in formats.items():
            index += 1
            one = {**base, "workload": {**base["workload"], "seed": index, "extra": {**base["workload"].get("extra", {}), **extra}}}
            row, outcomes, _ = runner.measured(one)
            if row["errors"]:
                raise SystemExit(f"{name}: {row['first_error']}")
            if round_ == 0:  # pipelines, and the compiled grammar
                continue
            rates[name].append(row["steady_tokens_per_s"] or row["tokens_per_s"])
            tpots[name] += [1e3 * o.tpot for o in outcomes if o.tpot is not None]
            rows[name] = row
    if not tpots["free"] or not tpots["schema"]:
        raise SystemExit("answers of at least two tokens are needed: give a longer --output")
    ratios = [s / f for s, f in zip(rates["schema"], rates["free"])]
    return {"case": "schema", "streams": settings["streams"], "tokens_per_s_free": statistics.median(rates["free"]),
            "tokens_per_s_schema": statistics.median(rates["schema"]), "cost": 1 - statistics.median(ratios),
            "cost_interval": [1 - high for high in reversed(stats.bootstrap(ratios))], "tpot_ms_free": measure.spread(tpots["free"], 1),
            "tpot_ms_schema": measure.spread(tpots["schema"], 1), "tpot_ratio": statistics.median(tpots["schema"]) / statistics.median(tpots["free"]),
            "samples": len(ratios)}


def _plain(args, i):
    return {"prompt": [3 + (i * 7919 + k * 104729) % (args.vocab - 3) for k in range(args.prompt_tokens)], "max_tokens": args.output_tokens,
            "ignore_eos": True, "temperature": 0}


async def _saturation(args, endpoint, seconds):
    """Completed tokens per second of as many clients as there are places. A slow machine takes longer: each place has its second request in it."""
    begin, outcomes = time.perf_counter(), []

    async def one(number):
        i = number
        while time.perf_counter() < begin + seconds or i < 2 * args.places:
            outcomes.append(await endpoint.send("/v1/completions", _plain(args, i)))
            i += args.places

    await asyncio.gather(*(one(i) for i in range(args.places)))
    end = max(begin + seconds, outcomes[2 * args.places - 1].ended)  # in the order of their ends
    return args.output_tokens * sum(o.status == 200 and o.ended <= end for o in outcomes) / (end - begin)


async def _overloaded(args, endpoint, rate):
    seconds = max(args.seconds, 2 * (args.places + args.queue) / rate)  # a slow machine takes longer: more come than there is room for
    times = workload.poisson_arrivals(rate, seconds, "overload")
    begin = time.perf_counter()

    async def one(i, at):
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        return await endpoint.send("/v1/completions", _plain(args, 100000 + i))

    outcomes = await asyncio.gather(*(one(i, at) for i, at in enumerate(times)))
    done = [o for o in outcomes if o.status == 200]
    refused = [o for o in outcomes if o.status in (429, 503)]
    other = [o.error for o in outcomes if o.status not in (200, 429, 503)]
    # The queue is full from its first moments on; what was begun before the end and completed after it counts as what was
    # completed before the queue had filled.
    goodput = sum(args.output_tokens for o in done if o.ended - begin < seconds) / seconds
    return {"sent": len(times), "completed": len(done), "refused": len(refused), "other": len(other), "first_other": (other or [None])[0],
            "goodput_tokens_per_s": goodput, "refusal_ms": measure.spread([o.latency for o in refused]),
            "retry_after_missing": sum(o.retry_after is None for o in refused)}


def overload(args):
    """Requests at a multiple of the rate that a server of its own can complete: what still ends, and how refusals come."""
    with servers.lorad(args.lorad, args.model, "--max-num-seqs", str(args.places), "--max-queue", str(args.queue), "--no-prefix-cache") as server:
        endpoint = client.Endpoint(server.url)

        async def all_of_it():
            await _saturation(args, endpoint, min(2.0, args.seconds))
            full = await _saturation(args, endpoint, args.seconds)
            return full, await _overloaded(args, endpoint, args.factor * full / args.output_tokens)

        full, result = asyncio.run(all_of_it())
    return {"case": "overload", "factor": args.factor, "places": args.places, "queue": args.queue, "saturation_tokens_per_s": full, **result,
            "goodput_share": result["goodput_tokens_per_s"] / full if full else None}


def idle(args):
    """Resident bytes that each of many open event streams costs a server of its own."""
    args.prompt_tokens = 2
    flags = ["--max-num-seqs", str(args.streams), "--max-num-batched-tokens", str(max(1024, args.streams)), "--max-model-len",
             str(args.prompt_tokens + args.stream_tokens), "--max-queue", str(args.streams), "--no-prefix-cache"]
    with servers.lorad(args.lorad, args.model, *flags) as server:
        endpoint = client.Endpoint(server.url)

        async def measure_it():
            # What is allocated once is not a stream's: recordings of steps of all sizes, pages of the KV cache. As many sequences
            # in few requests come to the same without the streams.
            lists = [{**_plain(args, 0), "max_tokens": 64, "prompt": [_plain(args, i)["prompt"] for i in range(begin, min(begin + 100, args.streams))]}
                     for begin in range(0, args.streams, 100)]
            await asyncio.gather(*(endpoint.send("/v1/completions", body) for body in lists))
            before, opened = server.resident_bytes(), set()
            tasks = [asyncio.create_task(endpoint.send("/v1/completions", {**_plain(args, i), "stream": True, "max_tokens": args.stream_tokens,
                                                                           "return_token_ids": True}, lambda _, i=i: opened.add(i)))
                     for i in range(args.streams)]
            end = time.perf_counter() + 300
            while len(opened) < args.streams and time.perf_counter() < end and not any(task.done() for task in tasks):
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            held = len(opened) - sum(task.done() for task in tasks)
            during, threads = server.resident_bytes(), server.n_threads()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return {"case": "idle_streams", "streams": args.streams, "held": held, "threads": threads, "resident_mib_before": before / 2**20,
                    "resident_mib_during": during / 2**20, "kib_per_stream": (during - before) / 1024 / max(held, 1)}

        return asyncio.run(measure_it())


def _fake_server(port, ready):
    """Streams chunks shaped like a server's: as fast as they are taken, or at a rate per stream, as the request asks."""

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        body = json.loads(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

        def chunk(text):
            event = b"data: " + text + b"\n\n"
            return b"%x\r\n%s\r\n" % (len(event), event)

        token = chunk(b'{"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"base","choices":[{"index":0,'
                      b'"text":" token","logprobs":null,"finish_reason":null,"token_ids":[1234]}]}')
        rate, start = body.get("rate_per_stream"), time.perf_counter()
        for i in range(body["max_tokens"]):
            if rate:
                await asyncio.sleep(max(0.0, start + (i + 1) / rate - time.perf_counter()))
            writer.write(token)
            await writer.drain()
        writer.write(chunk(b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}' % body["max_tokens"]))
        writer.write(chunk(b"[DONE]") + b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        ready.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def client_limit(args):
    """Tokens per second that this client itself can take from servers that do nothing else; and its lateness at a given rate."""
    context = multiprocessing.get_context("fork")
    ready = context.Queue()
    fake = context.Process(target=_fake_server, args=(0, ready), daemon=True)
    fake.start()
    url = f"http://127.0.0.1:{ready.get(timeout=20)}"
    rows = []
    try:
        for streams in args.streams_list:
            settings = {"url": url, "streams": streams, "requests": streams, "processes": args.processes,
                        "workload": {"prompt": "1", "output": str(args.output_tokens), "extra": {}}}
            if args.rate_per_stream:
                settings["workload"]["extra"] = {"rate_per_stream": args.rate_per_stream}
            cpu = time.process_time()
            row, _, _ = runner.measured(settings)
            cpu = time.process_time() - cpu
            rows.append({"case": "client_limit", "streams": streams, "processes": args.processes, "rate_per_stream": args.rate_per_stream,
                         "tokens_per_s": row["tokens_per_s"], "itl_ms": row["itl_ms"], "errors": row["errors"],
                         "us_of_cpu_per_token": 1e6 * cpu / row["tokens"] if args.processes == 1 else None, "samples": 1})
    finally:
        fake.terminate()
    return rows
