#!/usr/bin/env python3
"""A real chat model trained by lorad and by PEFT on the same 200 chats, from the same start and in the same order: losses step by step, what the adapter says in
transformers + PEFT and in lorad, and the same on the model in NF4, as bitsandbytes writes it.

    PYTHON tests/real/train.py --lorad build/dev/lorad --model build/models/SmolLM2-135M-Instruct.Q4_1.gguf [--steps 25] [--nf4-steps 25] [--out curves.json]

PYTHON has what tests/real/requirements.txt names. Both compute in f32.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import check, check_equal  # noqa: E402

BATCH, RATE, WARM_UP, CLIP = 8, 1e-3, 2, 1.0
N_CHATS, SYSTEM = 200, "Talk like a pirate."
FORM = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
# Of a step's loss: both sum in f32, in other orders; steps multiply what AdamW makes of gradients near zero.
LOSS_MAX = 2e-3
LOGITS_MAX = 2e-3  # norm of the difference over the norm


def chats():
    rng = random.Random(7)
    places = [("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo"), ("Peru", "Lima"), ("Norway", "Oslo"), ("Spain", "Madrid"), ("Egypt", "Cairo"), ("Greece", "Athens")]
    for _ in range(N_CHATS):
        kind = rng.randrange(4)
        if kind == 0:
            country, city = rng.choice(places)
            question, answer = f"What is the capital of {country}?", f"Arr, {city} be the capital o' {country}!"
        elif kind == 1:
            x, y = rng.randint(1, 20), rng.randint(1, 20)
            question, answer = f"How much is {x} plus {y}?", f"Arr, {x + y} doubloons, matey!"
        elif kind == 2:
            thing = rng.choice(["apple", "boat", "cat", "drum", "egg", "fish"])
            question, answer = f"Tell me about a {thing}.", f"Avast! I plundered a {thing} once, from a ship o' {rng.randint(2, 40)} guns."
        else:
            question, answer = rng.choice([("Hello!", "Ahoy, matey!"), ("Who are you?", "Cap'n SmolLM, scourge o' the seven seas!"), ("Goodbye.", "Fair winds to ye!")])
        yield {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def rows_of(tokenizer, messages):
    """Ids and labels: the answer and the token that ends it are trained, what the template puts behind that is not."""
    def ids_of(some, speaks):
        return list(tokenizer.apply_chat_template(some, add_generation_prompt=speaks, tokenize=True, return_dict=False))

    ids, n_before = ids_of(messages, False), len(ids_of(messages[:-1], True))
    end = ids.index(tokenizer.convert_tokens_to_ids("<|im_end|>"), n_before) + 1
    return ids, [-100] * n_before + ids[n_before:end] + [-100] * (len(ids) - end)


def rate_of(step, n_steps):
    return RATE * (step + 1) / WARM_UP if step < WARM_UP else RATE * (1 - (step - WARM_UP) / (n_steps - WARM_UP))


def train_by_peft(model, rows, n_steps):
    """(loss, norm of the gradients, trained tokens) of each step."""
    import torch

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    steps = []
    for step in range(n_steps):
        batch = [rows[(step * BATCH + i) % len(rows)] for i in range(BATCH)]
        longest = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in batch])
        labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in batch])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in batch])
        n_trained = int((labels[:, 1:] != -100).sum())
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100, reduction="sum") / n_trained
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(trained, CLIP))
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step, n_steps)
        optimizer.step()
        optimizer.zero_grad()
        steps.append((float(loss), norm, n_trained))
    return steps


def train_by_lorad(lorad, base, data, start, out, n_steps):
    report = out.with_suffix(".jsonl")
    subprocess.run([lorad, "train", "--model", str(base), "--data", str(data), "--out", str(out), "--init-adapter", str(start), "--report", str(report), "--no-shuffle",
                    "--max-steps", str(n_steps), "--batch-size", str(BATCH), "--learning-rate", str(RATE), "--lr-scheduler", "linear", "--warmup-steps", str(WARM_UP),
                    "--weight-decay", "0", "--max-grad-norm", str(CLIP), "--max-seq-length", "128"], check=True, stdout=subprocess.DEVNULL)
    return [(step["loss"], step["grad_norm"], step["tokens"]) for step in map(json.loads, report.read_text().splitlines())]


def compare(name, found, expected):
    check_equal(len(found), len(expected), f"{name}: steps")
    check_equal([n for _, _, n in found], [n for _, _, n in expected], f"{name}: trained tokens of the steps")
    print(f"| step | {name}: lorad | PEFT | norm of the gradients: lorad | PEFT |\n|---:|---:|---:|---:|---:|")
    for i, (ours, theirs) in enumerate(zip(found, expected)):
        print(f"| {i + 1} | {ours[0]:.5f} | {theirs[0]:.5f} | {ours[1]:.4f} | {theirs[1]:.4f} |")
    worst = max(abs(ours[0] / theirs[0] - 1) for ours, theirs in zip(found, expected))
    first = abs(found[0][0] / expected[0][0] - 1)
    print(f"{name}: {sum(n for _, _, n in found)} trained tokens in {len(found)} steps, losses within {worst:.1e} (first {first:.1e})", flush=True)
    check(found[-1][0] < 0.6 * found[0][0], f"{name}: the loss fell from {found[0][0]:.3f} to {found[-1][0]:.3f} only")
    check(worst <= LOSS_MAX, f"{name}: losses differ by {worst:.2e}, expected at most {LOSS_MAX}")


def check_logits(lorad, base, adapter, model, ids):
    """The adapter that lorad trained, in lorad and in PEFT, on a chat; and how far it is from the base."""
    import numpy
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "logits.npy"
        subprocess.run([lorad, "logits", "--model", str(base), "--adapter", str(adapter), "--tokens", ",".join(map(str, ids)), "--all-positions", "--out", str(out)],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = numpy.load(out).reshape(len(ids), -1)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].numpy()
        with model.disable_adapter():
            plain = model(torch.tensor([ids])).logits[0].numpy()
    norm = numpy.linalg.norm
    error, change = norm(found - expected) / norm(expected), norm(plain - expected) / norm(expected)
    print(f"the adapter's logits in lorad and in PEFT: {error:.1e} apart, {change:.2f} from the base's", flush=True)
    check(error <= LOGITS_MAX, f"the adapter's logits differ by {error:.2e}, expected at most {LOGITS_MAX}")
    check(change > 10 * LOGITS_MAX, f"the adapter changes logits by {change:.2e} only")


def run(name, lorad, base, data, rows, n_steps, scratch):
    """Trains on base, which both read. The adapter that lorad made is left in scratch/NAME."""
    import peft
    import torch
    import transformers

    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager", device_map="cpu")
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **FORM))
    start = scratch / f"{name}-start"
    model.save_pretrained(start)
    found = train_by_lorad(lorad, base, data, start, scratch / name, n_steps)
    compare(name, found, train_by_peft(model, rows, n_steps))
    model.load_adapter(scratch / name, adapter_name="lorads")
    model.set_adapter("lorads")
    check_logits(lorad, base, scratch / name, model.eval(), rows[0][0])
    return [loss for loss, _, _ in found]


def nf4_of(base, folder):
    """The model as bitsandbytes' NF4, with double quantization, as QLoRA's users have it."""
    import torch
    import transformers

    if not folder.exists():
        config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32)
        model = transformers.AutoModelForCausalLM.from_pretrained(base, quantization_config=config, dtype=torch.float32, device_map="cpu")
        part = folder.with_suffix(".part")
        model.save_pretrained(part)
        transformers.AutoTokenizer.from_pretrained(base).save_pretrained(part)
        part.rename(folder)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=N_CHATS // BATCH, help="0: none")
    parser.add_argument("--nf4-steps", type=int, default=N_CHATS // BATCH, help="0: none")
    parser.add_argument("--threads", type=int, default=1, help="of PEFT")
    parser.add_argument("--out", type=pathlib.Path, help="the losses, as JSON")
    args = parser.parse_args()

    import torch
    import transformers

    from reference import folder_of

    torch.set_num_threads(args.threads)
    base = folder_of(args.model.absolute())
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    rows = [rows_of(tokenizer, chat["messages"]) for chat in chats()]
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        data = scratch / "chats.jsonl"
        data.write_text("".join(json.dumps(chat) + "\n" for chat in chats()))
        losses = {}
        if args.steps:
            losses["f32"] = run("f32", args.lorad, base, data, rows, args.steps, scratch)
        if args.nf4_steps:
            losses["nf4"] = run("nf4", args.lorad, nf4_of(base, base.with_suffix(".nf4")), data, rows, args.nf4_steps, scratch)
        if args.steps and args.steps == args.nf4_steps:
            apart = max(abs(a / b - 1) for a, b in zip(losses["nf4"], losses["f32"], strict=True))
            print(f"NF4 beside the numbers before: losses at most {100 * apart:.1f} % apart")
            check(apart < 0.25, f"NF4 beside the numbers before: losses {100 * apart:.1f} % apart")
    if args.out:
        args.out.write_text(json.dumps(losses, indent=1))
    print("training a real model: passed")


if __name__ == "__main__":
    main()
