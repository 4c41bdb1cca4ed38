#!/usr/bin/env python3
"""What quantizing costs a real model: perplexity and KL divergence of a text against 16 bits, for files that `lorad quantize` and llama.cpp's llama-quantize write of the
same F16 file, all read by llama.cpp's llama-perplexity; the same of `lorad logits`, which also has NF4; and llama.cpp's answers from lorad's files.

    PYTHON tests/real/quantize.py --lorad build/dev/lorad --peer PEER_DIR --model FILE.gguf --work FOLDER

PEER_DIR is what bench/peers/get_llama_cpp.sh makes, PYTHON has what tests/real/requirements.txt names. FOLDER keeps the files, which a second run takes as they are.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import numpy

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import widen  # noqa: E402
from harness import check  # noqa: E402

TYPES = {"q8_0": "Q8_0", "q6_k": "Q6_K", "q4_k": "Q4_K_S"}  # lorad's, and what llama.cpp calls the same: Q4_K in all but a few matrices
# A file of lorad's may be this much further from 16 bits than llama.cpp's of the same type, whose few-bit matrices are not all the same.
WORSE_MAX = 1.25
PROMPTS = ["The capital of France is", "Once upon a time there was a", "1, 2, 3, 4, 5,", "The opposite of hot is"]


def run(command, **how):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **how)
    check(done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}: {(done.stderr or done.stdout)[-800:]}")
    return done.stdout + done.stderr


class Peer:
    def __init__(self, folder):
        self.run_script = folder / "run"

    def tool(self, name, *words):
        return run([self.run_script, name, *words])

    def measure(self, file, base, text):
        """Perplexity, its ratio to the base's, the mean KL divergence and how many most probable tokens are the same."""
        out = self.tool("llama-perplexity", "-m", file, "-f", text, "-c", 512, "-t", 1, "-ngl", 0, "--kl-divergence-base", base, "--kl-divergence")

        def number(name):
            return float(re.search(rf"{re.escape(name)}\s*:\s*(-?[\d.]+)", out)[1])

        return number("Mean PPL(Q)"), number("Mean PPL(Q)/PPL(base)"), number("Mean    KLD"), number("Same top p")

    def answer(self, file, prompt, n_tokens):
        done = subprocess.run([self.run_script, "llama-completion", "-m", file, "-p", prompt, "-n", str(n_tokens), "--temp", "0", "-no-cnv", "--no-display-prompt", "-t", "1", "-ngl", "0"],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        check(done.returncode == 0, f"llama-completion, {file}: {done.stderr[-800:]}")
        return done.stdout


def log_probabilities(lorad, file, ids, scratch, *flags):
    out = scratch / "logits.npy"
    run([lorad, "logits", "--model", file, "--tokens", ",".join(map(str, ids)), "--all-positions", "--out", out, *flags])
    logits = numpy.load(out).reshape(len(ids), -1).astype(numpy.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))


def by_lorad(lorad, base, cases, windows, scratch):
    """For each case (name, file, flags): perplexity and mean KL divergence from base."""
    sums = {name: [0.0, 0.0] for name in ["16 bits", *cases]}
    for ids in windows:
        of_base = log_probabilities(lorad, base, ids, scratch)
        rows, nexts = numpy.arange(len(ids) - 1), ids[1:]
        sums["16 bits"][0] -= of_base[rows, nexts].sum()
        for name, (file, flags) in cases.items():
            logs = log_probabilities(lorad, file, ids, scratch, *flags)
            sums[name][0] -= logs[rows, nexts].sum()
            sums[name][1] += (numpy.exp(of_base) * (of_base - logs)).sum()
    n_next, n = sum(len(ids) - 1 for ids in windows), sum(map(len, windows))
    return {name: (float(numpy.exp(loss / n_next)), divergence / n) for name, (loss, divergence) in sums.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--peer", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--window", type=int, default=256, help="tokens of lorad's own windows")
    parser.add_argument("--windows", type=int, default=2, help="how many of them")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    peer, text = Peer(args.peer.resolve()), HERE / "text.txt"

    def named(ending):
        return args.work / f"{args.model.stem}{ending}"


    plain = named(".f16.gguf")
    if not plain.exists():
        widen.widen(args.model, plain)
    base = named(".kld")
    if not base.exists():
        peer.tool("llama-perplexity", "-m", plain, "-f", text, "-c", 512, "-t", 1, "-ngl", 0, "--kl-divergence-base", base)
    cases = {}
    print("| type | written by | bytes | perplexity / that of 16 bits | KL divergence | same token |\n|---|---|---:|---:|---:|---:|")
    for ours, theirs in TYPES.items():
        divergences = []
        for who in ("lorad", "llama.cpp"):
            file = named(f".{who.replace('.', '')}-{ours}.gguf")
            if not file.exists():
                if who == "lorad":
                    run([args.lorad, "quantize", "--model", plain, "--type", ours, "--out", file])
                else:
                    peer.tool("llama-quantize", plain, file, theirs, 1)
            _, ratio, divergence, same = peer.measure(file, base, text)
            print(f"| {ours if who == 'lorad' else theirs} | {who} | {file.stat().st_size:,} | {ratio:.4f} | {divergence:.5f} | {same:.1f} % |", flush=True)
            divergences.append(divergence)
            if who == "lorad":
                cases[ours] = (file, ())
        check(divergences[0] <= WORSE_MAX * divergences[1], f"{ours}: lorad's file is {divergences[0]} from 16 bits, llama.cpp's {divergences[1]}")
    cases["nf4, while loading"] = (plain, ("--quantize", "nf4"))

    # The same files in lorad: a file that only one of both reads right would show here.
    n = args.window * args.windows
    ids = [int(i) for i in re.search(r"\[([\d, ]+)\]", peer.tool("llama-tokenize", "-m", plain, "-f", text, "--ids", "--log-disable"))[1].split(",")][:n]
    windows = [ids[i:i + args.window] for i in range(0, n, args.window)]
    print(f"\n| in lorad, {n} tokens | perplexity | KL divergence |\n|---|---:|---:|")
    for name, (perplexity, divergence) in by_lorad(args.lorad, plain, cases, windows, args.work).items():
        print(f"| {name} | {perplexity:.3f} | {divergence:.5f} |", flush=True)
        check(name == "16 bits" or 0 < divergence < 0.3, f"{name}: a divergence of {divergence} nats")

    n_same = 0
    for ours in TYPES:
        for prompt in PROMPTS[:2 if ours != "q4_k" else None]:
            theirs = peer.answer(cases[ours][0], prompt, 12)
            answer = json.loads(run([args.lorad, "generate", "--model", cases[ours][0], "--prompt", prompt, "--max-tokens", 12, "--json"]).splitlines()[-1])["text"]
            n_same += theirs.strip().startswith(answer.strip()[:8])
            print(f"{ours}: {prompt!r}: llama.cpp {theirs!r}, lorad {answer!r}", flush=True)
    check(n_same >= 6, f"{n_same} of 8 answers of llama.cpp from lorad's files begin as lorad's do")
    print("quantizing a real model: passed")


if __name__ == "__main__":
    main()
