#!/usr/bin/env python3
"""A real model of a GGUF file, served, beside transformers with the same file's dequantized weights: tokens of the tokenizer and of the chat template, greedy tokens of
30 prompts, chats, one through OpenAI's client, perplexity of a text, and the answers of four adapters of PEFT and the base that share steps.

    PYTHON tests/real/serve.py --lorad build/dev/lorad --model FILE.gguf [--only greedy,adapters] [--prompts 30] [--tokens 16] [--dtype float32]

PYTHON has what tests/real/requirements.txt names; tests/real/run.sh makes it, fetches the models and runs all parts.
"""

import argparse
import concurrent.futures
import math
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from client import check_client  # noqa: E402
from harness import Server, check, check_equal  # noqa: E402

# Of two logits: what rounding turns. Matrices and products are f32 with --dtype float32, keys and values in the cache f16 always.
NEAR_TIE = {"float32": 0.02, "auto": 0.05}
PARTS = ("greedy", "chats", "client", "perplexity", "adapters")
WINDOW = 1024  # tokens whose perplexity is taken at once; beyond Gemma 3's window of 512


def ids_of(server, **what):
    status, answer = server.post("/tokenize", **what)
    check_equal(status, 200, str(answer))
    return answer["tokens"]


def check_same_tokens(found, expected, what):
    first = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
    check(found == list(expected), f"{what}: {len(found)} tokens, expected {len(expected)}; from token {first} on {found[first:first + 8]}, expected {expected[first:first + 8]}")


def complete(server, model, ids, n_tokens):
    status, answer = server.post("/v1/completions", model=model, prompt=ids, max_tokens=n_tokens, temperature=0, return_token_ids=True, ignore_eos=True)
    check_equal(status, 200, str(answer))
    return answer["choices"][0]["token_ids"]


def log_likelihood(server, ids):
    status, answer = server.post("/v1/completions", prompt=ids, max_tokens=1, temperature=0, prompt_logprobs=0)
    check_equal(status, 200, str(answer))
    rows = [row for row in answer["choices"][0]["prompt_logprobs"] if row]
    known = [entry["logprob"] for row, token in zip(rows, ids[1:], strict=True) for key, entry in row.items() if int(key) == token]
    check_equal(len(known), len(ids) - 1, "a number for each token")
    return sum(known)


class Greedy:
    """Counts tokens that are the reference's first, and holds the others to a near tie."""

    def __init__(self, limit):
        self.limit, self.n, self.n_ties, self.worst = limit, 0, 0, 0.0

    def check(self, reference, ids, tokens, what):
        for i, margin in enumerate(reference.margins(ids, tokens)):
            check(margin <= self.limit, f"{what}: token {i} is {tokens[i]}, {margin:.4f} below the first, expected at most {self.limit}")
            self.n, self.n_ties, self.worst = self.n + 1, self.n_ties + (margin > 0), max(self.worst, margin)

    def __str__(self):
        return f"{self.n} tokens, {self.n_ties} of them not the reference's first, by at most {self.worst:.4f}"


def windows_of(ids, bos):
    """The text in windows; each begins as a text does."""
    head = [bos] if ids[0] == bos else []
    body = ids[len(head):]
    step = WINDOW - len(head)
    return [head + body[i:i + step] for i in range(0, len(body), step)]


def check_tokenizer(server, reference, prompts, text):
    for what in [*prompts, text]:
        check_same_tokens(ids_of(server, prompt=what), reference.tokenizer(what).input_ids, f"tokens of {what[:40]!r}")
    print(f"tokenizer: {len(prompts)} prompts and a text have the same tokens", flush=True)


def check_greedy(server, reference, prompts, n_tokens, greedy):
    texts = [ids_of(server, prompt=prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda ids: complete(server, "real", ids, n_tokens), texts))
    for prompt, ids, tokens in zip(prompts, texts, answers, strict=True):
        greedy.check(reference, ids, tokens, repr(prompt))
    print(f"greedy: {len(prompts)} prompts, {greedy}", flush=True)


def check_chats(server, reference, chats, n_tokens, greedy):
    if not reference.tokenizer.chat_template:
        status, answer = server.post("/v1/chat/completions", model="real", messages=chats[0], max_tokens=1)
        check_equal(status, 400, f"a chat without a template: {answer}")
        print("chats: the file has no template, and a chat is refused")
        return
    for messages in chats:
        expected = reference.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        ids = ids_of(server, model="real", messages=messages, add_generation_prompt=True)
        check_same_tokens(ids, expected, f"tokens of the chat {messages}")
        status, answer = server.post("/v1/chat/completions", model="real", messages=messages, max_tokens=n_tokens, temperature=0, ignore_eos=True, return_token_ids=True)
        check_equal(status, 200, str(answer))
        greedy.check(reference, ids, answer["choices"][0]["token_ids"], f"chat {messages}")
    print(f"chats: {len(chats)} rendered to the same tokens; answers: {greedy}", flush=True)


def check_perplexity(server, reference, n_tokens):
    from reference import TEXT, perplexity

    windows = windows_of(ids_of(server, prompt=TEXT)[:n_tokens], reference.tokenizer.bos_token_id)
    n_tokens = sum(len(ids) - 1 for ids in windows)
    found = math.exp(-sum(log_likelihood(server, ids) for ids in windows) / n_tokens)
    expected = perplexity(reference, windows)
    print(f"perplexity of {n_tokens} tokens: {found:.5f}, reference {expected:.5f} ({100 * (found / expected - 1):+.4f} %)", flush=True)
    check(abs(found / expected - 1) <= 1e-3, f"perplexity {found}, expected {expected} within 0.1 %")


def check_mixed(server, reference, adapters, prompts, n_tokens, limit):
    """All adapters and the base answer all prompts at the same time."""
    for name, folder in adapters.items():
        status, answer = server.post("/v1/load_lora_adapter", lora_name=name, lora_path=str(folder.resolve()))
        check_equal(status, 200, f"{name}: {answer}")
    texts = [ids_of(server, prompt=prompt) for prompt in prompts]
    cases = [(name, ids) for ids in texts for name in ["real", *adapters]]
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        answers = list(pool.map(lambda case: complete(server, case[0], case[1], n_tokens), cases))
    together = server.metric("lorad_step_adapters_max")
    check(together >= len(adapters), f"at most {together} adapters shared a step, expected all {len(adapters)}")
    of_base = {tuple(ids): tokens for (name, ids), tokens in zip(cases, answers, strict=True) if name == "real"}
    for name in ["real", *adapters]:
        greedy, n_others = Greedy(limit), 0
        own = [(ids, tokens) for (model, ids), tokens in zip(cases, answers, strict=True) if model == name]
        if name == "real":
            with reference.model.disable_adapter():
                for ids, tokens in own:
                    greedy.check(reference, ids, tokens, name)
        else:
            reference.model.set_adapter(name)
            for ids, tokens in own:
                greedy.check(reference, ids, tokens, name)
                n_others += tokens != of_base[tuple(ids)]
            check(n_others * 2 >= len(own), f"{name}: {n_others} of {len(own)} answers are not the base's: the adapter decides nothing")
        print(f"mixed, {name}: {greedy}; {n_others} of {len(own)} answers are not the base's", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--only", default=",".join(PARTS), help="which parts, with commas between them (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--mixed-prompts", type=int, default=6, help="that each adapter and the base answer")
    parser.add_argument("--text-tokens", type=int, help="of the text whose perplexity is taken (default: all)")
    parser.add_argument("--dtype", choices=NEAR_TIE, default="auto")
    parser.add_argument("--threads", type=int, default=1, help="of the reference")
    parser.add_argument("--adapters", type=pathlib.Path, help="where the trained adapters are kept (default: nowhere)")
    args = parser.parse_args()
    only = args.only.split(",")
    check(set(only) <= set(PARTS), f"--only: expected some of {PARTS}, found {only}")

    import torch

    from reference import CHATS, PROMPTS, TEXT, Reference, train_adapters

    torch.set_num_threads(args.threads)
    reference = Reference.of_gguf(args.model.absolute())
    prompts, limit = PROMPTS[:args.prompts], NEAR_TIE[args.dtype]
    with tempfile.TemporaryDirectory() as scratch, Server(
            args.lorad, "--served-model-name", "real", "--max-model-len", str(WINDOW + 64), "--dtype", args.dtype, "--max-loras", "4",
            adapters=(), model=args.model) as server:
        server.timeout = 6 * 3600  # a software device, which others use
        check_tokenizer(server, reference, prompts, TEXT)
        if "greedy" in only:
            check_greedy(server, reference, prompts, args.tokens, Greedy(limit))
        if "chats" in only:
            check_chats(server, reference, CHATS, args.tokens, Greedy(limit))
        if "client" in only and reference.tokenizer.chat_template:
            check_client(server, reference, 3 * args.tokens, Greedy(limit))
        if "perplexity" in only:
            check_perplexity(server, reference, args.text_tokens)
        if "adapters" in only:
            adapters = train_adapters(reference, args.adapters or pathlib.Path(scratch))
            check_mixed(server, reference, adapters, prompts[:args.mixed_prompts], args.tokens, limit)
    print("real models: passed")


if __name__ == "__main__":
    main()
