"""Greedy answers under penalties and with stop strings, token for token those of transformers' generate()."""

import concurrent.futures
import json

from harness import ROOT, check, check_equal

CASES = json.loads((ROOT / "tests/goldens/sampling/generated.json").read_text())["cases"]
# Two roundings of logits of this size may choose otherwise where two are this near; what follows then says nothing.
CLEAR_MARGIN = 0.05


def n_clear(case):
    for i, margin in enumerate(case["margins"]):
        if margin < CLEAR_MARGIN:
            return i
    return len(case["ids"])


def answer(server, case):
    status, body = server.post("/v1/completions", model="base", prompt=case["prompt_ids"], temperature=0, max_tokens=40, return_token_ids=True,
                               **case["params"])
    check_equal(status, 200, f"{case['params']}: {body}")
    return body


def check_greedy_answers_are_those_of_transformers(server):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda case: answer(server, case), CASES))
    n_tokens = n_whole = n_stopped = 0
    for case, body in zip(CASES, answers):
        what = f"{case['sample']} {case['params']}"
        choice = body["choices"][0]
        n = n_clear(case)
        check_equal(choice["token_ids"][:n], case["ids"][:n], what)
        n_tokens += n
        if n < len(case["ids"]):
            continue
        n_whole += 1
        check_equal(body["usage"]["completion_tokens"], len(case["ids"]), f"tokens of {what}")
        stop = case["params"].get("stop")
        if stop and stop[0] in case["text"]:
            check_equal(choice["text"], case["text"][:case["text"].index(stop[0])], f"text of {what}")
            check_equal(choice["finish_reason"], "stop", f"end of {what}")
            n_stopped += 1
    check(n_tokens > 1500 and n_whole > len(CASES) // 2 and n_stopped > 20, f"{n_tokens} tokens, {n_whole} whole answers, {n_stopped} stopped")


SHARED = [check_greedy_answers_are_those_of_transformers]
