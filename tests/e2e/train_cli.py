#!/usr/bin/env python3
"""`lorad train` as a user calls it, on the demo model: flags, values and files that are refused, schedules, interrupting and going on.

    tests/e2e/train_cli.py --lorad build/dev/lorad [unittest's arguments]
"""

import argparse
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "deploy/demo-model/base"
LORAD = "build/dev/lorad"
CHATS = [("Say hello.", "Ahoy, matey!"), ("Count to three.", "One, two, three."), ("Name a colour.", "Blue."), ("What is up?", "The sky, matey.")]


def line(user, answer):
    return json.dumps({"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]}) + "\n"


class TrainCommand(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        self.data = self.path / "chats.jsonl"
        self.data.write_text("".join(line(*chat) for chat in CHATS))

    def command(self, *flags, out="adapter", data=None, model=MODEL):
        command = [LORAD, "train", "--model", str(model), "--data", str(data or self.data)]
        return command + (["--out", str(self.path / out)] if out else []) + [str(flag) for flag in flags]

    def train(self, *flags, **where):
        done = subprocess.run(self.command(*flags, **where), capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, expected, *flags, **where):
        done = subprocess.run(self.command(*flags, **where), capture_output=True, text=True, timeout=300)
        self.assertNotIn(done.returncode, (0, 130), f"{flags} was accepted")
        self.assertGreater(done.returncode, 0, done.stderr)
        self.assertIn(expected, done.stderr + done.stdout, flags)

    def steps(self, path):
        return [json.loads(text) for text in path.read_text().splitlines()]

    def test_values_that_are_none_are_refused_by_name_before_anything_is_made(self):
        for flag in ("learning-rate", "weight-decay", "max-grad-norm", "warmup-ratio", "validation-split", "lora-alpha", "lora-dropout", "adam-beta1",
                     "adam-beta2", "adam-epsilon"):
            for value in ("nan", "inf", "-1", "many"):
                self.refused(f"--{flag}: expected a number from ", f"--{flag}", value)
        for flag in ("lora-r", "epochs", "max-steps", "batch-size"):
            for value in ("0", "-1", "1.5", "99999999999999999999"):
                self.refused(f"--{flag}", f"--{flag}", value)
        for flags, expected in ((("--warmup-steps", "-2"), "--warmup-steps"), (("--seed", "-1"), "--seed"), (("--lr-scheduler", "step"), "--lr-scheduler"),
                                (("--training-memory", "0"), "--training-memory"), (("--save-dtype", "int8"), "--save-dtype"), (("--rows", "3"), "--rows"),
                                (("--init-adapter", self.path / "none"), "none"), (("--eval", self.path / "none"), "none"), (("--resume",), "--resume"),
                                (("--lora-trainable-modules", "q_proj,wq"), "wq"), (("--modules-to-save", "classifier"), "classifier"),
                                (("--init-adapter", MODEL.parent / "adapters/pirate", "--lora-r", "4"), "--lora-r")):
            self.refused(expected, *flags)
        self.refused("--out", out=None)
        self.refused("is the base model's folder", out=MODEL)
        self.refused("is not a folder", out=self.data.name)
        self.refused("nowhere", data=self.path / "nowhere")
        self.refused(str(self.path), data=self.path)
        self.refused("nowhere", model=self.path / "nowhere")

    def test_bad_files_are_told_by_line(self):
        bad = self.path / "bad.jsonl"
        for content, expected in (("", "no line"), ("{\n", "line 1"), (line("a", "b") + '{"messages": 3}\n', "line 2"), ("\x00" * 100 + "\n", "line 1")):
            bad.write_text(content)
            self.refused(expected, data=bad)
        bad.write_bytes(b'{"text": "\xff\xfe"}\n')
        self.refused("UTF-8", data=bad)

    def test_what_is_shown_leaves_terminals_alone(self):
        self.data.write_text(line("\x1b]0;title\x07", "\x1b[31mred") + line("b", "c"))
        shown = self.train("--show", 2, out=None).stdout
        self.assertNotIn("\x1b", shown)
        self.assertIn("red", shown)
        self.assertIn("line 2", shown)

    def test_schedules_have_their_rates_and_reports_their_numbers(self):
        def rate(name, s, n=5, w=2):
            hf = name.startswith("hf-")
            if s < w:
                return s / w if hf else (s + 1) / w
            p = (s - w) / (n - w)
            return {"constant": 1, "linear": 1 - p, "cosine": (1 + math.cos(math.pi * p)) / 2}[name.removeprefix("hf-")]
        for name in ("constant", "linear", "cosine", "hf-linear", "hf-cosine"):
            report = self.path / f"{name}.jsonl"
            self.train("--max-steps", 5, "--warmup-steps", 2, "--batch-size", 2, "--learning-rate", 1e-3, "--lr-scheduler", name, "--lora-r", 2, "--no-shuffle",
                       "--weight-decay", 0.1, "--max-grad-norm", 0.5, "--report", report, out=name)
            steps = self.steps(report)
            self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4, 5])
            for s, step in enumerate(steps):
                self.assertAlmostEqual(step["lr"], 1e-3 * rate(name, s), 12)
                self.assertGreater(step["grad_norm"], 0)
            self.assertEqual(steps[0]["tokens"], steps[2]["tokens"], "steps are in the file's order")
        self.assertNotEqual((self.path / "linear/adapter_model.safetensors").read_bytes(), (self.path / "cosine/adapter_model.safetensors").read_bytes())

    def test_epochs_and_batches_say_how_many_steps_there_are_and_eval_is_told(self):
        report = self.path / "steps.jsonl"
        self.train("--epochs", 3, "--batch-size", 3, "--lora-r", 2, "--eval", self.data, "--report", report)
        steps = self.steps(report)
        self.assertEqual(len(steps), 4)
        self.assertIn("valid_loss_before", steps[0])
        self.assertLess(steps[-1]["valid_loss"], steps[0]["valid_loss_before"])
        weights = (self.path / "adapter/adapter_model.safetensors").read_bytes()
        self.refused("has an adapter, which is not overwritten", "--max-steps", 1)
        # Where nothing is written, a folder's adapter is in nobody's way.
        shown = subprocess.run(self.command("--show", 1, out=None), cwd=self.path / "adapter", capture_output=True, text=True, timeout=300)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual((self.path / "adapter/adapter_model.safetensors").read_bytes(), weights)
        # Going on begins where it ended.
        went_on = self.path / "more.jsonl"
        self.train("--max-steps", 1, "--batch-size", 4, "--init-adapter", self.path / "adapter", "--eval", self.data, "--report", went_on, out="more")
        self.assertAlmostEqual(self.steps(went_on)[0]["valid_loss_before"], steps[-1]["valid_loss"], 4)
        self.assertEqual(json.loads((self.path / "more/adapter_config.json").read_text())["r"], 2)

    def test_an_interrupted_run_goes_on_to_the_bits_of_an_undisturbed_one(self):
        flags = ("--max-steps", 40, "--batch-size", 2, "--lora-r", 2, "--lora-dropout", 0.1)
        self.train(*flags, out="whole")
        report = self.path / "steps.jsonl"
        process = subprocess.Popen(self.command(*flags, "--report", report), stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not (report.exists() and len(report.read_text().splitlines()) >= 3):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=100)[1]
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("--resume goes on from there", said)
        with report.open("a") as more:  # as one leaves that is killed behind its last checkpoint
            more.write('{"step":39,"loss":1}\n{"step":40,"lo')
        self.refused("the settings", *flags, "--weight-decay", 0.5, "--resume")
        self.train(*flags, "--report", report, "--resume")
        self.assertEqual([step["step"] for step in self.steps(report)], list(range(1, 41)))
        self.assertEqual((self.path / "adapter/adapter_model.safetensors").read_bytes(), (self.path / "whole/adapter_model.safetensors").read_bytes())
        self.assertFalse((self.path / "adapter/training").exists())

    def test_a_type_that_no_matrix_gets_is_told(self):
        """The demo model's rows are no whole blocks of 256, so all of its matrices get the type of 8 bits."""
        told = self.train("--max-steps", 1, "--lora-r", 2, "--quantize", "q4_k").stderr
        self.assertRegex(told, r"quantize q4_k: \d+ matrices get Q8_0, as rows are no whole blocks of 256")
        done = subprocess.run([LORAD, "quantize", "--model", str(MODEL), "--type", "q4_k", "--out", str(self.path / "four.gguf")], capture_output=True, text=True,
                              timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout + done.stderr, r"quantize q4_k: \d+ matrices get Q8_0")

    def test_a_folder_of_the_users_called_training_keeps_what_it_has(self):
        own = self.path / "training"
        own.mkdir()
        self.data = self.data.rename(own / "chats.jsonl")
        self.train("--max-steps", 1, "--lora-r", 2, out=".")
        self.assertEqual([path.name for path in own.iterdir()], ["chats.jsonl"])
        self.assertTrue((self.path / "adapter_model.safetensors").exists())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", default=LORAD)
    known, rest = parser.parse_known_args()
    LORAD = os.path.abspath(known.lorad)
    unittest.main(argv=[sys.argv[0], *rest])
