"""What an 8-bit KV cache costs a model: perplexity of a text, and how far logits are from those of a 16-bit cache.

    build/real/bin/python bench/kv_quality.py --model build/models/qwen2.5-coder-0.5b --text README.md     (bench/real_model.py makes both)

The text is read in windows of --window tokens, whose logits at all positions are compared. Prints a row of a table: perplexity of both, its change in per cent,
the mean relative error of logits (the norm of the difference over the norm), the mean divergence (KL) in nats, and how many most probable tokens are the same.
Ends with 1 where perplexity changes by more than --limit per cent.
"""
import argparse
import pathlib
import shlex
import subprocess
import sys
import tempfile

import numpy
import tokenizers


def logits(args, tokens, kv, folder):
    ids, out = folder / "tokens.txt", folder / f"{kv}.npy"
    ids.write_text(",".join(map(str, tokens)))
    command = shlex.split(args.lorad) + ["logits", "--model", args.model, "--kv-cache-dtype", kv, "--tokens", str(ids), "--out", str(out), "--all-positions"]
    if args.device:
        command += ["--device", args.device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"kv_quality.py: {shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return numpy.load(out).reshape(len(tokens), -1).astype(numpy.float64)


def log_softmax(values):
    values = values - values.max(axis=-1, keepdims=True)
    return values - numpy.log(numpy.exp(values).sum(axis=-1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", default="build/release/lorad", help="the program, with words before it if need be")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--device")
    parser.add_argument("--limit", type=float, default=0.5)
    args = parser.parse_args()

    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(args.model) / "tokenizer.json"))
    tokens = tokenizer.encode(args.text.read_text()).ids[: args.window * args.windows]
    losses = {"float16": 0.0, "int8": 0.0}
    n_predicted = n_positions = n_same = 0
    error = divergence = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for begin in range(0, len(tokens), args.window):
            window = tokens[begin : begin + args.window]
            rows = {kv: logits(args, window, kv, pathlib.Path(folder)) for kv in losses}
            error += (numpy.linalg.norm(rows["int8"] - rows["float16"], axis=1) / numpy.linalg.norm(rows["float16"], axis=1)).sum()
            logs = {kv: log_softmax(of) for kv, of in rows.items()}
            for kv, of in logs.items():
                losses[kv] -= of[numpy.arange(len(window) - 1), window[1:]].sum()
            divergence += (numpy.exp(logs["float16"]) * (logs["float16"] - logs["int8"])).sum()
            n_same += (logs["float16"].argmax(axis=1) == logs["int8"].argmax(axis=1)).sum()
            n_predicted += len(window) - 1
            n_positions += len(window)
    perplexity = {kv: float(numpy.exp(loss / n_predicted)) for kv, loss in losses.items()}
    change = 100 * (perplexity["int8"] / perplexity["float16"] - 1)
    print("| model | tokens | perplexity f16 | int8 | change | logits | divergence | same token |\n|---|---|---|---|---|---|---|---|")
    print(f"| {pathlib.Path(args.model).name} | {n_positions} | {perplexity['float16']:.4f} | {perplexity['int8']:.4f} | {change:+.2f} % | {100 * error / n_positions:.2f} % "
          f"| {divergence / n_positions:.5f} | {100 * n_same / n_positions:.1f} % |")
    sys.exit(1 if abs(change) > args.limit else 0)


if __name__ == "__main__":
    main()
