#!/usr/bin/env python3
"""Starts lorad and runs openai_js_test.mjs against it, in the folder where the openai package for JavaScript is (run.sh)."""

import argparse
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import Server, check_equal  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--packages", required=True, help="the folder with node_modules")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as state, Server(str(pathlib.Path(args.lorad).resolve()), "--state-dir", state, adapters=("pirate", "shout")) as server:
        done = subprocess.run(["node", str(HERE / "openai_js_test.mjs"), f"http://{server.host}:{server.port}"], cwd=args.packages, timeout=300)
        check_equal(done.returncode, 0, "openai_js_test.mjs")
        check_equal(server.request("GET", "/health/ready")[0], 200, "the server afterwards")


if __name__ == "__main__":
    main()
