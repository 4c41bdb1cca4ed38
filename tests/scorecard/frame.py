"""What the thirty-one tests of the scorecard share. docs/RELIABILITY.md says what each must show.

A test is one file, t<two digits>_<name>.py:

    #!/usr/bin/env python3
    \"\"\"T23: one sentence.\"\"\"
    from frame import check, main

    def run(card):
        card.gtest("every field has a tag", "adapters_tests", "CacheIdentity.*")       # C++ tests that exist are called, not written again
        with card.part("a reload of the name is another cache"):                        # what fails in it (AssertionError or any other) fails it
            with card.server("--max-loras", "4") as server:                             # tests/e2e/harness.py's Server: lorad on the demo model
                check(server.metric("lorad_prefix_hits_total") == 0, "a hit")
        card.figure("cross hits", 0)
        card.trials += 1000

    if __name__ == "__main__":
        main("T23", run)

It is run as  tests/scorecard/t23_x.py --tier commit|nightly|release --build build/dev [--lorad PATH] [--seed N], prints one line of JSON
(the last line of stdout; what else it says goes to stderr) and exits 0 if no part failed, else 1.

How much it does depends on card.tier: `commit` is a quick form (seconds; all of them together at most four minutes), part of ctest. A run that did
not do all that reliability asks for says so with card.short_of("what is missing; the command that does it"): it may pass, but scores as "partly".

    card.part(name)           with-block; a failure ends the block, is recorded, and the test goes on
    card.gtest(part, program, filter, env={}, seconds=600)   one part; RecordProperty values become figures. No test run, or one skipped: failed;
                              with may_skip those may be left out that say that the device is not made for them. In the quick form, where tests/suite.py
                              runs all of them itself (LORAD_SUITE_RUNS), they are not run twice. With an env they are other tests, except with
                              less_when_quick: env then asks for less than the tests do without it
    card.command(part, [argv], seconds=600, env={})          one part: exit status 0; returns stdout
    card.server(*flags, adapters=(), env={})                 a daemon on lavapipe and a free port
    card.figure(name, value)  goes into the line and the table of docs/RELIABILITY.md: few and short
    card.trials += n          what "0 failures" was counted over
    card.limit(what, figure, limit, where="")                a figure that depends on how fast the machine is (times, ratios of times), at most the limit:
                              part of the line in every tier, but judged, inside the part that it stands in, in nightly and release only. A commit's
                              machine is shared: what decides there is counted (calls, bytes, order), with times only against hanging (10 times or more)
    card.grade(what, figure, limit, better="lower")          graded tests: full, half within 1.5 times, one point within 3 times; as limit(), not in commit
    card.short_of(text)       what of the full test this run has not done
    card.release_only(text)   what only a release does (days of fuzzing, other vendors' GPUs); told in the table, without points
    card.note(text)           one sentence for the table
    card.tier, card.quick (tier is commit), card.seed, card.random, card.build, card.lorad, card.folder (a scratch folder)
    card.memory               a scratch folder on a disk in memory where there is one: syncs take most of the time of a test that only kills or fails calls

A test without a quick form, or whose quick form is tests that ctest runs anyway, has the line "# ctest: no" after its docstring;
one whose quick form judges no speed, and so may run beside other tests of the suite, "# beside others: yes".

Planted bugs are in plants.py, the points and the table in table.py, the order of things in runner.py; tests/scorecard.sh is the command.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))

from harness import ADAPTERS, MODEL, Server, check, check_equal, check_error, free_port  # noqa: E402, F401  (for the tests)

TIERS = ("commit", "nightly", "release")
GATE_POINTS = 3
GRADED_POINTS = {"T12": 6, "T24": 5, "T26": 5, "T30": 6}


def kind_of(test):
    return "graded" if test in GRADED_POINTS else "gate"


def git_state():
    """The commit, with a plus where the tree differs from it. A tree with a planted bug is told of by its environment."""
    given = os.environ.get("LORAD_SCORECARD_GIT")
    if given:
        return given
    run = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        return "unknown"
    dirty = subprocess.run(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=False)
    return run.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def use_software_device():
    """Results must not depend on a machine's graphics card; LORAD_TEST_DEVICE asks for one all the same."""
    if os.environ.get("LORAD_TEST_DEVICE") or os.environ.get("VK_DRIVER_FILES"):
        return
    for folder in ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"):
        for path in sorted(pathlib.Path(folder).glob("lvp_icd*.json")):
            os.environ["VK_DRIVER_FILES"] = os.environ["VK_ICD_FILENAMES"] = str(path)
            return


def memory_disk():
    """None where there is none, or no room on it."""
    try:
        about = os.statvfs("/dev/shm")
        return "/dev/shm" if os.access("/dev/shm", os.W_OK) and about.f_bavail * about.f_frsize >= 256 << 20 else None
    except OSError:
        return None


def certificate(folder):
    """A server's certificate and its key, as files."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key), "-out", str(cert),
                    "-days", "2", "-subj", "/CN=lorad.test"], check=True, capture_output=True)
    return str(cert), str(key)


def lanes(card):
    """How many daemons a test may have side by side."""
    return 1 if card.quick else max(2, min(4, os.cpu_count() or 1))


def spread(subjects, jobs, work):
    """work(subject, *job) for every job, at whichever subject is free, a thread for each; the first that fails ends all. How many jobs there were."""
    todo, failures, lock = iter(jobs), [], threading.Lock()

    def run(subject):
        while not failures:
            with lock:
                job = next(todo, None)
            if job is None:
                return
            try:
                work(subject, *job)
            except Exception as failure:  # told by the thread of the part
                failures.append(failure)

    threads = [threading.Thread(target=run, args=(subject,)) for subject in subjects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return len(jobs)


class Card:
    def __init__(self, test, tier, build, lorad, seed, folder, memory=None):
        self.test, self.tier, self.build, self.lorad = test, tier, pathlib.Path(build), str(lorad)
        self.quick = tier == "commit"
        self.seed, self.random = seed, random.Random(seed)
        self.folder, self.memory = pathlib.Path(folder), pathlib.Path(memory or folder)
        self.trials = 0
        self.figures, self.passed_parts, self.failures, self.missing, self.releases, self.notes = {}, [], {}, [], [], []
        self.grades, self.not_judged = [], []
        self.n_reports = itertools.count()

    def say(self, text):
        print(f"{self.test}: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def part(self, name):
        began = time.monotonic()
        try:
            yield
        except Exception as error:  # every part is to be heard
            what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            self.failures[name] = what[:2000] or "failed"
            self.say(f"FAIL {name}: {what}")
            if not isinstance(error, AssertionError):
                self.say(traceback.format_exc())
        else:
            self.passed_parts.append(name)
            self.say(f"ok   {name} ({time.monotonic() - began:.1f} s)")

    def server(self, *flags, adapters=(), env=None, lorad=None):
        return Server(lorad or self.lorad, *flags, adapters=adapters, env=env)

    def command(self, part, argv, seconds=600, env=None):
        with self.part(part):
            run = subprocess.run([str(a) for a in argv], cwd=ROOT, env=dict(os.environ, **(env or {})), capture_output=True, text=True,
                                 errors="replace", timeout=seconds, check=False)
            check(run.returncode == 0, f"exit status {run.returncode}: {(run.stdout + run.stderr)[-1500:]}")
            return run.stdout
        return ""

    def runs_in_suite(self, program, tests):
        """Whether the suite that this run is a part of runs each of these cases by itself."""
        listed = os.environ.get("LORAD_SUITE_RUNS") if self.quick else None
        if not listed:
            return False
        run = subprocess.run([str(self.build / "tests" / program), "--gtest_list_tests", f"--gtest_filter={tests}"], capture_output=True, text=True, check=False)
        cases, suite = [], ""
        for line in run.stdout.splitlines():
            if line.startswith("  "):
                cases.append(suite + line.split("#")[0].strip())
            elif line.split("#")[0].strip().endswith("."):
                suite = line.split("#")[0].strip()
        known = set(json.loads(pathlib.Path(listed).read_text()).get(program, []))
        return bool(cases) and known.issuperset(cases)

    def gtest(self, part, program, tests, env=None, seconds=600, may_skip=False, less_when_quick=False):
        if (not env or less_when_quick) and self.runs_in_suite(program, tests):
            self.short_of(f"{part}: the suite's own {program} {tests}")
            return
        with self.part(part):
            report = self.folder / f"{program}.{next(self.n_reports)}.json"
            run = subprocess.run([str(self.build / "tests" / program), f"--gtest_filter={tests}", f"--gtest_output=json:{report}"], cwd=ROOT,
                                 env=dict(os.environ, **(env or {})), capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
            check(report.exists(), f"{program} ended with {run.returncode}: {(run.stdout + run.stderr)[-1500:]}")
            cases = [case for suite in json.loads(report.read_text())["testsuites"] for case in suite["testsuite"]]
            ran = [case for case in cases if case["status"] == "RUN"]
            failed = [f"{case['classname']}.{case['name']}: {case['failures'][0]['failure'][:600]}" for case in ran if case.get("failures")]
            skipped = [case["name"] for case in ran if case.get("result") == "SKIPPED"]
            check(run.returncode == 0 and not failed, "; ".join(failed) or f"exit status {run.returncode}: {run.stdout[-800:]}{run.stderr[-800:]}")
            check(len(ran) > len(skipped) if may_skip else ran and not skipped, f"skipped: {skipped}" if ran else f"no test is called {tests}")
            if skipped:
                self.say(f"{program}: skipped {len(skipped)} of {len(ran)}: {', '.join(skipped)}")
            known = {"name", "file", "line", "status", "result", "timestamp", "time", "classname", "failures", "value_param", "type_param"}
            for case in ran:
                for key, value in case.items():
                    if key == "trials":
                        self.trials += int(value)
                    elif key not in known:
                        self.figure(key, value)

    def figure(self, name, value):
        if isinstance(value, float):
            value = float(f"{value:.4g}")
        self.figures[name] = value

    def limit(self, what, figure, limit, where=""):
        """A figure of the machine's speed: recorded always (of several the worst), judged where the machine is ours alone. `where`: what was so slow."""
        self.figure(what, max(float(figure), self.figures.get(what, 0.0)))
        if self.quick:
            self.not_judged.append(what)
            return
        check(figure <= limit, f"{what}: at most {limit}, found {figure:.4g}{': ' * bool(where)}{where}")

    def grade(self, what, figure, limit, better="lower"):
        """The share of a graded test's points that this figure is worth; the worst figure decides."""
        self.figure(what, figure)
        if self.quick:
            self.not_judged.append(what)
            return
        full = GRADED_POINTS[self.test]
        ratio = (figure / limit if limit else float("inf") if figure else 1.0) if better == "lower" else (limit / figure if figure else float("inf"))
        self.grades.append(full if ratio <= 1 else full // 2 if ratio <= 1.5 else 1 if ratio <= 3 else 0)
        self.passed_parts.append(what)

    def short_of(self, text):
        self.missing.append(text)

    def all_missing(self):
        limits = list(dict.fromkeys(self.not_judged))
        return self.missing + ([f"judging {', '.join(limits)}: tests/scorecard.sh --tier nightly --only {self.test}"] if limits else [])

    def release_only(self, text):
        if self.tier != "release":
            self.releases.append(text)

    def note(self, text):
        self.notes.append(text)

    def points(self):
        """Without what a control that fails adds: table.py knows about those."""
        if kind_of(self.test) == "graded":
            points = min(self.grades, default=0)
            return min(points, 1) if self.failures else points
        if self.failures or self.all_missing():
            return 1 if self.passed_parts and not self.failures else 0
        return GATE_POINTS - 1 if self.passed_parts else 0

    def line(self, seconds):
        missing = self.all_missing()
        return {"test": self.test, "kind": kind_of(self.test), "tier": self.tier, "passed": bool(self.passed_parts) and not self.failures,
                "full": bool(self.passed_parts) and not self.failures and not missing, "points": self.points(), "figures": self.figures,
                "trials": self.trials, "parts": self.passed_parts, "failed": self.failures, "missing": missing,
                "release": self.releases, "note": " ".join(self.notes),
                "seed": self.seed, "seconds": round(seconds, 1), "git": git_state()}


def main(test, run):
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--tier", choices=TIERS, default="commit")
    parser.add_argument("--build", default=str(ROOT / "build/dev"), help="the build folder, for the test programs")
    parser.add_argument("--lorad", help="the program; default: the build folder's")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("LORAD_TEST_SEED", 1)))
    args = parser.parse_args()
    use_software_device()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, which programs inherit, and T16 sends it
    build = pathlib.Path(args.build).resolve()
    began = time.monotonic()
    scratch = f"scorecard-{test}-"
    with tempfile.TemporaryDirectory(prefix=scratch) as folder, tempfile.TemporaryDirectory(prefix=scratch, dir=memory_disk()) as memory:
        card = Card(test, args.tier, build, args.lorad or build / "lorad", args.seed, folder, memory)
        with card.part("the test itself") as _:
            run(card)
        card.passed_parts = [part for part in card.passed_parts if part != "the test itself"]
        line = card.line(time.monotonic() - began)
    print(json.dumps(line), flush=True)
    sys.exit(0 if line["passed"] else 1)
