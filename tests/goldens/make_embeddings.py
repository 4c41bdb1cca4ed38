#!/usr/bin/env python3
"""Makes expected/embeddings/MODEL.safetensors: last-token embeddings of the golden models by transformers and PEFT.

    tests/goldens/make_embeddings.py        (needs torch, transformers, peft, safetensors)

For each prompt of expected/models/MODEL.json: the hidden state of its last token after the final norm, in float32 on the CPU,
divided by its length. Tensors: "base.promptI" and "ADAPTER.promptI", [hidden].
"""

import json
import pathlib

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
CASES = {
    "qwen2-tied": ["plain-r8-qv", "rslora-r16", "embed-lora"],
    "llama-scaled": ["all-linear-r16", "dora"],
    "qwen3": ["plain-r8-qv"],
}


def embeddings(model, prompts):
    found = []
    for ids in prompts:
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        last = states[-1][0, -1].float()  # transformers' last one is after the final norm
        found.append(last / last.norm())
    return found


def main():
    torch.set_num_threads(1)
    for name, adapters in CASES.items():
        folder = HERE / "models" / name
        listed = json.loads((HERE / "expected/models" / f"{name}.json").read_text())
        prompts = [prompt["ids"] for prompt in listed["prompts"]]

        def load():
            return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()

        tensors = {}
        for label in ["base", *adapters]:
            model = load()
            if label != "base":
                model = PeftModel.from_pretrained(model, HERE / "adapters" / name / label).eval()
            for i, vector in enumerate(embeddings(model, prompts)):
                tensors[f"{label}.prompt{i}"] = vector.contiguous().clone()
        save_file(tensors, HERE / "expected/embeddings" / f"{name}.safetensors")
        print(name, len(tensors), "vectors of", len(vector))


if __name__ == "__main__":
    main()
