"""The endpoints beside chats and completions, with the clients that people use: the official openai and anthropic packages.

Where a package is not installed its checks are left out, and say so.
"""

import concurrent.futures
import json
import pathlib
import shutil
import tempfile
import urllib.request

from harness import MODEL, SAMPLES, Server, check, check_equal, check_error

SAMPLE = SAMPLES[0]
QUESTION = SAMPLE["messages"][-1]["content"]
ADD = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"],
       "additionalProperties": False}


def openai_client(server):
    try:
        import openai
    except ImportError:
        print("    the openai client is not installed: its checks are left out")
        return None
    return openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="none", max_retries=0)


def check_rendered_prompts_are_what_is_read(server):
    for sample in SAMPLES[:3]:
        status, rendered = server.post("/v1/chat/completions/render", model="pirate", messages=sample["messages"])
        check_equal((status, rendered["prompt"], rendered["token_ids"]), (200, sample["prompt"], sample["prompt_ids"]), "rendered chat")
        by_text = server.post("/v1/completions/render", prompt=[sample["prompt"], sample["prompt_ids"]])[1]
        check_equal([p["token_ids"] for p in by_text], [sample["prompt_ids"]] * 2, "rendered completions")
        check_equal(by_text[1]["prompt"], sample["prompt"], "text of ids")
        tokens = server.post("/tokenize", messages=sample["messages"], return_token_strs=True)[1]
        check_equal((tokens["tokens"], tokens["count"]), (sample["prompt_ids"], len(sample["prompt_ids"])), "tokens of a chat")
        check_equal("".join(tokens["token_strs"]), sample["prompt"], "strings of tokens")
        check_equal(server.post("/detokenize", tokens=tokens["tokens"])[1], {"prompt": sample["prompt"]}, "the way back")
    version = server.request("GET", "/version")
    check_equal((version[0], set(version[1])), (200, {"version"}), "version")


def check_an_adapters_own_template_writes_its_chats(server):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "own"
        shutil.copytree(MODEL / "adapters/pirate", path)
        (path / "chat_template.jinja").write_text(
            "<|im_start|>system\nTalk.<|im_end|>\n{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}<|im_start|>assistant{{ '\\n' }}")
        status, loaded = server.post("/v1/load_lora_adapter", lora_name="own", lora_path=str(path))
        check_equal(status, 200, str(loaded))
    rendered = server.post("/v1/chat/completions/render", model="own", messages=[{"role": "user", "content": "Hi"}])[1]
    expected = "<|im_start|>system\nTalk.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    check_equal(rendered["prompt"], expected, "prompt")
    chat = server.post("/v1/chat/completions", model="own", messages=[{"role": "user", "content": "Hi"}], temperature=0, max_tokens=12)[1]
    same = server.post("/v1/completions", model="own", prompt=rendered["token_ids"], temperature=0, max_tokens=12)[1]
    check_equal(chat["choices"][0]["message"]["content"], same["choices"][0]["text"], "the chat reads what was rendered")
    plain = server.post("/v1/chat/completions/render", model="pirate", messages=[{"role": "user", "content": "Hi"}])[1]
    check(plain["prompt"] != expected, "others keep the model's template")
    check_equal(server.post("/v1/unload_lora_adapter", lora_name="own")[0], 200, "unload")


def check_templates_get_all_of_a_conversation(server):
    """What an adapter's template would lose is given another way, or said."""
    known = "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}[{{ m.role }}]{{ m.reasoning_content }}{% if m.content is string %}" \
            "{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endif %}{% endfor %}"
    user = {"role": "user", "content": "Hi"}
    tool = {"type": "function", "function": {"name": "add", "parameters": ADD}}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "known"
        shutil.copytree(MODEL / "adapters/pirate", path)
        (path / "chat_template.jinja").write_text(known)
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates/rag.jinja").write_text("{{ documents[0].text }} {{ messages[0].content }}")
        status, loaded = server.post("/v1/load_lora_adapter", lora_name="known", lora_path=str(path))
        check_equal(status, 200, str(loaded))

    def prompt(*messages, **more):
        status, rendered = server.post("/v1/chat/completions/render", model="known", messages=messages, **more)
        return rendered["prompt"] if status == 200 else (status, rendered["error"]["code"], rendered["error"]["param"])

    check_equal(prompt({"role": "developer", "content": "Be brief."}, user), "[system]Be brief.[user]Hi", "a developer's message")
    check_equal(prompt({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}), "[user]<a><b>", "parts")
    check_equal(prompt(user, {"role": "assistant", "content": "A", "reasoning": "R"}), "[user]Hi[assistant]RA", "a thought")
    check_equal(prompt(user, {"role": "tool", "content": "5", "tool_call_id": "c"}), (400, "invalid_request", "messages[1].role"), "a role that is dropped")
    check_equal(prompt(user, chat_template="rag", documents=[{"text": "D"}]), "D Hi", "a template by its name")
    check_equal(prompt(user, chat_template="other"), (400, "unsupported_parameter", "chat_template"), "a template that is not there")
    for route in ("/v1/chat/completions", "/v1/chat/completions/render"):
        request = urllib.request.Request(f"http://{server.host}:{server.port}{route}", method="POST", headers={"Content-Type": "application/json"},
                                         data=json.dumps(dict(model="known", messages=[user], tools=[tool], max_tokens=1)).encode())
        with urllib.request.urlopen(request) as reply:
            check_equal(reply.headers["x-lorad-ignored-fields"], "tools", f"what {route} says of tools that nobody sees")
    check_equal(server.post("/v1/unload_lora_adapter", lora_name="known")[0], 200, "unload")


def check_responses_of_the_openai_client(server):
    client = openai_client(server)
    if client is None:
        return
    import openai
    import pydantic

    expected = SAMPLE["outputs"]["pirate"]["text"]
    whole = client.responses.create(model="pirate", input=SAMPLE["messages"], temperature=0)
    check_equal((whole.output_text, whole.status, whole.error), (expected, "completed", None), "response")
    check_equal(whole.usage.output_tokens, len(SAMPLE["outputs"]["pirate"]["ids"]), "usage")
    check_equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens, "sum")
    events = list(client.responses.create(model="pirate", input=SAMPLE["messages"], temperature=0, stream=True))
    check_equal([e.sequence_number for e in events], list(range(len(events))), "numbers")
    check_equal(events[0].type + " " + events[-1].type, "response.created response.completed", "first and last")
    check_equal("".join(e.delta for e in events if e.type == "response.output_text.delta"), expected, "deltas")
    check_equal(events[-1].response.output_text, expected, "the completed response")
    with client.responses.stream(model="pirate", input=SAMPLE["messages"], temperature=0) as stream:
        kinds = {event.type for event in stream}
        check_equal(stream.get_final_response().output_text, expected, "the helper's final response")
    check("response.content_part.done" in kinds and "response.output_item.done" in kinds, str(kinds))
    with_logprobs = client.responses.create(model="base", input="Hello", temperature=0, max_output_tokens=4, top_logprobs=2,
                                            include=["message.output_text.logprobs"])
    check_equal(with_logprobs.incomplete_details.reason, "max_output_tokens", "reason")
    check_equal([len(t.top_logprobs) for t in with_logprobs.output[0].content[0].logprobs], [2] * 4, "log-probabilities")

    tools = [{"type": "function", "name": "add", "description": "Adds.", "parameters": ADD, "strict": True}]
    with client.responses.stream(model="base", input=QUESTION, temperature=0, tools=tools, tool_choice="required",
                                 parallel_tool_calls=False, max_output_tokens=100) as stream:
        arguments = "".join(e.delta for e in stream if e.type == "response.function_call_arguments.delta")
        call = stream.get_final_response().output[0]
    check_equal((call.type, call.name, call.arguments), ("function_call", "add", arguments), "call")
    check(0 <= json.loads(arguments)["x"] <= 9, arguments)
    history = [{"role": "user", "content": QUESTION}, {"type": "function_call", "call_id": call.call_id, "name": "add", "arguments": arguments},
               {"type": "function_call_output", "call_id": call.call_id, "output": "7"}]
    check(client.responses.create(model="base", input=history, tools=tools, max_output_tokens=10).output, "an answer to a call's output")

    class Answer(pydantic.BaseModel):
        yes: bool

    parsed = client.responses.parse(model="base", input=QUESTION, text_format=Answer, max_output_tokens=60, temperature=0)
    check(isinstance(parsed.output_parsed, Answer), str(parsed.output))
    for refused, param in ((dict(store=True), "store"), (dict(previous_response_id="resp_1"), "previous_response_id"),
                           (dict(background=True), "background"), (dict(tools=[{"type": "web_search"}]), "tools[0].type")):
        try:
            client.responses.create(model="base", input="x", **refused)
            raise AssertionError(f"{refused} was accepted")
        except openai.BadRequestError as error:
            check_equal((error.code, error.param), ("unsupported_parameter", param), "refusal")
    check_error(server.post("/v1/responses", input=[{"role": "user"}]), 400, "invalid_request", "input[0].content")


def check_messages_of_the_anthropic_client(server):
    try:
        import anthropic
    except ImportError:
        print("    the anthropic client is not installed: its checks are left out")
        return
    client = anthropic.Anthropic(base_url=f"http://{server.host}:{server.port}", api_key="none", max_retries=0)
    greedy = {"temperature": 0}  # newer clients have no parameter of this name
    expected = SAMPLE["outputs"]["pirate"]["text"]
    whole = client.messages.create(model="pirate", max_tokens=100, messages=SAMPLE["messages"], extra_body=greedy)
    check_equal((whole.content[0].text, whole.stop_reason, whole.role), (expected, "end_turn", "assistant"), "message")
    usage = whole.usage
    check_equal(usage.input_tokens + usage.cache_read_input_tokens, len(SAMPLE["prompt_ids"]), "input tokens")
    check_equal(client.messages.count_tokens(model="pirate", messages=SAMPLE["messages"]).input_tokens, len(SAMPLE["prompt_ids"]), "count")
    with client.messages.stream(model="pirate", max_tokens=100, messages=SAMPLE["messages"], extra_body=greedy) as stream:
        check_equal("".join(stream.text_stream), expected, "streamed text")
        final = stream.get_final_message()
    check_equal((final.content[0].text, final.usage.output_tokens), (expected, usage.output_tokens), "the helper's final message")
    raw = [event.type for event in client.messages.create(model="pirate", max_tokens=100, messages=SAMPLE["messages"], stream=True)]
    check_equal((raw[0], raw[1], raw[-3:]), ("message_start", "content_block_start", ["content_block_stop", "message_delta", "message_stop"]), "events")
    word = expected.split()[2]
    stopped = client.messages.create(model="pirate", max_tokens=100, messages=SAMPLE["messages"], stop_sequences=[word], extra_body=greedy)
    check_equal((stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text), ("stop_sequence", word, expected[:expected.index(word)]), "stop")
    begun = SAMPLE["messages"] + [{"role": "assistant", "content": "I am"}]
    continued = client.messages.create(model="base", max_tokens=5, messages=begun, system="Be short.", extra_body=greedy)
    check(not continued.content[0].text.startswith("I am"), "an answer that was begun is continued")

    tools = [{"name": "add", "description": "Adds.", "input_schema": ADD}]
    ask = [{"role": "user", "content": QUESTION}]
    with client.messages.stream(model="base", max_tokens=100, messages=ask, tools=tools, extra_body=greedy,
                                tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
        called = stream.get_final_message()
    call = called.content[0]
    check_equal((call.type, call.name, called.stop_reason), ("tool_use", "add", "tool_use"), "call")
    check(0 <= call.input["x"] <= 9, str(call.input))
    history = ask + [{"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": "add", "input": call.input}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "7"}]}]
    check(client.messages.create(model="base", max_tokens=10, messages=history, tools=tools).content, "an answer to a call's result")
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]
    for kind, body in ((anthropic.BadRequestError, dict(messages=image)), (anthropic.NotFoundError, dict(messages=ask, model="nobody")),
                       (anthropic.BadRequestError, dict(messages=ask, extra_body={"container": "x"}))):
        try:
            client.messages.create(**dict(dict(model="base", max_tokens=10), **body))
            raise AssertionError(f"{body} was accepted")
        except kind as error:
            check_equal(set(error.body["error"]), {"type", "message"}, "envelope")


def check_embeddings_of_the_openai_client(server):
    client = openai_client(server)
    if client is None:
        return
    import openai

    texts = ["The cat sat on the mat.", "A cat was sitting on a mat.", "Prices of steel rose in May."]
    default = client.embeddings.create(model="base", input=texts)  # base64 on the wire
    plain = client.embeddings.create(model="base", input=texts, encoding_format="float")
    for a, b in zip(default.data, plain.data):
        check_equal(len(a.embedding), len(b.embedding), "dimensions")
        check(abs(sum(x * y for x, y in zip(a.embedding, b.embedding)) - 1) < 1e-5, "both encodings, both of length 1")
    check_equal(default.usage.prompt_tokens, sum(server.post("/tokenize", prompt=t)[1]["count"] for t in texts), "usage")
    one = client.embeddings.create(model="base", input=texts[1]).data[0].embedding
    check(sum(x * y for x, y in zip(one, plain.data[1].embedding)) > 1 - 1e-4, "alone and in company")
    ids = server.post("/tokenize", prompt=texts[1])[1]["tokens"]
    by_ids = client.embeddings.create(model="base", input=ids).data[0].embedding
    check(sum(x * y for x, y in zip(one, by_ids)) > 1 - 1e-4, "text and ids")
    pirate = client.embeddings.create(model="pirate", input=texts[1])
    check(sum(x * y for x, y in zip(one, pirate.data[0].embedding)) < 0.9999, "an adapter changes it")
    check_equal(len(pirate.adapter_generation), 64, "generation")
    short = client.embeddings.create(model="base", input=texts[1], dimensions=10).data[0].embedding
    check_equal((len(short), round(sum(x * x for x in short), 4)), (10, 1.0), "dimensions")
    try:
        client.embeddings.create(model="base", input=texts[1], dimensions=10_000_000)
        raise AssertionError("ten million dimensions were accepted")
    except openai.BadRequestError as error:
        check_equal(error.param, "dimensions", "param")
    # Beside decodes, which are not disturbed.
    expected = SAMPLE["outputs"]["shout"]["text"]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        chats = [pool.submit(lambda: client.chat.completions.create(model="shout", messages=SAMPLE["messages"], temperature=0)
                             .choices[0].message.content) for _ in range(4)]
        vectors = [pool.submit(lambda: client.embeddings.create(model="base", input=[texts[1]] * 5).data) for _ in range(4)]
        check_equal([chat.result() for chat in chats], [expected] * 4, "chats beside embeddings")
        for data in vectors:
            check(all(sum(x * y for x, y in zip(one, entry.embedding)) > 1 - 1e-4 for entry in data.result()), "embeddings beside chats")



def check_kept_responses_outlast_the_process(lorad):
    """Killed, not stopped: what was answered is there, what was deleted is not."""
    with tempfile.TemporaryDirectory() as state:
        flags = ("--state-dir", state, "--response-store", "state")
        with Server(lorad, *flags, adapters=("pirate",)) as server:
            def ask(**fields):
                status, body = server.post("/v1/responses", model="pirate", temperature=0, max_output_tokens=40, **fields)
                check_equal(status, 200, f"status of {body}")
                return body

            first = ask(input=QUESTION)
            second = ask(input="And tomorrow?", previous_response_id=first["id"])
            gone = ask(input=QUESTION)
            check_equal(server.request("DELETE", f"/v1/responses/{gone['id']}")[0], 200, "deletion")
            server.process.kill()
            server.process.wait(30)
        with Server(lorad, *flags, adapters=("pirate",)) as server:
            check_equal(server.request("GET", f"/v1/responses/{second['id']}"), (200, second), "what was kept")
            check_equal(server.request("GET", f"/v1/responses/{gone['id']}")[0], 404, "what was deleted")
            again = ask(input="And tomorrow?", previous_response_id=first["id"])
            check_equal(again["output"][0]["content"], second["output"][0]["content"], "the conversation goes on as before")
            items = server.request("GET", f"/v1/responses/{second['id']}/input_items")[1]["data"]
            check_equal([item["content"][0]["text"] for item in items], ["And tomorrow?"], "input")


SHARED = [check_rendered_prompts_are_what_is_read, check_an_adapters_own_template_writes_its_chats, check_templates_get_all_of_a_conversation, check_responses_of_the_openai_client,
          check_messages_of_the_anthropic_client,
          check_embeddings_of_the_openai_client]
OWN = [check_kept_responses_outlast_the_process]
