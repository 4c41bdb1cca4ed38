"""Sends a workload: a fixed number of streams, or requests at the times of a Poisson process, from one process or several."""
import asyncio
import multiprocessing
import sys
import time

from load import client, measure, workload


class Progress:
    """One line on stderr every second: what was sent, runs, is done; tokens per second of the last second."""

    def __init__(self, show):
        self.show = show
        self.sent = self.running = self.done = self.errors = self.tokens = 0
        self.per_second = []  # (seconds since the start, tokens, running)
        self._begin = time.perf_counter()

    def token(self, _now):
        self.tokens += 1

    async def watch(self):
        last_tokens, last = 0, self._begin
        try:
            while True:
                await asyncio.sleep(1)
                now = time.perf_counter()
                rate = (self.tokens - last_tokens) / (now - last)
                last_tokens, last = self.tokens, now
                self.per_second.append((now - self._begin, rate, self.running))
                if self.show:
                    print(f"\r{now - self._begin:6.0f} s  sent {self.sent:6d}  running {self.running:4d}  done {self.done:6d}  "
                          f"errors {self.errors:4d}  {rate:9.1f} tok/s ", end="", file=sys.stderr, flush=True)
        finally:
            if self.show and self.per_second:
                print(file=sys.stderr)


async def _one(endpoint, load, index, progress):
    progress.sent += 1
    progress.running += 1
    outcome = await endpoint.send(load.path, load.body(index), progress.token)
    progress.running -= 1
    progress.done += 1
    progress.errors += not outcome.ok
    return outcome


async def closed(endpoint, load, n_streams, n_requests, first_index=0, progress=None, until=None):
    """n_streams clients, each one request after another: n_requests in all, or until the time `until`."""
    progress = progress or Progress(False)
    outcomes, indices = [], iter(range(first_index, first_index + (n_requests or 1 << 60)))

    async def stream():
        for index in indices:
            if until is not None and time.perf_counter() >= until:
                return
            outcomes.append(await _one(endpoint, load, index, progress))

    await asyncio.gather(*(stream() for _ in range(n_streams)))
    return outcomes


async def opened(endpoint, load, times, first_index=0, progress=None):
    """A request at each of the times, whether or not earlier ones were answered."""
    progress = progress or Progress(False)
    begin = time.perf_counter()

    async def later(at, index):
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        return await _one(endpoint, load, index, progress)

    return list(await asyncio.gather(*(later(at, first_index + i) for i, at in enumerate(times))))


async def _with_progress(make, show):
    progress = Progress(show)
    watch = asyncio.create_task(progress.watch())
    try:
        return await make(progress), progress
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


def _run_here(settings, part, n_parts, show):
    """The share `part` of n_parts of a run, in this process."""
    endpoint = client.Endpoint(settings["url"], settings.get("api_key"), settings.get("timeout", 600.0))
    load = workload.Workload(**settings["workload"])
    first = (1 + part) * 10_000_000 if n_parts > 1 else 0
    if settings.get("rate"):
        times = workload.poisson_arrivals(settings["rate"] / n_parts, settings["seconds"], f"{settings['workload'].get('seed', 1)} {part}")
        return asyncio.run(_with_progress(lambda progress: opened(endpoint, load, times, first, progress), show))
    streams = settings["streams"] // n_parts + (part < settings["streams"] % n_parts)
    requests = settings["requests"] // n_parts + (part < settings["requests"] % n_parts)
    until = time.perf_counter() + settings["seconds"] if settings.get("seconds") else None
    return asyncio.run(_with_progress(lambda progress: closed(endpoint, load, streams, requests, first, progress, until), show))


def _run_part(settings, part, n_parts, pipe):
    try:
        outcomes, progress = _run_here(settings, part, n_parts, False)
        pipe.send((outcomes, progress.per_second))
    except BaseException as error:  # told to the parent, who would wait for ever
        pipe.send(error if isinstance(error, Exception) else RuntimeError(repr(error)))
    pipe.close()


def run(settings, show=False):
    """settings: url, workload (arguments of Workload), streams and requests or seconds, or rate and seconds; processes.

    Returns (outcomes, seconds, tokens per second by second). perf_counter is one clock for all processes of a machine.
    """
    n_parts = max(1, min(settings.get("processes", 1), settings.get("streams") or 1 << 30))
    begin = time.perf_counter()
    if n_parts == 1:
        outcomes, progress = _run_here(settings, 0, 1, show)
        series = progress.per_second
    else:
        context = multiprocessing.get_context("fork")
        pipes, processes = [], []
        for part in range(n_parts):
            mine, theirs = context.Pipe(False)
            process = context.Process(target=_run_part, args=(settings, part, n_parts, theirs))
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        outcomes, by_part = [], []
        for pipe in pipes:
            part = pipe.recv()
            if isinstance(part, Exception):
                raise part
            outcomes += part[0]
            by_part.append(part[1])
        for process in processes:
            process.join()
        series = [(sum(s[0] for s in second) / len(second), sum(s[1] for s in second), sum(s[2] for s in second)) for second in zip(*by_part)]
    if not outcomes:
        raise SystemExit("nothing was sent: no requests within the given time")
    seconds = max(o.ended for o in outcomes) - max(begin, min(o.started for o in outcomes))
    return outcomes, seconds, series


def measured(settings, bounds=None, show=False):
    """A run's figures, and its outcomes."""
    outcomes, seconds, series = run(settings, show)
    result = measure.summarize(outcomes, seconds, bounds, settings.get("streams"))
    return {"case": "http", "streams": settings.get("streams"), "rate": settings.get("rate"), "prompt": str(settings["workload"].get("prompt", "32")),
            "output": str(settings["workload"].get("output", "64")), "mix": settings["workload"].get("mix", "robin"),
            "models": len(settings["workload"].get("models") or []) or None, **result}, outcomes, series
