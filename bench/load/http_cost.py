"""What HTTP costs: the engine's own steps against the same sequences as HTTP streams, on one machine, in turns."""
import json
import pathlib
import shlex
import statistics
import subprocess
import tempfile

import stats

from load import runner, servers


def engine_rate(args, streams, context, steps):
    """Tokens per second of lorad-bench engine, two steps in flight, as the server runs greedy requests."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "engine.jsonl"
        subprocess.run(shlex.split(args.bench) + ["engine", "--model", args.model, "--batch", str(streams), "--context", str(context), "--in-flight", "2",
                                                  "--steps", str(steps), "--json", str(out)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [json.loads(line) for line in out.read_text().splitlines() if '"case":"decode"' in line][-1]["tokens_per_s"]


def measure_cost(args):
    """The two in turns, so that a machine that gets slower does so for both; each HTTP run has a server of its own."""
    streams, prompt, output = int(args.streams.split(",")[0]), int(args.prompt), int(args.output)
    engine, http = [], []
    for round_ in range(args.rounds):
        # The context that a stream has on the average while it decodes.
        engine.append(engine_rate(args, streams, prompt + output // 2 - 40 if prompt + output // 2 > 80 else prompt, 64))
        flags = ["--served-model-name", "base", "--max-num-seqs", str(streams), "--max-model-len", str(prompt + output + 64), "--no-prefix-cache"]
        with servers.lorad(args.lorad, args.model, *flags) as server:
            settings = {"url": server.url, "streams": streams, "requests": streams, "processes": args.processes,
                        "workload": {"models": ["base"], "prompt": args.prompt, "output": args.output, "vocab": args.vocab, "seed": 1}}
            runner.run({**settings, "workload": {**settings["workload"], "output": "16"}})  # recordings of all sizes
            row, outcomes, _ = runner.measured({**settings, "requests": streams, "workload": {**settings["workload"], "seed": 2 + round_}})
            if row["errors"]:
                raise SystemExit(f"over HTTP: {row['first_error']}")
            http.append(plateau(outcomes))
    ratios = [h / e for h, e in zip(http, engine)]
    return {"case": "http_cost", "streams": streams, "prompt": args.prompt, "output": args.output, "engine_tokens_per_s": statistics.median(engine),
            "http_tokens_per_s": statistics.median(http), "cost": 1 - statistics.median(ratios), "cost_rounds": [1 - r for r in ratios],
            "cost_interval": [1 - high for high in reversed(stats.bootstrap(ratios))], "samples": len(ratios)}


def plateau(outcomes):
    """Tokens per second between the time when the last stream has its first token and the first stream has its last."""
    begin, end = max(o.first for o in outcomes), min(o.last for o in outcomes)
    if end <= begin:
        raise SystemExit("the streams were never all decoding at once: give a longer --output")
    tokens = sum(sum(begin < at <= end for at in o.arrivals) * o.tokens / len(o.arrivals) for o in outcomes)
    return tokens / (end - begin)
