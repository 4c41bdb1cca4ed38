"""The other side of tests/faults/fail_at.cpp: makes the k-th call of a kind fail in a running program."""

import mmap
import os
import pathlib
import struct

ALLOC, OPEN, WRITE, SYNC, RENAME, MAP, ACCEPT, THREAD, READ, POLL, REMOVE, MALLOC = (1 << i for i in range(12))
LAYOUT = struct.Struct("<IIQIIQQQ")  # struct Control: armed, kinds, at, persistent, error, n_calls, n_failed, n_let_through
COUNTS = struct.Struct("<QQQ")
COUNTS_AT = LAYOUT.size - COUNTS.size


class FailAt:
    def __init__(self, build, folder, tag=""):
        self.library = pathlib.Path(build) / "tests/libfail_at.so"
        path = pathlib.Path(folder) / f"fail-at{tag}"
        path.write_bytes(bytes(4096))
        with open(path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), 4096)
        self.env = {"LD_PRELOAD": str(self.library), "LORAD_FAIL_AT": str(path)}

    def arm(self, kinds, at=0, error=0, persistent=False):
        """Counts from 1 again; at=0 only counts."""
        self.page[:LAYOUT.size] = LAYOUT.pack(0, kinds, at, persistent, error, 0, 0, 0)
        self.page[:4] = struct.pack("<I", 1)

    def disarm(self):
        """Calls, failures, calls of drivers that were let through."""
        self.page[:4] = struct.pack("<I", 0)
        return COUNTS.unpack(self.page[COUNTS_AT:COUNTS_AT + COUNTS.size])


def store_folder(state):
    """A state folder has one store for each base model."""
    return next(path.parent for path in pathlib.Path(state).glob("*/blobs"))


def descriptors(pid):
    """What is open, by kind: files and folders by their name, the rest by its type."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}").split(":[")[0])
        except OSError:
            pass
    return sorted(found)
