#!/usr/bin/env python3
"""Sends bodies from many threads and says how they were answered: a process of its own, so that it does not share an interpreter's lock with whoever measures.

    hostile_client.py HOST PORT KEY FILE N_THREADS [SECONDS]

FILE is a list of [route, body] in JSON. The last line of the output is an object: seconds, and how many answers of each status. After SECONDS it sends no more."""

import http.client
import json
import os
import pathlib
import sys
import threading
import time


def main():
    host, port, key, path, n_threads = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
    # What the attackers' own machine would do is not to hold up the daemon.
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    left, lock, statuses, began = json.loads(pathlib.Path(path).read_text()), threading.Lock(), {}, time.monotonic()
    end = began + float(sys.argv[6]) if len(sys.argv) > 6 else float("inf")

    def attack():
        while True:
            with lock:
                if not left or time.monotonic() > end:
                    return
                route, body = left.pop()
            connection = http.client.HTTPConnection(host, port, timeout=120)
            connection.request("POST", route, body, {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
            response = connection.getresponse()
            response.read()
            connection.close()
            with lock:
                statuses[response.status] = statuses.get(response.status, 0) + 1

    threads = [threading.Thread(target=attack) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"seconds": time.monotonic() - began, "statuses": statuses}))


if __name__ == "__main__":
    main()
