#!/usr/bin/env python3
"""T1: of ten thousand damaged adapters each is refused with a reason, or means what a reader of another make finds in it; nothing else happens."""
# beside others: yes
# sanitizers: no, builds a reader with sanitizers of its own

import random
import time

from frame import ROOT, check, check_equal, main

import adapter_cases as cases
from adapter_checks import register

MS_MAX = 100
PAST = ROOT / "tests/goldens/broken-adapters"


def past_crashes():
    """Files that were made by hand to break readers, and what fuzzing has kept."""
    for folder in sorted(p for p in PAST.iterdir() if p.is_dir()):
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name in (cases.CONFIG, cases.WEIGHTS)}
        if files:
            yield files
        if cases.WEIGHTS in files:
            yield {"header": files[cases.WEIGHTS]}
    for path in sorted((ROOT / "tests/fuzz/corpus").rglob("*")):
        if path.is_file():
            yield {"header": path.read_bytes()}


def judge(files, answer, counts):
    if "header" in files:
        try:
            expected = cases.reference(files["header"])
        except cases.Refused:
            expected = None
        if "code" in answer:
            counts["refused"] += 1
            cases.check_refusal(answer, files)
        else:
            counts["accepted"] += 1
            check_equal(answer["tensors"], expected, f"tensors of {files['header'][:200]}")
        return
    if "code" in answer:
        counts["refused"] += 1
        cases.check_refusal(answer, files)
        return
    counts["accepted"] += 1
    if set(files) != {cases.CONFIG, cases.WEIGHTS}:
        return
    try:
        expected = cases.modules_of(files)
    except cases.Refused as why:
        raise AssertionError(f"accepted, but {why}: {cases.short(files)}") from why
    found = {m["name"]: (m["rank"], m["scale"]) for m in answer["report"]["modules"]}
    check_equal(set(found), set(expected), f"modules of {cases.short(files)}")
    for name, (rank, scale) in expected.items():
        check(found[name][0] == rank and abs(found[name][1] - scale) <= 1e-6 * abs(scale), f"{name}: {found[name]}, expected {(rank, scale)}")


def run(card):
    source = random.Random(card.seed)
    mutants = [cases.mutant(source) for _ in range(10_000)]
    mutants += [{"header": files[cases.WEIGHTS]} for files in mutants[:2000]]
    mutants += list(past_crashes())
    counts = {"accepted": 0, "refused": 0}
    programs = {"as shipped": card.build / "tests/adapter_reader"}
    if card.quick:
        card.short_of("the same with sanitizers, whose reader takes minutes to compile: tests/scorecard.sh --tier nightly --only T1")
    else:
        programs["address and undefined behaviour sanitizers"] = card.build / "tests/adapter_reader_asan"
        # Not part of an ordinary build; a compiler cache makes it cheap.
        card.command("the reader is built with sanitizers", ["cmake", "--build", card.build, "--target", "adapter_reader_asan"], seconds=1800)
    answers = {}
    for name, program in programs.items():
        with card.part(f"{len(mutants)} damaged files, {name}"):
            answers[name] = cases.read_all(program, mutants, *(["--stack-kib", "1024"] if "sanitizers" in name else []))
    with card.part("each is refused with a reason of the list, or read as another reader does"):
        for files, answer in zip(mutants, answers["as shipped"]):
            judge(files, answer, counts)
        check(counts["accepted"] > 200 and counts["refused"] > 5000, f"the mutants have become one-sided: {counts}")
    if not card.quick:
        with card.part("both builds answer alike"):
            for files, *both in zip(mutants, *answers.values()):
                kept = [{k: v for k, v in answer.items() if k != "ms"} for answer in both]
                check(all(k == kept[0] for k in kept), f"{kept} of {cases.short(files)}")
    with card.part("how long each takes"):
        times = [answer["ms"] for answer in answers["as shipped"]]
        card.figure("median ms", sorted(times)[len(times) // 2])
        # A machine that does something else makes single cases slow; a case that is slow is so again.
        slow = [i for i, ms in enumerate(times) if ms > MS_MAX]
        for i, again in zip(slow, cases.read_all(programs["as shipped"], [mutants[i] for i in slow]) if slow else []):
            times[i] = min(times[i], again["ms"])
        card.limit("slowest ms", max(times), MS_MAX, str(cases.short(mutants[times.index(max(times))]))[:300])
    n_http = 60 if card.quick else 1000
    with card.part("over HTTP"), card.server("--log-level", "error", adapters=()) as server:
        n, slowest = 0, 0.0
        for files in source.sample(mutants[:10_000], n_http):
            began = time.monotonic()
            status, body = register(server, f"m{n}", files)
            if status == 201:
                raise AssertionError(f"an adapter of another base was taken: {cases.short(files)}")
            check(body["error"]["code"] in cases.REASONS and status == 422, f"{status} {body}")
            slowest = max(slowest, time.monotonic() - began)
            n += 1
        card.limit("over HTTP: slowest s", slowest, 5)
        check_equal(server.request("GET", "/health/live")[0], 200, "the server afterwards")
        check_equal(server.request("GET", "/v1/adapters")[1]["data"], [], "adapters")
    card.figure("mutants", len(mutants))
    card.figure("accepted and equal", counts["accepted"])
    card.figure("crashes" if card.quick else "crashes, sanitizer reports", 0)
    card.trials += len(mutants) * len(programs) + n_http
    card.release_only("24 hours of libFuzzer for each target: tests/fuzz/run.sh 86400")


if __name__ == "__main__":
    main("T1", run)
