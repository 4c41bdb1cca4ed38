#!/usr/bin/env python3
"""Is the new one faster or slower? Two result files, or two builds run in turns.

usage: compare.py OLD.jsonl NEW.jsonl [--threshold 0.03]
       compare.py --old 'BUNDLE_A/run lorad-bench' --new 'BUNDLE_B/run lorad-bench' [--rounds 5] [--threshold 0.03] -- engine --model DIR --batch 1,8

A case of both files is compared by the ratio of its medians, with a bootstrap interval (95 %) over its samples. In turns (A B A B ...,
and B A in every other round) each pair of neighbouring runs gives one ratio, so that a device which gets warmer or slower does so
for both; the median of the ratios counts, with its bootstrap interval. Verdict for each case: slower or faster where the whole interval
lies beyond the threshold, else "same" where it lies within, else "unclear". Ratios are of time (above 1: the new one is slower); for
results that are rates they are turned round.
Exit status: 0 nothing slower, 1 something slower, 2 nothing to compare.
"""
import argparse
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import stats  # noqa: E402

RATES = {"GB/s", "tok/s"}


def by_case(rows):
    """Samples of each case, in order; several rows of one case are one after another."""
    cases = {}
    for row in rows:
        if row.get("values") and row.get("case") != "ceiling":
            cases.setdefault(stats.case_key(row), []).append(row)
    return cases


def times(row):
    return [1 / value for value in row["values"]] if row.get("unit") in RATES else row["values"]


def verdict(low, high, threshold):
    if low > 1 + threshold:
        return "slower"
    if high < 1 / (1 + threshold):
        return "faster"
    if high <= 1 + threshold and low >= 1 / (1 + threshold):
        return "same"
    return "unclear"


def compare_files(old, new, threshold):
    """[(case, ratio, low, high, verdict)] of what both have."""
    old_cases, new_cases = by_case(old), by_case(new)
    result = []
    for case, rows in old_cases.items():
        if case not in new_cases:
            continue
        before = [v for row in rows for v in times(row)]
        after = [v for row in new_cases[case] for v in times(row)]
        low, high = stats.bootstrap_ratio(before, after)
        result.append((case, statistics.median(after) / statistics.median(before), low, high, verdict(low, high, threshold)))
    return result


def compare_pairs(pairs, threshold):
    """pairs: [(rows of the old build, rows of the new one)], one for each round."""
    ratios = {}
    for old, new in pairs:
        new_cases = by_case(new)
        for case, rows in by_case(old).items():
            if case in new_cases:
                before = statistics.median(v for row in rows for v in times(row))
                after = statistics.median(v for row in new_cases[case] for v in times(row))
                ratios.setdefault(case, []).append(after / before)
    result = []
    for case, values in ratios.items():
        low, high = stats.bootstrap(values)
        result.append((case, statistics.median(values), low, high, verdict(low, high, threshold)))
    return result


def run_once(command, arguments, folder, name):
    out = pathlib.Path(folder) / name
    subprocess.run([*shlex.split(command), *arguments, "--json", str(out)], check=True, stdout=subprocess.DEVNULL)
    return stats.read_rows(out)


def run_interleaved(args, arguments):
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.rounds):
            order = [("old", args.old), ("new", args.new)]
            rows = {name: run_once(command, arguments, folder, f"{i}-{name}.jsonl") for name, command in (order if i % 2 == 0 else order[::-1])}
            pairs.append((rows["old"], rows["new"]))
            print(f"round {i + 1} of {args.rounds}", file=sys.stderr, flush=True)
    return pairs


def show(results):
    for case, ratio, low, high, word in results:
        print(f"{word:<8} {ratio:7.3f} ({low:.3f}..{high:.3f})  {case}")


def main():
    own = sys.argv[1:]
    arguments = own[own.index("--") + 1:] if "--" in own else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="OLD.jsonl NEW.jsonl")
    parser.add_argument("--old", default="")
    parser.add_argument("--new", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threshold", type=float, default=0.03)
    args = parser.parse_args(own[:own.index("--")] if "--" in own else own)
    if args.old and args.new and arguments and not args.files:
        results = compare_pairs(run_interleaved(args, arguments), args.threshold)
    elif len(args.files) == 2 and not args.old and not args.new:
        results = compare_files(stats.read_rows(args.files[0]), stats.read_rows(args.files[1]), args.threshold)
    else:
        parser.error("give two files, or --old, --new and, behind --, what both are to run")
    show(results)
    if not results:
        print("no case is in both", file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if any(word == "slower" for *_, word in results) else 0)


if __name__ == "__main__":
    main()
