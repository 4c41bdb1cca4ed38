#!/usr/bin/env python3
"""Clients that take their time, in a process of their own: T8's attackers. Each that is closed comes back at once.

    slow_clients.py HOST PORT KIND N SECONDS     heads, bodies, readers or hello; prints one line of JSON when it is over
"""

import json
import resource
import selectors
import socket
import subprocess
import sys
import time

HEAD = b"GET /v1/models HTTP/1.1\r\nHost: lorad.test\r\nX-Slow: "
BODY = b"POST /v1/completions HTTP/1.1\r\nHost: lorad.test\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n"
READ = b"GET /openapi.json HTTP/1.1\r\nHost: lorad.test\r\n\r\n" * 8
HELLO = bytes.fromhex("16030102000100")  # the begin of a TLS ClientHello


def start(address, kind, n, seconds):
    """This program as a process: a line when all attack, its report at the end."""
    return subprocess.Popen([sys.executable, __file__, *map(str, (*address, kind, n, seconds))], stdout=subprocess.PIPE, text=True)


class Client:
    def __init__(self, address, kind, number):
        self.kind, self.opened = kind, time.monotonic()
        self.socket = socket.socket()
        if kind == "readers":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(5)
        self.socket.connect(address)
        self.socket.setblocking(False)
        # Every second body begins with more than the guard gathers: then it waits at a worker.
        first = {"heads": HEAD, "bodies": BODY + (b"x" * 70000 if number % 2 else b""), "readers": READ, "hello": HELLO}[kind]
        try:
            self.socket.send(first)
        except OSError:
            pass

    def drip(self):
        if self.kind in ("heads", "bodies"):
            try:
                self.socket.send(b"a")
            except OSError:
                pass


def main():
    host, port, kind, n, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    selector = selectors.DefaultSelector()
    clients, lives, n_refused = set(), [], 0

    def open_one(number):
        nonlocal n_refused
        try:
            client = Client((host, port), kind, number)
        except OSError:
            n_refused += 1
            return
        clients.add(client)
        # A reader that does not read sees its end only as an error.
        selector.register(client.socket, selectors.EVENT_READ if kind != "readers" else selectors.EVENT_WRITE, client)

    for i in range(n):
        open_one(i)
    print("attacking", flush=True)
    end = time.monotonic() + seconds
    next_drip = time.monotonic() + 1
    while time.monotonic() < end:
        for key, _ in selector.select(0.05) if kind != "readers" else []:
            try:
                ended = not key.data.socket.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                ended = True
            if ended:
                lives.append(time.monotonic() - key.data.opened)
                selector.unregister(key.data.socket)
                key.data.socket.close()
                clients.discard(key.data)
                open_one(len(lives))
        if kind == "readers":
            time.sleep(0.2)
        if time.monotonic() >= next_drip:
            next_drip += 1
            for client in clients:
                client.drip()
    now = time.monotonic()
    print(json.dumps({"closed": len(lives), "longest_s": max(lives, default=0), "oldest_open_s": max((now - c.opened for c in clients), default=0),
                      "open": len(clients), "refused": n_refused}), flush=True)


if __name__ == "__main__":
    main()
