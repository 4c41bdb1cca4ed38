"""The fault layer from Python: makes its control file, says what is to fail, reads what it counted (control.h has the same numbers)."""

import mmap
import os
import pathlib
import struct
import tempfile

N_WORDS = 512
SUBMIT, WAIT, COUNTER, ALLOCATE, CREATE, RECORD, BARRIER = range(7)
NAMES = ("submit", "wait", "counter", "allocate", "create", "record", "barrier")
NUMBER_OF, FIRST_FAILING, HOW_MANY, RESULT = 16, 32, 48, 64
LIVE_ALLOCATIONS, LIVE_BYTES, LIVE_OBJECTS, INJECTED, LOST, HOLD, ORDER, INJECTED_AT, REORDERED = range(80, 89)
AS_RECORDED, REVERSED = 0, 1
TIMEOUT, OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, DEVICE_LOST = 2, -1, -2, -4


class FaultLayer:
    """One control file, for one process at a time; env() is what that process needs."""

    def __init__(self, build):
        self.folder = pathlib.Path(build, "tests/vulkan_layer").resolve()
        if not (self.folder / "liblorad_fault_layer.so").exists():
            raise AssertionError(f"{self.folder} has no fault layer: build the target lorad_fault_layer")
        file, self.path = tempfile.mkstemp(prefix="lorad-faults-")
        os.ftruncate(file, N_WORDS * 8)
        self.words = mmap.mmap(file, N_WORDS * 8)
        os.close(file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.words.close()
        os.unlink(self.path)

    def env(self):
        return {"VK_INSTANCE_LAYERS": "VK_LAYER_LORAD_fault", "VK_ADD_LAYER_PATH": str(self.folder), "LORAD_FAULT_CONTROL": self.path}

    def get(self, word):
        return struct.unpack_from("<q", self.words, word * 8)[0]

    def set(self, word, value):
        struct.pack_into("<q", self.words, word * 8, value)

    def reset(self):
        """For a new process."""
        for word in range(N_WORDS):
            self.set(word, 0)

    def count(self, call):
        return self.get(NUMBER_OF + call)

    def fail(self, call, number, result, how_many=1):
        """Call `number` of that kind, counted from 1 since the process began, gives `result`; how_many 0: and all after it."""
        self.set(RESULT + call, result)
        self.set(HOW_MANY + call, how_many)
        self.set(FIRST_FAILING + call, number)

    def fail_next(self, call, result, after=0, how_many=1):
        """As fail(), for the call that comes after `after` more ones."""
        self.fail(call, self.count(call) + 1 + after, result, how_many)

    def clear(self, call):
        self.set(FIRST_FAILING + call, 0)

    @property
    def injected(self):
        return self.get(INJECTED)

    @property
    def injected_at(self):
        """time.monotonic() of the first fault, 0 without one."""
        return self.get(INJECTED_AT) / 1e9

    def live(self):
        """(allocations, their bytes, other objects)"""
        return self.get(LIVE_ALLOCATIONS), self.get(LIVE_BYTES), self.get(LIVE_OBJECTS)
