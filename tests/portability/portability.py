#!/usr/bin/env python3
"""Compile proofs for GPUs that are not at hand: tests/portability.sh has the usage, docs/PORTABILITY.md the rules and the table."""

import argparse
import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

REPO = pathlib.Path(__file__).resolve().parents[2]
MODELS = REPO / "tests/portability/models"
SKIPPED = 77

# What Mesa calls them, and what people do.
FAMILIES = {"navi10": "Radeon RX 5700", "navi21": "Radeon RX 6800", "navi31": "Radeon RX 7900", "vega10": "Radeon RX Vega", "gfx1201": "Radeon RX 9070"}

# Kernels that move more than they compute: fewer operations than this for each byte in some dispatch of some step. GPUs do 20 to 60 for each byte of their memory.
MEMORY_BOUND_FLOPS_PER_BYTE = 16
# Of a SIMD, of a kernel that is memory-bound: as many lanes as four waves of 32 have. What hides a memory's latency is the number of loads under way.
LANES_MIN = 128
# Attention of tiles of rows says neither, as it does not know the context; it reads keys and values once for 16 rows and more.
TILED = ("attention_tile", "attention_tile_kv8", "attention_registers", "attention_coopmat2")
SHARED_BYTES_MAX = 32 << 10  # where the device has no more


class Refused(Exception):
    """A run that did not come to its end, with the reason."""


def driver_file():
    for pattern in ("radeon_icd*.json",):
        found = sorted(glob.glob("/usr/share/vulkan/icd.d/" + pattern) + glob.glob("/etc/vulkan/icd.d/" + pattern))
        if found:
            return found[0]
    return None


def survey(bench, family, model, extra, layers=None):
    """The rows that lorad-bench pipelines writes for a family and a model."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "rows.json")
        environment = dict(os.environ, RADV_FORCE_FAMILY=family, VK_DRIVER_FILES=driver_file(), MESA_SHADER_CACHE_DISABLE="true")
        if layers:
            environment.update(VK_ADD_LAYER_PATH=layers, VK_INSTANCE_LAYERS="VK_LAYER_LORAD_lower", LORAD_LOWER_TO="shared32")
        done = subprocess.run([bench, "pipelines", "--brief", "--model", str(MODELS / model), "--json", out, *extra], env=environment, capture_output=True, text=True)
        said = done.stderr + done.stdout
        if "Unknown family" in said:
            raise Refused(f"this Mesa's radv does not know the family {family}")
        if "no Vulkan device" in said or "no usable Vulkan device" in said:
            raise Refused(f"radv makes no device of family {family}: {said.strip().splitlines()[-1]}")
        rows = [json.loads(line) for line in open(out, encoding="utf-8")] if os.path.exists(out) else []
        if not any(row["case"] == "pipelines" for row in rows):
            raise Refused(f"lorad-bench pipelines ended with {done.returncode}: {said.strip()[-500:]}")
        return rows


def is_memory_bound(kernel):
    """Also of kernels that say neither: they move rows."""
    return kernel["kernel"] not in TILED and kernel.get("flops_per_byte_min", 0) < MEMORY_BOUND_FLOPS_PER_BYTE


def lanes_of(kernel):
    return kernel["waves"] * kernel["subgroup_size"]


def faults_of(kernel, shared_bytes_of_device):
    """What of the rules a kernel breaks."""
    faults = []
    if "refusal" in kernel:
        return [f"was not made: {kernel['refusal']}"]
    if kernel["dispatches"] == 0:
        return []
    if kernel.get("spills", 0) > 0 or kernel.get("scratch_bytes", 0) > 0:
        faults.append(f"spills {kernel.get('spills', 0):.0f} registers, {kernel.get('scratch_bytes', 0):.0f} bytes of scratch")
    if is_memory_bound(kernel) and "waves" in kernel and lanes_of(kernel) < LANES_MIN:
        faults.append(f"{kernel['waves']:.0f} waves of {kernel['subgroup_size']} on a SIMD, at least {LANES_MIN} lanes where memory bounds it ({kernel.get('registers', 0):.0f} registers, {kernel.get('shared_bytes', 0):.0f} bytes shared)")
    if shared_bytes_of_device <= SHARED_BYTES_MAX and kernel.get("shared_bytes", 0) > SHARED_BYTES_MAX:
        faults.append(f"{kernel['shared_bytes']:.0f} bytes of shared memory, at most {SHARED_BYTES_MAX}")
    return faults


def table_row(family, model, dtype, rows, layers):
    kernels = [row for row in rows if row["case"] == "pipeline"]
    summary = next(row for row in rows if row["case"] == "pipelines")
    used = [kernel for kernel in kernels if kernel["dispatches"] > 0]
    bound = [kernel for kernel in used if is_memory_bound(kernel) and "waves" in kernel]
    cells = [f"{family} ({FAMILIES.get(family, '')}{', 32 KiB' if layers else ''})", model, dtype, summary["path"], str(summary["steps"]), str(len(kernels)), str(sum("refusal" in kernel for kernel in kernels)),
             f"{max((kernel.get('registers', 0) for kernel in used), default=0):.0f}", f"{sum(kernel.get('spills', 0) > 0 for kernel in used)}",
             f"{sum(kernel.get('scalar_spills', 0) > 0 for kernel in used)}", f"{max((kernel.get('shared_bytes', 0) for kernel in used), default=0) / 1024:.1f}",
             f"{min((lanes_of(kernel) for kernel in bound), default=0):.0f}", f"{summary['seconds']:.0f}"]
    return "| " + " | ".join(cells) + " |"


HEAD = ("| family | model | weights | path | steps | kernels | refused | most registers | spill | spill scalars | most shared memory, KiB | fewest lanes on a SIMD, memory-bound | s |\n"
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")


def write_table(path, table, driver):
    """Puts the table between the marks of the page."""
    page = pathlib.Path(path)
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- table of tests/portability.sh: begin -->", "<!-- table of tests/portability.sh: end -->"
    if begin not in text or end not in text:
        sys.exit(f"{path}: the marks of the table are missing")
    made = f"{begin}\n{driver}\n\n{table}\n{end}"
    page.write_text(re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: made, text, flags=re.S), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", default=str(REPO / "build/dev/bench/lorad-bench"))
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--models", default=",".join(sorted(path.name for path in MODELS.iterdir())))
    parser.add_argument("--of", help="these alone, each a family and a model, -32k for 32 KiB: vega10:gemma-3-1b,navi31-32k:qwen2.5-0.5b")
    parser.add_argument("--dtypes", default="float16", help="of the weights: float16, bfloat16, or both")
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--layers", help="folder of the lowering layer (build/dev/tests/vulkan_layer): families with matrices once more with 32 KiB of shared memory")
    parser.add_argument("--json", help="file that all rows are appended to")
    parser.add_argument("--write", help="page that gets the table")
    arguments = parser.parse_args()
    if driver_file() is None:
        print("portability: skipped: no Vulkan driver for Radeons is installed (mesa-vulkan-drivers)")
        return SKIPPED
    table, faults, driver = [], [], ""
    if arguments.of:
        pairs = [pair.split(":") for pair in arguments.of.split(",")]
        runs = [(family.removesuffix("-32k"), model, arguments.layers if family.endswith("-32k") else None) for family, model in pairs]
    else:
        families = [(family, None) for family in arguments.families.split(",")] + [("navi31", arguments.layers)] * bool(arguments.layers)
        runs = [(family, model, layers) for family, layers in families for model in arguments.models.split(",")]
    for family, model, layers in runs:
        for dtype in arguments.dtypes.split(","):
            what = f"{family}{' with 32 KiB' if layers else ''} {model} {dtype}"
            begin = time.monotonic()
            try:
                rows = survey(arguments.bench, family, model, ["--dtype", dtype, "--quantize", arguments.quantize], layers)
            except Refused as refused:
                faults.append(f"{what}: {refused}")
                print(f"{what}: {refused}", flush=True)
                continue
            summary = next(row for row in rows if row["case"] == "pipelines")
            driver = summary["driver"]
            own = [f"{what}: {kernel['kernel']} [{kernel['constants']}] ({kernel['name']}): {fault}" for kernel in rows if kernel["case"] == "pipeline"
                   for fault in faults_of(kernel, summary["shared_memory_bytes"])]
            own += [f"{what}: {summary['failures']} steps could not be recorded"] if summary["failures"] else []
            table.append(table_row(family, model, dtype, rows, layers))
            faults += own
            if arguments.json:
                with open(arguments.json, "a", encoding="utf-8") as out:
                    out.writelines(json.dumps(dict(row, family=family, model=model)) + "\n" for row in rows)
            print(f"{what}: {summary['kernels']} kernels, {len(own)} faults, {time.monotonic() - begin:.0f} s", flush=True)
    print("\n" + HEAD + "\n" + "\n".join(table) + "\n")
    if arguments.write:
        write_table(arguments.write, HEAD + "\n" + "\n".join(table), f"Driver: {driver}.")
    for fault in faults:
        print(f"fault: {fault}")
    print(f"portability: {len(table)} of family and model, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
