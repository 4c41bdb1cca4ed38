#!/usr/bin/env python3
"""tests/suite.py says by name what failed, was skipped, ended its process or hung, and lets nothing else suffer for it.

    tests/suite/suite_test.py --subjects build/dev/tests/suite_subjects
"""

import argparse
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SUBJECTS = ""
LIMIT_S = 5  # for what hangs; on a busy machine a process takes a second to start


def case(name, **properties):
    return name, [SUBJECTS, f"--gtest_filter={name}", "--gtest_also_run_disabled_tests"], {"TIMEOUT": LIMIT_S, "LABELS": "sound", **properties}


def shell(name, script, **properties):
    return name, ["/bin/sh", "-c", script], {"TIMEOUT": LIMIT_S, **properties}


def write_tests(folder, tests):
    lines = []
    for name, command, properties in tests:
        lines.append(f"add_test([=[{name}]=] {' '.join(f'[=[{word}]=]' for word in command)})")
        lines.append(f"set_tests_properties([=[{name}]=] PROPERTIES {' '.join(f'{key} [=[{value}]=]' for key, value in properties.items())})")
    (pathlib.Path(folder) / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")


class Suite(unittest.TestCase):
    def run_suite(self, tests, *flags):
        """The lines of its summary, its exit status, and {test: (verdict, output)} of its report."""
        with tempfile.TemporaryDirectory() as folder:
            write_tests(folder, tests)
            run = subprocess.run([sys.executable, ROOT / "tests/suite.py", "--build", folder, "-j", "2", *flags], capture_output=True, text=True, check=False)
            self.assertEqual(run.stderr, "")
            report = pathlib.Path(folder) / "tests.xml"
            verdicts = {}
            for found in ElementTree.parse(report).getroot() if report.exists() else []:
                verdict = "failed" if found.find("failure") is not None else "skipped" if found.find("skipped") is not None else "passed"
                self.assertNotIn(found.get("name"), verdicts)
                verdicts[found.get("name")] = (verdict, found.findtext("system-out"))
            return run.stdout.splitlines(), run.returncode, verdicts

    def test_cases_of_a_suite_share_a_process_and_are_told_apart(self):
        names = ["Sound.Passes", "Sound.SaysSomethingAndPasses", "Sound.IsSkipped", "Sound.PassesBehindIt"]
        lines, status, verdicts = self.run_suite([case(name) for name in names])
        self.assertEqual({name: verdict for name, (verdict, _) in verdicts.items()},
                         {name: "skipped" if name == "Sound.IsSkipped" else "passed" for name in names})
        self.assertEqual((lines[-1], status), ("3 passed, 0 failed", 0))
        self.assertIn("skipped: Sound.IsSkipped: there is no such device", lines)
        self.assertIn("words without an end of line", verdicts["Sound.SaysSomethingAndPasses"][1])
        self.assertNotIn("words without", verdicts["Sound.PassesBehindIt"][1])

    def test_what_ends_or_holds_up_a_process_fails_by_name_and_the_others_go_on(self):
        names = [f"Broken.{name}" for name in ("Passes", "Fails", "EndsTheProcessByASignal", "PassesBehindIt", "EndsTheProcessAsIfAllWereWell",
                                               "HangsUntilItsLimit", "FailsBehindAll")]
        lines, status, verdicts = self.run_suite([case(name) for name in names])
        self.assertEqual({name for name, (verdict, _) in verdicts.items() if verdict == "passed"}, {"Broken.Passes", "Broken.PassesBehindIt"})
        self.assertEqual((set(verdicts), lines[-1], status), (set(names), "2 passed, 5 failed", 1))
        for line in ("failed: Broken.EndsTheProcessByASignal: ended by signal SIGABRT", "failed: Broken.Fails",
                     "failed: Broken.EndsTheProcessAsIfAllWereWell: ended with exit status 0",
                     f"failed: Broken.HangsUntilItsLimit: stopped at its limit of {LIMIT_S} s", "failed: Broken.FailsBehindAll"):
            self.assertIn(line, lines)
        self.assertTrue(any("so much for sums" in line for line in lines), lines)

    def test_an_end_of_the_process_that_fails_is_nobodys_success(self):
        environment = "SUBJECTS_FAIL_AT_THE_END=1"
        lines, status, verdicts = self.run_suite([case("Sound.Passes", ENVIRONMENT=environment), case("Sound.SaysSomethingAndPasses", ENVIRONMENT=environment),
                                                  case("Sound.PassesBehindIt")])
        self.assertEqual({name for name, (verdict, _) in verdicts.items() if verdict == "failed"}, {"Sound.SaysSomethingAndPasses"})
        self.assertEqual((lines[-1], status), ("2 passed, 1 failed", 1))
        self.assertTrue(any("nobody's messages" in line for line in lines), lines)

    def test_suites_of_a_program_share_a_process_unless_they_take_long(self):
        environment = "SUBJECTS_FAIL_AT_THE_END=1"  # of each process the last case fails
        tests = [case("Sound.Passes", ENVIRONMENT=environment), case("Broken.Passes", ENVIRONMENT=environment)]
        lines, status, verdicts = self.run_suite(tests)
        self.assertEqual({name for name, (verdict, _) in verdicts.items() if verdict == "failed"}, {"Broken.Passes"})
        self.assertEqual((lines[-1], status), ("1 passed, 1 failed", 1))
        for test in tests:
            test[2]["COST"] = 15
        self.assertEqual(self.run_suite(tests)[0][-1], "0 passed, 2 failed")

    def test_a_program_that_does_not_start_and_a_case_that_is_not_there_fail(self):
        gone = case("Sound.Passes")
        gone[1][0] = "/bin/false"
        lines, status, _ = self.run_suite([gone, case("Sound.IsNotThere"), case("Sound.PassesBehindIt")])
        self.assertEqual((lines[-1], status), ("1 passed, 2 failed", 1))

    def test_cases_labelled_alone_have_a_process_each(self):
        lines, status, _ = self.run_suite([case("Broken.EndsTheProcessAsIfAllWereWell", LABELS="sound;alone"), case("Broken.Passes", LABELS="sound;alone")])
        self.assertEqual((lines[-1], status), ("1 passed, 1 failed", 1))

    def test_commands_pass_by_the_rules_of_ctest(self):
        wanted = {
            "passed": [shell("Zero", "exit 0"), shell("Expected", "echo as expected; exit 3", PASS_REGULAR_EXPRESSION="as expec")],
            "skipped": [shell("SkippedByStatus", "echo there is no compiler; exit 77", SKIP_RETURN_CODE=77), shell("SkippedByWords", "echo is no device", SKIP_REGULAR_EXPRESSION="no device")],
            "failed": [shell("One", "exit 1"), shell("Unexpected", "exit 0", PASS_REGULAR_EXPRESSION="as expec"), shell("Refused", "echo ' 0 tests from'", FAIL_REGULAR_EXPRESSION=" 0 tests from"),
                       shell("Late", "sleep 60 & wait")],
        }
        lines, status, verdicts = self.run_suite([test for tests in wanted.values() for test in tests])
        self.assertEqual({name: verdict for name, (verdict, _) in verdicts.items()}, {test[0]: verdict for verdict, tests in wanted.items() for test in tests})
        self.assertEqual((lines[-1], status), ("2 passed, 4 failed", 1))
        self.assertIn("skipped: SkippedByStatus: there is no compiler", lines)

    def test_what_a_command_leaves_running_does_not_hold_up_the_suite(self):
        lines, status, _ = self.run_suite([shell("LeavesOneBehind", "sleep 60 & exit 0", TIMEOUT=300)])
        self.assertEqual((lines[-1], status), ("1 passed, 0 failed", 0))
        self.assertLess(float(re.search(r"(\d+) s of tests", lines[-2])[1]), 50)

    def test_serial_tests_have_the_machine_to_themselves(self):
        with tempfile.TemporaryDirectory() as folder:
            alone = f"mkdir {folder}/busy && sleep 0.2 && rmdir {folder}/busy"
            tests = [shell(f"Beside{i}", f"test ! -e {folder}/busy && sleep 0.1 && test ! -e {folder}/busy") for i in range(4)]
            lines, status, _ = self.run_suite([shell("Alone", alone, RUN_SERIAL="ON"), shell("AloneToo", alone, RUN_SERIAL="ON"), *tests])
        self.assertEqual((lines[-1], status), ("6 passed, 0 failed", 0))

    def test_a_signal_ends_the_tests_as_well(self):
        with tempfile.TemporaryDirectory() as folder:
            write_tests(folder, [shell("Long", f"echo $$ >{folder}/pid; mv {folder}/pid {folder}/began; sleep 3600 & wait", TIMEOUT=3600)])
            run = subprocess.Popen([sys.executable, ROOT / "tests/suite.py", "--build", folder], stdout=subprocess.PIPE, text=True)
            while not (pathlib.Path(folder) / "began").exists():
                self.assertIsNone(run.poll())
                time.sleep(0.05)
            pid = int((pathlib.Path(folder) / "began").read_text())
            run.terminate()
            self.assertIn("stopped by SIGTERM", run.communicate()[0])
            self.assertEqual(run.returncode, 128 + signal.SIGTERM)
            end = time.monotonic() + 60
            while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < end:
                time.sleep(0.05)
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists(), "the test goes on")

    def test_no_test_is_a_failure(self):
        lines, status, _ = self.run_suite([case("Sound.Passes")], "--only", "NoSuchName")
        self.assertEqual((lines[-1], status), ("0 passed, 1 failed", 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--subjects", required=True)
    args, rest = parser.parse_known_args()
    SUBJECTS = str(pathlib.Path(args.subjects).resolve())
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
