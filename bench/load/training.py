"""Streams that decode beside a training job: time between their tokens with and without it, and what the job gets."""
import asyncio
import json
import random
import re
import tempfile
import time
import uuid

from load import client, measure, modes, servers


class _Clients:
    """Streams that decode for as long as the benchmark runs, and the gaps between their tokens by phase."""

    def __init__(self, args, endpoint):
        self.args, self.endpoint = args, endpoint
        self.phase, self.gaps, self.stopped, self.error = "warm-up", {}, False, None
        self.tasks = [asyncio.create_task(self._decode(i)) for i in range(args.streams)]

    async def _decode(self, i):
        number = 0
        while not self.stopped:
            last = None

            def on_token(now):
                nonlocal last
                if last is not None:
                    self.gaps.setdefault(self.phase, []).append(now - last)
                last = now
                return not self.stopped

            number += 1
            outcome = await self.endpoint.send("/v1/completions", modes._body(self.args, 32, 1000 * i + number, self.args.stream_tokens), on_token)
            if outcome.first is None:
                self.error, self.stopped = outcome.error, True

    async def stay(self, phase, seconds):
        self.phase = phase
        await asyncio.sleep(seconds)
        if self.error:
            raise SystemExit(f"a stream got no tokens: {self.error}")

    async def stop(self):
        self.stopped = True
        await asyncio.gather(*self.tasks)


class _Job:
    """A job of random tokens, long enough not to end by itself."""

    def __init__(self, args, server):
        rng, boundary = random.Random(5), uuid.uuid4().hex
        lines = ""
        for _ in range(args.sequences):
            tokens = [rng.randrange(3, args.vocab) for _ in range(args.tokens)]
            lines += json.dumps({"tokens": tokens, "labels": tokens}) + "\n"
        form = (f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--{boundary}\r\nContent-Disposition: form-data; '
                f'name="file"; filename="random.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n{lines}\r\n--{boundary}--\r\n')
        self.server, self.form, self.form_type, self.args = server, form.encode(), f"multipart/form-data; boundary={boundary}", args
        self.id = None

    def start(self):
        file = self.server.must("POST", "/v1/files", self.form, self.form_type)["id"]
        self.id = self.server.must("POST", "/v1/fine_tuning/jobs", {
            "model": self.server.must("GET", "/v1/models")["data"][0]["id"], "training_file": file, "suffix": "bench", "max_steps": 100000,
            "hyperparameters": {"batch_size": self.args.batch}, "lora_r": self.args.rank, "max_seq_length": self.args.tokens})["id"]

    def counters(self):
        """Seconds of the device that training has had, and tokens of the steps that are done."""
        text = self.server.call("GET", "/metrics")[1].decode()
        return [float(re.search(rf"^{name} ([0-9.e+-]+)$", text, re.MULTILINE)[1]) for name in ("lorad_training_device_seconds_total", "lorad_training_tokens")]

    def told(self):
        return self.server.must("GET", f"/v1/fine_tuning/jobs/{self.id}")

    def cancel(self):
        self.server.call("POST", f"/v1/fine_tuning/jobs/{self.id}/cancel", {})


async def _phase_of_job(job, wait):
    """What a job gets in a phase: share of the device, and tokens a second from the end of one step to that of another."""
    begin, (device_s, _) = time.perf_counter(), await asyncio.to_thread(job.counters)
    ends = []
    task = asyncio.create_task(wait)
    last = None
    while not task.done():
        await asyncio.wait([task], timeout=0.1)
        tokens = (await asyncio.to_thread(job.counters))[1]
        if tokens != last:
            ends.append((time.perf_counter(), tokens))
        last = tokens
    await task
    seconds, (device_end_s, _) = time.perf_counter() - begin, await asyncio.to_thread(job.counters)
    ends = ends[1:]  # the first is where looking began
    rate = (ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0]) if len(ends) > 1 else None
    return {"device_share": (device_end_s - device_s) / seconds, "tokens_per_s": rate, "steps": max(0, len(ends) - 1)}


async def _measure(args, server):
    clients, job = _Clients(args, client.Endpoint(server.url)), _Job(args, server)
    await clients.stay("warm-up", args.seconds / 3)
    await clients.stay("quiet", args.seconds)
    clients.phase = "start"
    began = time.perf_counter()
    await asyncio.to_thread(job.start)
    # The job's first pieces have run when training has had the device.
    while (await asyncio.to_thread(job.counters))[0] == 0:
        told = await asyncio.to_thread(job.told)
        if told["status"] in ("failed", "cancelled", "succeeded") or time.perf_counter() > began + 60:
            raise SystemExit(f"the job did not begin: {told['status']}: {told.get('error')}")
        await clients.stay("start", 0.1)
    start_s = time.perf_counter() - began
    beside = await _phase_of_job(job, clients.stay("beside", args.seconds))
    await asyncio.to_thread(job.cancel)
    await clients.stay("ending", 1.0)
    await clients.stay("quiet again", args.seconds / 3)
    await clients.stop()
    alone = None
    if args.alone > 0:
        await asyncio.to_thread(job.start)
        await asyncio.sleep(2)
        alone = await _phase_of_job(job, asyncio.sleep(args.alone))
        await asyncio.to_thread(job.cancel)
    gaps = clients.gaps
    for phase in ("quiet", "beside", "quiet again"):
        if not gaps.get(phase):
            raise SystemExit(f"too few tokens in the phase \"{phase}\": give more --seconds")
    quiet, with_job, again = (measure.spread(gaps[phase]) for phase in ("quiet", "beside", "quiet again"))
    return {"case": "training", "streams": args.streams, "tokens": args.tokens, "batch": args.batch, "rank": args.rank, "itl_ms_quiet": quiet,
            "itl_ms_start": measure.spread(gaps.get("start", [])), "itl_ms_beside": with_job, "itl_ms_quiet_again": again, "start_s": start_s,
            "itl_p99_ratio": with_job["p99"] / quiet["p99"], "itl_p50_ratio": with_job["p50"] / quiet["p50"], "beside": beside, "alone": alone}


def training(args):
    """A server of its own with a state folder that is gone afterwards; flags for it behind --."""
    with tempfile.TemporaryDirectory(prefix="load-training-") as state:
        with servers.lorad(args.lorad, args.model, *args.flags, state_dir=state) as server:
            return asyncio.run(_measure(args, server))


def line(row):
    def job(of):
        if of is None:
            return "-"
        rate = f"{of['tokens_per_s']:.0f} tok/s" if of["tokens_per_s"] is not None else "no two ends of steps"
        return f"{rate}, {100 * of['device_share']:.1f} % of the device"

    quiet, beside, again = row["itl_ms_quiet"], row["itl_ms_beside"], row["itl_ms_quiet_again"]
    start = row["itl_ms_start"]
    return (f"{row['streams']} streams beside a job of {row['batch']} x {row['tokens']} tokens a step: between tokens p50 {beside['p50']:.2f} ms, "
            f"p99 {beside['p99']:.2f}, max {beside['max']:.1f}; quiet {quiet['p50']:.2f}, {quiet['p99']:.2f}, {quiet['max']:.1f}; behind it {again['p50']:.2f}, "
            f"{again['p99']:.2f}; p99 x{row['itl_p99_ratio']:.3f}, p50 x{row['itl_p50_ratio']:.3f}\n"
            f"  the job: {job(row['beside'])}; alone: {job(row['alone'])}; it began within {row['start_s']:.1f} s"
            + (f", in which the longest gap was {start['max']:.1f} ms" if start else ""))
