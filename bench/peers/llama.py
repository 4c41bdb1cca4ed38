#!/usr/bin/env python3
"""Decode and prefill of packaged llama.cpp (Vulkan) as JSON lines of the same form as lorad-bench's.

usage: llama.py PEER_DIR MODEL.gguf [--label 7b-f16] [--prefill 512,2048] [--context 160] [--batch 1,8,32,64] [--runs 3] [--json FILE]

PEER_DIR is get_llama_cpp.sh's. One sequence and prefill: llama-bench, whose runs are the samples. More sequences: llama-batched-bench
with prompts of context - 32 tokens and 64 more, one sample each run. Nothing of the first run of either counts (pipelines).
LORAD_PEER_LIBS and VK_DRIVER_FILES as in get_llama_cpp.sh, where the GPU's driver lies in its own folder.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import stats  # noqa: E402

GENERATED = 64


def run(command, log):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True)
    rows = []
    for line in result.stdout.splitlines():
        if line.startswith("{"):
            rows.append(json.loads(line))
    if result.returncode != 0 and not rows:
        raise SystemExit(f"{command[1]} ended with status {result.returncode}; its log is {log.name}")
    return rows


def row_of(case, milliseconds, n_tokens, **fields):
    row = {"case": case, **fields, "unit": "ms", **stats.summary(milliseconds), "values": [round(ms, 4) for ms in milliseconds]}
    return {**row, "tokens_per_s": 1e3 * n_tokens / row["median"]}


def from_llama_bench(results, label):
    """llama-bench's own lines -> rows. A run of n_gen tokens of one sequence is n_gen steps; samples are means of a run's steps."""
    rows = []
    for result in results:
        ns = result["samples_ns"]
        if result["n_gen"]:
            rows.append(row_of("decode", [1e-6 * t / result["n_gen"] for t in ns], 1, model=label, batch=1, context=result["n_depth"] + result["n_gen"] // 2,
                               chunk=0, adapters=0, mix="none"))
        else:
            rows.append(row_of("prefill", [1e-6 * t for t in ns], result["n_prompt"], model=label, tokens=result["n_prompt"], adapters=0))
    return rows


def from_batched_bench(runs, label):
    """Lines of several runs of llama-batched-bench -> a row for each number of sequences."""
    by_case = {}
    for results in runs:
        for result in results:
            by_case.setdefault((result["pl"], result["pp"], result["tg"]), []).append(1e3 * result["t_tg"] / result["tg"])
    return [row_of("decode", ms, batch, model=label, batch=batch, context=prompt + generated // 2, chunk=0, adapters=0, mix="none")
            for (batch, prompt, generated), ms in sorted(by_case.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=pathlib.Path)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("--label", default="")
    parser.add_argument("--prefill", default="512,2048")
    parser.add_argument("--context", default="160")
    parser.add_argument("--batch", default="1,8,32,64")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--gpu-layers", default="99")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    label = args.label or args.gguf.stem
    batches = [int(text) for text in args.batch.split(",") if text]
    contexts = [int(text) for text in args.context.split(",") if text]
    rows = []
    with open(args.gguf.with_suffix(".llama.log"), "w", encoding="utf-8") as log:
        common = ["-m", str(args.gguf), "-ngl", args.gpu_layers]
        bench = [str(args.peer / "run"), "llama-bench", *common, "-fa", "on", "-r", str(args.runs), "-o", "jsonl", "-ub", "2048"]
        if args.prefill:
            rows += from_llama_bench(run([*bench, "-p", args.prefill, "-n", "0"], log), label)
        if 1 in batches:
            depths = ",".join(str(max(0, context - GENERATED // 2)) for context in contexts)
            rows += from_llama_bench(run([*bench, "-p", "0", "-n", str(GENERATED), "-d", depths], log), label)
        many = [batch for batch in batches if batch > 1]
        for context in contexts if many else []:
            prompt = max(1, context - GENERATED // 2)
            command = [str(args.peer / "run"), "llama-batched-bench", *common, "-npp", str(prompt), "-ntg", str(GENERATED), "-npl",
                       ",".join(map(str, many)), "-c", str(max(many) * (prompt + GENERATED) + 256), "-fa", "on", "-b", "2048", "-ub", "2048",
                       "--output-format", "jsonl"]
            rows += from_batched_bench([run(command, log) for _ in range(args.runs)], label)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    for row in rows:
        row.update({"engine": "llama.cpp", "date": date})
        size = f"{row['batch']} sequences, context {row['context']}" if row["case"] == "decode" else f"{row['tokens']} tokens"
        print(f"llama.cpp {row['case']:<8} {size:<30} {row['median']:9.3f} ms ({row['p10']:.3f}..{row['p90']:.3f})  {row['tokens_per_s']:10.1f} tok/s")
        if args.json:
            with open(args.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
