"""Generation parameters, structured output and tools with the real program and, where it is installed, the openai client."""

import concurrent.futures
import json
import math
import re

from harness import SAMPLES, check, check_equal, check_error

SAMPLE = SAMPLES[0]
MESSAGES = SAMPLE["messages"]

# A schema, and what a value of it has to fulfil. All of them bounded, so that every answer comes to its end.
SCHEMAS = [
    ({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
      "additionalProperties": False}, lambda v: 0 <= v["a"] <= 99 and len(v) == 1),
    ({"type": "object", "properties": {"s": {"type": "string", "maxLength": 8}}, "required": ["s"], "additionalProperties": False},
     lambda v: len(v["s"]) <= 8),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
     lambda v: 2 <= len(v) <= 3 and all(x in (True, False) for x in v)),
    ({"enum": ["red", "green", 3, None]}, lambda v: v in ["red", "green", 3, None]),
    ({"const": {"a": [1, 2]}}, lambda v: v == {"a": [1, 2]}),
    ({"type": "null"}, lambda v: v is None),
    ({"type": "boolean"}, lambda v: v in (True, False)),
    ({"type": "integer", "minimum": -5, "maximum": 5}, lambda v: -5 <= v <= 5),
    ({"type": "string", "pattern": "^[a-c]{2,5}$"}, lambda v: re.fullmatch("[a-c]{2,5}", v)),
    ({"type": "string", "enum": ["x", "yy"]}, lambda v: v in ("x", "yy")),
    ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1, "maximum": 3}]}, lambda v: v is None or 1 <= v <= 3),
    ({"type": "object", "properties": {"k": {"$ref": "#/$defs/K"}}, "required": ["k"], "additionalProperties": False,
      "$defs": {"K": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2}}},
     lambda v: v["k"] and set(v["k"]) <= {1, 2}),
    ({"type": "object", "properties": {"p": {"type": "object", "properties": {"x": {"type": "boolean"}, "y": {"type": "boolean"}},
                                             "required": ["x", "y"], "additionalProperties": False}},
      "required": ["p"], "additionalProperties": False}, lambda v: set(v["p"]) == {"x", "y"}),
    ({"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "z"}], "items": False, "minItems": 2},
     lambda v: v[1] == "z" and len(v) == 2),
    ({"type": "string", "format": "date"}, lambda v: re.fullmatch(r"\d{4}-\d\d-\d\d", v)),
    ({"type": "string", "minLength": 3, "maxLength": 3}, lambda v: len(v) == 3),
    ({"type": "object", "properties": {"t": {"const": "a"}, "n": {"type": "integer", "minimum": 7, "maximum": 7}},
      "required": ["t", "n"], "additionalProperties": False}, lambda v: v == {"t": "a", "n": 7}),
    ({"type": ["integer", "null"], "minimum": 0, "maximum": 9}, lambda v: v is None or 0 <= v <= 9),
    ({"type": "array", "items": {"type": "string", "maxLength": 2}, "maxItems": 2}, lambda v: len(v) <= 2),
    ({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}}, "required": ["a"],
      "additionalProperties": False}, lambda v: "a" in v and set(v) <= {"a", "b"}),
]

TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
        "type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "y": {"enum": [1, 2]}},
        "required": ["x", "y"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "say", "parameters": {
        "type": "object", "properties": {"text": {"type": "string", "maxLength": 6}}, "required": ["text"],
        "additionalProperties": False}}},
]


def chat(server, **body):
    status, answer = server.post("/v1/chat/completions", **dict(dict(messages=MESSAGES, temperature=0), **body))
    check_equal(status, 200, f"{body}: {answer}")
    return answer


def content(answer, index=0):
    return answer["choices"][index]["message"]["content"]


def check_call(call):
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "add":
        check(set(arguments) == {"x", "y"} and 0 <= arguments["x"] <= 9 and arguments["y"] in (1, 2), f"arguments {arguments}")
    else:
        check_equal(call["function"]["name"], "say", "name")
        check(set(arguments) == {"text"} and len(arguments["text"]) <= 6, f"arguments {arguments}")


def check_answers_follow_their_schemas(server):
    def ask(i):
        schema, holds = SCHEMAS[i // 2]
        answer = chat(server, model=("base", "pirate")[i % 2], temperature=(0, 1.2)[i % 2], seed=i, max_tokens=200,
                      response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}})
        check_equal(answer["choices"][0]["finish_reason"], "stop", f"{schema}: {answer}")
        value = json.loads(content(answer))
        check(holds(value), f"{schema}: {value}")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(2 * len(SCHEMAS))))


def check_structure_does_not_touch_the_others(server):
    def free(seed):
        return content(chat(server, temperature=0.8, seed=seed, max_tokens=40))

    alone = [free(seed) for seed in range(4)]
    greedy = content(chat(server, max_tokens=40))

    def job(i):
        if i % 2:
            json.loads(content(chat(server, max_tokens=120, seed=i, temperature=1, response_format={
                "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[0][0]}})))
            return None
        return free(i // 2 % 4) if i % 4 else content(chat(server, max_tokens=40))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(job, range(16)))
    check_equal(together[::2], [greedy, alone[1], greedy, alone[3]] * 2, "free answers in company")


def check_other_structures(server):
    status, answer = server.post("/v1/completions", prompt="Hello", temperature=1, seed=3, max_tokens=50,
                                 structured_outputs={"choice": ["yes (sir)", "no"]})
    check_equal(status, 200, str(answer))
    check(answer["choices"][0]["text"] in ("yes (sir)", "no"), str(answer))
    text = content(chat(server, guided_regex="[0-9]{3}-[a-f]{2}", max_tokens=50))
    check(re.fullmatch("[0-9]{3}-[a-f]{2}", text), text)
    text = content(chat(server, structured_outputs={"grammar": 'start: "a" | "b" start'}, max_tokens=80))
    check(re.fullmatch("b*a", text) or set(text) == {"b"}, text)
    llamas = 'root ::= item{2,3}\nitem ::= "- " [a-z]{1,4} "\\n"  # llama.cpp\'s form'
    text = content(chat(server, structured_outputs={"grammar": llamas}, max_tokens=80, temperature=1, seed=2))
    check(re.fullmatch("(- [a-z]{1,4}\n){2,3}", text), repr(text))
    check_error(server.post("/v1/completions", prompt="a", guided_grammar="root ::= nothing"), 400, "invalid_request", "guided_grammar", ["nothing"])
    three = chat(server, n=3, temperature=1.5, seed=1, max_tokens=50, guided_regex="[a-z]{4}")
    check(all(re.fullmatch("[a-z]{4}", content(three, i)) for i in range(3)), "each answer has a state of its own")
    check_error(server.post("/v1/chat/completions", messages=MESSAGES, guided_regex="(a"), 400, "invalid_request", "guided_regex")
    check_error(server.post("/v1/chat/completions", messages=MESSAGES, response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "wrong"}}}), 400, "invalid_request", "response_format.json_schema.schema")
    check_error(server.post("/v1/completions", prompt="a", guided_grammar="start: nothing"), 400, "invalid_request", "guided_grammar")
    # Grammars that compile, but that no answer can follow; the second only once the answer has begun.
    check_error(server.post("/v1/completions", prompt="a", guided_json={"$ref": "#"}, stream=True), 400, "invalid_request", "guided_json.$ref")
    wide = {"type": "object", "properties": {f"k{i}": {"type": "string", "pattern": "^(a|b){1,50}$"} for i in range(500)}}
    status, answer = server.post("/v1/completions", prompt="a", temperature=0, guided_json=wide)
    check_equal(status, 400, str(answer))
    check("<state>" not in str(answer) and "Tokens" not in str(answer), f"the grammar's inside: {answer}")


def check_calls_that_the_model_writes(server):
    """A grammar makes the model write what the parser of calls is to find, whole and streamed alike."""
    call = '<tool_call>\n{"name": "add", "arguments": {"x": 7, "y": 1}}\n</tool_call>'
    two = call + "\n" + call

    def ask(text, **more):
        body = {"tools": TOOLS, "structured_outputs": {"choice": [text]}, "max_tokens": 300, **more}
        whole = chat(server, **body)["choices"][0]
        found = {"content": whole["message"]["content"] or "", "reason": whole["finish_reason"],
                 "calls": [(c["function"]["name"], c["function"]["arguments"]) for c in whole["message"].get("tool_calls", [])]}
        streamed, calls = {"content": "", "reason": None}, {}
        for number, event in enumerate(server.events("/v1/chat/completions", model="base", messages=MESSAGES, temperature=0, **body)):
            delta = event["choices"][0]["delta"]
            check(("role" in delta) == (number == 0), f"chunk {number} of {text}: {delta}")
            streamed["content"] += delta.get("content") or ""
            for part in delta.get("tool_calls", []):
                name, arguments = calls.get(part["index"], ("", ""))
                calls[part["index"]] = (name + part["function"].get("name", ""), arguments + part["function"].get("arguments", ""))
            streamed["reason"] = event["choices"][0]["finish_reason"] or streamed["reason"]
        streamed["calls"] = [calls[i] for i in sorted(calls)]
        check_equal(streamed, found, f"streamed and whole: {text}")
        return found

    arguments = '{"x": 7, "y": 1}'
    check_equal(ask("Sure.\n" + call), {"content": "Sure.\n", "reason": "tool_calls", "calls": [("add", arguments)]}, "a text and a call")
    check_equal(ask(two)["calls"], [("add", arguments)] * 2, "two calls")
    check_equal(ask(two, parallel_tool_calls=False)["calls"], [("add", arguments)], "one call of two")
    check_equal(ask(call, stop=["1}"]), {"content": "", "reason": "stop", "calls": [("add", '{"x": 7, "y": ')]}, "a call that a stop string cuts")
    check_equal(ask(call + "\n\nDone."), {"content": "\n\nDone.", "reason": "tool_calls", "calls": [("add", arguments)]}, "a call and a text")
    bare = '{"name": "add", "arguments": {"x": 7, "y": 1}}'
    check_equal(ask(bare), {"content": "", "reason": "tool_calls", "calls": [("add", arguments)]}, "a call without marks")
    for text in ('{"name": "Bob", "age": 3}', '{"age": 3, "name": "Bob"}', '{"name": "add"}', '{"name": "add", "age": 3}'):
        check_equal(ask(text), {"content": text, "reason": "stop", "calls": []}, "an answer in JSON")
    broken = '<tool_call>\n{"name": "add", "arguments": {"x": 7,}}\n</tool_call>'
    check_equal(ask(broken)["calls"], [("add", '{"x": 7,}')], "arguments that are no JSON")
    message = server.post("/v1/messages", model="base", max_tokens=300, messages=MESSAGES, structured_outputs={"choice": [broken]},
                          tools=[{"name": "add", "input_schema": {"type": "object"}}])[1]
    check_equal((message["stop_reason"], message["content"][0]["input"]), ("tool_use", {"INVALID_JSON": '{"x": 7,}'}), "the same as a message")
    back = MESSAGES + [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": message["content"][0]["id"], "content": "no JSON", "is_error": True}]}]
    check_equal(server.post("/v1/messages", model="base", max_tokens=4, messages=back)[0], 200, "and back")
    n_whole = len(server.post("/tokenize", prompt=two)[1]["tokens"])
    # Cut at a few places; the tests of ToolCalls cut texts anywhere.
    for n in range(1, n_whole, 11):
        found = ask(two, max_tokens=n)
        check_equal((found["content"], found["reason"]), ("", "length"), f"cut after {n} tokens")
    check_equal(ask("The mark <tool_call> opens one."), {"content": "The mark <tool_call> opens one.", "reason": "stop", "calls": []}, "a mark in a text")


def check_calls_of_tools(server):
    required = chat(server, tools=TOOLS, tool_choice="required", temperature=1, seed=5, max_tokens=400)
    choice = required["choices"][0]
    check(choice["message"]["tool_calls"], str(required))
    check(choice["finish_reason"] in ("tool_calls", "length"), str(required))
    for call in choice["message"]["tool_calls"][:1]:
        check_call(call)
    one = chat(server, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=1, seed=6, max_tokens=200)
    check_equal((len(one["choices"][0]["message"]["tool_calls"]), one["choices"][0]["finish_reason"], one["choices"][0]["message"]["content"]),
                (1, "tool_calls", None), "one call")
    check_call(one["choices"][0]["message"]["tool_calls"][0])
    named = chat(server, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "say"}}, max_tokens=100)
    check_call(named["choices"][0]["message"]["tool_calls"][0])
    check_equal(named["choices"][0]["finish_reason"], "stop", "a named call's end")

    calls = {}
    for chunk in server.events("/v1/chat/completions", messages=MESSAGES, tools=TOOLS, tool_choice="required", temperature=1, seed=6,
                               parallel_tool_calls=False, max_tokens=200):
        for call in chunk["choices"][0]["delta"].get("tool_calls") or []:
            entry = calls.setdefault(call["index"], {"function": {"name": "", "arguments": ""}, "n": 0})
            entry["function"]["name"] += call["function"].get("name") or ""
            entry["function"]["arguments"] += call["function"]["arguments"]
            entry["n"] += 1
    check_equal(calls[0]["function"], one["choices"][0]["message"]["tool_calls"][0]["function"], "streamed and whole")
    check(calls[0]["n"] > 1, "arguments come as they are written")
    plain = chat(server, max_tokens=10)
    check_equal(content(chat(server, tools=TOOLS, tool_choice="none", max_tokens=10)), content(plain), "no tools are told of")
    history = MESSAGES + [{"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {
        "name": "say", "arguments": "{\"text\": \"x\"}"}}]}, {"role": "tool", "tool_call_id": "a", "content": "done"}]
    check(server.post("/v1/chat/completions", messages=history, tools=TOOLS, max_tokens=4)[0] in (200, 400), "a history with calls")


def check_numbers_beside_the_text(server):
    status, answer = server.post("/v1/completions", prompt=["Hello there", "One two"], temperature=0, max_tokens=5, ignore_eos=True, logprobs=3,
                                 n=2)
    check_equal((status, [c["index"] for c in answer["choices"]]), (200, [0, 1, 2, 3]), "choices")
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
            check(math.isclose(max(top.values()), value, abs_tol=1e-5), "greedy takes the most probable")
            check(token in top and sum(math.exp(v) for v in top.values()) <= 1.0001, str(top))
    echo = server.post("/v1/completions", prompt="Hello there", temperature=0, max_tokens=0, logprobs=1, echo=True)[1]["choices"][0]
    check_equal(echo["text"], "Hello there", "echo")
    check(echo["logprobs"]["token_logprobs"][0] is None and all(v < 0 for v in echo["logprobs"]["token_logprobs"][1:]), str(echo))
    # What follows a prompt token, asked for in two ways.
    whole = server.post("/v1/completions", prompt=SAMPLE["prompt_ids"], temperature=0, max_tokens=1, prompt_logprobs=2)[1]["choices"][0]
    ids = SAMPLE["prompt_ids"]
    n = len(ids) // 2
    step = server.post("/v1/completions", prompt=ids[:n], temperature=0, max_tokens=1, logprobs=2, return_tokens_as_token_ids=True)[1]
    best = max(whole["prompt_logprobs"][n].items(), key=lambda item: item[1]["logprob"])
    check_equal(f"token_id:{best[0]}", step["choices"][0]["logprobs"]["tokens"][0], "best")
    check(abs(best[1]["logprob"] - step["choices"][0]["logprobs"]["token_logprobs"][0]) < 1e-2, "its log-probability")
    banned = int(best[0])
    other = server.post("/v1/completions", prompt=ids[:n], temperature=0, max_tokens=1, logit_bias={str(banned): -100},
                        return_token_ids=True)[1]["choices"][0]["token_ids"]
    check(other != [banned], "a bias of -100 bans")
    eos = server.post("/v1/chat/completions", messages=MESSAGES, temperature=0, min_tokens=40, max_tokens=60, return_token_ids=True)[1]
    check(len(eos["choices"][0]["token_ids"]) >= 40, "min_tokens")


def check_openai_features(server):
    try:
        import openai
    except ImportError:
        print("    the openai client is not installed: its checks are left out")
        return
    client = openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="none", max_retries=0)
    many = client.chat.completions.create(model="base", messages=MESSAGES, n=2, temperature=0.9, seed=1, max_tokens=12, logprobs=True,
                                          top_logprobs=2, presence_penalty=0.5, frequency_penalty=0.2, user="u", logit_bias={"5": -1})
    check_equal([c.index for c in many.choices], [0, 1], "choices")
    check(all(len(t.top_logprobs) == 2 for t in many.choices[1].logprobs.content), "log-probabilities")
    check(many.usage.prompt_tokens_details.cached_tokens >= 0, "cached tokens")
    schema = SCHEMAS[12][0]
    structured = client.chat.completions.create(model="pirate", messages=MESSAGES, max_tokens=100, response_format={
        "type": "json_schema", "json_schema": {"name": "point", "schema": schema, "strict": True}})
    check(SCHEMAS[12][1](json.loads(structured.choices[0].message.content)), "structured output")
    called = client.chat.completions.create(model="base", messages=MESSAGES, tools=TOOLS, max_tokens=200, temperature=0,
                                            tool_choice={"type": "function", "function": {"name": "add"}})
    check_call(called.choices[0].message.tool_calls[0].model_dump())
    parts = ""
    for chunk in client.chat.completions.create(model="base", messages=MESSAGES, tools=TOOLS, max_tokens=200, temperature=0, stream=True,
                                                tool_choice={"type": "function", "function": {"name": "add"}}):
        for call in chunk.choices[0].delta.tool_calls or []:
            parts += call.function.arguments
    check_equal(parts, called.choices[0].message.tool_calls[0].function.arguments, "streamed call")
    texts = client.completions.create(model="base", prompt=["a", "b"], max_tokens=3, logprobs=1, echo=True, best_of=2, n=1, seed=3)
    check_equal([c.index for c in texts.choices], [0, 1], "completions")
    check(texts.choices[0].text.startswith("a") and texts.choices[0].logprobs.tokens, "echo")
    raw = client.chat.completions.with_raw_response.create(model="base", messages=MESSAGES, max_tokens=1, extra_body={"misspelt": 1})
    check_equal(raw.headers.get("x-lorad-ignored-fields"), "misspelt", "ignored fields")



def check_bad_words_are_not_said(server):
    """Also where the tokenizer has other tokens for the word behind a blank."""
    sample = SAMPLES[0]
    check("fine" in sample["outputs"]["base"]["text"], "the sample says it")
    status, body = server.post("/v1/chat/completions", model="base", messages=sample["messages"], temperature=0, max_tokens=24, bad_words=["fine"])
    check_equal(status, 200, f"status of {body}")
    check(" fine" not in body["choices"][0]["message"]["content"], f"it is said: {body}")


SHARED = [check_bad_words_are_not_said, check_answers_follow_their_schemas, check_other_structures, check_calls_of_tools, check_calls_that_the_model_writes,
          check_numbers_beside_the_text, check_openai_features]
INVARIANT = [check_structure_does_not_touch_the_others]
