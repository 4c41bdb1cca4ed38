"""The result table of docs/RELIABILITY.md: one row per test, the points, the groups. A run replaces the rows of the tests it ran."""

import fcntl
import pathlib
import re
import time

from frame import GATE_POINTS, GRADED_POINTS, ROOT, kind_of

DOCUMENT = pathlib.Path("docs/RELIABILITY.md")
BEGIN, END = "<!-- scorecard: begin, written by tests/scorecard.sh --write -->", "<!-- scorecard: end -->"

GROUPS = {
    "A. Hostile adapter files and requests": [*range(1, 6), 31],
    "B. HTTP surface": range(6, 12),
    "C. Overload and life cycle": range(12, 18),
    "D. Stored state": range(18, 22),
    "E. Adapter isolation": range(22, 27),
    "F. GPU and platform": range(27, 31),
}
TITLES = {
    "T1": "mutated adapter files", "T2": "allocation and depth bombs", "T3": "differential and semantic matrix", "T4": "NaN and Inf weights",
    "T5": "hostile names and stores", "T6": "framing corpus", "T7": "memory per connection", "T8": "slow clients", "T9": "parameter abuse",
    "T10": "authorisation inventory", "T11": "canary hygiene", "T12": "overload", "T13": "vanished clients", "T14": "clients that stop reading",
    "T15": "SIGTERM under load", "T16": "SIGHUP under load", "T17": "hang injection", "T18": "kill at every system call", "T19": "power loss",
    "T20": "fail at k", "T21": "bit rot", "T22": "swap race", "T23": "prefix cache identity", "T24": "timing oracle", "T25": "concurrent life cycle",
    "T26": "noisy neighbour", "T27": "GPU fault layer", "T28": "validation and barrier mutation", "T29": "unit, build, supply", "T30": "soak", "T31": "hostile grammars and templates",
}
HEAD = ["test", "result", "control", "points", "trials", "figures", "not done, notes", "run"]
ROW = re.compile(r"(?m)^\| (T\d+) ")


def name_of(number):
    return f"T{number}"


def largest(test):
    return GRADED_POINTS.get(test, GATE_POINTS)


def cells_of(row):
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def known_rows(text):
    """Test -> cells of its row, as the document has it now."""
    if BEGIN not in text:
        return {}
    part = text.split(BEGIN, 1)[1].split(END, 1)[0]
    rows = {}
    for line in part.splitlines():
        match = ROW.match(line)
        if match and len(cells_of(line)) == len(HEAD):
            rows[match.group(1)] = cells_of(line)
    return rows


def quoted(text):
    return re.sub(r"\s+", " ", str(text).replace(f"{ROOT}/", "")).replace("|", "/")


def trials_cell(n):
    """With no failure in n trials the true rate is below about 3/n, at 95 %."""
    return f"{n:,} (< {3 / n:.2g})" if n else "-"


def row_of(line, control):
    result = ("pass" if line["full"] else "pass, partly") if line["passed"] else "fail" if line["parts"] or line["failed"] else "absent"
    not_done = [f"failed: {part}: {what[:160]}" for part, what in line["failed"].items()]
    not_done += [f"missing: {text}" for text in line["missing"]] + [f"release: {text}" for text in line["release"]]
    figures = "; ".join(f"{name} {value}" for name, value in line["figures"].items())
    return [f"{line['test']} {TITLES[line['test']]}", result, control, "", trials_cell(line["trials"]), quoted(figures),
            quoted(". ".join(not_done + [line["note"]] * bool(line["note"]))), f"{line['tier']}, {time.strftime('%Y-%m-%d')}, {line['git']}"]


def points_of(test, cells):
    """From what the row says: a pass is 2, with controls that all fail 3, partly 1; graded ones carry their points."""
    if kind_of(test) == "graded":
        return int(cells[3].split()[0]) if cells[3] else 0
    if cells[1] == "pass":
        return GATE_POINTS if cells[2].startswith("fails") else GATE_POINTS - 1
    return 1 if cells[1] == "pass, partly" else 0


def updated(text, lines, controls):
    """The document with the rows of `lines` (by test) anew, and with `controls` (test -> (n caught, n planted))."""
    rows = known_rows(text)
    for test, line in lines.items():
        before = rows.get(test)
        # A quick run says nothing against what a full one has found, unless it fails.
        if before and before[1] == "pass" and line["passed"] and not line["full"] and line["tier"] == "commit":
            continue
        rows[test] = row_of(line, before[2] if before else "none")
        if kind_of(test) == "graded":
            rows[test][3] = str(line["points"])
    for test, (n_caught, n_planted) in controls.items():
        if test in rows:
            rows[test][2] = f"fails ({n_caught} of {n_planted})" if n_caught == n_planted else f"MISSED ({n_caught} of {n_planted})"
    out, total, total_max = [], 0, 0
    groups = []
    for group, numbers in GROUPS.items():
        points, most = 0, 0
        body = []
        for number in numbers:
            test = name_of(number)
            cells = list(rows.get(test, [f"{test} {TITLES[test]}", "absent", "none", "", "-", "", "", "-"]))
            n = points_of(test, cells)
            cells[3] = f"{n} of {largest(test)}"
            points, most = points + n, most + largest(test)
            body.append("| " + " | ".join(cells) + " |")
        groups.append(f"| {group} | {points} of {most} |")
        out += [f"### {group}: {points} of {most}", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|", *body, ""]
        total, total_max = total + points, total_max + most
    summary = [f"**{total} of {total_max} points.**", "", "| group | points |", "|---|---|", *groups, ""]
    block = "\n".join([BEGIN, "", *summary, *out, END])
    if BEGIN in text:
        head, rest = text.split(BEGIN, 1)
        return head + block + rest.split(END, 1)[1], total, total_max
    return text.rstrip("\n") + "\n\n" + block + "\n", total, total_max


def write(lines, controls):
    path = ROOT / DOCUMENT
    with open(path, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # tests and controls may run at the same time
        text, total, total_max = updated(file.read(), lines, controls)
        file.seek(0)
        file.truncate()
        file.write(text)
    print(f"scorecard: {DOCUMENT}: {total} of {total_max} points")
