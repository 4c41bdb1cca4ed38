#!/usr/bin/env python3
"""Load tests over HTTP of any server with OpenAI's API: lorad, llama-server, vLLM. python3 alone is enough.

python3 bench/load run --url http://127.0.0.1:8080 --streams 1,32 --requests 128 --prompt 128 --output 64
python3 bench/load run --rate 20 --seconds 30 --prompt lognormal:256:0.8:max=4096 --models 'base,a{1..64}' --mix zipf:1.1 --goodput ttft:500,tpot:50
python3 bench/load interference|prefix|schema --url ...      what long prompts, a common prompt, and JSON schemas cost
python3 bench/load overload|idle --lorad build/release/lorad what a server of its own does under too much, or too many streams
python3 bench/load training --lorad build/release/lorad --model DIR   streams that decode beside a training job
python3 bench/load http-cost --lorad LORAD --bench LORAD_BENCH --model DIR    HTTP against the engine alone, on this machine
python3 bench/load client-limit                              what this client can take itself
"""
import argparse
import asyncio
import datetime
import json
import pathlib
import platform
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from load import client, http_cost, measure, modes, plots, runner, training, workload  # noqa: E402


def settings_of(args, streams=None, seed=None):
    """What runner.run() wants, from the command line."""
    extra = json.loads(args.extra) if args.extra else {}
    return {"url": args.url, "api_key": args.api_key, "timeout": args.timeout, "streams": streams, "processes": args.processes,
            "requests": args.requests or (0 if args.seconds else 2 * (streams or 1)), "seconds": args.seconds, "rate": args.rate or None,
            "workload": {"api": args.api, "models": workload.expand_names(args.models), "mix": args.mix, "prompt": args.prompt, "output": args.output,
                         "vocab": args.vocab, "seed": args.seed if seed is None else seed, "shared_prefix": args.shared_prefix,
                         "llama_loras": args.llama_loras, "temperature": args.temperature, "extra": extra, "words": args.words}}


def write(args, row):
    row = {**row, "label": args.label, "engine": args.engine, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
           "host": platform.node()}
    if args.json == "-":
        print(json.dumps(row), flush=True)
    elif args.json:
        with open(args.json, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def run(args):
    bounds = measure.Bounds(args.goodput)
    show = not args.quiet and sys.stderr.isatty() or args.progress
    levels = [None] if args.rate else [int(text) for text in args.streams.split(",")]
    for streams in levels:
        if args.warm_up:
            warm = {**settings_of(args, streams or 16, seed=args.seed + 1000), "requests": args.warm_up, "rate": None, "seconds": None}
            runner.run(warm)
        row, outcomes, series = runner.measured(settings_of(args, streams), bounds, show)
        if args.json != "-":
            print(measure.line(f"{streams} streams" if streams else f"{args.rate:g} requests/s", row), flush=True)
        write(args, row)
        if args.plots:
            plots.write(pathlib.Path(args.plots), f"{args.label or 'load'}-{streams or f'rate{args.rate:g}'}", row, outcomes, series)
        if row["completed"] == 0:
            sys.exit("no request was completed")


def over_http(args):
    endpoint = client.Endpoint(args.url, args.api_key, args.timeout)
    streams = int(args.streams.split(",")[0])
    if args.mode == "schema":
        row = modes.schema(args, settings_of(args, streams))
        text = (f"schema output at {streams} streams: {row['tokens_per_s_schema']:.1f} tok/s against {row['tokens_per_s_free']:.1f} free, "
                f"cost {100 * row['cost']:.1f} %, time per token x{row['tpot_ratio']:.3f}")
    else:
        args.streams = streams
        row = asyncio.run({"interference": modes.interference, "prefix": modes.prefix}[args.mode](args, endpoint))
        text = (f"prefix of {args.shared_prompt}: first token {row['ttft_ms_hit']['p50']:.1f} ms hit, {row['ttft_ms_miss']['p50']:.1f} ms miss, "
                f"{100 * row['hit_share']:.1f} %" if args.mode == "prefix" else
                f"interference of {args.long_prompt}-token prompts: p99 between tokens {row['itl_ms_long']['p99']:.2f} ms against "
                f"{row['itl_ms_quiet']['p99']:.2f} quiet, x{row['itl_p99_ratio']:.2f}")
    if args.json != "-":
        print(text, flush=True)
    write(args, row)


def with_own_server(args):
    if args.mode == "idle":
        args.streams = int(args.streams.split(",")[0])
    if args.mode == "training":
        args.streams = int(args.streams.split(",")[0])
        row = training.training(args)
        if args.json != "-":
            print(training.line(row), flush=True)
        write(args, row)
        return
    if args.mode == "http-cost":
        rows = [http_cost.measure_cost(args)]
    elif args.mode == "client-limit":
        args.streams_list = [int(text) for text in args.streams.split(",")]
        rows = modes.client_limit(args)
    else:
        rows = [{"overload": modes.overload, "idle": modes.idle}[args.mode](args)]
    for row in rows:
        if args.json != "-":
            print(json.dumps(row), flush=True)
        write(args, row)


def parser():
    top = argparse.ArgumentParser(prog="bench/load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes_of = top.add_subparsers(dest="mode", required=True)
    for mode in ("run", "interference", "prefix", "schema", "overload", "idle", "training", "http-cost", "client-limit"):
        p = modes_of.add_parser(mode)
        p.add_argument("--url", default="http://127.0.0.1:8080")
        p.add_argument("--api-key")
        p.add_argument("--timeout", type=float, default=600.0, help="seconds of one request")
        p.add_argument("--json", default="", help="file that gets a JSON line for each result; - prints them instead of text")
        p.add_argument("--label", default="", help="written into results")
        p.add_argument("--engine", default="lorad", help="the server's name in results")
        p.add_argument("--streams", default={"client-limit": "64,256", "idle": "500", "run": "1,16"}.get(mode, "32"), help="requests at once")
        p.add_argument("--processes", type=int, default=1, help="client processes; one takes tens of thousands of tokens a second")
        p.add_argument("--vocab", type=int, default=4000, help="prompt ids are drawn from 3 to this")
        p.add_argument("--models", default="", help="names: base,a{1..64}")
        p.add_argument("--seconds", type=float, default={"run": 0.0, "schema": 0.0, "http-cost": 0.0}.get(mode, 20.0))
        if mode in ("run", "schema", "http-cost"):
            p.add_argument("--api", choices=("completions", "chat"), default="completions")
            p.add_argument("--rate", type=float, default=0.0, help="requests per second, open loop (Poisson), instead of --streams")
            p.add_argument("--requests", type=int, default=0, help="in all; default 2 per stream, or as many as fit --seconds")
            p.add_argument("--prompt", default="32", help="tokens (or words): " + workload.Lengths.__doc__.splitlines()[0][26:])
            p.add_argument("--output", default="64", help="tokens, in the same forms")
            p.add_argument("--mix", default="robin", help="robin, uniform, zipf:1.1")
            p.add_argument("--words", action="store_true", help="prompts of words, for servers that take no token ids")
            p.add_argument("--shared-prefix", type=int, default=0, help="tokens that all prompts begin with")
            p.add_argument("--llama-loras", type=int, default=0, help="adapters of a llama-server, dealt over the requests")
            p.add_argument("--temperature", type=float, default=0.0)
            p.add_argument("--extra", default="", help="JSON object merged into every request")
            p.add_argument("--seed", type=int, default=1)
            p.add_argument("--goodput", default="", help="bounds in ms: ttft:500,tpot:50,itl:200,e2e:8000")
            p.add_argument("--warm-up", type=int, default=0, help="requests before that are not counted")
            p.add_argument("--plots", default="", help="folder for SVG plots")
            p.add_argument("--progress", action="store_true", help="live line on stderr even if that is no terminal")
            p.add_argument("--quiet", action="store_true")
        if mode in ("interference", "idle", "training"):
            p.add_argument("--stream-tokens", type=int, default=1500 if mode == "idle" else 2000)
        if mode == "training":
            p.add_argument("--tokens", type=int, default=2048, help="of a training sequence")
            p.add_argument("--batch", type=int, default=1, help="sequences of an optimizer step")
            p.add_argument("--rank", type=int, default=16)
            p.add_argument("--sequences", type=int, default=64, help="of the training file")
            p.add_argument("--alone", type=float, default=6.0, help="seconds that the job is measured with nobody served; 0: it is not")
            p.add_argument("flags", nargs="*", help="further flags of the server, behind --")
        if mode == "interference":
            p.add_argument("--long-prompt", type=int, default=8192)
        if mode == "prefix":
            p.add_argument("--shared-prompt", type=int, default=4096)
            p.add_argument("--prefix-requests", type=int, default=20)
        if mode == "schema":
            p.add_argument("--rounds", type=int, default=5)
        if mode in ("overload", "idle", "training", "http-cost"):
            p.add_argument("--lorad", required=True, help="the program, or 'FOLDER/run lorad'")
            p.add_argument("--model", default="deploy/demo-model/base")
            p.add_argument("--prompt-tokens", type=int, default=32)
            p.add_argument("--output-tokens", type=int, default=32)
        if mode == "client-limit":
            p.add_argument("--output-tokens", type=int, default=400)
            p.add_argument("--rate-per-stream", type=float, default=0.0, help="tokens per second of a stream; 0: as fast as they are taken")
        if mode == "overload":
            p.add_argument("--factor", type=float, default=4)
            p.add_argument("--places", type=int, default=16, help="--max-num-seqs")
            p.add_argument("--queue", type=int, default=32, help="--max-queue")
        if mode == "http-cost":
            p.add_argument("--bench", required=True, help="lorad-bench, or 'FOLDER/run lorad-bench'")
            p.add_argument("--rounds", type=int, default=3)
    return top


def main():
    args = parser().parse_args()
    if args.mode == "run":
        run(args)
    elif args.mode in ("interference", "prefix", "schema"):
        over_http(args)
    else:
        with_own_server(args)


if __name__ == "__main__":
    main()
