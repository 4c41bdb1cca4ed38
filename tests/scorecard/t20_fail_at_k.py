#!/usr/bin/env python3
"""T20: the k-th allocation, open, write, sync, rename, read or accept fails, for each k, once or for good: the call that it hits is answered so, nothing that
was acknowledged is lost, nothing leaks, and the server goes on."""
# beside others: yes

import contextlib
import errno
import http.client
import json
import os
import shutil
import ssl
import subprocess
import time

from frame import certificate, check, check_equal, lanes, main, spread

import faults
from adapter_checks import FILES, digest_of, files_of

PATIENCE_S = 50  # for one call; five seconds on a machine that does nothing else
REFUSALS = {(507, "lora_storage_full"), (507, "lora_storage_unavailable"), (503, "lora_store_read_only"), (503, "io_error"), (507, "out_of_memory"),
            (404, "adapter_file_not_found"), (404, "adapter_not_found"), (404, "model_not_found"), (429, "lora_load_busy")}
NAMES = {faults.OPEN: "open", faults.WRITE: "write", faults.SYNC: "fsync", faults.RENAME: "rename", faults.READ: "read", faults.REMOVE: "unlink", faults.MAP: "mmap",
         faults.ALLOC: "operator new", faults.ACCEPT: "accept", faults.POLL: "epoll", faults.THREAD: "threads"}
STORE_ERRORS = {faults.OPEN: (errno.EIO, errno.EMFILE, errno.ENOSPC), faults.WRITE: (errno.ENOSPC, errno.EIO, errno.EDQUOT, 0), faults.SYNC: (errno.EIO, errno.ENOSPC),
                faults.RENAME: (errno.ENOSPC, errno.EIO), faults.READ: (errno.EIO,), faults.REMOVE: (errno.EIO,), faults.MAP: (errno.ENOMEM,)}
ACCEPT_ERRORS = (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EPROTO, errno.ENOBUFS, errno.EINTR)


class Subject:
    """A daemon under the library that makes calls fail, with a store that outlives it."""

    def __init__(self, card, tag, flags=(), tls=False, n_threads=8):
        self.card, self.state = card, card.memory / f"state-{tag}"
        self.flags, self.tls = ("--http-threads", str(n_threads), *flags), tls
        self.fail_at = faults.FailAt(card.build, card.folder, f"-{tag}")
        self.stack = contextlib.ExitStack()
        self.server, self.known, self.possible, self.n_starts = None, {}, [], 0
        self.contents = {name: files_of(name) for name in ("pirate", "shout")}

    def start(self):
        self.stop()
        self.fail_at.disarm()
        self.server = self.stack.enter_context(self.card.server("--state-dir", str(self.state), "--log-level", "error", "--max-loras", "4",
                                                                *self.flags, adapters=(), env=self.fail_at.env))
        self.n_starts += 1
        found = self.listed()
        # A call that was answered with a failure may have reached the disk, or not.
        check(found == self.known or found in self.possible, f"after a restart: {found}, acknowledged was {self.known}, failed {self.possible}")
        self.known, self.possible = found, []
        self.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
        time.sleep(0.3)
        self.open_before = self.open_now()

    def stop(self):
        self.stack.close()
        ended, self.server = self.server, None
        if ended is not None and ended.process.returncode not in (0, None):
            self.card.say(f"the server ended with {ended.process.returncode}")

    def alive(self):
        return self.server is not None and self.server.process.poll() is None

    def connection(self):
        if self.tls:
            return http.client.HTTPSConnection(self.server.host, self.server.port, timeout=PATIENCE_S, context=ssl._create_unverified_context())
        return http.client.HTTPConnection(self.server.host, self.server.port, timeout=PATIENCE_S)

    def ask_on(self, connection, method, path, body=None, raw=None):
        connection.request(method, path, raw if raw is not None else None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        return response.status, json.loads(text) if text and "json" in (response.getheader("Content-Type") or "") else text

    def ask(self, method, path, body=None, raw=None):
        with contextlib.closing(self.connection()) as connection:
            return self.ask_on(connection, method, path, body, raw)

    def open_now(self):
        """Descriptors but for connections that the server has not given up yet."""
        for _ in range(50):
            found = faults.descriptors(self.server.process.pid)
            if not hasattr(self, "open_before") or len(found) <= len(self.open_before):
                break
            time.sleep(0.1)
        return found

    def listed(self):
        status, body = self.ask("GET", "/v1/adapters")
        check_equal(status, 200, f"the list: {body}")
        return {a["id"]: a["generation"] for a in body["data"]}

    def life(self):
        """Upload, registration, replacement, use, deletion. What came back; known is what was acknowledged, possible what else there may be."""
        answers, names = [], ["pirate", "shout"]
        for content in names:
            files = self.contents[content]
            digests = {file: f"sha256:{digest_of(data)}" for file, data in files.items()}
            for file, data in files.items():
                answers.append(self.ask("PUT", f"/v1/adapters/blobs/{digests[file]}", raw=data))
            after = {"x": digest_of("".join(f"{digests[f][7:]}  {f}\n" for f in FILES).encode())}
            self.possible.append(after)
            answers.append(self.ask("POST", "/v1/adapters", {"name": "x", "files": digests, "replace": True}))
            if answers[-1][0] == 201:
                self.known, self.possible = after, []
        answers.append(self.ask("POST", "/v1/completions", {"model": "x", "prompt": "x", "max_tokens": 1}))
        self.possible.append({})
        answers.append(self.ask("DELETE", "/v1/adapters/x"))
        if answers[-1][0] == 200:
            self.known, self.possible = {}, []
        return answers

    def lives_undisturbed(self, where):
        check_equal([status for status, _ in self.life()], [201, 201, 201, 201, 201, 201, 200, 200], f"{where}: the same once more, undisturbed")

    def look(self):
        """One connection with two requests."""
        with contextlib.closing(self.connection()) as connection:
            return [self.ask_on(connection, "GET", "/v1/adapters"), self.ask_on(connection, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})]

    def complete(self):
        return [self.ask("POST", "/v1/completions", {"prompt": "some words to be read", "max_tokens": 1})]

    def n_calls(self, kinds, act):
        if not self.alive():
            self.start()
        self.settled()
        act(self)
        self.fail_at.arm(kinds)
        act(self)
        return self.fail_at.disarm()[0]

    def check_live(self, where):
        status, body = self.ask("GET", "/health/live")
        check_equal(status, 200, f"{where}: the listener says {body}")

    def check_no_leak(self, where):
        leaked = len(self.open_now()) - len(self.open_before)
        check(leaked <= 0, f"{where}: {leaked} descriptors more")

    def settled(self):
        """Back to a server that takes calls: a restart where its store is read-only by its own rule. True if there was one."""
        if self.alive():
            status, answer = self.ask("PUT", f"/v1/adapters/blobs/sha256:{digest_of(b'probe')}", raw=b"probe")
            if status == 201:
                return False
            check_equal((status, answer["error"]["code"]), (503, "lora_store_read_only"), "a server that takes nothing, and no reason for it")
        self.start()
        return True


def check_answers(answers, where):
    for status, body in answers:
        if status in (200, 201):
            continue
        code = body["error"]["code"] if isinstance(body, dict) else body
        check((status, code) in REFUSALS, f"{where}: {status} {body}")


@contextlib.contextmanager
def daemons(card, tag, **options):
    """As many as may run side by side, each with a store of its own."""
    subjects = [Subject(card, f"{tag}-{i}", **options) for i in range(lanes(card))]
    try:
        for subject in subjects:
            subject.start()
        yield subjects
    finally:
        for subject in subjects:
            subject.fail_at.disarm()
            subject.stop()


def fail_store(subject, kind, error, persistent, k):
    where = f"{NAMES[kind]} {k} {'and all after it ' if persistent else ''}with {errno.errorcode.get(error, 'a short write')}"
    before = dict(subject.known)
    subject.fail_at.arm(kind, k, error, persistent)
    try:
        answers = subject.life()
    except (OSError, http.client.HTTPException) as problem:
        raise AssertionError(f"{where}: {problem!r}, exit status {subject.server.process.poll()}: {subject.server.log_text()[-300:]}") from problem
    _, n_failed, _ = subject.fail_at.disarm()
    check(subject.alive(), f"{where}: the server has ended")
    check_answers(answers, where)
    if n_failed == 0:
        return
    if kind == faults.SYNC or (kind == faults.WRITE and persistent):
        check(any(status >= 500 for status, _ in answers), f"{where}: acknowledged all the same")
    if "x" in subject.known or "x" in before:
        listed = subject.listed()
        check_equal(listed, subject.known, f"{where}: names")
    subject.check_live(where)
    if not subject.settled():
        subject.lives_undisturbed(where)
        subject.check_no_leak(where)


def store_faults(card):
    n = 0
    with daemons(card, "store") as subjects:
        for kind, errors in STORE_ERRORS.items():
            with card.part(f"{NAMES[kind]} fails"):
                n_calls = max([subject.n_calls(kind, Subject.life) for subject in subjects])
                card.say(f"{NAMES[kind]}: {n_calls} calls")
                jobs = []
                for error in errors[:1] if card.quick else errors:
                    for persistent in (False, True):
                        ks = range(1, n_calls + 2)
                        if card.quick:
                            # The first sync is of a file; a server with a failed one starts anew, so there is no second.
                            ks = [1] if kind == faults.SYNC else sorted(card.random.sample(ks, min(len(ks), 2)))
                        jobs += [(kind, error, persistent, k) for k in ks]
                n += spread(subjects, jobs, fail_store)
        card.figure("store: calls failed, restarts", f"{n}, {sum(subject.n_starts for subject in subjects)}")
    return n


def fail_accept(subject, kind, error, persistent, k):
    subject.fail_at.arm(kind, k, error, persistent)
    for _ in range(3):
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(subject.server.host, subject.server.port, timeout=0.5)
            connection.request("GET", "/health/live")
            connection.getresponse().read()
        connection.close()
    subject.fail_at.disarm()
    where = f"{NAMES[kind]} {k} {'and all after it' if persistent else ''} with {errno.errorcode[error]}"
    check(subject.alive(), f"{where}: the server has ended")
    began = time.monotonic()
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if subject.ask("GET", "/health/live")[0] == 200:
                break
        check(time.monotonic() - began < PATIENCE_S, f"{where}: nobody is accepted any more")
        time.sleep(0.05)


def accept_faults(card):
    with card.part("accept and epoll fail"), daemons(card, "accept") as subjects:
        jobs = [(kind, error, persistent, k)
                for kind, errors in ((faults.ACCEPT, ACCEPT_ERRORS), (faults.POLL, (errno.EINTR, errno.ENOMEM)))
                for error in errors for persistent in (False, True) for k in ((1,) if card.quick else range(1, 9))]
        n = spread(subjects, jobs, fail_accept)
        for subject in subjects:
            subject.lives_undisturbed("accept and epoll failed")
            # Connections that could not be watched end with the deadline of a request's head, ten seconds.
            for _ in range(4):
                leaked = len(subject.open_now()) - len(subject.open_before)
                if leaked <= 0:
                    break
            check(leaked <= 0, f"{leaked} descriptors more")
        return n
    return 0


class Memory:
    """Allocations fail while a client does something: of some calls the server answers 507, of some connections nothing, and it goes on."""

    def __init__(self, name, kinds, persistent, act, n_max=None):
        self.name, self.kinds, self.persistent, self.act, self.n_max = name, kinds, persistent, act, n_max
        self.n_507 = self.n_cut = 0

    def fail(self, subject, k):
        subject.fail_at.arm(self.kinds, k, errno.ENOMEM, self.persistent)
        answers, where = [], f"{self.name} {k}"
        try:
            answers = self.act(subject)
        except (OSError, http.client.HTTPException):
            self.n_cut += 1  # a connection that there was no memory for is closed
        subject.fail_at.disarm()
        try:
            self.check_after(subject, answers, where)
        except (OSError, http.client.HTTPException) as problem:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subject.server.process.wait(2)
            raise AssertionError(f"{where}: {problem!r}, exit status {subject.server.process.poll()}: {subject.server.log_text()[-300:]}") from problem

    def check_after(self, subject, answers, where):
        check_answers(answers, where)
        if self.n_max:
            return subject.check_live(where)  # by one thread more; they are few
        self.n_507 += any(body["error"]["code"] == "out_of_memory" for status, body in answers if status == 507)
        subject.check_live(where)
        found = subject.listed()
        check(found == subject.known or found in subject.possible, f"{where}: {found}, acknowledged was {subject.known}, failed {subject.possible}")
        subject.known, subject.possible = found, []
        if not subject.settled():
            check(all(status in (200, 201) for status, _ in self.act(subject)), f"{where}: the same once more, undisturbed")

    def fail_at_all(self, card, subjects):
        """How many failed."""
        ks = []
        with card.part(f"{self.name} fails"):
            n_calls = max([subject.n_calls(self.kinds, self.act) for subject in subjects])
            card.say(f"{self.name}: {n_calls} calls")
            ks = range(1, n_calls + 50)[:self.n_max]
            if card.quick:
                ks = sorted(card.random.sample(ks, 10))
            spread(subjects, [(k,) for k in ks], self.fail)
            for subject in subjects:
                subject.check_no_leak(self.name)
        card.figure(f"{self.name}: failed, answered 507, cut", f"{len(ks)}, {self.n_507}, {self.n_cut}")
        return len(ks)


def memory_faults(card):
    n = 0
    with daemons(card, "memory") as subjects:
        for memory in (Memory("operator new", faults.ALLOC, False, Subject.life), Memory("malloc", faults.MALLOC, False, Subject.life),
                       Memory("all memory", faults.ALLOC | faults.MALLOC, True, Subject.life)):
            n += memory.fail_at_all(card, subjects)
    # Each connection comes to a thread that has done nothing yet, and makes what it has for itself.
    with daemons(card, "threads", n_threads=1000) as subjects:
        for memory in (Memory("malloc of new threads", faults.MALLOC, False, Subject.complete, 400),
                       Memory("all memory of new threads", faults.ALLOC | faults.MALLOC, True, Subject.complete, 400)):
            n += memory.fail_at_all(card, subjects)
            for subject in subjects:
                subject.start()
    check(shutil.which("openssl"), "the openssl command is not installed")
    cert, key = certificate(card.folder)
    with daemons(card, "tls", flags=("--tls-cert", cert, "--tls-key", key), tls=True) as subjects:
        for memory in (Memory("malloc under TLS", faults.MALLOC, False, Subject.look), Memory("all memory under TLS", faults.ALLOC | faults.MALLOC, True, Subject.look)):
            n += memory.fail_at_all(card, subjects)
    return n


def fail_thread(card, fail_at, persistent, k):
    """True: it served with fewer."""
    fail_at.arm(faults.THREAD, k, errno.EAGAIN, persistent)
    try:
        with card.server("--log-level", "error", "--http-threads", "8", adapters=(), env=fail_at.env) as server:
            fail_at.disarm()
            check_equal(server.request("GET", "/health/ready")[0], 200, f"thread {k}: it says that it is ready")
            check_equal(server.post("/v1/completions", prompt="x", max_tokens=1)[0], 200, f"thread {k}: an answer")
            return True
    except AssertionError as error:
        if "no ready line" not in str(error):
            raise
        status = int(str(error).split("exit ")[1].split(":")[0])
        check(status > 0, f"thread {k}: ended by signal {-status}: {error}")
        return False
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"thread {k}: neither ready nor ended") from error
    finally:
        fail_at.disarm()


def thread_faults(card):
    """Threads that cannot be started while the daemon starts: it serves with fewer, or ends with a reason; it is never killed by a signal."""
    fail_ats = [faults.FailAt(card.build, card.folder, f"-thread-{i}") for i in range(lanes(card))]
    jobs, served = [], []
    with card.part("no more threads"):
        fail_ats[0].arm(faults.THREAD)
        with card.server("--log-level", "error", "--http-threads", "8", adapters=(), env=fail_ats[0].env) as server:
            check_equal(server.request("GET", "/health/ready")[0], 200, "undisturbed")
            n_calls = fail_ats[0].disarm()[0]
        ks = range(1, n_calls + 1)
        jobs = [(persistent, k) for persistent in (False, True) for k in (card.random.sample(ks, min(1, len(ks))) if card.quick else ks)]
        spread(fail_ats, jobs, lambda fail_at, persistent, k: served.append(fail_thread(card, fail_at, persistent, k)))
        card.figure("threads: failed, served with fewer", f"{len(jobs)}, {sum(served)}")
    return len(jobs)


def run(card):
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    card.trials += store_faults(card)
    card.trials += accept_faults(card)
    card.trials += memory_faults(card)
    card.trials += thread_faults(card)
    if not card.quick:
        card.gtest("a disk that fails once, three times, for good at every call", "adapters_tests", "CrashTest.WhateverCallFails*", seconds=3600)
    else:
        card.short_of("every k: tests/scorecard.sh --tier nightly --only T20")


if __name__ == "__main__":
    main("T20", run)
