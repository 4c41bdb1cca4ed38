"""A service manager, a crowd of clients and hung threads, for the tests of the life cycle (T15 to T17, T29)."""

import collections
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import random
import socket
import threading
import time

from frame import check


class Manager:
    """What systemd is to the daemon: NOTIFY_SOCKET, with the messages and when they came."""

    def __init__(self, folder, watchdog_s=None):
        self.path = str(pathlib.Path(folder) / f"notify-{random.getrandbits(32):08x}")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.messages = []  # (time.monotonic(), {"READY": "1", ...})
        self.changed = threading.Condition()
        self.env = {"NOTIFY_SOCKET": self.path}
        if watchdog_s is not None:
            self.env["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            text = self.socket.recv(65536).decode()
            message = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
            with self.changed:
                self.messages.append((time.monotonic(), message))
                self.changed.notify_all()

    def times(self, key):
        with self.changed:
            return [when for when, message in self.messages if key in message]

    def values(self, key):
        with self.changed:
            return [message[key] for _, message in self.messages if key in message]

    def wait(self, key, seconds=30, n=1):
        """When the n-th message with the key came."""
        end = time.monotonic() + seconds
        with self.changed:
            while len(found := [when for when, message in self.messages if key in message]) < n:
                left = end - time.monotonic()
                check(left > 0, f"no message number {n} with {key} within {seconds} s: {[m for _, m in self.messages][-5:]}")
                self.changed.wait(left)
            return found[n - 1]


# `heard`: when the answer's head was there, or None.
Answer = collections.namedtuple("Answer", "kind sent ended detail heard", defaults=(None,))


def ask(host, port, body, timeout=60):
    """One request and how it ended: done, error event, 503, 429, cut (a body that ends without saying so), refused (no connection), lost (a
    connection that ends before an answer), or its status."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    sent, n_events, heard = time.monotonic(), 0, None
    try:
        connection.connect()
        sent = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        sent = time.monotonic()
        response = connection.getresponse()
        heard = time.monotonic()
        if response.status != 200:
            text = response.read().decode(errors="replace")
            kind = str(response.status)
            if response.status in (429, 503) and not response.getheader("Retry-After"):
                kind += " without Retry-After"
            return Answer(kind, sent, time.monotonic(), text, heard)
        if not body.get("stream"):
            answer = json.loads(response.read())
            n = len(answer["choices"][0]["token_ids"])
            return Answer("done" if n == body["max_tokens"] else "short", sent, time.monotonic(), n, heard)
        seen_error = False
        for line in response:
            if line.startswith(b"data: "):
                data = line[6:].strip()
                if data == b"[DONE]":
                    return Answer("error event and [DONE]" if seen_error else "done", sent, time.monotonic(), n_events, heard)
                event = json.loads(data)
                seen_error = seen_error or "error" in event
                n_events += 1
        return Answer("error event" if seen_error else "cut", sent, time.monotonic(), n_events, heard)
    except ConnectionRefusedError as error:
        return Answer("refused", sent, time.monotonic(), str(error))
    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
        return Answer("lost" if n_events == 0 else "cut", sent, time.monotonic(), f"{type(error).__name__} {error}", heard)
    except (http.client.IncompleteRead, ValueError) as error:
        return Answer("cut", sent, time.monotonic(), f"{type(error).__name__} {error}", heard)
    finally:
        connection.close()


class Crowd:
    """Clients that ask again and again, streams and whole answers mixed; `answers` has how each request ended."""

    def __init__(self, host, port, n_clients=6, n_tokens=(4, 40), adapters=("base",), seed=1, pause=0.0, only_streams=False):
        self.host, self.port, self.n_tokens, self.adapters, self.pause, self.only_streams = host, port, n_tokens, adapters, pause, only_streams
        self.answers, self.over = [], threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(seed * 1000 + i,), daemon=True) for i in range(n_clients)]
        for thread in self.threads:
            thread.start()

    def client(self, seed):
        rng = random.Random(seed)
        while not self.over.is_set():
            body = {"model": rng.choice(self.adapters), "prompt": [rng.randrange(3, 200) for _ in range(rng.randrange(2, 24))], "temperature": 0,
                    "max_tokens": rng.randint(*self.n_tokens), "ignore_eos": True, "return_token_ids": True,
                    "stream": self.only_streams or rng.random() < 0.6}
            self.answers.append(ask(self.host, self.port, body))
            if self.pause or self.answers[-1].kind in ("refused", "503", "lost"):
                time.sleep(self.pause or 0.02)

    def stop(self, seconds=60):
        self.over.set()
        for thread in self.threads:
            thread.join(seconds)
            check(not thread.is_alive(), "a client that never ends")
        return self.answers

    def kinds(self):
        return dict(collections.Counter(answer.kind for answer in self.answers))


# --- threads that hang ------------------------------------------------------------------------------------------------

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, tid):
    check(libc.ptrace(request, tid, None, None) == 0, f"ptrace {request:#x} of {tid}: {os.strerror(ctypes.get_errno())}")


def threads_named(pid, prefix):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip().startswith(prefix):
                found.append(int(task.name))
    return found


@contextlib.contextmanager
def stopped_threads(pid, prefix):
    """The threads of that name stand still inside the block while all others go on: what a debugger does, by ptrace."""
    tids = threads_named(pid, prefix)
    check(tids, f"no thread of {pid} is called {prefix}*")
    held = []
    try:
        for tid in tids:
            ptrace(PTRACE_SEIZE, tid)
            held.append(tid)
        for tid in tids:
            ptrace(PTRACE_INTERRUPT, tid)
        for tid in tids:
            os.waitpid(tid, WALL)
        yield tids
    finally:
        for tid in held:
            with contextlib.suppress(AssertionError):
                ptrace(PTRACE_DETACH, tid)


PTRACE_SYSCALL, PTRACE_GET_SYSCALL_INFO, PTRACE_O_TRACESYSGOOD = 24, 0x420E, 1
WNOTHREAD = 0x20000000
SYNCS = {"x86_64": {74, 75, 306}, "aarch64": {82, 83, 267}}  # fsync, fdatasync, syncfs


class BlockedSync(threading.Thread):
    """The first thread of the process that syncs a file stands in that call until release(): a disk that does not answer."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.armed, self.caught, self.freed, self.error = pid, threading.Event(), threading.Event(), threading.Event(), None
        self.start()
        check(self.armed.wait(20), "the threads could not be traced")

    def run(self):
        tids = []
        try:
            for task in os.listdir(f"/proc/{self.pid}/task"):
                with contextlib.suppress(AssertionError):
                    check(libc.ptrace(PTRACE_SEIZE, int(task), None, PTRACE_O_TRACESYSGOOD) == 0, "seize")
                    tids.append(int(task))
            for tid in tids:
                ptrace(PTRACE_INTERRUPT, tid)
            for tid in tids:
                os.waitpid(tid, WALL)
                ptrace(PTRACE_SYSCALL, tid)
            self.armed.set()
            held = self.wait_for_sync()
            running = [tid for tid in tids if tid != held]
            for tid in running:
                ptrace(PTRACE_INTERRUPT, tid)
            for tid in running:
                os.waitpid(tid, WALL)
                ptrace(PTRACE_DETACH, tid)
            self.caught.set()
            self.freed.wait()
            ptrace(PTRACE_DETACH, held)
        except (AssertionError, OSError) as error:
            self.error = error
            self.armed.set()
            self.caught.set()

    def wait_for_sync(self):
        info = (ctypes.c_uint8 * 88)()
        while True:
            tid, status = os.waitpid(-1, WALL | WNOTHREAD)
            sign = os.WSTOPSIG(status) if os.WIFSTOPPED(status) else 0
            if sign == 0x85:  # SIGTRAP and 0x80: at a system call's begin or end
                libc.ptrace(PTRACE_GET_SYSCALL_INFO, tid, len(info), ctypes.addressof(info))
                if info[0] == 1 and int.from_bytes(bytes(info[24:32]), "little") in SYNCS[os.uname().machine]:
                    return tid
            if sign:
                deliver = 0 if sign in (0x85, 5) else sign
                libc.ptrace(PTRACE_SYSCALL, tid, None, deliver)

    def release(self):
        self.freed.set()
        self.join(20)


def status_of(host, port, path, timeout=60):
    """The status, or 0 where there is no answer."""
    try:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
        connection.request("GET", path)
        status = connection.getresponse().status
        connection.close()
        return status
    except (OSError, http.client.HTTPException):
        return 0


def until_status(host, port, path, status, seconds):
    """Seconds until the path answers with that status, or None."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        if status_of(host, port, path) == status:
            return passed
        time.sleep(0.02)
    return None
