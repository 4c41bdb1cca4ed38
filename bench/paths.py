"""Compares the logits of a model by the device's best kernels and by the portable ones, for prompts of several lengths.

    python3 bench/make_model.py model /dev/shm/w/7b-f16 7b f16
    python3 bench/paths.py --lorad 'build/bundle/run lorad' --model /dev/shm/w/7b-f16 --tokens 1,8,300,2048 [--adapter DIR] [--device NVIDIA]

Prints the relative error (the norm of the difference over the norm) of the last token's logits for each; ends with 1 where one is above --limit. A
random model of many layers makes more of a rounding than a trained one does.
"""
import argparse
import array
import math
import pathlib
import random
import shlex
import subprocess
import sys
import tempfile


def logits(args, tokens, path, out):
    command = shlex.split(args.lorad) + ["logits", "--model", args.model, "--kernel-path", path, "--tokens", str(tokens), "--out", str(out)]
    for adapter in args.adapter:
        command += ["--adapter", adapter]
    if args.device:
        command += ["--device", args.device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"paths.py: {shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    data = out.read_bytes()  # .npy, version 1: float32 behind a header whose length is at 8
    values = array.array("f")
    values.frombytes(data[10 + int.from_bytes(data[8:10], "little"):])
    return values


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", default="build/release/lorad", help="the program, with words before it if need be")
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter", action="append", default=[])
    parser.add_argument("--device")
    parser.add_argument("--path", default="auto", help="of the kernels that are compared with the portable ones")
    parser.add_argument("--tokens", default="1,8,40,300,2048", help="lengths of prompts")
    parser.add_argument("--vocabulary", type=int, default=1000, help="tokens are drawn from the first so many")
    parser.add_argument("--limit", type=float, default=1e-2)
    args = parser.parse_args()

    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for n in (int(n) for n in args.tokens.split(",")):
            tokens = folder / f"{n}.txt"
            draw = random.Random(n)
            tokens.write_text(",".join(str(draw.randrange(args.vocabulary)) for _ in range(n)))
            got, want = (logits(args, tokens, path, folder / f"{path}.npy") for path in (args.path, "portable"))
            error = norm(g - w for g, w in zip(got, want, strict=True)) / norm(want)
            if not math.isfinite(error):
                sys.exit(f"paths.py: {n} tokens: logits that are not finite")
            same = "the same" if got.index(max(got)) == want.index(max(want)) else "another"
            note = " (the same bits: is there a path above the portable one?)" if error == 0 else ""
            print(f"{n:6} tokens: relative error {error:.2e}, {same} most probable token{note}", flush=True)
            worst = max(worst, error)
    if worst > args.limit:
        sys.exit(f"paths.py: {worst:.2e} is above {args.limit:.0e}")


if __name__ == "__main__":
    main()
