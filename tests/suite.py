#!/usr/bin/env python3
"""Runs what ctest knows, with one process for many cases of a GoogleTest program instead of one for each: a process makes a device and its kernels anew.

    tests/suite.py --preset dev [-j N] [--only REGEX] [--not REGEX] [--config slow] [--optimized] [--report FILE]

Names, commands, limits, environments and what is left out are ctest's (tests/CMakeLists.txt); so is what counts as passed. The cases of a suite share a
process, and suites of one program share it as long as they take no more than BATCH_S together; cases whose label ends with `alone` keep a process each. A
case's limit counts from its own start. Where a process ends within a case, by a signal or however, or is stopped at the limit, that case has failed by
name, and the others go on in a new process. Tests with RUN_SERIAL run when all others are over, one after the other. What took longest the last time
begins first (tests.times in the build folder), or what LONG_S names where nothing has run yet.

Shows each failed test's output, each skipped one's reason, the slowest ten, what took most together with its processor seconds, and as the last line
"N passed, N failed"; writes JUnit's XML; exits 0 only if something passed and nothing failed. What is over so far, with seconds and processor seconds, is
in tests.log in the build folder.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = {"COST", "ENVIRONMENT", "FAIL_REGULAR_EXPRESSION", "LABELS", "PASS_REGULAR_EXPRESSION", "RUN_SERIAL", "SKIP_REGULAR_EXPRESSION",
         "SKIP_RETURN_CODE", "TIMEOUT", "WORKING_DIRECTORY", "DISABLED"}
TICKS = os.sysconf("SC_CLK_TCK")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
DEFAULT_LIMIT_S = 1500.0  # ctest's
DEFAULT_COST_S = 0.5      # of a case that has not run here before
BATCH_S = 20.0            # of suites in one process: many, and yet few enough for all processors to have some until the end
# Of suites whose cases take much longer than that where shaders are compiled, so that none of them begins last.
LONG_S = {"FamilyModel": 90, "Attention": 50, "DecodeLayers": 50, "DecodeBehind": 40, "DecodeLayersLora": 40, "RegisterProducts": 35, "Matmul": 35, "TrainTogether": 20}


@dataclasses.dataclass
class Test:
    """As ctest has it; `case` is GoogleTest's own name, of a discovered case."""
    name: str
    command: list
    properties: dict
    case: str = ""

    @property
    def group(self):
        return self.name.split(".")[0].split("/")[-1]


@dataclasses.dataclass
class Result:
    test: Test
    verdict: str
    seconds: float
    cpu_s: float
    output: str
    why: str = ""


def give_up(why):
    print(f"tests/suite.py: error: {why}\n0 passed, 1 failed", flush=True)
    sys.exit(1)


def preset_environment(preset):
    presets = {p["name"]: p for p in json.loads((ROOT / "CMakePresets.json").read_text())["testPresets"]}
    environment, name = {}, preset
    while name:
        environment = {**presets[name].get("environment", {}), **environment}
        name = presets[name].get("inherits")
    return {key: value.replace("${sourceDir}", str(ROOT)) for key, value in environment.items()}


def tests_of(build, only, without, config):
    argv = ["ctest", "--test-dir", str(build), "--show-only=json-v1", *(["-C", config] if config else []), *(["-R", only] if only else []),
            *(["-E", without] if without else [])]
    listed = subprocess.run(argv, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        give_up(f"{' '.join(argv)} failed: {listed.stdout[-2000:]}{listed.stderr[-2000:]}")
    tests = []
    for entry in json.loads(listed.stdout)["tests"]:
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        unknown = set(properties) - KNOWN
        if unknown:
            give_up(f"{entry['name']}: {', '.join(sorted(unknown))}: no property that is known here")
        command = entry.get("command", [])  # none where its program is not there
        # What gtest_discover_tests writes; tests with a filter of their own are commands like any other.
        found = len(command) == 3 and command[2] == "--gtest_also_run_disabled_tests" and command[1].removeprefix("--gtest_filter=")
        tests.append(Test(re.sub(r" +# GetParam\(\) = .*", "", entry["name"]), command, properties, found or ""))
    return tests


def batches_of(tests, cost_of):
    """Lists of tests that share a process; `cost_of` gives a suite's seconds."""
    programs = collections.defaultdict(lambda: collections.defaultdict(list))  # those that could, by suite
    out = []
    for test in tests:
        if test.case and not any(label.endswith("alone") for label in test.properties.get("LABELS", [])):
            programs[test.command[0], json.dumps(test.properties, sort_keys=True)][test.case.rsplit(".", 1)[0]].append(test)
        else:
            out.append([test])
    for suites in programs.values():
        batch, batch_s = [], 0.0
        for suite in suites.values():
            cost_s = cost_of(suite)
            if not batch or batch_s + cost_s > BATCH_S:
                batch, batch_s = [], 0.0
                out.append(batch)
            batch += suite
            batch_s += cost_s
    return out


def cpu_of(pid):
    """Processor seconds of a process, and of its children that have ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / TICKS
    except (OSError, IndexError):
        return 0.0


RUNNING = set()  # each process that has not ended, whichever thread waits for it


def stop_all(number, _):
    """Tests are in sessions of their own, which a terminal's interrupt does not reach."""
    for process in list(RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    print(f"tests/suite.py: stopped by {signal.Signals(number).name}", flush=True)
    os._exit(128 + number)


class Process:
    """One process of a test; its output comes line by line, until it has ended or the limit is over."""

    def __init__(self, test, command, environment):
        own = dict(entry.split("=", 1) for entry in test.properties.get("ENVIRONMENT", []) if entry)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                        cwd=test.properties.get("WORKING_DIRECTORY"), env={**environment, **own})
        RUNNING.add(self.process)
        self.limit_s = float(test.properties.get("TIMEOUT", DEFAULT_LIMIT_S))
        self.began = self.from_here = time.monotonic()
        self.overran, self.status, self.cpu_s = False, None, 0.0

    def restart_limit(self):
        self.from_here = time.monotonic()

    def lines(self):
        pipe = self.process.stdout
        os.set_blocking(pipe.fileno(), False)
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            # A process that has ended may have left others behind that hold the pipe: what is in it then is all.
            while True:
                ready = selector.select(timeout=0.5 if self.status is None else 0)
                piece = pipe.read(1 << 16) if ready else None
                if piece:
                    *whole, rest = (rest + piece).split(b"\n")
                    yield from (line.decode(errors="replace") for line in whole)
                elif self.status is not None or piece == b"":
                    break
                elif time.monotonic() - self.from_here > self.limit_s:
                    self.overran = True
                    os.killpg(self.process.pid, signal.SIGKILL)
                    self.wait(0)
                else:
                    self.wait(os.WNOHANG)
        if rest:
            yield rest.decode(errors="replace")
        if self.status is None:
            self.wait(0)
        pipe.close()

    def wait(self, flags):
        pid, status, usage = os.wait4(self.process.pid, flags)
        if pid:
            RUNNING.discard(self.process)
            self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = usage.ru_utime + usage.ru_stime

    def ending(self):
        if self.overran:
            return f"stopped at its limit of {self.limit_s:.0f} s"
        return f"ended by signal {signal.Signals(-self.status).name}" if self.status < 0 else f"ended with exit status {self.status}"


def matches(test, key, output):
    return any(re.search(pattern, output, re.M) for pattern in test.properties.get(key, []))


def run_command(test, environment):
    """A test that is one command: ctest's rules."""
    if not test.command:
        return [Result(test, FAILED, 0.0, 0.0, "", "its program is not there")]
    process = Process(test, test.command, environment)
    output = "\n".join(process.lines())
    seconds, why = time.monotonic() - process.began, ""
    if not process.overran and (matches(test, "SKIP_REGULAR_EXPRESSION", output) or process.status == test.properties.get("SKIP_RETURN_CODE", -1 << 16)):
        verdict = SKIPPED
    elif process.overran or matches(test, "FAIL_REGULAR_EXPRESSION", output):
        verdict, why = FAILED, process.ending() if process.overran else "its output is one of a failure"
    elif "PASS_REGULAR_EXPRESSION" in test.properties:
        verdict = PASSED if matches(test, "PASS_REGULAR_EXPRESSION", output) else FAILED
        why = "" if verdict == PASSED else "its output is not the one that was expected"
    else:
        verdict, why = (PASSED, "") if process.status == 0 else (FAILED, process.ending())
    return [Result(test, verdict, seconds, process.cpu_s, output, why)]


RUN = re.compile(r"^\[ RUN      \] (\S+)$")
END = re.compile(r"\[(?:       OK |  FAILED  |  SKIPPED )\] (\S+?)(?:, where .*)? \(\d+ ms\)$")


def run_process_of_cases(tests, environment, folder):
    """Runs cases in one process. Results of those that it came to, and the cases that are left for another."""
    by_case = {test.case: test for test in tests}
    report = pathlib.Path(folder) / f"{threading.get_ident()}.xml"
    report.unlink(missing_ok=True)
    program = tests[0].command[0]
    process = Process(tests[0], [program, "--gtest_filter=" + ":".join(by_case), "--gtest_also_run_disabled_tests", "--gtest_color=no",
                                 f"--gtest_output=xml:{report}"], environment)
    outputs, spent, current, around = {}, {}, None, []
    begun = (process.began, 0.0)
    for line in process.lines():
        started = RUN.search(line)
        if started and started[1] in by_case:
            current = started[1]
            outputs[current] = []
            begun = (time.monotonic(), cpu_of(process.process.pid))
            process.restart_limit()
        (outputs[current] if current else around).append(line)
        ended = END.search(line)
        if current and ended and ended[1] == current:
            spent[current] = (time.monotonic() - begun[0], cpu_of(process.process.pid) - begun[1])
            current = None
            process.restart_limit()
    results = []
    said = {}
    if report.exists() and not process.overran:
        said = {f"{case.get('classname')}.{case.get('name')}": case for case in ElementTree.parse(report).getroot().iter("testcase")}
    for case, lines in outputs.items():
        seconds, cpu_s = spent.get(case, (time.monotonic() - begun[0], max(0.0, process.cpu_s - begun[1])))
        text = "\n".join(lines)
        why = "" if case in spent or case in said else process.ending()
        if case in said:
            verdict = FAILED if said[case].find("failure") is not None else SKIPPED if said[case].get("result") == "skipped" else PASSED
        else:
            verdict = FAILED if why or "[  FAILED  ]" in lines[-1] else SKIPPED if "[  SKIPPED ]" in lines[-1] else PASSED
        results.append(Result(by_case[case], verdict, seconds, cpu_s, text, why))
    left = [test for test in tests if test.case not in outputs]
    if said and left:  # GoogleTest knows no such case: not discovered anew after a build
        results += [Result(test, FAILED, 0.0, 0.0, "\n".join(around), f"{program} has no such case") for test in left]
        left = []
    if process.status != 0 and not any(result.verdict == FAILED for result in results):
        # What begins or ends the process went wrong: no case of it may count as passed.
        text = "\n".join(around)
        if results:
            results[-1].verdict, results[-1].why = FAILED, f"its process {process.ending()} behind this, its last case"
            results[-1].output += "\n" + text
        else:
            results, left = [Result(test, FAILED, 0.0, 0.0, text, f"its process {process.ending()} before any case") for test in left], []
    elif process.cpu_s and results:
        results[0].cpu_s += max(0.0, process.cpu_s - sum(result.cpu_s for result in results))  # its start and end
    return results, left


def run_batch(batch, environment, folder):
    if not batch[0].case:
        return run_command(batch[0], environment)
    results = [Result(test, SKIPPED, 0.0, 0.0, "", "disabled") for test in batch if test.properties.get("DISABLED")]
    left = [test for test in batch if not test.properties.get("DISABLED")]
    while left:
        more, left = run_process_of_cases(left, environment, folder)
        results += more
    return results


def run_all(batches, jobs, environment, cost_of, told):
    """All batches, the longest first; those with RUN_SERIAL behind the others, alone."""
    ordered = sorted(batches, key=lambda batch: -cost_of(batch))
    serial = [batch for batch in ordered if batch[0].properties.get("RUN_SERIAL")]
    beside = iter([batch for batch in ordered if not batch[0].properties.get("RUN_SERIAL")])
    lock, results = threading.Lock(), []

    def take(batch, folder):
        try:
            found = run_batch(batch, environment, folder)
        except Exception as error:  # told as the failure of what was to run
            found = [Result(test, FAILED, 0.0, 0.0, "", f"could not be run: {error!r}") for test in batch]
        with lock:
            results.extend(found)
            told(found, len(results))

    def work(folder):
        while True:
            with lock:
                batch = next(beside, None)
            if batch is None:
                return
            take(batch, folder)

    with tempfile.TemporaryDirectory(prefix="lorad-suite-") as folder:
        threads = [threading.Thread(target=work, args=(folder,)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for batch in serial:
            take(batch, folder)
    return results


def write_junit(path, results):
    root = ElementTree.Element("testsuite", name="lorad", tests=str(len(results)), failures=str(sum(r.verdict == FAILED for r in results)),
                               skipped=str(sum(r.verdict == SKIPPED for r in results)))
    for result in results:
        case = ElementTree.SubElement(root, "testcase", name=result.test.name, classname=result.test.group, time=f"{result.seconds:.3f}")
        if result.verdict != PASSED:
            ElementTree.SubElement(case, "failure" if result.verdict == FAILED else "skipped", message=result.why)
        ElementTree.SubElement(case, "system-out").text = re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd]", "?", result.output)
    ElementTree.ElementTree(root).write(path, encoding="unicode", xml_declaration=True)


def reason_of(result):
    """A skipped test's own words."""
    lines = [line.strip() for line in result.output.splitlines() if line.strip() and not re.match(r"\[|Note|Running", line)]
    return " ".join(lines[1:3] or lines[:1]) or result.why or "no reason given"


def summary(results, seconds):
    failed = [result for result in results if result.verdict == FAILED]
    skipped = [result for result in results if result.verdict == SKIPPED]
    for result in failed:
        lines = result.output.strip().splitlines()
        print(f"\n==== FAILED {result.test.name}{': ' * bool(result.why)}{result.why}")
        print("\n".join(lines[:20] + ["..."] + lines[-60:] if len(lines) > 80 else lines))
    for result in skipped:
        print(f"skipped: {result.test.name}: {reason_of(result)}")
    for result in failed:
        print(f"failed: {result.test.name}{': ' * bool(result.why)}{result.why}")
    for result in sorted(results, key=lambda r: -r.seconds)[:10]:
        print(f"slowest: {result.seconds:5.0f} s  {result.test.name}")
    together = collections.defaultdict(list)
    for result in results:
        together[result.test.group].append(result)
    for name, of in sorted(together.items(), key=lambda item: -sum(r.seconds for r in item[1]))[:10]:
        print(f"slowest together: {sum(r.seconds for r in of):5.0f} s, {sum(r.cpu_s for r in of):5.0f} of a processor  {name} ({len(of)})")
    n_passed = len(results) - len(failed) - len(skipped)
    print(f"tests/run.sh: {seconds:.0f} s of tests, {sum(r.cpu_s for r in results):.0f} of a processor, {len(skipped)} skipped")
    print(f"{n_passed} passed, {len(failed)} failed")
    return n_passed > 0 and not failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="dev")
    parser.add_argument("--build", help="default: the preset's build folder")
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="as ctest's -R")
    parser.add_argument("--not", dest="without", default="", help="as ctest's -E")
    parser.add_argument("--config", default="", help="as ctest's -C")
    parser.add_argument("--optimized", action="store_true", help="lavapipe compiles with its optimizer also for tests that are without it")
    parser.add_argument("--report", help="JUnit's XML; default: tests.xml in the build folder")
    args = parser.parse_args()
    build = pathlib.Path(args.build or ROOT / "build" / args.preset).resolve()
    tests = tests_of(build, args.only, args.without, args.config)
    if args.optimized:
        for test in tests:
            own = [entry for entry in test.properties.get("ENVIRONMENT", []) if not entry.startswith("GALLIVM_PERF=")]
            test.properties["ENVIRONMENT"] = own
    if not tests:
        give_up("no test has such a name")
    times_file = build / "tests.times"
    try:
        times = json.loads(times_file.read_text())
    except (OSError, ValueError):
        times = {}

    def cost_of(some):
        new = {test.group for test in some if test.name not in times}
        return sum(LONG_S.get(group, 0) for group in new) + sum(times.get(test.name, float(test.properties.get("COST", DEFAULT_COST_S))) for test in some)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_all)
    began = time.monotonic()
    log = open(build / "tests.log", "w", buffering=1)

    def told(found, n):
        for result in found:
            log.write(f"{result.verdict:7} {result.seconds:8.2f} {result.cpu_s:8.2f} {result.test.name}\n")
            if result.verdict == FAILED:
                print(f"{n} of {len(tests)}: failed: {result.test.name}", flush=True)

    # By program, which cases of GoogleTest are run here: the scorecard's quick forms do not run them again.
    cases = collections.defaultdict(list)
    for test in tests:
        if test.case:
            cases[pathlib.Path(test.command[0]).name].append(test.case)
    with tempfile.NamedTemporaryFile("w", prefix="lorad-suite-", suffix=".json") as listed:
        json.dump(cases, listed)
        listed.flush()
        # Whoever calls may keep compiled shaders elsewhere; what the preset says of sanitizers stands.
        shaders = {name: os.environ[name] for name in ("MESA_SHADER_CACHE_DIR",) if name in os.environ}
        environment = {**os.environ, **preset_environment(args.preset), **shaders, "LORAD_SUITE_RUNS": listed.name}
        results = run_all(batches_of(tests, cost_of), max(1, args.jobs), environment, cost_of, told)
    write_junit(args.report or build / "tests.xml", results)
    times_file.write_text(json.dumps({**times, **{r.test.name: round(r.seconds, 2) for r in results if r.verdict == PASSED}}))
    sys.exit(0 if summary(results, time.monotonic() - began) else 1)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        give_up(f"{error!r}")
