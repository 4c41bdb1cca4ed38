"""A real chat model asked by OpenAI's client: an answer whole and as a stream."""

from harness import check_equal

QUESTION = [{"role": "system", "content": "You answer in one short sentence."}, {"role": "user", "content": "What does the Python function len do?"}]


class Client:
    """Asks through OpenAI's client, and holds what comes to the reference's tokens and to a near tie."""

    def __init__(self, server, reference, greedy):
        import openai

        self.chat = openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="none", timeout=server.timeout, max_retries=0).chat.completions
        self.server, self.reference, self.greedy = server, reference, greedy

    def ids_of(self, messages):
        """What the model reads, by lorad; as transformers renders it."""
        status, answer = self.server.post("/tokenize", model="real", messages=messages, add_generation_prompt=True)
        check_equal(status, 200, str(answer))
        expected = self.reference.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        check_equal(answer["tokens"], list(expected), f"tokens of {messages}")
        return answer["tokens"]

    def ask(self, messages, n_tokens):
        """The answer, and the text of its tokens, each of which is the reference's first or in a near tie with it."""
        ids = self.ids_of(messages)
        answer = self.chat.create(model="real", messages=messages, max_tokens=n_tokens, temperature=0, extra_body={"return_token_ids": True})
        tokens = answer.choices[0].token_ids
        check_equal(answer.usage.prompt_tokens, len(ids), "tokens of the prompt")
        self.greedy.check(self.reference, ids, tokens, f"chat {messages}")
        return answer.choices[0], self.reference.tokenizer.decode(tokens, skip_special_tokens=True)


def check_client(server, reference, n_tokens, greedy):
    client = Client(server, reference, greedy)
    choice, text = client.ask(QUESTION, n_tokens)
    check_equal(choice.message.content, text, "the text of the tokens")
    parts = client.chat.create(model="real", messages=QUESTION, max_tokens=n_tokens, temperature=0, stream=True)
    check_equal("".join(part.choices[0].delta.content or "" for part in parts if part.choices), text, "the stream's text")
    print(f"OpenAI's client: {text!r}, whole and as a stream; {greedy}", flush=True)
