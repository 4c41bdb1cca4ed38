"""Runs the scorecard's tests one after another, and their controls; tests/scorecard.sh says how to call it."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import frame
import plants
import table

HERE = pathlib.Path(__file__).resolve().parent
SECONDS_MAX = {"commit": 900, "nightly": 4 * 3600, "release": 100 * 3600}


def scripts(only):
    """Test -> its file, in order."""
    found = {f"T{int(path.name[1:3])}": path for path in sorted(HERE.glob("t[0-9][0-9]_*.py"))}
    if only:
        unknown = set(only) - set(found)
        if unknown:
            sys.exit(f"scorecard: no test {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    return {test: path for test, path in found.items() if not only or test in only}


def run(script, tier, build, lorad, seed, env=None, quiet=False):
    """The test's line; one that says why where it printed none."""
    command = [sys.executable, str(script), "--tier", tier, "--build", str(build)] + (["--lorad", str(lorad)] if lorad else [])
    command += ["--seed", str(seed)] if seed is not None else []
    began = time.monotonic()
    said = ""
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if quiet else None, text=True, env=dict(os.environ, **(env or {})),
                               timeout=SECONDS_MAX[tier], check=False)
        said = ended.stdout.strip().rsplit("\n", 1)[-1]
        line = json.loads(said)
        assert isinstance(line, dict) and "test" in line
        return line
    except subprocess.TimeoutExpired:
        why = f"not over after {SECONDS_MAX[tier]} s"
    except (ValueError, AssertionError):
        why = f"printed no result: {said[-300:]}"
    test = f"T{int(script.name[1:3])}"
    return {"test": test, "kind": frame.kind_of(test), "tier": tier, "passed": False, "full": False, "points": 0, "figures": {}, "trials": 0, "parts": [],
            "failed": {"no result": why}, "missing": [], "release": [], "note": "", "seed": seed, "seconds": round(time.monotonic() - began, 1),
            "git": frame.git_state()}


class PlantedTree:
    """A copy of this tree, with its own build folder; ccache makes its first build cheap."""

    def __init__(self):
        self.root = frame.ROOT / "build/plants/tree"
        self.build = self.root / "build/dev"

    def copy(self):
        listed = subprocess.run(["git", "-C", str(frame.ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                                capture_output=True, text=True).stdout.split("\0")
        wanted = {name for name in listed if name and (frame.ROOT / name).is_file()}
        for name in wanted:
            source, target = frame.ROOT / name, self.root / name
            if target.exists() and target.read_bytes() == source.read_bytes():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        for path in list(self.root.rglob("*")):
            name = path.relative_to(self.root)
            if path.is_file() and name.parts[0] != "build" and str(name) not in wanted and "__pycache__" not in name.parts:
                path.unlink()
        (self.root / "build").mkdir(parents=True, exist_ok=True)
        toolchain = self.root / "build/toolchain"
        if not toolchain.exists() and (frame.ROOT / "build/toolchain").exists():
            toolchain.symlink_to((frame.ROOT / "build/toolchain").resolve())
        if not (self.root / "build/cargo").exists() and (frame.ROOT / "build/cargo").exists():
            shutil.copytree(frame.ROOT / "build/cargo", self.root / "build/cargo", symlinks=True)

    def make(self, targets):
        with open(self.root / "build/build.log", "w", encoding="utf-8") as log:
            if not (self.build / "build.ninja").exists():
                subprocess.run(["cmake", "--preset", "dev"], cwd=self.root, stdout=log, stderr=log, check=True)
            if targets:
                subprocess.run(["cmake", "--build", str(self.build), "-j", str(os.cpu_count()), "--target", *targets], stdout=log, stderr=log, check=True)


def try_control(tree, plant, seed):
    """What is wrong with the control, or nothing: then the test has found the bug."""
    path = tree.root / plant.file
    sound = path.read_text()
    n = sound.count(plant.old)
    if n != 1:
        return f"the text to replace occurs {n} times in {plant.file}"
    path.write_text(sound.replace(plant.old, plant.new))
    try:
        try:
            tree.make(plant.targets)
        except subprocess.CalledProcessError:
            return f"does not build: {tree.root}/build/build.log"
        script = scripts([plant.test])[plant.test]
        line = run(tree.root / script.relative_to(frame.ROOT), plant.tier, tree.build, None, seed,
                   env={"LORAD_SCORECARD_GIT": frame.git_state() + " planted"}, quiet=True)
        if line["passed"]:
            return "the test passes all the same"
        if "no result" in line["failed"]:
            return line["failed"]["no result"]
        if plant.part and not any(plant.part in part for part in line["failed"]):
            return f"fails elsewhere: {line['failed']}"
        print(f"    found by: {'; '.join(f'{part}: {what[:140]}' for part, what in line['failed'].items())}", flush=True)
        return None
    finally:
        path.write_text(sound)


def run_controls(wanted, seed, keep):
    tree = PlantedTree()
    tree.copy()
    results = {}
    chosen = [plant for plant in plants.PLANTS if plant.test in wanted]
    try:
        for number, plant in enumerate(chosen, 1):
            print(f"scorecard: control {number} of {len(chosen)}: {plant.test}: {plant.why or plant.file}", flush=True)
            began = time.monotonic()
            problem = try_control(tree, plant, seed)
            print(f"    {'MISSED: ' + problem if problem else 'ok'} ({time.monotonic() - began:.0f} s)", flush=True)
            caught, planted = results.get(plant.test, (0, 0))
            results[plant.test] = (caught + (problem is None), planted + 1)
            if all(later.test != plant.test for later in chosen[number:]):
                keep({plant.test: results[plant.test]})
    finally:
        tree.copy()
    return results


def self_test():
    """The frame's own: the table survives being read and written, and points are as the rules say."""
    base = {"test": "T1", "tier": "nightly", "passed": True, "full": True, "points": 2, "figures": {"n": 1}, "trials": 300, "parts": ["a"], "failed": {},
            "missing": [], "release": [], "note": "a | b", "seed": 1, "seconds": 1.0, "git": "abc"}
    text, total, most = table.updated("# x\n", {"T1": base}, {})
    assert (total, most) == (2, 103), (total, most)
    text, total, _ = table.updated(text, {}, {"T1": (2, 2)})
    assert total == 3 and "fails (2 of 2)" in text
    quick = dict(base, tier="commit", full=False, missing=["the rest"])
    assert table.updated(text, {"T1": quick}, {})[1] == 3, "a quick run replaced a full one"
    assert table.updated(text, {"T1": dict(quick, passed=False, failed={"a": "b"})}, {})[1] == 0
    assert table.updated(text, {"T2": dict(quick, test="T2")}, {})[1] == 4
    assert table.updated(text, {}, {"T1": (1, 2)})[1] == 2, "a control that was missed gave points"
    text, total, _ = table.updated(text, {"T12": dict(base, test="T12", points=6)}, {})
    assert total == 9 and table.updated(text, {}, {})[0] == text
    for tier, judges in (("commit", False), ("nightly", True), ("release", True)):
        card = frame.Card("T2", tier, "build", "lorad", 1, "/tmp")
        with contextlib.redirect_stderr(io.StringIO()):
            with card.part("p"):
                card.limit("slowest ms", 7.0, 7)
            with card.part("q"):
                card.limit("slowest ms", 2524.0, 250, "a depth of 80000")
            with card.part("r"):
                card.limit("slowest ms", 9.0, 250)
        line = card.line(1.0)
        assert line["figures"] == {"slowest ms": 2524.0}, line
        assert line["passed"] != judges and not line["full"] and line["points"] == (0 if judges else 1), line
        assert ("q" in line["failed"]) == judges and ("slowest ms" in str(line["missing"])) != judges, line
        graded = frame.Card("T12", tier, "build", "lorad", 1, "/tmp")
        graded.grade("p99 ms", 40, 50)
        assert graded.points() == (6 if judges else 0) and bool(graded.all_missing()) != judges, graded.line(1.0)
    for plant in plants.PLANTS:
        n = (frame.ROOT / plant.file).read_text().count(plant.old)
        assert n == 1 and plant.old != plant.new, f"{plant.test}: the text to replace occurs {n} times in {plant.file}"
        assert plant.test in scripts(None), f"{plant.test}: a plant without a test"
    for test, path in scripts(None).items():
        assert re.search(rf'main\("{test}", run\)', path.read_text()), f"{path.name} is not {test}"
    print(f"scorecard self-test: {len(plants.PLANTS)} plants, {len(scripts(None))} tests")


def main():
    parser = argparse.ArgumentParser(prog="tests/scorecard.sh")
    parser.add_argument("--tier", choices=frame.TIERS, default="commit")
    parser.add_argument("--only", default="", help="T1,T23")
    parser.add_argument("--controls", action="store_true", help="the planted bugs instead of the tests")
    parser.add_argument("--write", action="store_true", help="write the table of docs/RELIABILITY.md")
    parser.add_argument("--build", default=str(frame.ROOT / "build/dev"))
    parser.add_argument("--lorad")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        self_test()
        return 0
    frame.use_software_device()
    wanted = scripts([test.strip() for test in args.only.split(",") if test.strip()])
    if args.controls:
        results = run_controls(wanted, args.seed, lambda of_test: args.write and table.write({}, of_test))
        n_missed = sum(planted - caught for caught, planted in results.values())
        print(f"scorecard: {sum(planted for _, planted in results.values())} controls, {n_missed} missed")
        return 1 if n_missed else 0

    lines = {}
    kept = frame.ROOT / "build/scorecard"
    kept.mkdir(parents=True, exist_ok=True)
    for test, script in wanted.items():
        line = run(script, args.tier, args.build, args.lorad, args.seed)
        lines[test] = line
        print(json.dumps(line), flush=True)
        with open(kept / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"scorecard: {test} {table.TITLES[test]}: {'pass' if line['full'] else 'pass, partly' if line['passed'] else 'FAIL'}, "
              f"{line['points']} of {table.largest(test)} without controls, {line['seconds']} s", flush=True)
        if args.write:
            table.write({test: line}, {})
    n_failed = sum(not line["passed"] for line in lines.values())
    print(f"scorecard: {len(lines)} tests, {n_failed} failed, {sum(line['seconds'] for line in lines.values()):.0f} s")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
