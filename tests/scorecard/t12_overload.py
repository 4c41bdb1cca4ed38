#!/usr/bin/env python3
"""T12: at four times what it can take the daemon goes on at full speed, refuses the rest at once, and is as before when the flood is over."""
# beside others: yes

import asyncio
import sys
import threading
import time

from frame import ROOT, check, main
from streams import metrics

sys.path.insert(0, str(ROOT / "bench"))

from load import client, workload  # noqa: E402

PLACES, QUEUE, PROMPT, OUTPUT = 8, 16, 32, 32
ARRIVALS_MIN = 4 * (PLACES + QUEUE)  # of a flood: of these three quarters are too many, more than all places and the queue take
QUEUE_TOKENS = QUEUE * PROMPT // 2  # less than so many requests have, so that both limits are met
FLAGS = ("--max-num-seqs", str(PLACES), "--max-queue", str(QUEUE), "--max-num-queued-tokens", str(QUEUE_TOKENS), "--no-prefix-cache", "--http-threads", "256",
         "--max-connections-per-address", "0")


def body(i):
    rng = workload.random.Random(i)
    return {"model": "base", "prompt": [rng.randrange(3, 200) for _ in range(PROMPT)], "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True,
            "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


async def saturated(endpoint, seconds):
    """Tokens per second of as many requests at once as there are places, and the times to their first tokens. A slow machine takes longer: each place
    has its second request in it."""
    begin = time.perf_counter()
    end = begin + seconds
    outcomes = []

    async def one(number):
        i = number
        while time.perf_counter() < end or i < 2 * PLACES:
            outcomes.append(await endpoint.send("/v1/completions", body(i)))
            i += PLACES

    await asyncio.gather(*(one(i) for i in range(PLACES)))
    end = max(end, outcomes[2 * PLACES - 1].ended)  # in the order of their ends
    counted = [o for o in outcomes if o.ok and o.ended <= end]
    return sum(o.tokens for o in counted) / (end - begin), counted


async def at_rate(endpoint, rate, seconds, seed):
    begin = time.perf_counter()

    async def one(i, at):
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        return at, await endpoint.send("/v1/completions", body(10_000 + i))

    sent = await asyncio.gather(*(one(i, at) for i, at in enumerate(workload.poisson_arrivals(rate, seconds, seed))))
    return begin, sent


class Watch(threading.Thread):
    """The highest that the queue was seen at."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.over, self.most = server, threading.Event(), {"vllm:num_requests_waiting": 0.0, "lorad_waiting_tokens": 0.0}
        self.start()

    def run(self):
        while not self.over.wait(0.05):
            for name, value in metrics(self.server, self.most).items():
                self.most[name] = max(self.most[name], value)


def run(card):
    seconds = 3 if card.quick else 60 if card.tier == "nightly" else 600
    with card.part("four times too much, then half"), card.server(*FLAGS, adapters=()) as server:
        endpoint = client.Endpoint(f"http://{server.host}:{server.port}")
        asyncio.run(saturated(endpoint, min(seconds, 3)))
        full, alone = asyncio.run(saturated(endpoint, seconds))
        check(alone, "no request was answered")
        rate = full / OUTPUT
        seconds = max(seconds, ARRIVALS_MIN / (4 * rate))
        # What an accepted request may wait for: a queue's worth of work, then its place.
        budget = 1.5 * (QUEUE + PLACES) / rate
        watch = Watch(server)
        # More where a machine that was busy while it was measured has more to give now.
        for times in (4, 8, 16):
            begin, flood = asyncio.run(at_rate(endpoint, times * rate, seconds, card.seed))
            if any(o.status in (429, 503) for _, o in flood):
                break
        after_begin, after = asyncio.run(at_rate(endpoint, 0.5 * rate, max(10, seconds / 2), card.seed + 1))
        watch.over.set()
        done = [o for _, o in flood if o.status == 200]
        refused = [o for _, o in flood if o.status in (429, 503)]
        other = [o for _, o in flood if o.status not in (200, 429, 503) or (o.status == 200 and o.error)]
        check(done and refused, f"{len(done)} answered, {len(refused)} refused, first other: {other[0].error if other else None}")
        check(not other, f"{len(other)} ended otherwise, first: {other and other[0].error}")
        check(all(o.retry_after for o in refused), "a refusal without Retry-After")
        goodput = sum(o.tokens for o in done if o.ended - begin < seconds) / seconds
        check(watch.most["vllm:num_requests_waiting"] <= QUEUE, f"{watch.most} waiting")
        check(watch.most["lorad_waiting_tokens"] <= QUEUE_TOKENS, f"{watch.most} waiting")
        card.figure("saturation tokens/s", full)
        card.figure("refused", len(refused))
        card.trials += len(flood)
        card.grade("goodput of saturation %", 100 * goodput / full, 95, better="higher")
        card.grade("refusal p99 ms", 1000 * percentile([o.latency for o in refused], 0.99), 50)
        card.grade("accepted first token p99 of budget %", 100 * percentile([o.ttft for o in done], 0.99) / budget, 100)
        # As before: what came later than this after the flood had first tokens like those of a server at half load.
        usual = 2 * percentile([o.ttft for o in alone], 0.99)
        late = [at for at, o in after if not o.ok or o.ttft > usual]
        card.grade("as before after s", max(late, default=0.0), 5)
        card.trials += len(after)
    if card.quick or card.tier == "nightly":
        card.short_of(f"10 minutes at 4 times ({seconds} s here): --tier release")


if __name__ == "__main__":
    main("T12", run)
