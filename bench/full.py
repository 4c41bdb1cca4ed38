#!/usr/bin/env python3
"""Everything that docs/PERFORMANCE.md tells, in one run beside llama.cpp, within a given time; goes on where it was stopped.

usage: full.py --lorad BUNDLE [--peer PEER_DIR] --work DIR [--seconds 540] [--shapes 7b,1.5b,0.5b] [--only REGEX] [--results DIR] [--copy-to DIR]

BUNDLE      deploy/bundle.sh made it with lorad and lorad-bench
PEER_DIR    bench/peers/get_llama_cpp.sh made it; without it llama.cpp is not measured. PyTorch is where it is installed.
WORK        room for models in two formats (7b: 31 GB) and adapters (64 of 81 MB), best in memory: /dev/shm/w. Kept between runs.
RESULTS     one JSON-lines file for each finished case; default WORK/results-COMMIT. A case whose file exists is not run again.
COPY_TO     gets results.jsonl (all cases), report.md and the plots, also when time runs out

A case is begun only if it is expected to end within --seconds. Models are made by several processes while cases run that need none.
Measured cases never run side by side.
"""
import argparse
import asyncio
import dataclasses
import json
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from load import client, measure, modes, runner, servers  # noqa: E402

N_ADAPTERS, N_HTTP_ADAPTERS, RANK = 64, 8, 16
VOCAB = 4000  # prompt ids are drawn below this


@dataclasses.dataclass
class Case:
    name: str
    seconds: float   # about how long it takes on an H200
    run: object      # called with the file for its JSON lines
    needs: tuple = ()


class OutOfTime(KeyboardInterrupt):
    """Raised wherever the run is when its time is over; of this kind, because event loops let no other one through."""


def out_of_time(*_):
    raise OutOfTime


class Full:
    def __init__(self, args):
        self.args, self.begin = args, time.monotonic()
        self.work = pathlib.Path(args.work).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.bench = [str(pathlib.Path(args.lorad).resolve() / "run"), "lorad-bench"]
        self.serve = shlex.quote(str(pathlib.Path(args.lorad).resolve() / "run")) + " lorad"
        commit = subprocess.run([*self.bench, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        self.results = pathlib.Path(args.results) if args.results else self.work / f"results-{commit}"
        self.results.mkdir(parents=True, exist_ok=True)
        self.makers = {}

    def left(self):
        return self.args.seconds - (time.monotonic() - self.begin)

    # ---- what cases need ----

    def path(self, need):
        kind, shape = need
        return {"model": self.work / f"{shape}-{self.args.dtype}", "gguf": self.work / f"{shape}-{self.args.dtype}.gguf",
                "adapters": self.work / f"{shape}-lora{N_ADAPTERS}", "loras": self.work / f"{shape}-lora{N_HTTP_ADAPTERS}.gguf"}[kind]

    def commands_for(self, need):
        kind, shape = need
        make_model, make_gguf = [sys.executable, str(HERE / "make_model.py")], [sys.executable, str(HERE / "peers/make_gguf.py")]
        if kind == "model":
            return [[*make_model, "model", str(self.path(need)), shape, self.args.dtype]]
        if kind == "gguf":
            return [[*make_gguf, "model", str(self.path(need)), shape, self.args.dtype]]
        if kind == "adapters":
            return [[*make_model, "adapters", str(self.work / f"{shape}-lora"), shape, str(RANK), str(N_ADAPTERS)]]
        return [[*make_gguf, "lora", str(self.work / f"{shape}-lora{i}.gguf"), shape, str(RANK), str(i)] for i in range(1, N_HTTP_ADAPTERS + 1)]

    def is_made(self, need):
        path = self.path(need)
        return (path / "adapter_config.json").exists() if need[0] == "adapters" else (path / "generation_config.json").exists() if need[0] == "model" else path.exists()

    def start_makers(self, needs):
        for need in needs:
            if not self.is_made(need):
                script = " && ".join(shlex.join(command) for command in self.commands_for(need))
                self.makers[need] = subprocess.Popen(["bash", "-c", script])

    def wait_for_makers(self):
        """All of them: a maker that runs would slow what is timed."""
        for need, process in self.makers.items():
            if process.wait() != 0:
                raise SystemExit(f"{' '.join(need)} could not be made")
        self.makers.clear()

    # ---- cases ----

    def call(self, command):
        print("$ " + shlex.join(command), flush=True)
        result = subprocess.run(command)
        if result.returncode != 0:
            raise RuntimeError(f"{command[1]} ended with status {result.returncode}")

    def bench_case(self, *arguments):
        return lambda out: self.call([*self.bench, *arguments, "--json", str(out)])

    def write(self, out, row):
        row = {**row, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        with open(out, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return row

    def http_rows(self, out, url, label, engine, streams, requests, repeats, models=(), llama_loras=0):
        """The load of issue tables: 128 tokens in, 64 out, the given streams."""
        for repeat in range(repeats):
            settings = {"url": url, "streams": streams, "requests": requests, "timeout": max(10.0, self.left()), "processes": 1,
                        "workload": {"models": list(models), "prompt": "128", "output": "64", "vocab": VOCAB, "seed": repeat + 2, "llama_loras": llama_loras}}
            row, _, _ = runner.measured(settings)
            print(measure.line(f"{engine} {label}", row), flush=True)
            self.write(out, {**row, "label": label, "engine": engine, "repeat": repeat})

    def lorad_server(self, shape, *flags):
        return servers.lorad(self.serve, str(self.path(("model", shape))), "--served-model-name", "base", "--max-model-len", "16384", *flags)

    def http(self, shape, streams):
        def run(out):
            label = f"{shape}-{self.args.dtype}"
            names = [f"a{i}" for i in range(1, N_HTTP_ADAPTERS + 1)]
            loras = [flag for i, name in enumerate(names, 1) for flag in ("--lora", f"{name}={self.work / f'{shape}-lora{i}'}")]
            with self.lorad_server(shape, "--no-prefix-cache", *loras) as server:
                warm = {"url": server.url, "streams": streams, "requests": 2 * streams}
                for models in (["base"], names):
                    runner.run({**warm, "workload": {"models": models, "prompt": "128", "output": "32", "vocab": VOCAB}})
                self.http_rows(out, server.url, label + " base", "lorad", streams, 4 * streams, 3, ["base"])
                self.http_rows(out, server.url, label + " adapters", "lorad", streams, 4 * streams, 3, names)
                # Four requests of each client begin all at once and end all at once, which is an eighth of the time; of sixteen that is little.
                self.http_rows(out, server.url, label + " base, 16 each", "lorad", streams, 16 * streams, 1, ["base"])
                self.http_rows(out, server.url, label + " adapters, 16 each", "lorad", streams, 16 * streams, 1, names)
                self.http_rows(out, server.url, label + " base", "lorad", 1, 4, 1, ["base"])
        return run

    def http_peer(self, shape, streams):
        def run(out):
            label, gguf = f"{shape}-{self.args.dtype}", str(self.path(("gguf", shape)))
            loras = [flag for i in range(1, N_HTTP_ADAPTERS + 1) for flag in ("--lora", str(self.work / f"{shape}-lora{i}.gguf"))]
            port = 8182
            command = [str(pathlib.Path(self.args.peer).resolve() / "run"), "llama-server", "-m", gguf, *loras, "--lora-init-without-apply", "--parallel",
                       str(streams), "-c", str(256 * streams), "-ngl", self.args.peer_gpu_layers, "-fa", "on", "--no-webui", "--port", str(port)]
            with servers.Server(command, f"http://127.0.0.1:{port}", "/health") as server:
                runner.run({"url": server.url, "streams": streams, "requests": streams, "workload": {"prompt": "128", "output": "16", "vocab": VOCAB}})
                self.http_rows(out, server.url, label + " base", "llama.cpp", streams, 2 * streams, 1)
                self.http_rows(out, server.url, label + " adapters", "llama.cpp", streams, streams, 1, llama_loras=N_HTTP_ADAPTERS)
        return run

    def serving(self, shape, streams):
        """Schema output, prefix hits and long prompts, at one server."""
        def run(out):
            label = f"{shape}-{self.args.dtype}"
            with self.lorad_server(shape) as server:
                sizes = {"rounds": 5, "shared_prompt": 4096, "prefix_requests": 20, "seconds": 6.0, "long_prompt": 8192}
                if self.args.quick:
                    sizes = {"rounds": 1, "shared_prompt": 128, "prefix_requests": 2, "seconds": 2.0, "long_prompt": 128}
                given = argparse.Namespace(url=server.url, models="base", vocab=VOCAB, streams=streams, stream_tokens=4000, **sizes)
                settings = {"url": server.url, "streams": streams, "requests": 2 * streams,
                            "workload": {"models": ["base"], "prompt": "32", "output": "64", "words": True}}
                endpoint = client.Endpoint(server.url, timeout=max(10.0, self.left()))
                for row in (asyncio.run(modes.prefix(given, endpoint)), asyncio.run(modes.interference(given, endpoint)), modes.schema(given, settings)):
                    print(json.dumps(self.write(out, {**row, "label": label, "engine": "lorad"})), flush=True)
        return run

    def http_cost(self, shape, streams):
        return lambda out: self.call([sys.executable, str(HERE / "load"), "http-cost", "--lorad", self.serve, "--bench", shlex.join(self.bench), "--model",
                                      str(self.path(("model", shape))), "--streams", str(streams), "--prompt", "128", "--output", "256", "--rounds", "1" if self.args.quick else "3",
                                      "--label", f"{shape}-{self.args.dtype}", "--json", str(out)])

    def peer(self, shape, prefill, contexts, batches):
        return lambda out: self.call([sys.executable, str(HERE / "peers/llama.py"), str(pathlib.Path(self.args.peer).resolve()), str(self.path(("gguf", shape))),
                                      "--label", f"{shape}-{self.args.dtype}", "--prefill", prefill, "--context", contexts, "--batch", batches, "--runs", "3",
                                      "--gpu-layers", self.args.peer_gpu_layers, "--json", str(out)])

    def cases(self):
        shapes = self.args.shapes.split(",")
        quick = self.args.quick
        cases = [Case("ops", 15, self.bench_case("ops", *(("--sizes", "64", "--chain", "10", "--samples", "3") if quick else ())))]
        for shape in shapes:
            first = shape == shapes[0]
            needs = (("model", shape),)
            model = str(self.path(needs[0]))
            engine = ("engine", "--model", model, "--in-flight", "1,2") + (("--steps", "4", "--prefill-runs", "2") if quick else ())
            prefill = "64" if quick else "512,2048,8192" if first else "2048"
            short = "1,4" if quick else "1,8,32,64" if first else "1,8,64"
            cases.append(Case(f"engine-{shape}", 30, self.bench_case(*engine, "--batch", short, "--context", "160", "--prefill", prefill), needs))
            if first:
                cases += [
                    Case(f"adapters-{shape}", 40, self.bench_case(*engine, "--batch", "4" if quick else "1,64", "--context", "160", "--adapters", "0,1,8,64",
                                                                  "--mix", "distinct,zipf", "--adapter", str(self.work / f"{shape}-lora{{}}")),
                         (*needs, ("adapters", shape))),
                    Case(f"context-{shape}", 40, self.bench_case(*engine, "--batch", "2" if quick else "1,64,256", "--context", "64" if quick else "1024"), needs),
                    Case(f"long-{shape}", 20, self.bench_case(*engine, "--batch", "1", "--context", "256" if quick else "8000,32000"), needs),
                    Case(f"mixed-{shape}", 20, self.bench_case(*engine, "--batch", "2" if quick else "32", "--context", "160", "--chunk", "16" if quick else "0,256,512,1024"), needs),
                    Case(f"kernels-{shape}", 20, self.bench_case("kernels", "--model", model, "--rows", "1,4" if quick else "1,8,32,64", "--context", "160",
                                                                 "--repeats", "2" if quick else "20"), needs)]
        main = shapes[0]
        model, http_needs = ("model", main), (("model", main), ("adapters", main))
        streams = 4 if quick else 32
        cases.append(Case(f"http-{main}", 60, self.http(main, streams), http_needs))
        if self.args.peer:
            cases += [Case(f"peer-{shape}", 90 if shape == main else 35,
                           self.peer(shape, "64" if quick else "512,2048,8192" if shape == main else "2048", "160", "1,2" if quick else "1,8,32,64" if shape == main else "1,8,64"),
                           (("gguf", shape),)) for shape in shapes]
        cases += [Case(f"http-cost-{main}", 75, self.http_cost(main, 4 if quick else 64), (model,)), Case(f"serving-{main}", 60, self.serving(main, streams), (model,))]
        if self.args.peer:
            cases.append(Case(f"http-peer-{main}", 90, self.http_peer(main, streams), (("gguf", main), ("loras", main))))
        cases.append(Case("pytorch", 60, lambda out: self.call([sys.executable, str(HERE / "peers/pytorch.py"), "--shape", main, "--json", str(out)])))
        return [case for case in cases if re.search(self.args.only, case.name)]

    def run(self):
        cases = self.cases()
        todo = [case for case in cases if not (self.results / f"{case.name}.jsonl").exists()]
        print(f"{len(cases)} cases, {len(cases) - len(todo)} of them done before, {self.left():.0f} s", flush=True)
        self.start_makers(dict.fromkeys(need for case in todo for need in case.needs))
        failed = []
        signal.signal(signal.SIGALRM, out_of_time)
        signal.setitimer(signal.ITIMER_REAL, max(1.0, self.left()))
        try:
            for case in todo:
                if case.seconds > self.left():
                    continue
                if case.needs:
                    self.wait_for_makers()
                began, out = time.monotonic(), self.results / f"{case.name}.part"
                out.write_text("")
                print(f"== {case.name}", flush=True)
                try:
                    case.run(out)
                except (Exception, SystemExit) as error:  # one case that fails must not cost the others
                    failed.append(case.name)
                    print(f"== {case.name} failed: {type(error).__name__}: {error}", flush=True)
                    continue
                out.rename(self.results / f"{case.name}.jsonl")
                print(f"== {case.name}: {time.monotonic() - began:.1f} s; {self.left():.0f} s left", flush=True)
        except OutOfTime:
            print("== out of time", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for process in self.makers.values():
                process.terminate()
        done = [case.name for case in cases if (self.results / f"{case.name}.jsonl").exists()]
        print(f"done: {' '.join(done) or '-'}\nfailed: {' '.join(failed) or '-'}\nleft for another call: "
              f"{' '.join(c.name for c in cases if c.name not in done and c.name not in failed) or '-'}", flush=True)
        self.report()
        return not failed

    def report(self):
        """results.jsonl of all finished cases, a table and plots."""
        files = sorted(self.results.glob("*.jsonl"))
        if not files or not self.args.copy_to:
            return
        out = pathlib.Path(self.args.copy_to)
        out.mkdir(parents=True, exist_ok=True)
        (out / "results.jsonl").write_text("".join(path.read_text() for path in files))
        command = [sys.executable, str(HERE / "report.py"), str(out / "results.jsonl"), "--markdown", str(out / "report.md"), "--plots", str(out)]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        table = (out / "report.md").read_text() if (out / "report.md").exists() else ""
        print(table.split("| engine |")[0], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--peer", default="")
    parser.add_argument("--work", required=True)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--shapes", default="7b,1.5b,0.5b", help="the first one gets all cases")
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--only", default="", help="regular expression for the names of cases")
    parser.add_argument("--results", default="")
    parser.add_argument("--copy-to", default="")
    parser.add_argument("--peer-gpu-layers", default="99", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="tiny grids, to try this script where there is no GPU: --shapes tiny")
    sys.exit(0 if Full(parser.parse_args()).run() else 1)


if __name__ == "__main__":
    main()
