#!/usr/bin/env python3
"""What quantizing costs a real model: perplexity and KL divergence of a text against 16 bits, for files that `lorad quantize` and llama.cpp's llama-quantize write of the
same F16 file, all read by llama.cpp's llama-perplexity; the same of `lorad logits`, which also has NF4; and llama.cpp's answers from lorad's files.

    PYTHON tests/real/quantize.py --lorad build/dev/lorad --peer PEER_DIR --model FILE.gguf --work FOLDER [--types q8_0,nf4] [--chunks 2]

PEER_DIR is what bench/peers/get_llama_cpp.sh makes, PYTHON has what tests/real/requirements.txt names. FOLDER keeps the files, which a second run takes as they are.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import gguf
import numpy

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import widen  # noqa: E402
from harness import check  # noqa: E402

TYPES = {"q8_0": "Q8_0", "q6_k": "Q6_K", "q4_k": "Q4_K_S"}  # lorad's, and what llama.cpp calls the same
# A file of lorad's may be this much further from 16 bits than llama.cpp's with the same type for each matrix: both fit scales to the numbers, each in its own way.
WORSE_MAX = 1.25
PROMPTS = ["The capital of France is", "Once upon a time there was a", "1, 2, 3, 4, 5,", "The opposite of hot is"]


def run(command, **how):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **how)
    check(done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}: {(done.stderr or done.stdout)[-800:]}")
    return done.stdout, done.stderr


def made(file, make):
    """The file; where it is missing, what make writes to the path that it is given. One that was not written to its end is none."""
    if not file.exists():
        part = file.with_name(f"{file.name}.part")
        part.unlink(missing_ok=True)
        make(part)
        part.rename(file)
    return file


class Peer:
    def __init__(self, folder, n_chunks):
        self.run_script = folder / "run"
        self.reading = ("-c", 512, "-t", 1, "-ngl", 0, "--chunks", n_chunks)

    def tool(self, name, *words):
        return "".join(run([self.run_script, name, *words]))

    def write_base(self, file, base, text):
        """What measure compares with."""
        made(base, lambda part: self.tool("llama-perplexity", "-m", file, "-f", text, *self.reading, "--kl-divergence-base", part))

    def measure(self, file, base, text):
        """Perplexity, its ratio to the base's, the mean KL divergence and how many most probable tokens are the same."""
        out = self.tool("llama-perplexity", "-m", file, "-f", text, *self.reading, "--kl-divergence-base", base, "--kl-divergence")

        def number(name):
            return float(re.search(rf"{re.escape(name)}\s*:\s*(-?[\d.]+)", out)[1])

        return number("Mean PPL(Q)"), number("Mean PPL(Q)/PPL(base)"), number("Mean    KLD"), number("Same top p")

    def answer(self, file, prompt, n_tokens):
        return run([self.run_script, "llama-completion", "-m", file, "-p", prompt, "-n", n_tokens, "--temp", 0, "-no-cnv", "--no-display-prompt", "-t", 1, "-ngl", 0],
                   stdin=subprocess.DEVNULL)[0]


def types_of(file):
    """The type of each matrix."""
    return tuple(sorted((tensor.name, tensor.tensor_type.name.lower()) for tensor in gguf.GGUFReader(file).tensors if len(tensor.shape) > 1))


def quantized_by_peer(peer, plain, file, kind, types):
    """llama-quantize's file, where types are given with these."""
    made(file, lambda part: peer.tool("llama-quantize", *[word for name, of in types for word in ("--tensor-type", f"{name}={of}")], plain, part, kind, 1))
    check(not types or types_of(file) == types, f"{file}: other types than were asked for")
    return file


def rounded_to_nf4(name, values):
    """What bitsandbytes makes of a linear layer's numbers; embedding and output layer stay."""
    import torch
    from bitsandbytes import functional

    if not name.startswith("blk."):
        return values
    packed, state = functional.quantize_4bit(torch.tensor(values), blocksize=64, quant_type="nf4")
    return functional.dequantize_4bit(packed, state).numpy()


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


def compare_files(args, peer, plain, base, text):
    """Files of lorad and of llama.cpp, both read by llama.cpp; lorad's are returned."""
    ours_of = {}
    for ours, theirs in TYPES.items():
        if ours not in args.types:
            continue
        file = args.named(f".lorad-{ours}.gguf")
        ours_of[ours] = made(file, lambda part, ours=ours: run([args.lorad, "quantize", "--model", plain, "--type", ours, "--out", part]))
        peers = {theirs: (), f"{theirs}, lorad's types": types_of(file)}
        if types_of(file) == types_of(quantized_by_peer(peer, plain, args.named(f".llamacpp-{theirs}.gguf"), theirs, ())):
            peers = {theirs: ()}
        files = {("lorad", ours): file} | {("llama.cpp", name): quantized_by_peer(peer, plain, args.named(f".llamacpp-{theirs}{'-same' * bool(types)}.gguf"), theirs, types)
                                           for name, types in peers.items()}
        divergences = [show(peer, at, base, text, name, who) for (who, name), at in files.items()]
        check(divergences[0] <= WORSE_MAX * divergences[-1], f"{ours}: lorad's file is {divergences[0]} from 16 bits, llama.cpp's with the same types {divergences[-1]}")
    return ours_of


def show(peer, file, base, text, name, who):
    _, ratio, divergence, same = peer.measure(file, base, text)
    print(f"| {name} | {who} | {file.stat().st_size:,} | {ratio:.4f} | {divergence:.5f} | {same:.1f} % |", flush=True)
    return divergence


def compare_in_lorad(args, peer, plain, cases, text):
    """The same files in lorad: a file that only one of both reads right shows here."""
    n = args.window * args.windows
    ids = [int(i) for i in re.search(r"\[([\d, ]+)\]", peer.tool("llama-tokenize", "-m", plain, "-f", text, "--ids", "--log-disable"))[1].split(",")][:n]
    windows = [ids[i:i + args.window] for i in range(0, n, args.window)]
    print(f"\n| in lorad, {n} tokens | perplexity | KL divergence |\n|---|---:|---:|")
    for name, (perplexity, divergence) in by_lorad(args.lorad, plain, cases, windows, args.work).items():
        print(f"| {name} | {perplexity:.3f} | {divergence:.5f} |", flush=True)
        check(name == "16 bits" or 0 < divergence < 0.5, f"{name}: a divergence of {divergence} nats")


def compare_answers(args, peer, files):
    n_same = n = 0
    for ours, file in files.items():
        for prompt in PROMPTS[:2 if ours != "q4_k" else None]:
            theirs = peer.answer(file, prompt, 12)
            answer = json.loads(run([args.lorad, "generate", "--model", file, "--prompt", prompt, "--max-tokens", 12, "--json"])[0])["text"]
            n, n_same = n + 1, n_same + theirs.strip().startswith(answer.strip()[:8])
            print(f"{ours}: {prompt!r}: llama.cpp {theirs!r}, lorad {answer!r}", flush=True)
    check(n_same >= 0.75 * n, f"{n_same} of {n} answers of llama.cpp from lorad's files begin as lorad's do")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--peer", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--types", default=",".join([*TYPES, "nf4"]), help="which, with commas between them (default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=-1, help="of 512 tokens of the text that llama.cpp reads (default: all)")
    parser.add_argument("--window", type=int, default=256, help="tokens of lorad's own windows")
    parser.add_argument("--windows", type=int, default=2, help="how many of them")
    args = parser.parse_args()
    args.types = args.types.split(",")
    check(set(args.types) <= {*TYPES, "nf4"}, f"--types: {args.types}")
    args.work.mkdir(parents=True, exist_ok=True)
    args.named = lambda ending: args.work / f"{args.model.stem}{ending}"
    peer, text = Peer(args.peer.resolve(), args.chunks), HERE / "text.txt"
    plain, base = args.named(".f16.gguf"), args.named(f"{f'-{args.chunks}' * (args.chunks > 0)}.kld")
    made(plain, lambda part: widen.widen(args.model, part))
    peer.write_base(plain, base, text)
    print("| type | written by | bytes | perplexity / that of 16 bits | KL divergence | same token |\n|---|---|---:|---:|---:|---:|")
    files = compare_files(args, peer, plain, base, text)
    cases = {ours: (file, ()) for ours, file in files.items()}
    if "nf4" in args.types:
        # GGUF has no type for NF4, so its numbers are compared as they are, widened to 16 bits.
        of_peer = made(args.named(".bitsandbytes-nf4.gguf"), lambda part: widen.widen(plain, part, rounded_to_nf4))
        show(peer, of_peer, base, text, "NF4, widened", "bitsandbytes")
        cases |= {"nf4, while loading": (plain, ("--quantize", "nf4")), "bitsandbytes' NF4, widened": (of_peer, ())}
    compare_in_lorad(args, peer, plain, cases, text)
    compare_answers(args, peer, files)
    print("quantizing a real model: passed")


if __name__ == "__main__":
    main()
