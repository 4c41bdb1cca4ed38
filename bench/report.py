#!/usr/bin/env python3
"""Result files -> the table of targets, the table of everything measured, and plots.

usage: report.py RESULTS.jsonl ... [--targets bench/targets.json] [--markdown OUT.md] [--plots docs/plots]

Results of several engines (lorad, llama.cpp) in the same files are compared: a ratio is between medians of the same case. Where a
case was measured with one and with two steps in flight, the table of targets takes the better one; of repeats the median; of single
operations with one bound (types, ranks) the worst. Exit status 1 with --strict where a target is missed.
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import stats  # noqa: E402
import svg  # noqa: E402


def matches(row, wanted):
    return all(row.get(name) == value for name, value in wanted.items())


def short(value):
    if not stats.finite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"


def rate_spread(row, name):
    """(p10, p90) of the value that was asked for, where it is the sampled one or a rate made of it."""
    if name == "median":
        return row.get("p10"), row.get("p90")
    if name in ("tokens_per_s", "of_floor") and row.get("unit") == "ms" and row.get("p10"):
        return row[name] * row["median"] / row["p90"], row[name] * row["median"] / row["p10"]
    if name == "cost" and row.get("cost_interval"):
        return tuple(row["cost_interval"])
    return None, None


def peer_of(rows, row):
    """Another engine's result of the same case: llama.cpp's of the same sizes, and a context that differs by at most 40 tokens; PyTorch's
    of the same operation."""
    for other in rows:
        if row["case"] == "op":
            if other.get("engine") == "pytorch" and other["case"] == "op" and all(other.get(k) == row.get(k) for k in ("op", "n", "rank", "type")):
                return other
            continue
        if other.get("engine") != "llama.cpp" or other["case"] != row["case"] or other.get("label", other.get("model")) != row.get("label", row.get("model")):
            continue
        if row["case"] == "prefill" and other["tokens"] == row["tokens"] and not row.get("adapters"):
            return other
        if row["case"] == "decode" and other["batch"] == row["batch"] and abs(other["context"] - row["context"]) <= 40 and not row.get("adapters"):
            return other
        if row["case"] == "http" and other.get("streams") == row.get("streams"):
            return other
    return None


def judge(rows, targets):
    """One line for each target: what was measured, and whether it is met. Cases that were not measured are said to be missing."""
    judged = []
    for target in targets:
        found = [row for row in rows if row.get("engine", "lorad") == "lorad" and matches(row, target["match"]) and stats.finite(row.get(target["value"]))]
        if not found:
            judged.append({"target": target, "row": None, "met": None})
            continue
        less = target.get("less", False)
        # Of single operations every type and rank has to keep the bound; of throughput the way the server runs is meant.
        worst_counts = less and target["match"]["case"] == "op"
        found.sort(key=lambda r: r[target["value"]])
        # The same thing done again counts by its median, another way of doing it (steps in flight) by the better one.
        row = found[len(found) // 2] if "repeat" in found[0] else found[-1] if worst_counts or not less else found[0]
        value = row[target["value"]]
        judged.append({"target": target, "row": row, "n": len(found), "value": value, "spread": rate_spread(row, target["value"]),
                       "met": value <= target["target"] if less else value >= target["target"], "peer": peer_of(rows, row)})
    return judged


def targets_table(judged):
    lines = ["| case | lorad | p10..p90 | target | met | share of the floor | peer, same run | times as fast |", "|---|---:|---:|---:|---|---:|---:|---:|"]
    for item in judged:
        target, row = item["target"], item["row"]
        bound = ("at most " if target.get("less") else "") + short(target["target"])
        if row is None:
            lines.append(f"| {target['name']} | not measured | | {bound} | | | | |")
            continue
        low, high = item["spread"]
        peer, theirs, ratio = item["peer"], "", ""
        if peer and row["case"] == "op":
            theirs, ratio = f"{short(peer['median'])} ({peer['engine']})", f"{peer['median'] / row['median']:.2f}"
        elif peer:
            theirs, ratio = f"{short(peer['tokens_per_s'])} ({peer['engine']})", f"{row['tokens_per_s'] / peer['tokens_per_s']:.2f}"
        cells = [target["name"], short(item["value"]), f"{short(low)}..{short(high)}" if stats.finite(low) else "", bound, "yes" if item["met"] else "no",
                 f"{row['of_floor']:.2f}" if stats.finite(row.get("of_floor")) else "", theirs, ratio]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def everything_table(rows):
    lines = ["| engine | case | median | p10..p90 | samples | tok/s | share of the floor or ceiling |", "|---|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        if "median" not in row:
            continue
        name = " ".join(f"{key} {value}" for key, value in row.items() if key not in stats.MEASURED | {"unit", "host", "label"} and not isinstance(value, (dict, list)))
        share = row.get("of_floor", row.get("of_ceiling"))
        lines.append(f"| {row.get('engine', '')} | {name.removeprefix('case ')} | {row['median']:.4g} {row.get('unit', '')} | {row['p10']:.4g}..{row['p90']:.4g} | "
                     f"{row['samples']} | {short(row['tokens_per_s']) if 'tokens_per_s' in row else ''} | {f'{share:.2f}' if stats.finite(share) else ''} |")
    return lines


def rate_points(rows, x):
    """Points (x, tokens per second, at p90, at p10), the best of repeated ones."""
    best = {}
    for row in rows:
        if "tokens_per_s" in row and (row[x] not in best or row["tokens_per_s"] > best[row[x]]["tokens_per_s"]):
            best[row[x]] = row
    points = []
    for at, row in best.items():
        low, high = rate_spread(row, "tokens_per_s")
        points.append((at, row["tokens_per_s"], low, high) if stats.finite(low) else (at, row["tokens_per_s"]))
    return points


def plots(rows):
    """(file name, SVG text) for what there is enough of."""
    made = []
    lorad = [row for row in rows if row.get("case") == "decode" and row.get("engine") == "lorad" and "median" in row]
    for model in sorted({row["model"] for row in lorad}):
        base = [row for row in lorad if row["model"] == model and row["adapters"] == 0]
        shortest = min((row["context"] for row in base), default=None)
        mine = [row for row in base if row["context"] == shortest]
        theirs = [row for row in rows if row.get("engine") == "llama.cpp" and row["case"] == "decode" and row["model"] == model and abs(row["context"] - (shortest or 0)) <= 40]
        floor = [(row["batch"], 1e3 * row["batch"] / row["floor_ms"]) for row in mine if row.get("floor_ms")]
        if len({row["batch"] for row in mine}) >= 2:
            made.append((f"{model}-throughput.svg", svg.line_chart(
                f"{model}: decode, context {shortest}", "sequences", "tokens per second",
                [("lorad", rate_points(mine, "batch"), False), ("llama.cpp", rate_points(theirs, "batch"), False), ("floor", sorted(set(floor)), True)],
                log_x=True, log_y=True)))
        by_context = []
        for batch in sorted({row["batch"] for row in base}):
            points = {}
            for row in (r for r in base if r["batch"] == batch):
                points[row["context"]] = min(points.get(row["context"], (0, float("inf"))), (row["context"], row["median"], row["p10"], row["p90"]), key=lambda p: p[1])
            if len(points) >= 2:
                by_context.append((f"{batch} sequences", list(points.values()), False))
        if by_context:
            made.append((f"{model}-latency.svg", svg.line_chart(f"{model}: a decode step by context", "tokens of context", "ms", by_context, log_x=True)))
        overhead = []
        for batch in sorted({row["batch"] for row in lorad if row["model"] == model and row["adapters"] > 0}):
            for mix in sorted({row["mix"] for row in lorad if row["model"] == model and row["adapters"] > 0}):
                points = []
                for row in lorad:
                    if row["model"] != model or row["batch"] != batch or row["adapters"] == 0 or row["mix"] != mix:
                        continue
                    like = [r for r in base if r["batch"] == batch and r["context"] == row["context"] and r["in_flight"] == row["in_flight"] and r["chunk"] == row["chunk"]]
                    if like and row["context"] == shortest:
                        points.append((row["adapters"], row["median"] / like[0]["median"]))
                if points:
                    overhead.append((f"{batch} sequences, {mix}", points, False))
        if any(len(points) >= 2 for _, points, _ in overhead):
            made.append((f"{model}-adapters.svg", svg.line_chart(f"{model}: a step with adapters, relative to the base's", "adapters", "times the base's step", overhead, log_x=True)))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--targets", default=str(pathlib.Path(__file__).resolve().parent / "targets.json"))
    parser.add_argument("--markdown", default="", help="file; else stdout")
    parser.add_argument("--plots", default="", help="folder for SVG files")
    parser.add_argument("--strict", action="store_true", help="exit status 1 where a target is missed or was not measured")
    args = parser.parse_args()
    rows = [row for path in args.results for row in stats.read_rows(path)]
    judged = judge(rows, json.loads(pathlib.Path(args.targets).read_text()))
    about = sorted({f"{row['device']}, {row['driver']}, commit {row['git']}" for row in rows if "git" in row})
    ceilings = [row["median"] for row in rows if row.get("case") == "ceiling"]
    text = ["; ".join(about) or "no device named", ""]
    if ceilings:
        text += [f"Ceiling, measured in the same runs: {stats.percentile(ceilings, 0.5):,.0f} GB/s ({min(ceilings):,.0f}..{max(ceilings):,.0f}, {len(ceilings)} measurements).", ""]
    text += targets_table(judged) + [""] + everything_table(rows)
    if args.markdown:
        pathlib.Path(args.markdown).write_text("\n".join(text) + "\n")
    else:
        print("\n".join(text))
    if args.plots:
        folder = pathlib.Path(args.plots)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in plots(rows):
            (folder / name).write_text(content)
            print(f"{folder / name}", file=sys.stderr)
    if args.strict and any(not item["met"] for item in judged):
        sys.exit(1)


if __name__ == "__main__":
    main()
