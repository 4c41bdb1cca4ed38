#!/usr/bin/env python3
"""Schemathesis over /openapi.json: requests that fit the description and requests that do not, and every answer held to it.

    tests/http/run.sh schemathesis --lorad build/dev/lorad [--cases 10000] [--seed 1] [--no-key]

No 5xx, no status, header or body that the description does not have, no field value that it forbids and the server takes. The endless
stream of events is left out: it has tests of its own. What fits each field may still contradict another field or name an adapter that is not
there, so a 4xx to a request that fits is no failure.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import MODEL, Server, check, check_equal  # noqa: E402

EXCLUDED_CHECKS = "positive_data_acceptance"
KEY = "key-of-schemathesis-0123456789"
# Short answers: an answer may take a second, whatever its n and max_tokens. Loads read the demo adapters alone.
FLAGS = ("--max-model-len", "256", "--max-request-s", "1", "--adapter-root", str(MODEL / "adapters"), "--log-level", "warn")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--cases", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="the operation with this id")
    parser.add_argument("--no-key", action="store_true", help="a server without keys; with them every operation is also tried without one, and with a wrong one")
    args = parser.parse_args()
    key = None if args.no_key else KEY
    with tempfile.TemporaryDirectory() as folder, Server(args.lorad, "--state-dir", f"{folder}/state", *FLAGS, adapters=("pirate", "shout"), key=key) as server:
        base = f"http://{server.host}:{server.port}"
        paths = server.request("GET", "/openapi.json")[1]["paths"]
        n_operations = sum(verb != "parameters" for item in paths.values() for verb in item) - 1
        command = [str(pathlib.Path(sys.executable).parent / "schemathesis"), "run", f"{base}/openapi.json", "--exclude-path", "/v1/adapters/events",
                   "--exclude-checks", EXCLUDED_CHECKS + ("" if key else ",ignored_auth"), "--max-examples", str(max(1, args.cases // n_operations)), "--seed", str(args.seed),
                   "--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--suppress-health-check", "all", "--workers", "1",
                   "--request-timeout", "60", "--generation-database", "none", "--warnings", "off", "--no-color"]
        if key:
            command += ["--header", f"Authorization: Bearer {key}"]
        if args.only:
            command += ["--include-operation-id", args.only]
        print(" ".join(command), flush=True)
        run = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        said = ""
        for line in run.stdout:
            said += line
            print(line, end="", flush=True)
        check_equal(run.wait(), 0, "schemathesis")
        n_cases = int(re.search(r"(?m)^ *(\d+) generated", said).group(1))
        check(args.only or n_cases >= args.cases, f"only {n_cases} of {args.cases} cases")
        print(f"{n_operations} operations, {n_cases} cases")
        check_equal(server.request("GET", "/health/ready")[0], 200, "the server afterwards")
        text = server.request("GET", "/metrics")[1]
        n_5xx = [line for line in text.splitlines() if line.startswith('lorad_http_responses_total{class="5xx"}')]
        check(n_5xx and n_5xx[0].endswith(" 0"), f"5xx: {n_5xx}")
        answer = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
        check_equal(answer[0], 200, f"an answer afterwards: {json.dumps(answer[1])}")
    check_equal(server.process.returncode, 0, "exit status of the server")
    print("schemathesis: passed")


if __name__ == "__main__":
    main()
