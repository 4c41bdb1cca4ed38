#!/usr/bin/env python3
"""T19: whatever of the writes that were not synced a loss of power leaves, in whatever order, the store opens with all that was acknowledged.

The system calls of one life of a store are recorded with strace. Of each moment several states are built that a disk may be in: changes of names that no
fsync of their folder has followed have happened in order up to one of them (a journal of metadata, as ext4's) or any of them (weaker than
what xfs promises); bytes that no fsync of their file has followed are there, cut off, zero, or not there."""
# beside others: yes
# sanitizers: no, traces calls, and LeakSanitizer does not work under strace

import dataclasses
import pathlib
import re
import shutil
import subprocess

from frame import ROOT, check, check_equal, main

CALLS = "openat,write,fsync,fdatasync,renameat,renameat2,unlinkat,mkdirat,mkdir,close"


@dataclasses.dataclass
class Op:
    kind: str  # create, write, sync, rename, remove, sync_folder, acknowledged
    path: str = ""
    to: str = ""
    data: bytes = b""


def unescaped(text):
    return bytes(int(h, 16) for h in text.split("\\x")[1:])


def joined(lines):
    """Calls in the order of their ends; one that another thread has interrupted in the trace is put together."""
    waiting = {}
    for line in lines:
        thread, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            waiting[thread] = rest[: -len("<unfinished ...>")].rstrip()
            continue
        match = re.match(r"<\.\.\. \w+ resumed>(.*)", rest)
        yield (waiting.pop(thread) + match.group(1)) if match else rest


def recorded(card, store):
    trace = card.folder / "trace"
    run = subprocess.run(["strace", "-f", "-xx", "-s", "100000000", "-e", f"trace={CALLS}", "-o", str(trace), str(card.build / "tests/store_faults"),
                          "--gtest_filter=StoreOfAnother.RunsWhereItIsTold"], env={"LORAD_TEST_STORE": str(store), "PATH": "/usr/bin:/bin"}, cwd=ROOT,
                         capture_output=True, text=True, timeout=300, check=False)
    check_equal(run.returncode, 0, run.stdout[-500:] + run.stderr[-500:])
    ops, folders, files = [], {}, {}  # open descriptors: of folders below the store, of files being written
    for line in joined(trace.read_text().splitlines()):
        match = re.match(r"(\w+)\((.*)\)\s+= (-?\d+)", line)
        if not match or int(match.group(3)) < 0:
            continue
        call, arguments, result = match.group(1), match.group(2), int(match.group(3))
        texts = [unescaped(t) for t in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', arguments)]
        first = arguments.split(",")[0].strip()

        def place(descriptor, name):
            if descriptor not in folders:
                return None
            folder = folders[descriptor]
            return f"{folder}/{name.decode()}".lstrip("/") if name != b"." else folder
        if call == "openat":
            if texts[0] == str(store).encode():
                folders[result] = ""
            elif first.isdigit() and int(first) in folders:
                path = place(int(first), texts[0])
                if "O_DIRECTORY" in arguments:
                    folders[result] = path
                elif "O_CREAT" in arguments:
                    files[result] = path
                    if path != "lock":
                        ops.append(Op("create", path))
        elif call == "close":
            folders.pop(int(first), None)
            files.pop(int(first), None)
        elif call == "write":
            if first == "1" and texts[0].startswith(b"acknowledged"):
                ops.append(Op("acknowledged"))
            elif int(first) in files:
                ops.append(Op("write", files[int(first)], data=texts[0][:result]))
        elif call in ("fsync", "fdatasync"):
            if int(first) in files:
                ops.append(Op("sync", files[int(first)]))
            elif int(first) in folders:
                ops.append(Op("sync_folder", folders[int(first)]))
        elif call in ("renameat", "renameat2"):
            numbers = re.findall(r"(?:^|, )(\d+), \"", arguments)
            ops.append(Op("rename", place(int(numbers[0]), texts[0]), place(int(numbers[1]), texts[1])))
        elif call == "unlinkat" and int(first) in folders:
            ops.append(Op("remove", place(int(first), texts[0])))
    return ops


def check_order(ops):
    """Each rename of a new file: its bytes were synced before, its folder is before anybody is told. Returns how many."""
    dirty, unsynced, n_renames = set(), set(), 0
    for op in ops:
        if op.kind in ("create", "write"):
            dirty.add(op.path)
        elif op.kind == "sync":
            dirty.discard(op.path)
        elif op.kind == "rename":
            if op.to.startswith("damaged/"):
                continue
            check(op.path not in dirty, f"{op.path} became {op.to} with bytes that were not synced")
            unsynced.add(folder_of(op.to))
            n_renames += 1
        elif op.kind == "sync_folder":
            unsynced.discard(op.path)
        elif op.kind == "acknowledged":
            check(not unsynced, f"acknowledged before the folder {sorted(unsynced)} was synced")
    return n_renames


def folder_of(path):
    return path.rpartition("/")[0]


class Disk:
    """What is certainly on the disk, and what may be."""

    def __init__(self):
        self.names = {}    # durable: path -> file
        self.pending = []  # changes of names since: Op, file
        self.now = {}      # as programs see it
        self.synced = {}   # file -> bytes that are durable
        self.bytes = {}    # file -> bytes as programs see them
        self.n_files = 0

    def do(self, op):
        if op.kind == "create":
            self.n_files += 1
            self.now[op.path] = self.n_files
            self.synced[self.n_files] = self.bytes[self.n_files] = b""
            self.pending.append((op, self.n_files))
        elif op.kind == "write":
            self.bytes[self.now[op.path]] += op.data
        elif op.kind == "sync":
            self.synced[self.now[op.path]] = self.bytes[self.now[op.path]]
        elif op.kind == "rename":
            file = self.now.pop(op.path)
            self.now[op.to] = file
            self.pending.append((op, file))
        elif op.kind == "remove":
            self.pending.append((op, self.now.pop(op.path)))
        elif op.kind == "sync_folder":
            rest = []
            for change, file in self.pending:
                if op.path in (folder_of(change.path), folder_of(change.to or change.path)):
                    apply(self.names, change, file)
                else:
                    rest.append((change, file))
            self.pending = rest

    def state(self, random, how):
        """Path -> bytes, as they may be found."""
        names = dict(self.names)
        if how == "all":
            kept = self.pending
        elif how == "none":
            kept = []
        elif how == "journal":
            kept = self.pending[: random.randrange(len(self.pending) + 1)]
        else:
            kept = [change for change in self.pending if random.random() < 0.5]
        for change, file in kept:
            apply(names, change, file)
        found = {}
        for path, file in names.items():
            synced, seen = self.synced[file], self.bytes[file]
            fate = "whole" if how == "all" else "gone" if how == "none" else random.choice(["whole", "cut", "zero", "gone"])
            if fate == "whole":
                found[path] = seen
            elif fate == "cut":
                found[path] = synced + seen[len(synced):][: random.randrange(len(seen) - len(synced) + 1)]
            elif fate == "zero":
                found[path] = synced + bytes(len(seen) - len(synced))
            else:
                found[path] = synced
        return found


def apply(names, change, file):
    """One change of a name; where what came before it did not reach the disk, as far as there is something to change."""
    if change.kind == "create":
        names[change.path] = file
    elif change.kind == "rename":
        if names.get(change.path) == file:
            del names[change.path]
        names[change.to] = file
    elif names.get(change.path) == file:
        del names[change.path]


def run(card):
    if shutil.which("strace") is None:
        raise AssertionError("strace is not installed")
    with card.part("bytes, then name, then folder, then the answer: in the trace"):
        ops = recorded(card, card.folder / "traced")
        n_acknowledged = sum(op.kind == "acknowledged" for op in ops)
        n_renames = check_order(ops)
        check(n_acknowledged == 10 and n_renames >= 20, f"{n_acknowledged} steps and {n_renames} renames in {len(ops)} calls prove little")
        card.figure("renames in order", f"{n_renames} of {n_renames}")
    states = []
    with card.part("states of the disk"):
        n_each = 2 if card.quick else 24
        disk, n_done, known = Disk(), 0, set()
        for op in ops:
            disk.do(op)
            n_done += op.kind == "acknowledged"
            for how in ["all", "none"] + ["journal", "any"] * n_each:
                state = disk.state(card.random, how)
                key = (n_done, hash(frozenset(state.items())))
                if key not in known:
                    known.add(key)
                    states.append((n_done, state))
        lines = []
        for i, (n_done, state) in enumerate(states):
            folder = card.folder / "states" / str(i)
            for name in ("blobs", "incoming", "damaged"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            for path, data in state.items():
                (folder / path).write_bytes(data)
            lines.append(f"{n_done} {folder}\n")
        (card.folder / "list").write_text("".join(lines))
        check(len(states) >= (200 if card.quick else 1000), f"only {len(states)} states")
        card.figure("states of the disk", len(states))
    card.gtest("each opens as it was acknowledged", "store_faults", "StoreOfAnother.IsSoundWhereverItIs", env={"LORAD_TEST_STORES": str(card.folder / "list")},
               seconds=3600)
    card.gtest("losses of power at every call of the file system, in memory", "adapters_tests", "CrashTest.WhateverCallIsTheLast*")
    card.release_only("the same on real ext4 and xfs behind dm-log-writes, which needs a kernel of one's own")
    if card.quick:
        card.short_of("1,000 states: tests/scorecard.sh --tier nightly --only T19")


if __name__ == "__main__":
    main("T19", run)
