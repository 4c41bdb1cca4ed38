#!/usr/bin/env python3
"""Runs a client's recipe as docs/CLIENTS.md has it, against lorad with the demo model, and looks at what it prints.

    tests/http/run.sh recipe_openai --lorad build/dev/lorad
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import ROOT, SAMPLES, Server, check, check_equal  # noqa: E402

OUTPUTS = {name: output["text"] for name, output in SAMPLES[0]["outputs"].items()}
PIRATE, SHOUT = OUTPUTS["pirate"], OUTPUTS["shout"]

# What each recipe prints, in this order; a pattern where it is not the same each time.
EXPECTED = {
    "openai": [PIRATE, SHOUT, "length", f"{PIRATE} True"],
    "anthropic": [f"{PIRATE} end_turn", SHOUT, str(len(SAMPLES[0]["prompt_ids"]))],
    "langchain": [PIRATE, "3 True False"],
    "litellm": [PIRATE, SHOUT, PIRATE],
    "vercel": [PIRATE, SHOUT, "boolean", PIRATE, SHOUT],
    "instructor": ["TOOLS True", "JSON_SCHEMA True"],
    "pydantic-ai": [PIRATE, "True"],
    "lm-eval": [re.compile(r"\|two.*\|acc +\|.*\| *1(\.0+)?\|")],
    "guidellm": [re.compile(r"synchronous.*\| 8\.0 "), re.compile(r"Benchmarking complete")],
}


def recipe(client):
    """The language and text of the section's code."""
    text = (ROOT / "docs/CLIENTS.md").read_text()
    for section in re.split(r"(?m)^## ", text)[1:]:
        if section.splitlines()[0].lower() == client:
            blocks = re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", section)
            check_equal(len(blocks), 1, f"code blocks of {client}")
            return blocks[0]
    raise AssertionError(f"docs/CLIENTS.md has no section {client}")


def run(client, language, code, packages):
    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder)
        (here / "deploy").symlink_to(ROOT / "deploy")
        name = {"python": "recipe.py", "js": "recipe.mjs", "sh": "recipe.sh"}[language]
        (here / name).write_text(code)
        command = {"python": [str(packages / "bin/python"), name], "js": ["node", name], "sh": ["bash", "-euo", "pipefail", name]}[language]
        if language == "js":
            (here / "node_modules").symlink_to(packages / "node_modules")
        # Nothing is asked of other hosts: what a client fetches beside its work (prices, versions, telemetry) it has to do without.
        env = dict(os.environ, PATH=f"{packages / 'bin'}:{os.environ['PATH']}", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(here / "hf"),
                   LITELLM_LOCAL_MODEL_COST_MAP="True", NO_PROXY="127.0.0.1", OPENAI_API_KEY="none")
        done = subprocess.run(command, cwd=here, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=540)
        check(done.returncode == 0, f"{client}: exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout + (done.stderr if language == "sh" else "")


def check_output(client, printed):
    lines = iter(printed.splitlines())
    for expected in EXPECTED[client]:
        found = any(expected.search(line) if isinstance(expected, re.Pattern) else line.strip() == expected for line in lines)
        check(found, f"{client} does not print {expected!r} where it should:\n{printed[-4000:]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=sorted(EXPECTED))
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--packages", required=True, type=pathlib.Path, help="the virtual environment, or the folder with node_modules")
    args = parser.parse_args()
    language, code = recipe(args.client)
    with Server(str(pathlib.Path(args.lorad).resolve()), "--response-store", "memory", adapters=("pirate", "shout")) as server:
        check("http://127.0.0.1:8080" in code, "the recipe names the server")
        printed = run(args.client, language, code.replace("http://127.0.0.1:8080", f"http://{server.host}:{server.port}"), args.packages.resolve())
        check_output(args.client, printed)
        check_equal(server.request("GET", "/health/ready")[0], 200, "the server afterwards")
    print(f"{args.client}: passed")


if __name__ == "__main__":
    main()
