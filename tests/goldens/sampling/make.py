#!/usr/bin/env python3
"""Makes cases.json and generated.json: what transformers' own logits processors and generate() do.

    tests/goldens/sampling/make.sh        makes the virtual environment (torch, transformers) and runs this

cases.json: for rows of logits that make.py and tests/support/sampling_goldens.h compute alike from a seed (splitmix64, exact in float32), the
tokens that transformers' processors leave, in the order in which generate() applies them, and for some rows their probabilities.
transformers has no frequency and presence penalty: those two are OpenAI's formula, as vLLM applies it, put in as a processor.
A parameter is drawn again where float32 and float64 disagree on the set: there rounding decides.

generated.json: greedy answers of the demo model under penalties and with stop strings, token for token, with the gap between the two
best logits at each step.
"""

import json
import pathlib
import random

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation import logits_process as processors

HERE = pathlib.Path(__file__).resolve().parent
DEMO = HERE.parent.parent.parent / "deploy/demo-model"
SEED = 20261121


def splitmix64(x):
    x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def logits_of(row):
    """About normal, with a standard deviation of 1.15 * spread (a power of two): sums of four 16-bit numbers, and six bits below."""
    with np.errstate(over="ignore"):
        ids = np.arange(row["n_vocab"], dtype=np.uint64) + (np.uint64(row["seed"]) << np.uint64(32))
        a, b = splitmix64(ids), splitmix64(splitmix64(ids))
    total = sum(((a >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48)) - 131070
    value = total * 64 + (b & np.uint64(63)).astype(np.int64)
    return value.astype(np.float64) * (row["spread"] / 2.0**21)


class CountPenalties(processors.LogitsProcessor):
    """Frequency and presence penalties on what was generated after the prompt."""

    def __init__(self, frequency, presence, n_prompt):
        self.frequency, self.presence, self.n_prompt = frequency, presence, n_prompt

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        counts = torch.bincount(input_ids[0, self.n_prompt:], minlength=scores.shape[1]).to(scores.dtype)
        scores[0] -= self.frequency * counts
        scores[0] -= self.presence * (counts > 0).to(scores.dtype)
        return scores


def penalty_processors(params, n_prompt):
    out = []
    if params.get("repetition_penalty", 1) != 1:
        out.append(processors.RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
    if params.get("frequency_penalty", 0) or params.get("presence_penalty", 0):
        out.append(CountPenalties(params.get("frequency_penalty", 0.0), params.get("presence_penalty", 0.0), n_prompt))
    return out


def warpers(params):
    """In the order of transformers' generate()."""
    out = []
    if params.get("temperature", 1) != 1:
        out.append(processors.TemperatureLogitsWarper(params["temperature"]))
    if params.get("top_k", 0):
        out.append(processors.TopKLogitsWarper(params["top_k"]))
    if params.get("top_p", 1) < 1:
        out.append(processors.TopPLogitsWarper(params["top_p"]))
    if params.get("min_p", 0) > 0:
        out.append(processors.MinPLogitsWarper(params["min_p"]))
    if params.get("typical_p", 1) < 1:
        out.append(processors.TypicalLogitsWarper(params["typical_p"]))
    return out


def process(logits, case, dtype):
    scores = torch.tensor(logits, dtype=dtype)[None, :]
    ids = torch.tensor([case["prompt"] + case["generated"]], dtype=torch.long)
    for processor in penalty_processors(case["params"], len(case["prompt"])):
        scores = processor(ids, scores)
    adjusted = scores[0].clone()
    for warper in warpers(case["params"]):
        scores = warper(ids, scores)
    return adjusted, scores[0]


def runs_of(ids):
    runs = []
    for i in ids:
        if runs and runs[-1][0] + runs[-1][1] == i:
            runs[-1][1] += 1
        else:
            runs.append([i, 1])
    return runs


def float32(value):
    return float(np.float32(value))


def draw_params(rng, kinds):
    params = {}
    for kind in kinds:
        params[kind] = {
            "temperature": lambda: float32(rng.uniform(0.3, 2.0)),
            "top_k": lambda: rng.choice([2, 5, 20, 50, 200]),
            "top_p": lambda: float32(rng.uniform(0.1, 0.98)),
            "min_p": lambda: float32(rng.uniform(0.01, 0.5)),
            "typical_p": lambda: float32(rng.uniform(0.1, 0.95)),
            "repetition_penalty": lambda: float32(rng.choice([0.7, 1.1, 1.3, 2.0])),
            "frequency_penalty": lambda: float32(rng.choice([-1.5, -0.3, 0.2, 0.9, 2.0])),
            "presence_penalty": lambda: float32(rng.choice([-2.0, -0.4, 0.6, 1.7])),
        }[kind]()
    return params


FILTERS = ["top_k", "top_p", "min_p", "typical_p"]
KINDS = ([[f] for f in FILTERS] + [["temperature", f] for f in FILTERS] + [["temperature"]] +
         [["top_k", "top_p"], ["top_k", "min_p"], ["top_p", "min_p"], ["top_p", "typical_p"], ["min_p", "typical_p"], ["top_k", "typical_p"]] +
         [["temperature", *FILTERS], ["temperature", "top_k", "top_p", "min_p"]] +
         [["repetition_penalty"], ["frequency_penalty"], ["presence_penalty"], ["repetition_penalty", "frequency_penalty", "presence_penalty"]] +
         [["repetition_penalty", "frequency_penalty", "presence_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p"]])


def make_case(rng, name, n_vocab, spread, kinds, has_probabilities):
    n_drawn_again = 0
    while True:
        case = {"name": name, "row": {"seed": rng.randrange(1 << 31), "n_vocab": n_vocab, "spread": spread}}
        has_penalties = any(kind.endswith("penalty") for kind in kinds)
        case["prompt"] = [rng.randrange(n_vocab) for _ in range(24)] if has_penalties else []
        # Some tokens several times, some of the prompt's too.
        pool = [rng.randrange(n_vocab) for _ in range(8)] + case["prompt"][:4]
        case["generated"] = [rng.choice(pool) for _ in range(32)] if has_penalties else []
        case["params"] = draw_params(rng, kinds)
        logits = logits_of(case["row"])
        assert np.array_equal(logits.astype(np.float32).astype(np.float64), logits), "not exact in float32"
        adjusted, scores = process(logits, case, torch.float32)
        _, exact = process(logits, case, torch.float64)
        kept = torch.isfinite(scores).nonzero()[:, 0].tolist()
        runs = runs_of(kept)
        if kept != torch.isfinite(exact).nonzero()[:, 0].tolist() or len(runs) > 2500:
            n_drawn_again += 1
            continue
        case["kept"] = runs
        if has_penalties:
            touched = sorted(set(case["prompt"] + case["generated"]))
            case["adjusted"] = [[i, float(adjusted[i])] for i in touched]
        if has_probabilities:
            probabilities = torch.softmax(scores.double(), 0)
            case["probabilities"] = [round(float(probabilities[i]), 10) for i in kept]
        return case, n_drawn_again


def make_cases():
    rng = random.Random(SEED)
    cases, again = [], 0
    for n_vocab, spread, rounds in ((96, 2, 2), (4096, 2, 2), (32000, 4, 1), (151936, 4, 1)):
        for kinds in KINDS:
            if n_vocab > 4096 and kinds == ["temperature"]:
                continue
            for index in range(rounds):
                name = f"{n_vocab} {' '.join(kinds)} {index}"
                case, n = make_case(rng, name, n_vocab, spread, kinds, n_vocab == 96)
                cases.append(case)
                again += n
    head = {"made_by": "tests/goldens/sampling/make.sh", "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
            "seed": SEED, "drawn_again": again}
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (HERE / "cases.json").write_text(json.dumps(head)[:-1] + ',\n"cases": [\n' + lines + "\n]}\n")
    print(f"{len(cases)} cases, {again} drawn again")


def make_generated():
    model = AutoModelForCausalLM.from_pretrained(DEMO / "base", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "base")
    samples = json.loads((DEMO / "samples.json").read_text())["samples"]
    plans = [{"repetition_penalty": 1.3}, {"repetition_penalty": 0.8}, {"frequency_penalty": 0.5}, {"presence_penalty": 1.0},
             {"repetition_penalty": 1.15, "frequency_penalty": 0.3, "presence_penalty": -0.5}]
    out = []

    def generate(ids, params, **more):
        result = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=40, output_scores=True, return_dict_in_generate=True,
                                logits_processor=penalty_processors(params, len(ids)), pad_token_id=0, **more)
        margins = [float(s.topk(2).values[0].diff().abs()) for s in result.scores]
        return result.sequences[0, len(ids):].tolist(), [round(m, 4) for m in margins]

    for sample in samples:
        for params in plans:
            new, margins = generate(sample["prompt_ids"], params)
            out.append({"sample": sample["id"], "prompt_ids": sample["prompt_ids"], "params": params, "ids": new, "margins": margins})
    # Stop strings that are whole tokens, parts of tokens, and that straddle tokens, taken from the answers themselves.
    rng = random.Random(SEED)
    for sample in samples:
        text = sample["outputs"]["base"]["text"]
        for length in (1, 3, 7):
            at = rng.randrange(len(text) // 3, max(len(text) - length, len(text) // 3 + 1))
            stop = text[at:at + length]
            new, margins = generate(sample["prompt_ids"], {}, stop_strings=[stop], tokenizer=tokenizer)
            out.append({"sample": sample["id"], "prompt_ids": sample["prompt_ids"], "params": {"stop": [stop]}, "ids": new, "margins": margins,
                        "text": tokenizer.decode(new, skip_special_tokens=True)})
    lines = ",\n".join(json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in out)
    (HERE / "generated.json").write_text(f'{{"transformers": "{transformers.__version__}",\n"cases": [\n{lines}\n]}}\n')
    print(f"{len(out)} answers")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    make_cases()
    make_generated()
