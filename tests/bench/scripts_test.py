"""Statistics, parsers and generators of the benchmark scripts. No device, no server but a fake one."""
import asyncio
import json
import math
import pathlib
import random
import statistics
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

BENCH = pathlib.Path(__file__).resolve().parent.parent.parent / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]

import compare  # noqa: E402
import llama  # noqa: E402
import report  # noqa: E402
import stats  # noqa: E402
import svg  # noqa: E402
from load import client, http_cost, measure, runner, workload  # noqa: E402


class Statistics(unittest.TestCase):
    def test_percentiles_interpolate_and_keep_the_ends(self):
        self.assertEqual(stats.percentile([3, 1, 2], 0), 1)
        self.assertEqual(stats.percentile([3, 1, 2], 1), 3)
        self.assertEqual(stats.percentile([1, 2, 3, 4], 0.5), 2.5)
        self.assertAlmostEqual(stats.percentile(range(101), 0.99), 99)
        self.assertTrue(math.isnan(stats.percentile([], 0.5)))

    def test_a_bootstrap_interval_covers_the_median_about_as_often_as_it_says(self):
        covered = 0
        for seed in range(200):
            rng = random.Random(seed)
            low, high = stats.bootstrap([rng.gauss(10, 2) for _ in range(30)], n=300, seed=seed)
            covered += low <= 10 <= high
        # 95 % nominal; percentile intervals of a median of 30 fall a little short. 200 trials: three deviations are 5 %.
        self.assertGreater(covered, 172)

    def test_a_result_line_that_is_no_json_is_named_by_its_number(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"case":"a"}\nnot json\n')
            file.flush()
            with self.assertRaisesRegex(SystemExit, ":2:"):
                stats.read_rows(file.name)

    def test_a_case_is_the_same_whatever_was_measured(self):
        row = {"case": "decode", "batch": 8, "median": 5.0, "values": [5.0], "git": "a", "date": "x", "device": "y"}
        self.assertEqual(stats.case_key(row), stats.case_key({**row, "median": 6.0, "git": "b", "date": "z"}))
        self.assertNotEqual(stats.case_key(row), stats.case_key({**row, "batch": 16}))


def rows(median, seed, spread=0.02, n=40, **more):
    rng = random.Random(seed)
    values = [median * (1 + rng.gauss(0, spread)) for _ in range(n)]
    return [{"case": "decode", "batch": 8, "unit": "ms", "median": statistics.median(values), "values": values, **more}]


class Compare(unittest.TestCase):
    def word(self, old, new, threshold=0.03):
        return compare.compare_files(rows(old, 1), rows(new, 2), threshold)[0][-1]

    def test_verdicts_follow_the_interval(self):
        self.assertEqual(self.word(5.0, 5.0), "same")
        self.assertEqual(self.word(5.0, 5.5), "slower")
        self.assertEqual(self.word(5.0, 4.5), "faster")
        noisy = compare.compare_files(rows(5, 1, 0.5, 6), rows(5.1, 2, 0.5, 6), 0.03)[0][-1]
        self.assertEqual(noisy, "unclear")

    def test_rates_are_turned_round(self):
        result = compare.compare_files(rows(100, 1, unit="GB/s"), rows(80, 2, unit="GB/s"), 0.03)
        self.assertEqual(result[0][-1], "slower")

    def test_pairs_cancel_a_drift_that_separate_runs_would_show(self):
        pairs = [(rows(5 + i, i), rows(5 + i, 100 + i)) for i in range(5)]
        self.assertEqual(compare.compare_pairs(pairs, 0.03)[0][-1], "same")

    def test_cases_that_only_one_file_has_are_not_compared(self):
        self.assertEqual(compare.compare_files(rows(5, 1), rows(5, 1, batch=9), 0.03), [])


class Peers(unittest.TestCase):
    def test_llama_bench_runs_become_samples_in_ms_a_step(self):
        lines = [{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "samples_ns": [2e7, 4e7, 3e7]}, {"n_prompt": 0, "n_gen": 64, "n_depth": 128, "samples_ns": [64e6]}]
        prefill, decode = llama.from_llama_bench(lines, "m")
        self.assertEqual((prefill["case"], prefill["tokens"], prefill["median"], prefill["samples"]), ("prefill", 512, 30, 3))
        self.assertAlmostEqual(prefill["tokens_per_s"], 512 / 0.03)
        self.assertEqual((decode["batch"], decode["context"], decode["median"]), (1, 160, 1.0))

    def test_batched_runs_of_one_case_are_joined(self):
        one = {"pl": 8, "pp": 128, "tg": 64, "t_tg": 0.64}
        row, = llama.from_batched_bench([[one], [{**one, "t_tg": 1.28}]], "m")
        self.assertEqual((row["batch"], row["context"], row["values"]), (8, 160, [10, 20]))
        self.assertAlmostEqual(row["tokens_per_s"], 8 / 0.015)


class Report(unittest.TestCase):
    def decode(self, **more):
        return {"case": "decode", "engine": "lorad", "model": "7b-f16", "batch": 1, "context": 160, "chunk": 0, "adapters": 0, "mix": "none", "in_flight": 1,
                "unit": "ms", "median": 4.0, "p10": 3.9, "p90": 4.2, "samples": 9, "tokens_per_s": 250.0, "floor_ms": 3.0, "of_floor": 0.75, **more}

    def test_every_target_is_judged_or_said_to_be_missing(self):
        targets = json.loads((BENCH / "targets.json").read_text())
        judged = report.judge([self.decode(), self.decode(in_flight=2, median=3.5, tokens_per_s=285.7)], targets)
        self.assertEqual(len(judged), len(targets))
        first = judged[0]
        self.assertEqual((first["value"], first["met"], first["n"]), (285.7, True, 2))
        self.assertTrue(all(item["met"] is None for item in judged[1:]))

    def test_of_single_operations_the_worst_counts(self):
        ops = [{"case": "op", "engine": "lorad", "op": "lora", "n": 512, "rank": r, "type": "f32", "unit": "us", "median": m, "p10": m, "p90": m, "samples": 9} for r, m in ((4, 3.0), (64, 5.0))]
        target = [t for t in json.loads((BENCH / "targets.json").read_text()) if t["match"].get("op") == "lora"]
        item, = report.judge(ops, target)
        self.assertEqual((item["value"], item["met"]), (5.0, False))

    def test_the_peer_is_found_by_sizes_and_shown_as_a_ratio(self):
        peer = self.decode(engine="llama.cpp", tokens_per_s=200.0, context=140)
        table = "\n".join(report.targets_table(report.judge([self.decode(), peer], json.loads((BENCH / "targets.json").read_text()))))
        self.assertIn("| 200 (llama.cpp) | 1.25 |", table)

    def test_operations_are_compared_with_pytorch_by_time(self):
        op = {"case": "op", "engine": "lorad", "op": "softmax", "rows": 64, "n": 1024, "type": "f32", "unit": "us", "median": 2.0, "p10": 2.0, "p90": 2.1, "samples": 9}
        targets = [t for t in json.loads((BENCH / "targets.json").read_text()) if t["match"].get("op") == "softmax"]
        others = [{**op, "engine": "pytorch", "median": 9.0, "type": "f16"}, {**op, "engine": "pytorch", "median": 3.0}]
        self.assertIn("| 3 (pytorch) | 1.50 |", "\n".join(report.targets_table(report.judge([op, *others], targets))))

    def test_plots_are_well_formed_and_hold_all_series(self):
        results = [self.decode(batch=b, median=4 + b / 50, p10=4, p90=5, tokens_per_s=1e3 * b / (4 + b / 50)) for b in (1, 8, 64)]
        results += [self.decode(batch=64, adapters=n, mix="distinct", median=6.0 + n / 10) for n in (1, 8)]
        results += [self.decode(context=1024), self.decode(batch=64, engine="llama.cpp")]
        made = dict(report.plots(results))
        self.assertEqual(sorted(made), ["7b-f16-adapters.svg", "7b-f16-latency.svg", "7b-f16-throughput.svg"])
        for text in made.values():
            ElementTree.fromstring(text)
        for name in ("lorad", "llama.cpp", "floor"):
            self.assertIn(f">{name}</text>", made["7b-f16-throughput.svg"])


class Svg(unittest.TestCase):
    def test_ticks_cover_the_values_with_round_numbers(self):
        for low, high in ((0, 0.37), (0, 9999), (3, 4), (0, 1)):
            ticks = svg.linear_ticks(low, high)
            self.assertLessEqual(ticks[0], low)
            self.assertGreaterEqual(ticks[-1], high)
            self.assertLess(len(ticks), 12)
        self.assertEqual(svg.log_ticks([1, 64])[0], 1)
        self.assertEqual(svg.log_ticks([1, 64])[-1], 64)

    def test_names_are_escaped_and_what_cannot_be_drawn_is_left_out(self):
        text = svg.line_chart("a <b> & c", "x", "y", [("s<1>", [(1, 2), (2, float("nan")), (3, 4)], False)], log_x=True)
        ElementTree.fromstring(text)
        with self.assertRaises(ValueError):
            svg.line_chart("t", "x", "y", [("s", [(0, 1)], False)], log_x=True)


class Workload(unittest.TestCase):
    def test_lengths_have_the_distribution_that_was_asked_for(self):
        rng = random.Random(3)
        draws = [workload.Lengths("lognormal:256:0.8").draw(rng) for _ in range(4000)]
        # The median of 4,000 draws: a deviation of 1.25 * 0.8 / sqrt(4000) = 1.6 %; four of them.
        self.assertAlmostEqual(statistics.median(draws) / 256, 1, delta=0.064)
        self.assertEqual({workload.Lengths("77").draw(rng)}, {77})
        uniform = [workload.Lengths("uniform:5:9").draw(rng) for _ in range(500)]
        self.assertEqual((min(uniform), max(uniform)), (5, 9))
        self.assertLessEqual(max(workload.Lengths("normal:100:80:max=120").draw(rng) for _ in range(500)), 120)
        share = sum(workload.Lengths("choice:10*3,20").draw(rng) == 10 for _ in range(4000)) / 4000
        self.assertAlmostEqual(share, 0.75, delta=0.03)
        for bad in ("x", "uniform:9:5", "uniform:1", "lognormal:a:b", ""):
            with self.assertRaises(SystemExit):
                workload.Lengths(bad)

    def test_zipf_prefers_the_first_names_as_much_as_its_exponent_says(self):
        models, rng = workload.Models([f"a{i}" for i in range(1, 9)], "zipf:1.0"), random.Random(5)
        draws = [models.draw(i, rng) for i in range(8000)]
        self.assertAlmostEqual(draws.count("a1") / draws.count("a2"), 2, delta=0.25)
        self.assertAlmostEqual(draws.count("a1") / draws.count("a4"), 4, delta=0.7)

    def test_arrivals_are_poisson(self):
        times = workload.poisson_arrivals(50, 40, 1)
        gaps = [b - a for a, b in zip(times, times[1:])]
        # 2,000 expected: a deviation of 45. Exponential gaps deviate by their mean.
        self.assertAlmostEqual(len(times), 2000, delta=180)
        self.assertAlmostEqual(statistics.pstdev(gaps) / statistics.mean(gaps), 1, delta=0.12)
        self.assertEqual(times, workload.poisson_arrivals(50, 40, 1))

    def test_a_request_depends_on_seed_and_index_alone(self):
        one, two = (workload.Workload(prompt="uniform:4:40", models=["a", "b"], mix="uniform", seed=9) for _ in range(2))
        self.assertEqual([one.body(i) for i in (5, 3, 4)], [two.body(i) for i in (5, 3, 4)])
        self.assertNotEqual(one.body(1)["prompt"], one.body(2)["prompt"])

    def test_names_are_expanded(self):
        self.assertEqual(workload.expand_names("base,a{1..3},x"), ["base", "a1", "a2", "a3", "x"])
        self.assertEqual(workload.expand_names(""), [])


def token(i):
    return json.dumps({"choices": [{"index": 0, "text": f" {i}", "finish_reason": None, "token_ids": [i]}]}, separators=(",", ":")).encode()


def response(events, chunk_sizes):
    """A chunked event stream whose chunk borders fall anywhere."""
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    parts, at, i = [], 0, 0
    while at < len(body):
        n = chunk_sizes[i % len(chunk_sizes)]
        piece = body[at:at + n]
        parts.append(b"%x\r\n%s\r\n" % (len(piece), piece))
        at, i = at + n, i + 1
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + b"0\r\n\r\n"


class Client(unittest.TestCase):
    def test_events_are_the_same_wherever_chunks_and_packets_end(self):
        events = [token(i) for i in range(20)] + [b"[DONE]"]
        rng = random.Random(8)
        for _ in range(50):
            data = response(events, [rng.randint(1, 90) for _ in range(7)])
            seen = []
            parser = client.EventParser(seen.append)
            at = 0
            while at < len(data):
                n = rng.randint(1, 60)
                parser.feed(data[at:at + n])
                at += n
            self.assertEqual(seen, events)
            self.assertTrue(parser.done)

    def serve(self, answer, work):
        """Runs work(endpoint) against a server that gives this answer to everybody."""
        async def handle(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            writer.write(answer)
            await writer.drain()
            writer.close()

        async def main():
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            async with server:
                return await work(client.Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=5))

        return asyncio.run(main())

    def one(self, answer):
        return self.serve(answer, lambda endpoint: endpoint.send("/v1/completions", {"stream": True}))

    def test_tokens_usage_and_the_first_token_are_taken_from_a_stream(self):
        role = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
        last = b'{"choices":[{"index":0,"text":"","finish_reason":"length"}]}'
        usage = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":21}}'
        outcome = self.one(response([role] + [token(i) for i in range(20)] + [last, usage, b"[DONE]"], [64]))
        self.assertTrue(outcome.ok, outcome.error)
        self.assertEqual((len(outcome.arrivals), outcome.tokens, outcome.prompt_tokens), (20, 21, 7))
        self.assertEqual(outcome.first, outcome.arrivals[0])
        self.assertEqual(outcome.last, outcome.arrivals[-1])

    def test_the_first_token_stays_the_first_in_streams_of_other_shapes(self):
        bare = [b'{"choices":[{"delta":{"content":"%d"}}]}' % i for i in range(9)]
        outcome = self.one(response(bare + [b"[DONE]"], [1000]))
        self.assertEqual((len(outcome.arrivals), outcome.tokens, outcome.first), (9, 9, outcome.arrivals[0]))

    def test_failures_of_all_kinds_are_told_and_never_raised(self):
        body = b'{"error":{"message":"busy"}}'
        refused = self.one(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.assertEqual((refused.status, refused.retry_after, refused.ok), (429, "3", False))
        self.assertIn("busy", refused.error)
        broken = self.one(response([token(1)] * 5, [40])[:-60])
        self.assertIn("ended before", broken.error)
        in_stream = self.one(response([token(1), b'{"error":{"message":"device lost"}}'], [100]))
        self.assertIn("device lost", in_stream.error)
        self.assertIn("no HTTP", self.one(b"hello\r\n\r\n").error)

        async def nobody():
            return await client.Endpoint("http://127.0.0.1:1", timeout=2).send("/", {})

        self.assertIn("Connection", asyncio.run(nobody()).error)

    def test_fixed_concurrency_never_exceeds_its_streams_and_sends_all(self):
        answer = response([token(i) for i in range(4)] + [b"[DONE]"], [50])
        load = workload.Workload(prompt="2", output="4")

        async def work(endpoint):
            progress = runner.Progress(False)
            outcomes = await runner.closed(endpoint, load, 3, 11, progress=progress)
            return outcomes, progress

        outcomes, progress = self.serve(answer, work)
        self.assertEqual((len(outcomes), progress.sent, progress.running, progress.tokens), (11, 11, 0, 44))
        self.assertTrue(all(o.ok for o in outcomes))


def outcome(started, first, gap, n, error=None):
    arrivals = [first + i * gap for i in range(n)]
    return client.Outcome(started=started, status=200, first=first, last=arrivals[-1], ended=arrivals[-1], arrivals=arrivals, tokens=n, error=error)


class Measure(unittest.TestCase):
    def test_goodput_counts_requests_within_all_bounds(self):
        outcomes = [outcome(0, 0.1, 0.01, 10), outcome(0, 0.9, 0.01, 10), outcome(0, 0.1, 0.2, 10), outcome(0, 0.1, 0.01, 10, "lost")]
        row = measure.summarize(outcomes, 2.0, measure.Bounds("ttft:500,tpot:50"))
        self.assertEqual((row["errors"], row["completed"]), (1, 3))
        self.assertEqual(row["goodput"], {"bounds_ms": "ttft:500,tpot:50", "requests_per_s": 0.5, "tokens_per_s": 5.0, "share": 0.25})
        with self.assertRaises(SystemExit):
            measure.Bounds("speed:3")

    def test_the_plateau_leaves_out_the_beginning_and_the_end(self):
        # Two streams of 100 tokens a second each; one begins and ends a second later.
        outcomes = [outcome(0, 0.0, 0.01, 400), outcome(0, 1.0, 0.01, 400)]
        self.assertAlmostEqual(http_cost.plateau(outcomes), 200, delta=2)
        with self.assertRaises(SystemExit):
            http_cost.plateau([outcome(0, 0.0, 0.01, 10), outcome(0, 1.0, 0.01, 10)])

    def test_the_steady_rate_is_that_of_all_streams_at_once(self):
        outcomes = [outcome(0, 2.0 * i, 0.01, 190) for i in range(5)] + [outcome(0, 2.0 * i, 0.01, 190) for i in range(5)]
        self.assertAlmostEqual(measure.steady_rate(outcomes, 2), 190, delta=12)
        self.assertIsNone(measure.steady_rate(outcomes[:1], 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
