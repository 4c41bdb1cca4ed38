#!/usr/bin/env python3
"""LangChain's ChatOpenAI and OpenAIEmbeddings against lorad with the demo model, as its documentation calls them.

    tests/http/run.sh langchain --lorad build/dev/lorad
"""

import argparse
import asyncio
import pathlib
import sys
from typing import Annotated

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import SAMPLES, Server, check, check_equal  # noqa: E402

SAMPLE = SAMPLES[0]
QUESTION = SAMPLE["messages"][-1]["content"]
EXPECTED = SAMPLE["outputs"]["pirate"]["text"]


Digit = Annotated[int, Field(ge=0, le=9)]  # bounded, so that a small model comes to the end of a number


@tool
def add(x: Digit, y: Digit) -> int:
    """Adds two numbers."""
    return x + y


class Answer(BaseModel):
    """An answer."""

    name: str = Field(max_length=8)
    yes: bool


def check_chat(model):
    answer = model("pirate").invoke(QUESTION)
    check_equal(answer.content, EXPECTED, "answer")
    check_equal(answer.usage_metadata["output_tokens"], len(SAMPLE["outputs"]["pirate"]["ids"]), "usage")
    check_equal(answer.response_metadata["finish_reason"], "stop", "finish reason")
    both = model("pirate").batch([QUESTION, QUESTION])
    check_equal([one.content for one in both], [EXPECTED] * 2, "batch")


def check_streams(model):
    check_equal("".join(chunk.content for chunk in model("pirate").stream(QUESTION)), EXPECTED, "stream")
    whole = None
    for chunk in model("pirate", stream_usage=True).stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    check_equal(whole.usage_metadata["output_tokens"], len(SAMPLE["outputs"]["pirate"]["ids"]), "usage of a stream")

    async def together():
        return await asyncio.gather(*(model(name).ainvoke(QUESTION) for name in ("base", "pirate")))

    check_equal([a.content for a in asyncio.run(together())], [SAMPLE["outputs"][n]["text"] for n in ("base", "pirate")], "async answers")


def check_tools(model):
    bound = model("base", max_tokens=120).bind_tools([add], tool_choice="add", strict=True)
    answer = bound.invoke(QUESTION)
    check(answer.tool_calls and answer.tool_calls[0]["name"] == "add", f"no call: {answer!r}")
    check(all(isinstance(answer.tool_calls[0]["args"][k], int) for k in "xy"), f"arguments: {answer.tool_calls}")
    whole = None
    for chunk in bound.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    check_equal(whole.tool_calls[0]["args"], answer.tool_calls[0]["args"], "streamed call")
    history = [HumanMessage(QUESTION), answer, ToolMessage("7", tool_call_id=answer.tool_calls[0]["id"])]
    check(isinstance(model("base", max_tokens=8).bind_tools([add]).invoke(history), AIMessage), "an answer to a call's result")


def check_structured_output(model):
    for method in ("json_schema", "function_calling"):
        value = model("base", max_tokens=120).with_structured_output(Answer, method=method, strict=True).invoke(QUESTION)
        check(isinstance(value, Answer), f"{method}: {value!r}")


def check_responses(model):
    answer = model("pirate", use_responses_api=True).invoke(QUESTION)
    check_equal(answer.text if isinstance(answer.text, str) else answer.text(), EXPECTED, "answer by /v1/responses")


def check_embeddings(base):
    # LangChain sends token ids of its own tokenizer, unless it is told to send texts.
    embed = OpenAIEmbeddings(model="pirate", base_url=base, api_key="none", check_embedding_ctx_length=False)
    vectors = embed.embed_documents(["one text", "another", "one text"])
    check_equal(len(vectors), 3, "vectors")
    check(vectors[0] == vectors[2] and vectors[0] != vectors[1], "the same text has the same vector, another another")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", required=True)
    args = parser.parse_args()
    with Server(args.lorad, adapters=("pirate", "shout")) as server:
        base = f"http://{server.host}:{server.port}/v1"

        def model(name, **more):
            return ChatOpenAI(model=name, base_url=base, api_key="none", temperature=0, max_retries=0, **more)

        for test in (check_chat, check_streams, check_tools, check_structured_output, check_responses):
            test(model)
            print(f"ok {test.__name__}", flush=True)
        check_embeddings(base)
        print("ok check_embeddings")
    print("langchain: passed")


if __name__ == "__main__":
    main()
