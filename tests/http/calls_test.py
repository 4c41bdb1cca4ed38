#!/usr/bin/env python3
"""Calls of functions in answers with chosen borders of tokens: streamed, whole and cut anywhere they are the same, on every route.

    tests/http/run.sh calls --lorad build/dev/lorad [--seed N]
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import Server, check, check_equal  # noqa: E402
from scripted_model import build  # noqa: E402

CALL = '{"name": "f", "arguments": {"a": "x }{", "b": [1, 2]}}'
LLAMA = CALL.replace("arguments", "parameters")
MARKED = f"<tool_call>\n{CALL}\n</tool_call>"
ARGUMENTS = '{"a": "x }{", "b": [1, 2]}'
# Format, what the model says, the text and the number of calls that it is.
ANSWERS = [
    ("hermes", f"Sure. {MARKED}\n{MARKED}\n\nDone.", "Sure. \n\nDone.", 2),
    ("hermes", MARKED, "", 1),
    ("hermes", CALL, "", 1),
    ("hermes", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', 0),
    ("hermes", "a < b <tool> c ", "a < b <tool> c ", 0),
    ("llama3_json", f"{LLAMA}; {LLAMA}", "", 2),
    ("llama3_json", '{"age": 3, "name": "Bob"}', '{"age": 3, "name": "Bob"}', 0),
    ("llama3_json", ' {"name": "nobody", "parameters": {}}', ' {"name": "nobody", "parameters": {}}', 0),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", "", 2),
    ("phi4", f"Sure.\n<|tool_call|>[{CALL}]<|/tool_call|>", "Sure.\n", 1),
]
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}


def pieces_of(text, rng):
    cuts = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(rng.randrange(2, 9)))})
    return [text[a:b] for a, b in zip(cuts, cuts[1:])]


def ask_chat(server, name, n_max, stream):
    body = dict(model="scripted", messages=[{"role": "user", "content": f"[s:{name}]"}], tools=[{"type": "function", "function": TOOL}],
                max_tokens=n_max, temperature=0)
    if not stream:
        status, answer = server.post("/v1/chat/completions", **body)
        check_equal(status, 200, str(answer))
        choice = answer["choices"][0]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls") or []]
        return choice["message"]["content"] or "", calls, choice["finish_reason"]
    text, calls, reason = "", [], None
    for event in server.events("/v1/chat/completions", **body):
        choice = event["choices"][0]
        text += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls") or []:
            if part["index"] == len(calls):
                calls.append((part["function"]["name"], ""))
            calls[part["index"]] = (calls[part["index"]][0], calls[part["index"]][1] + part["function"].get("arguments", ""))
        reason = choice["finish_reason"] or reason
    return text, calls, reason


def ask_message(server, name, n_max):
    status, answer = server.post("/v1/messages", model="scripted", messages=[{"role": "user", "content": f"[s:{name}]"}], max_tokens=n_max,
                                 temperature=0, tools=[{"name": "f", "input_schema": TOOL["parameters"]}])
    check_equal(status, 200, str(answer))
    text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
    return text, [block["input"] for block in answer["content"] if block["type"] == "tool_use"], answer["stop_reason"]


def ask_response(server, name, n_max):
    status, answer = server.post("/v1/responses", model="scripted", input=f"[s:{name}]", max_output_tokens=n_max, temperature=0,
                                 tools=[{"type": "function", **TOOL}])
    check_equal(status, 200, str(answer))
    text = "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])
    return text, [(item["name"], item["arguments"]) for item in answer["output"] if item["type"] == "function_call"], answer["status"]


def check_answer(server, name, n_pieces, text, n_calls):
    whole = ask_chat(server, name, n_pieces + 4, False)
    check_equal(whole, (text, [("f", ARGUMENTS)] * n_calls, "tool_calls" if n_calls else "stop"), name)
    for n_max in range(1, n_pieces + 1):
        cut = ask_chat(server, name, n_max, False)
        check_equal(ask_chat(server, name, n_max, True), cut, f"{name}: streamed and whole, cut after {n_max} tokens")
        # Of a mark behind a text one or two letters are still text.
        is_part = any(text.startswith(cut[0][:len(cut[0]) - n]) for n in range(3))
        check(is_part or n_calls == 0, f"{name}: {cut} is no part of {text!r}")
        check_equal(ask_response(server, name, n_max)[:2], cut[:2], f"{name}: as a response, after {n_max}")
        said, inputs, reason = ask_message(server, name, n_max)
        check_equal(said, cut[0], f"{name}: as a message, after {n_max}")
        for given, (_, arguments) in zip(inputs, cut[1], strict=True):
            is_whole = arguments == ARGUMENTS
            check_equal(given, json.loads(ARGUMENTS) if is_whole else {"INVALID_JSON": arguments}, f"{name}: input after {n_max}")
            check(is_whole or reason == "max_tokens", f"{name}: {reason}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    print(f"seed {args.seed}")
    with tempfile.TemporaryDirectory() as folder:
        for family in dict.fromkeys(answer[0] for answer in ANSWERS):
            answers = [answer for answer in ANSWERS if answer[0] == family]
            scripts = {f"{i}v{j}": pieces_of(answer[1], rng) for i, answer in enumerate(answers) for j in range(4)}
            model = pathlib.Path(folder) / family
            build(model, scripts)
            with Server(args.lorad, "--served-model-name", "scripted", "--tool-call-parser", family, adapters=(), model=model) as server:
                for name, pieces in scripts.items():
                    _, _, text, n_calls = answers[int(name.split("v")[0])]
                    check_answer(server, name, len(pieces), text, n_calls)
    print("calls: passed")


if __name__ == "__main__":
    main()
