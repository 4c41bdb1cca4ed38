"""Schemas of functions, functions beside a response's format, what no grammar holds, and adapters by other servers' names."""

import http.client
import json

from generate_checks import MESSAGES, chat, content
from harness import check, check_equal, check_error


def tool(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def check_schemas_of_tools(server):
    """Each function's schema has a root of its own, its arguments are an object, and what it leaves out is closed."""
    def forced(tools, choice="required", seed=1, **more):
        status, answer = server.post("/v1/chat/completions", messages=MESSAGES, tools=tools, tool_choice=choice, parallel_tool_calls=False,
                                     temperature=0.9, seed=seed, max_tokens=300, **more)
        check_equal(status, 200, str(answer))
        choice = answer["choices"][0]
        check(choice["finish_reason"] in ("tool_calls", "stop"), str(answer))
        call = choice["message"]["tool_calls"][0]["function"]
        return call["name"], json.loads(call["arguments"])

    flag = {"type": "boolean"}
    for parameters in ({}, {"type": "object"}, {"properties": {}}):
        for choice in ("required", {"type": "function", "function": {"name": "f"}}):
            check_equal(forced([tool("f", parameters)], choice), ("f", {}), str(parameters))
    closed = {"properties": {"a": flag}, "required": ["a"]}
    for seed in range(4):
        check_equal(set(forced([tool("f", closed)], seed=seed)[1]), {"a"}, "closed")
    pointers = {"type": "object", "properties": {"a/b": flag, "c": {"$ref": "#/properties/a~1b"}, "d e": flag, "f": {"$ref": "#/properties/d%20e"}},
                "required": ["a/b", "c", "d e", "f"]}
    check(all(isinstance(value, bool) for value in forced([tool("f", pointers)])[1].values()), "pointers")
    tree = {"properties": {"v": flag, "k": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["v", "k"]}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        node = forced([tool("f", tree)], choice)[1]
        while node is not None:
            check_equal(set(node), {"v", "k"}, "the root is the function's own")
            node = node["k"]
    tools = [tool(name, {"properties": {"x": {"$ref": "#/$defs/A"}}, "required": ["x"], "$defs": {"A": {"enum": [name]}}}) for name in ("f", "g")]
    for seed in range(4):
        name, arguments = forced(tools, seed=seed)
        check_equal(arguments, {"x": name}, "definitions of one name")
    check_equal(len(forced([tool("f", {"properties": {"a": {"type": "string", "format": "password", "maxLength": 3}}, "required": ["a"]})])[1]), 1,
                "an unknown format")


def check_functions_beside_a_format(server):
    """With both the answer is one of the format or calls, on every route; required calls come first."""
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}
    arguments = {"properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"]}
    chat_tool, flat = tool("count", arguments), {"type": "function", "name": "count", "parameters": arguments}
    named = {"type": "function", "function": {"name": "count"}}
    for choice in ("auto", "required", named):
        for seed in range(3):
            status, answer = server.post("/v1/chat/completions", messages=MESSAGES, tools=[chat_tool], tool_choice=choice, temperature=1.2, seed=seed,
                                         max_tokens=300, parallel_tool_calls=False,
                                         response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
            check_equal(status, 200, str(answer))
            message = answer["choices"][0]["message"]
            calls = message.get("tool_calls") or []
            check(calls or choice == "auto", f"{choice}: {answer}")
            if calls:
                check(1 <= json.loads(calls[0]["function"]["arguments"])["n"] <= 9 and not message["content"], str(message))
            else:
                check_equal(set(json.loads(message["content"])), {"city"}, str(message))
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    for choice in ("auto", "required", {"type": "function", "name": "count"}):
        status, answer = server.post("/v1/responses", input="Hello", tools=[flat], tool_choice=choice, text=text, temperature=1, max_output_tokens=300)
        check_equal(status, 200, str(answer))
        kinds = {item["type"] for item in answer["output"]}
        check(kinds == {"function_call"} or (choice == "auto" and kinds == {"message"}), str(answer["output"]))
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "count"}):
        status, answer = server.post("/v1/messages", messages=MESSAGES, tools=[{"name": "count", "input_schema": arguments}], tool_choice=choice,
                                     output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=300, temperature=1)
        check_equal(status, 200, str(answer))
        kinds = {block["type"] for block in answer["content"]}
        check(kinds == {"tool_use"} or (choice["type"] == "auto" and kinds == {"text"}), str(answer))
    status, error = server.post("/v1/responses", input="Hello", ignore_eos=True, text=text)
    check(status == 400 and "text.format" in error["error"]["message"] and "response_format" not in str(error), str(error))
    strict = [tool("count", arguments, strict=True)]
    check_equal(server.post("/v1/chat/completions", messages=MESSAGES, tools=strict, max_tokens=8)[0], 200, "strict functions leave texts free")


def check_what_is_not_enforced_is_said(server):
    def ask(schema, path="/v1/chat/completions"):
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        body = {"model": "base", "messages": MESSAGES, "max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        connection.request("POST", path, json.dumps(body), server.headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, response.getheader("x-lorad-not-enforced"), answer

    bounded = {"type": "array", "maxItems": 2, "items": {"type": "boolean"}}
    for keyword in ({"contains": {"const": True}}, {"not": {"minItems": 1}}, {"if": {"minItems": 1}, "then": {"maxItems": 1}}):
        for path in ("/v1/chat/completions", "/v1/chat/completions/render"):
            status, header, answer = ask({**bounded, **keyword}, path)
            check_equal((status, header), (200, f"response_format.json_schema.schema.{next(iter(keyword))}"), str(answer))
    check_equal(ask({**bounded, "uniqueItems": True})[:2], (200, None), "few values can be told apart")
    check_equal(ask({"type": "string", "format": "password", "maxLength": 3})[:2], (200, None), "an unknown format")
    check_equal(ask({"oneOf": [{"const": 1}, {"const": 2}]})[:2], (200, None), "alternatives that exclude each other")
    check_equal(ask({"oneOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"enum": [1, 2]}]})[1], "response_format.json_schema.schema.oneOf",
                "overlapping alternatives")
    check_error((ask({"type": "null", "x-guidance": {}})[0], ask({"type": "null", "x-guidance": {}})[2]), 400, "unsupported_parameter",
                "response_format.json_schema.schema.x-guidance")
    for field in ("response_format", "tools"):
        body = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "wrong"}}}} if field == "response_format" else {
            "tools": [tool("f", {"properties": {"a": {"type": "wrong"}}})], "tool_choice": "required"}
        answers = [server.post(f"/v1/chat/completions{end}", messages=MESSAGES, **body) for end in ("", "/render")]
        check(answers[0][0] == 400 and answers[0] == answers[1], f"generating and rendering refuse the same: {answers}")


def check_adapters_by_other_names(server):
    plain = content(chat(server, max_tokens=12))
    pirate = content(chat(server, model="pirate", max_tokens=12))
    check(plain != pirate, "the adapter shows")
    names = ({"lora_path": "pirate"}, {"lora_path": ["pirate"]}, {"adapter_id": "pirate"}, {"parameters": {"adapter_id": "pirate"}},
             {"lora_request": {"lora_name": "pirate", "lora_int_id": 1, "lora_path": "/x"}}, {"lora_name": "pirate"}, {"adapter_name": "pirate"})
    for fields in names:
        check_equal(content(chat(server, max_tokens=12, **fields)), pirate, str(fields))
        unknown = json.loads(json.dumps(fields).replace("pirate", "nobody"))
        status, error = server.post("/v1/chat/completions", messages=MESSAGES, **unknown)
        check(status == 404 and error["error"]["param"].startswith(next(iter(fields))), f"{unknown}: {error}")
        check_equal(server.post("/v1/messages", messages=MESSAGES, max_tokens=2, **unknown)[0], 404, str(unknown))
        check_equal(server.post("/v1/responses", input="a", **unknown)[0], 404, str(unknown))
        check_equal(server.post("/v1/embeddings", input="a", **unknown)[0], 404, str(unknown))
    check_equal(server.post("/v1/chat/completions", messages=MESSAGES, lora_path=["pirate", "shout"])[0], 400, "two adapters")


SHARED = [check_schemas_of_tools, check_functions_beside_a_format, check_what_is_not_enforced_is_said, check_adapters_by_other_names]
