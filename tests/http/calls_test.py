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
XML = '<function=f>\n<parameter=a>\nx }{\n</parameter>\n<parameter=b>\n[1, 2]\n</parameter>\n</function>'
GEMMA = '<|tool_call>call:f{a:<|"|>x }{<|"|>,b:[1,2]}<tool_call|>'
PYTHON = "f(a='x }{', b=[1, 2])"
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
    ("qwen3_xml", f"Sure. <tool_call>\n{XML}\n</tool_call>\n<tool_call>\n{XML}\n</tool_call>\n\nDone.", "Sure. \n\nDone.", 2),
    ("qwen3_xml", XML, "", 1),
    ("qwen3_xml", "a <function> of b", "a <function> of b", 0),
    ("gemma4", f"Sure.{GEMMA}{GEMMA}", "Sure.", 2),
    ("pythonic", f"[{PYTHON}, {PYTHON}]", "", 2),
    ("pythonic", f"Sure. ```tool_code\n{PYTHON}\n```", "Sure. ", 1),
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
    """Blocks in their order, each a text or the input of a call; the stream's are the same."""
    body = dict(model="scripted", messages=[{"role": "user", "content": f"[s:{name}]"}], max_tokens=n_max, temperature=0,
                tools=[{"name": "f", "input_schema": TOOL["parameters"]}])
    status, answer = server.post("/v1/messages", **body)
    check_equal(status, 200, str(answer))
    blocks = [block["text"] if block["type"] == "text" else block["input"] for block in answer["content"]]
    streamed, reason = [], None
    for event in server.events("/v1/messages", **body):
        if event["type"] == "content_block_start":
            check_equal(event["index"], len(streamed), name)
            streamed.append("")
            is_call = event["content_block"]["type"] == "tool_use"
        elif event["type"] == "content_block_delta":
            streamed[-1] += event["delta"].get("text", "") + event["delta"].get("partial_json", "")
        elif event["type"] == "content_block_stop" and is_call:
            streamed[-1] = json.loads(streamed[-1])
        reason = event.get("delta", {}).get("stop_reason") or reason
    check_equal((streamed, reason), (blocks, answer["stop_reason"]), f"{name}: a message's stream and whole after {n_max}")
    return blocks, reason


def ask_response(server, name, n_max):
    """Items in their order, each a text or the name and arguments of a call; the stream's are the same."""
    body = dict(model="scripted", input=f"[s:{name}]", max_output_tokens=n_max, temperature=0, tools=[{"type": "function", **TOOL}])

    def shown(item):
        what = "".join(part["text"] for part in item["content"]) if item["type"] == "message" else (item["name"], item["arguments"])
        return what, item["status"]

    status, answer = server.post("/v1/responses", **body)
    check_equal(status, 200, str(answer))
    items = [shown(item) for item in answer["output"]]
    done, last = [], None
    for event in server.events("/v1/responses", **body):
        if event["type"] == "response.output_item.done":
            done.append(shown(event["item"]))
        last = event
    check_equal(done, items, f"{name}: a response's stream and whole after {n_max}")
    check_equal([shown(item) for item in last["response"]["output"]], items, f"{name}: the last event after {n_max}")
    return [what for what, _ in items]


def check_answer(server, name, n_pieces, text, n_calls):
    whole = ask_chat(server, name, n_pieces + 4, False)
    check_equal(whole, (text, [("f", ARGUMENTS)] * n_calls, "tool_calls" if n_calls else "stop"), name)
    if text.endswith("Done."):
        check_equal([item if isinstance(item, str) else "call" for item in ask_response(server, name, n_pieces + 4)],
                    ["Sure. ", "call", "call", "\n\nDone."], f"{name}: text behind calls stands behind them")
    for n_max in range(1, n_pieces + 1):
        cut = ask_chat(server, name, n_max, False)
        check_equal(ask_chat(server, name, n_max, True), cut, f"{name}: streamed and whole, cut after {n_max} tokens")
        # Of a mark behind a text one or two letters are still text; of a fence, which code has as well, five.
        is_part = any(text.startswith(cut[0][:len(cut[0]) - n]) for n in range(6 if "`" in cut[0] else 3))
        check(is_part or n_calls == 0, f"{name}: {cut} is no part of {text!r}")
        items = ask_response(server, name, n_max)
        check_equal("".join(item for item in items if isinstance(item, str)), cut[0], f"{name}: as a response, after {n_max}")
        check_equal([item for item in items if not isinstance(item, str)], cut[1], f"{name}: calls of a response, after {n_max}")
        blocks, reason = ask_message(server, name, n_max)
        check_equal("".join(block for block in blocks if isinstance(block, str)), cut[0], f"{name}: as a message, after {n_max}")
        check_equal([isinstance(block, str) for block in blocks], [isinstance(item, str) for item in items], f"{name}: the order, after {n_max}")
        for given, (_, arguments) in zip([block for block in blocks if not isinstance(block, str)], cut[1], strict=True):
            is_whole = arguments == ARGUMENTS
            check_equal(given, json.loads(ARGUMENTS) if is_whole else {"INVALID_JSON": arguments}, f"{name}: input after {n_max}")
            check(is_whole or reason == "max_tokens", f"{name}: {reason}")


# What the model says in channels: its thoughts, its text and the number of calls.
CHANNELS = [
    (f"<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{ARGUMENTS}<|call|>", "So.", "", 1),
    (f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{ARGUMENTS}", "", "I look.", 1),
    ("<|channel|>analysis<|message|>A < b.<|end|><|start|>assistant<|channel|>final<|message|>Yes, a < b.", "A < b.", "Yes, a < b.", 0),
]


def thoughts_of(server, name, n_max, stream):
    body = dict(model="scripted", messages=[{"role": "user", "content": f"[s:{name}]"}], max_tokens=n_max, temperature=0)
    if not stream:
        message = server.post("/v1/chat/completions", **body)[1]["choices"][0]["message"]
        return message.get("reasoning_content") or "", message["content"] or ""
    deltas = [event["choices"][0]["delta"] for event in server.events("/v1/chat/completions", **body) if event["choices"]]
    return "".join(delta.get("reasoning_content") or "" for delta in deltas), "".join(delta.get("content") or "" for delta in deltas)


def check_channels(server, name, n_pieces, reasoning, text, n_calls):
    check_equal(ask_chat(server, name, n_pieces + 4, False), (text, [("f", ARGUMENTS)] * n_calls, "tool_calls" if n_calls else "stop"), name)
    # Without functions the call is a thought.
    expected = (reasoning + ("\n\n" if reasoning and n_calls else "") + ARGUMENTS * n_calls, text)
    check_equal(thoughts_of(server, name, n_pieces + 4, False), expected, f"{name}: without functions")
    blocks, _ = ask_message(server, name, n_pieces + 4) if not reasoning else ([], None)
    check_equal(blocks, ([text] if text else []) + [json.loads(ARGUMENTS)] * n_calls if not reasoning else [], f"{name}: as a message")
    for n_max in range(1, n_pieces + 1):
        cut = ask_chat(server, name, n_max, False)
        check_equal(ask_chat(server, name, n_max, True), cut, f"{name}: streamed and whole, cut after {n_max} tokens")
        check(text.startswith(cut[0]), f"{name}: {cut[0]!r} is no part of {text!r}")
        thoughts = thoughts_of(server, name, n_max, False)
        check_equal(thoughts_of(server, name, n_max, True), thoughts, f"{name}: thoughts streamed and whole after {n_max}")
        check(expected[0].startswith(thoughts[0]) and "<|" not in "".join(thoughts), f"{name}: {thoughts} after {n_max}")


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
        scripts = {f"{i}v{j}": pieces_of(answer[0], rng) for i, answer in enumerate(CHANNELS) for j in range(3)}
        model = pathlib.Path(folder) / "channels"
        build(model, scripts)
        with Server(args.lorad, "--served-model-name", "scripted", "--tool-call-parser", "openai", adapters=(), model=model) as server:
            for name, pieces in scripts.items():
                check_channels(server, name, len(pieces), *CHANNELS[int(name.split("v")[0])][1:])
    print("calls: passed")


if __name__ == "__main__":
    main()
