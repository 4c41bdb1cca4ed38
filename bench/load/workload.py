"""What is sent, and when: lengths, prompts, which adapter, arrival times. All drawn from seeds."""
import bisect
import itertools
import random


class Lengths:
    """A distribution of lengths: '128', 'uniform:64:512', 'normal:256:64', 'lognormal:256:0.8', 'choice:128*0.7,2048*0.3'.

    Every form may end in ':max=N', which cuts what is longer; nothing is shorter than 1.
    """

    def __init__(self, text):
        self.text = str(text)
        parts = self.text.split(":")
        self.maximum = None
        if parts[-1].startswith("max="):
            self.maximum = int(parts.pop()[4:])
        try:
            if len(parts) == 1:
                n = int(parts[0])
                self._draw = lambda rng: n
            elif parts[0] == "uniform" and len(parts) == 3:
                low, high = int(parts[1]), int(parts[2])
                if low > high:
                    raise ValueError("the first is larger than the second")
                self._draw = lambda rng: rng.randint(low, high)
            elif parts[0] == "normal" and len(parts) == 3:
                mean, deviation = float(parts[1]), float(parts[2])
                self._draw = lambda rng: rng.gauss(mean, deviation)
            elif parts[0] == "lognormal" and len(parts) == 3:
                median, sigma = float(parts[1]), float(parts[2])
                self._draw = lambda rng: median * rng.lognormvariate(0, sigma)
            elif parts[0] == "choice" and len(parts) == 2:
                pairs = [item.split("*") for item in parts[1].split(",")]
                values, weights = [int(pair[0]) for pair in pairs], [float(pair[1]) if len(pair) > 1 else 1.0 for pair in pairs]
                self._draw = lambda rng: rng.choices(values, weights)[0]
            else:
                raise ValueError("unknown form")
        except (ValueError, IndexError) as error:
            raise SystemExit(f"lengths {text!r}: {error}; expected {Lengths.__doc__.splitlines()[0][len('A distribution of lengths: '):]}") from None

    def draw(self, rng):
        n = max(1, round(self._draw(rng)))
        return min(n, self.maximum) if self.maximum else n


class Models:
    """Which of some names a request asks for: 'robin' deals them in order, 'uniform' draws, 'zipf:1.1' prefers the first ones."""

    def __init__(self, names, mix):
        self.names, self.mix = names or [None], mix
        kind, _, exponent = mix.partition(":")
        if kind not in ("robin", "uniform", "zipf"):
            raise SystemExit(f"mix {mix!r}: expected robin, uniform or zipf:EXPONENT")
        self.kind = kind
        weights = [1 / rank ** float(exponent or 1.1) if kind == "zipf" else 1.0 for rank in range(1, len(self.names) + 1)]
        self.cumulative = list(itertools.accumulate(weights))

    def draw(self, index, rng):
        if self.kind == "robin":
            return self.names[index % len(self.names)]
        at = bisect.bisect_left(self.cumulative, rng.random() * self.cumulative[-1])
        return self.names[min(at, len(self.names) - 1)]


def expand_names(text):
    """'base,a{1..64}' -> base, a1, ..., a64."""
    names = []
    for item in (text or "").split(","):
        head, brace, rest = item.partition("{")
        if brace:
            span, _, tail = rest.partition("}")
            first, _, last = span.partition("..")
            names += [f"{head}{i}{tail}" for i in range(int(first), int(last) + 1)]
        elif item:
            names.append(item)
    return names


WORDS = ("river stone window garden letter music engine forest market silver winter bridge candle harbor island journey kitchen ladder "
         "mirror needle orange pencil question rabbit station thunder umbrella village whisper yellow").split()


class Workload:
    """Request bodies by index. The same seed and index give the same request, in whatever order they are sent."""

    def __init__(self, *, api="completions", models=None, mix="robin", prompt="32", output="64", vocab=4000, seed=1, shared_prefix=0,
                 llama_loras=0, temperature=0.0, extra=None, words=False):
        self.api, self.models = api, Models(models or [], mix)
        self.prompt, self.output = Lengths(prompt), Lengths(output)
        self.vocab, self.seed, self.llama_loras, self.temperature = vocab, seed, llama_loras, temperature
        self.extra, self.words = extra or {}, words
        self.path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
        self.prefix = self._ids(random.Random(f"{seed} prefix"), shared_prefix)

    def _ids(self, rng, n):
        return [rng.randrange(3, self.vocab) for _ in range(n)]

    def body(self, index):
        rng = random.Random(f"{self.seed} {index}")
        body = {"max_tokens": self.output.draw(rng), "temperature": self.temperature, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        model = self.models.draw(index, rng)
        if model:
            body["model"] = model
        n_prompt = self.prompt.draw(rng)
        if self.api == "chat" or self.words:
            text = " ".join(rng.choices(WORDS, k=n_prompt))
            body.update({"messages": [{"role": "user", "content": text}]} if self.api == "chat" else {"prompt": text})
        else:
            # Random weights make tokens without text, for which no chunk would be sent without their ids.
            body.update({"prompt": self.prefix + self._ids(rng, n_prompt), "return_token_ids": True})
        if self.llama_loras:
            body["lora"] = [{"id": i, "scale": float(i == index % self.llama_loras)} for i in range(self.llama_loras)]
        body.update(self.extra)
        return {name: value for name, value in body.items() if value is not None}


def poisson_arrivals(rate, seconds, seed):
    """Times of a Poisson process of `rate` a second, in 0..seconds."""
    rng, at, times = random.Random(f"{seed} arrivals"), 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        times.append(at)
    return times
