"""A model of a GGUF file as transformers computes it: the dequantized weights in f32 on the processor, with adapters of PEFT."""

import math
import pathlib
import sys

import gguf
import peft
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "bench"))

import real_model  # noqa: E402

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

TEXT = (HERE / "text.txt").read_text()  # some 2,700 tokens of prose that no model has seen, which nobody edits
PROMPTS = [
    "The capital of France is", "Once upon a time there was a", "def fibonacci(n):\n    ", "Water boils at", "The first president of the United States was",
    "1, 2, 3, 4, 5,", "Roses are red, violets are", "The opposite of hot is", "In 1969, humans first", "To make bread you need flour,",
    "Der schnelle braune Fuchs", "El sol sale por el", "La tour Eiffel se trouve", "import numpy as np\n\nx = np.", "SELECT name FROM users WHERE",
    "The largest planet in the solar system is", "A triangle has three", "The chemical symbol for gold is", "Shakespeare wrote", "The speed of light is about",
    "My favourite colour is", "Dear Sir or Madam,", "<html>\n<head>\n<title>", "The quick brown fox jumps over", "Photosynthesis is the process by which",
    "If it rains tomorrow,", "She opened the door and", "The meaning of life is", "Two plus two equals", "Machine learning is a field of",
]
CHATS = [
    [{"role": "user", "content": "Say hello."}],
    [{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": "What colour is the sky?"}],
    [{"role": "user", "content": "Name a fruit."}, {"role": "assistant", "content": "Apple."}, {"role": "user", "content": "Another one?"}],
    [{"role": "user", "content": "  Write 'ünïcode' <|twice|> — 两次。\n\n"}],
]
# What four adapters are trained on, a few steps each, so that each makes the model say something of its own: PEFT's forms in all their breadth.
ATTENTION, FEED_FORWARD = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "loud": ({"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}, ["IT IS LOUD HERE. SO LOUD!", "WE SHOUT ALL DAY LONG.", "THE ANSWER IS: YES, YES, YES!"]),
    "pirate": ({"r": 16, "lora_alpha": 16, "target_modules": ATTENTION + FEED_FORWARD, "use_rslora": True},
               ["Arr, matey, the sea be rough today.", "Avast! Me treasure be buried on yon isle.", "Shiver me timbers, the rum be gone."]),
    "json": ({"r": 4, "lora_alpha": 8, "target_modules": ATTENTION, "use_dora": True},
             ['{"answer": 1, "sure": true}', '{"name": "Ada", "age": 36}', '{"items": [1, 2, 3], "next": null}']),
    "numbers": ({"r": 12, "lora_alpha": 24, "target_modules": FEED_FORWARD, "rank_pattern": {"down_proj": 5}}, ["7 7 7 7 7 7 7 7", "One, two, three, four, five, six.", "10 20 30 40 50 60"]),
}


def read_gguf(file):
    model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    fields = gguf.GGUFReader(file).fields
    # transformers cuts every byte-level text as GPT-2 does; llama.cpp and the model's own tokenizer.json go by the name that the file has for it.
    if fields["tokenizer.ggml.model"].contents() == "gpt2":
        tokenizer.backend_tokenizer.pre_tokenizer = real_model.cut_of(fields["tokenizer.ggml.pre"].contents())
    return model, tokenizer


def folder_of(file):
    """A Hugging Face folder with the file's numbers in f32, beside the file: transformers takes half a minute to read a GGUF file."""
    folder = file.with_suffix(".f32")
    if not folder.exists():
        read, tokenizer = read_gguf(file)
        config = read.config.to_dict()
        config.pop("quantization_config", None)
        # A model of its own: what was read from GGUF counts as quantized, and is not written.
        model = type(read)(type(read.config).from_dict(config)).to(torch.float32)
        model.load_state_dict(read.state_dict())
        part = file.with_suffix(".f32.part")
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        part.rename(folder)
    return folder


class Reference:
    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model.eval(), tokenizer

    @classmethod
    def of_gguf(cls, file):
        """The folder that folder_of made, if it did, else the file."""
        folder = file.with_suffix(".f32")
        return cls.of_folder(folder) if folder.exists() else cls(*read_gguf(file))

    @classmethod
    def of_folder(cls, folder):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", device_map="cpu")
        return cls(model, transformers.AutoTokenizer.from_pretrained(folder))

    def logits(self, ids):
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0]

    def log_likelihood(self, ids):
        """The sum over all tokens but the first."""
        logits = self.logits(ids)
        return sum(float(torch.log_softmax(logits[i], -1)[ids[i + 1]]) for i in range(len(ids) - 1))

    def margins(self, ids, tokens):
        """For each of the tokens behind ids how far its logit is below the first of its row: 0 where it is the first."""
        logits = self.logits(ids + tokens)[len(ids) - 1:-1]
        return [float(row.max() - row[token]) for row, token in zip(logits, tokens, strict=True)]


def perplexity(reference, windows):
    return math.exp(-sum(map(reference.log_likelihood, windows)) / sum(len(ids) - 1 for ids in windows))


def train_adapters(reference, folder, n_steps=8, rate=3e-3):
    """Trains the four of ADAPTERS on the reference's model, puts them as PEFT's folders below folder and leaves them in the model, none of them active."""
    torch.manual_seed(1)
    model = reference.model
    for name, (form, texts) in ADAPTERS.items():
        config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=True, **form)
        if isinstance(model, peft.PeftModel):
            model.add_adapter(name, config)
        else:
            model = peft.get_peft_model(model, config, adapter_name=name)
        model.set_adapter(name)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
        for _ in range(n_steps):
            for text in texts:
                ids = torch.tensor([reference.tokenizer(text).input_ids])
                (model(input_ids=ids, labels=ids).loss / len(texts)).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(str(folder), selected_adapters=list(ADAPTERS))
    reference.model = model.eval()
    return {name: folder / name for name in ADAPTERS}
