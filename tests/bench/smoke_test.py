"""Every benchmark once, as small as it can be, with the demo model: what is printed is not judged, that it is complete is.

usage: smoke_test.py --bench lorad-bench --lorad lorad [TEST ...]
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

from load import servers  # noqa: E402

BASE = ROOT / "deploy/demo-model/base"
ADAPTERS = sorted(path.parent for path in (ROOT / "deploy/demo-model").glob("adapters/*/adapter_config.json"))
PROGRAMS = argparse.Namespace(bench="", lorad="")


class Smoke(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = pathlib.Path(self.folder.name) / "out.jsonl"

    def rows(self, *command):
        result = subprocess.run([*command, "--json", str(self.out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:])
        rows = [json.loads(line) for line in self.out.read_text().splitlines()]
        for row in rows:
            self.assertIn("date", row)
            if "median" in row:
                self.assertGreater(row["median"], 0, row)
                self.assertTrue(row["p10"] <= row["median"] <= row["p90"], row)
        return rows

    def bench(self, *arguments):
        rows = self.rows(PROGRAMS.bench, "--pool-gib", "0.02", *arguments)
        for row in rows:
            self.assertTrue(row["git"] and row["device"] and row["driver"], row)
        return rows

    def test_training_steps_have_tokens_a_second_and_memory(self):
        row, = self.bench("train", "--shape", "tiny", "--batch", "2x24", "--rank", "4", "--rows", "64", "--steps", "2", "--profile")
        self.assertEqual((row["case"], row["batch"], row["samples"]), ("train", "2x24", 2))
        self.assertTrue(row["tokens_per_s"] > 0 and row["gib"] > 0 and row["loss"] > 0, row)

    def test_the_engine_grid_has_every_cell_and_its_floor(self):
        self.assertGreaterEqual(len(ADAPTERS), 2)
        flags = [flag for path in ADAPTERS[:2] for flag in ("--adapter", str(path))]
        rows = self.bench("engine", "--model", str(BASE), "--batch", "1,3", "--context", "16,40", "--prefill", "24", "--in-flight", "1,2",
                          "--adapters", "0,2", "--mix", "distinct,zipf", "--steps", "3", "--prefill-runs", "2", *flags)
        self.assertEqual([row["case"] for row in rows if row.get("chunk")], [])
        decodes = [row for row in rows if row["case"] == "decode"]
        cells = {(r["batch"], r["context"], r["chunk"], r["in_flight"], r["adapters"], r["mix"]) for r in decodes}
        self.assertEqual(len(cells), 2 * 2 * 2 * 3)
        self.assertEqual(len(decodes), len(cells))
        ceiling, = [row for row in rows if row["case"] == "ceiling"]
        for row in decodes:
            self.assertEqual((row["samples"], len(row["values"])), (3, 3))
            self.assertEqual(row["distinct"], 0 if row["adapters"] == 0 else min(row["batch"], 2) if row["mix"] == "distinct" else row["distinct"])
            self.assertAlmostEqual(row["floor_ms"], row["bytes"] / ceiling["median"] * 1e-6, delta=1e-3 * row["floor_ms"])
        self.assertEqual(len([row for row in rows if row["case"] == "prefill"]), 2)
        self.out.unlink()
        mixed = self.bench("engine", "--model", str(BASE), "--batch", "2", "--context", "16", "--chunk", "8,16", "--in-flight", "1,2", "--steps", "2")
        self.assertEqual([(row["case"], row["chunk"], row["in_flight"]) for row in mixed[1:]], [("mixed", 8, 1), ("mixed", 8, 2), ("mixed", 16, 1), ("mixed", 16, 2)])

    def test_operations_are_timed_in_both_types(self):
        rows = self.bench("ops", "--sizes", "64", "--ranks", "4,24", "--chain", "6", "--samples", "2")
        kinds = [(row["op"], row.get("type"), row.get("rank")) for row in rows]
        self.assertEqual(kinds[0][0], "dispatch_alone")
        self.assertEqual(sorted(map(str, kinds[1:])), sorted(map(str, [(op, t, r) for t in ("f32", "f16") for op, r in
                         (("base_lora", 8), ("lora", 4), ("lora", 24), ("softmax", None), ("layer_norm", None), ("rms_norm", None))])))

    def test_ways_to_do_an_operation_are_compared_line_by_line(self):
        rows = self.bench("ops", "--sizes", "64", "--ranks", "0", "--chain", "2", "--samples", "1", "--sharing", "never,always", "--threads", "0,64", "--row-threads", "0,64")
        found = [(row["sharing"], row.get("threads")) for row in rows if row["op"] == "base_lora" and row["type"] == "f16"]
        self.assertEqual(found, [("never", None), ("never", 64), ("always", None), ("always", 64)])
        self.assertEqual([row.get("row_threads") for row in rows if row["op"] == "softmax"], [None, 64] * 2)
        self.assertFalse([row for row in rows if row["op"] == "lora"])

    def test_the_layers_of_a_row_are_timed_and_agree_for_all_splits(self):
        rows = self.bench("layers", "--shape", "tiny", "--splits", "1,2", "--rounds", "2", "--runs", "3")
        layers = [row for row in rows if row["case"] == "layers"]
        self.assertEqual([(row["splits"], row["samples"], row["gave_up"]) for row in layers], [(1, 6, False), (2, 6, False)])
        self.assertTrue(all(row["difference"] < 5e-3 and row["share_of_ceiling"] > 0 for row in layers), layers)

    def test_kernels_are_timed_alone_and_in_a_model_and_merges_too(self):
        rows = self.bench("kernels", "--shape", "tiny", "--rows", "1")
        self.assertEqual([row["product"] for row in rows if row["case"] == "kernel"], ["qkv", "o", "gate_up", "down", "lm_head"])
        self.assertTrue(all(row["of_ceiling"] > 0 and row["error"] < 1e-4 for row in rows if row["case"] == "kernel"))
        self.assertEqual([row["rows"] for row in rows if row["case"] == "layer_products"], [1])
        self.assertEqual([row["sustained_gb_s"] > 0 for row in rows if row["case"] == "ceiling"], [True])
        self.out.unlink()
        rows = self.bench("kernels", "--model", str(BASE), "--rows", "2", "--context", "24", "--repeats", "1")
        names = {row["kernel"] for row in rows if row["case"] == "model_kernel"}
        self.assertTrue({"embed", "gated_act"} <= names and {"attention", "attention_lanes"} & names, names)
        self.assertAlmostEqual(sum(row["share"] for row in rows if row["case"] == "model_kernel"), 1, delta=1e-6)
        self.out.unlink()
        self.assertEqual([row["case"] for row in self.bench("merge", "--shape", "tiny", "--rank", "8", "--adapters", "1", "--runs", "1")], ["copy", "merge"])

    def test_a_build_is_no_slower_than_itself_and_files_are_compared(self):
        rows = self.bench("merge", "--shape", "tiny", "--rank", "8", "--adapters", "1", "--runs", "3")
        self.assertEqual(len(rows), 2)
        same = subprocess.run([sys.executable, str(BENCH / "compare.py"), str(self.out), str(self.out), "--threshold", "100"], stdout=subprocess.PIPE, text=True)
        self.assertEqual((same.returncode, same.stdout.count("same")), (0, 2), same.stdout)
        in_turns = subprocess.run([sys.executable, str(BENCH / "compare.py"), "--old", PROGRAMS.bench, "--new", PROGRAMS.bench, "--rounds", "2", "--threshold", "100",
                                   "--", "merge", "--shape", "tiny", "--rank", "8", "--adapters", "1", "--runs", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.assertEqual((in_turns.returncode, in_turns.stdout.count("merge")), (0, 1), in_turns.stdout)

    def test_a_server_is_loaded_closed_open_and_in_each_mode(self):
        load = [sys.executable, str(BENCH / "load")]
        with servers.lorad(PROGRAMS.lorad, str(BASE), "--served-model-name", "base", "--max-model-len", "256") as server:
            given = ["--url", server.url, "--models", "base", "--vocab", "300"]
            plots = pathlib.Path(self.folder.name) / "plots"
            closed, = self.rows(*load, "run", *given, "--streams", "3", "--requests", "7", "--prompt", "uniform:2:9", "--output", "6", "--goodput", "e2e:60000",
                                "--plots", str(plots))
            self.assertEqual((closed["completed"], closed["errors"], closed["tokens"], closed["goodput"]["share"]), (7, 0, 42, 1))
            self.assertTrue(list(plots.glob("*-latency.svg")))
            self.out.unlink()
            opened, = self.rows(*load, "run", *given, "--rate", "12", "--seconds", "1", "--prompt", "4", "--output", "4", "--processes", "2")
            self.assertGreater(opened["completed"], 2)
            self.assertEqual(opened["errors"], 0)
            self.out.unlink()
            prefix, = self.rows(*load, "prefix", *given, "--shared-prompt", "130", "--prefix-requests", "3")
            self.assertTrue(0 < prefix["hit_share"] < math.inf)
            self.out.unlink()
            quiet, = self.rows(*load, "interference", *given, "--streams", "2", "--long-prompt", "100", "--seconds", "0.8", "--stream-tokens", "200")
            self.assertGreater(quiet["long_prompts"], 0)
            self.out.unlink()
            schema, = self.rows(*load, "schema", *given, "--streams", "2", "--rounds", "1", "--prompt", "3", "--output", "24")
            self.assertGreater(schema["tokens_per_s_schema"], 0)

    def test_what_http_costs_is_measured_on_one_machine(self):
        row, = self.rows(sys.executable, str(BENCH / "load"), "http-cost", "--lorad", PROGRAMS.lorad, "--bench", PROGRAMS.bench, "--model", str(BASE),
                         "--streams", "2", "--prompt", "16", "--output", "96", "--rounds", "1", "--vocab", "300")
        self.assertLess(row["cost"], 1)
        self.assertGreater(row["engine_tokens_per_s"], 0)

    def test_overload_is_refused_and_what_is_admitted_ends(self):
        row, = self.rows(sys.executable, str(BENCH / "load"), "overload", "--lorad", PROGRAMS.lorad, "--model", str(BASE), "--seconds", "1", "--places", "2",
                         "--queue", "2", "--output-tokens", "16", "--prompt-tokens", "4", "--vocab", "300")
        self.assertGreater(row["completed"], 0)
        self.assertEqual((row["other"], row["retry_after_missing"]), (0, 0), row["first_other"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--lorad", required=True)
    PROGRAMS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
