#!/usr/bin/env python3
"""PyTorch on the same device: the decode products of a model's shape in one CUDA graph, and the single operations of `lorad-bench ops`.

usage: pytorch.py [--shape 7b] [--batch 1,8,32,64] [--json FILE] [--only decode,ops]

JSON lines of the form that lorad-bench writes, engine "pytorch". Where torch or a CUDA device is missing it says so in one line and
ends with status 0: there is nothing to compare with.

A decode step here is its matrix products alone (qkv, o, gate and up, down of all layers, and the output layer), each after the one
before: less than a step does, so a bound from above on what the libraries would reach. Weights are random, different for every layer.
Single operations are chains of 200 dependent ones in a graph, divided by 200.
"""
import argparse
import datetime
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import stats  # noqa: E402
from make_model import SHAPES  # noqa: E402

CHAIN, SAMPLES = 200, 30


def missing():
    """Why there is nothing to measure here, or None."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def timed(run, repeats, samples=SAMPLES):
    """GPU times of one of `repeats` links, in us: the run captured in a graph and replayed."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    values = []
    for i in range(samples + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            values.append(1e3 * begin.elapsed_time(end) / repeats)
    return values


def decode(shape, batch):
    """ms of the products of one step."""
    import torch

    s = SHAPES[shape]
    h, q, kv, ff = s["h"], s["heads"] * s["d"], s["kv"] * s["d"], s["ff"]
    sizes = [(q + 2 * kv, h), (h, q), (2 * ff, h), (h, ff)]
    layers = [[torch.randn(n, k, device="cuda", dtype=torch.float16) * k**-0.5 for n, k in sizes] for _ in range(s["layers"])]
    head = torch.randn(s["vocab"], h, device="cuda", dtype=torch.float16) * h**-0.5
    x = torch.randn(batch, h, device="cuda", dtype=torch.float16)

    def step():
        y = x
        for qkv, o, gate_up, down in layers:
            y = torch.nn.functional.linear(y, qkv)[:, :q]
            y = torch.nn.functional.linear(y, o)
            y = torch.nn.functional.linear(y, gate_up)[:, :ff]
            y = torch.nn.functional.linear(y, down)
        return torch.nn.functional.linear(y, head)

    return [us / 1e3 for us in timed(step, 1)]


def growth(start, w, a, b):
    """How much one link makes a vector longer, on the average of some links."""
    import torch

    x, logs = start.double(), []
    w, a, b = w.double() if w is not None else None, a.double(), b.double()
    for i in range(80):
        y = (x @ a) @ b + (x @ w if w is not None else 0)
        logs.append(torch.log(y.norm() / x.norm()).item())
        x = y / y.norm() * start.double().norm()
    return float(torch.tensor(logs[20:]).mean().exp())


def operations():
    """(fields, samples in us) of every single operation."""
    import torch

    for dtype, name in ((torch.float32, "f32"), (torch.float16, "f16")):
        for n in (512, 1024, 2048):
            for rank, with_base in [(8, True)] + [(r, False) for r in (4, 8, 16, 32, 64)]:
                w = torch.randn(n, n, device="cuda", dtype=dtype) * n**-0.5 if with_base else None
                a, b = torch.randn(n, rank, device="cuda", dtype=dtype) * n**-0.5, torch.randn(rank, n, device="cuda", dtype=dtype) * rank**-0.5
                # One link must not make x longer or shorter, or 200 of them overflow or vanish.
                grow = growth(start := torch.randn(1, n, device="cuda", dtype=dtype), w, a, b)
                b = b / grow
                w = w / grow if with_base else None

                def chain():
                    x = start
                    for _ in range(CHAIN):
                        x = torch.addmm(x @ w, x @ a, b) if with_base else (x @ a) @ b
                    return x

                yield {"op": "base_lora" if with_base else "lora", "n": n, "rank": rank, "type": name}, timed(chain, CHAIN)
        x0 = torch.randn(64, 1024, device="cuda", dtype=dtype)
        gamma, beta = torch.ones(1024, device="cuda", dtype=dtype), torch.zeros(1024, device="cuda", dtype=dtype)
        functions = {"softmax": lambda x: torch.softmax(x, -1), "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (1024,), gamma, beta),
                     "rms_norm": lambda x: torch.nn.functional.rms_norm(x, (1024,), gamma)}
        for op, function in functions.items():
            def chain_rows(function=function):
                x = x0
                for _ in range(CHAIN):
                    x = function(x)
                return x

            yield {"op": op, "rows": 64, "n": 1024, "type": name}, timed(chain_rows, CHAIN)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="7b")
    parser.add_argument("--batch", default="1,8,32,64")
    parser.add_argument("--only", default="decode,ops")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    why = missing()
    if why:
        print(f"pytorch.py: nothing measured: {why}")
        return
    import torch

    def write(row, unit, values):
        row = {**row, "unit": unit, **stats.summary(values), "values": [round(v, 4) for v in values]}
        row.update({"engine": "pytorch", "device": torch.cuda.get_device_name(), "driver": f"CUDA {torch.version.cuda}, torch {torch.__version__}",
                    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")})
        print(f"pytorch {' '.join(f'{k} {v}' for k, v in row.items() if k not in stats.MEASURED | {'unit'}):<60} {row['median']:9.3f} {unit} "
              f"({row['p10']:.3f}..{row['p90']:.3f})", flush=True)
        if args.json:
            with open(args.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    if "decode" in args.only:
        for batch in map(int, args.batch.split(",")):
            values = decode(args.shape, batch)
            write({"case": "decode_products", "model": f"{args.shape}-f16", "batch": batch}, "ms", values)
            torch.cuda.empty_cache()
    if "ops" in args.only:
        for fields, values in operations():
            write({"case": "op", **fields}, "us", values)


if __name__ == "__main__":
    main()
