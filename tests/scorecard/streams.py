"""Requests of the scorecard's tests on connections and threads of their own, and what became of each."""

import http.client
import json
import threading
import time

# Long enough that it is running when something happens to it; the demo model's context is 2,048 tokens.
LONG = 1500
PROMPTS = ("Hello", "The sea is", "Write a letter to the harbour master about the boat", "One two three four five six seven eight nine ten " * 12)


class Stream(threading.Thread):
    """One streamed completion; join() it. Times are time.monotonic()."""

    def __init__(self, server, model, prompt, n=LONG, timeout=60, **body):
        super().__init__(daemon=True)
        self.address, self.timeout = (server.host, server.port), timeout
        self.body = {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "stream": True, **body}
        self.status = None    # of HTTP; None: no answer
        self.tokens = []
        self.error = None     # the error object of an event or of a refusal
        self.done = False     # [DONE] came
        self.finish = None    # finish_reason
        self.generation = None
        self.cut = None       # the exception that ended it
        self.ended = None
        self.first = threading.Event()  # the first token is there, or there will be none
        self.start()

    def run(self):
        connection = http.client.HTTPConnection(*self.address, timeout=self.timeout)
        try:
            connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.status = response.status
            if response.status != 200:
                self.error = json.loads(response.read()).get("error")
                return
            for line in response:
                if line.startswith(b"data: "):
                    self._event(line[6:].strip())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.cut = error
        finally:
            self.ended = time.monotonic()
            self.first.set()
            connection.close()

    def _event(self, data):
        if data == b"[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = event["error"]
            return
        self.generation = event.get("adapter_generation", self.generation)
        for choice in event.get("choices") or []:
            self.tokens += choice.get("token_ids") or []
            self.finish = choice.get("finish_reason") or self.finish
        if self.tokens:
            self.first.set()

    def outcome(self):
        """One word, for counting: whole, error, refused, cut (neither an error nor [DONE]), no answer."""
        if self.status is None:
            return "no answer"
        if self.status != 200:
            return "refused"
        if self.error:
            return "error" if not self.done else "error and [DONE]"
        return "whole" if self.done else "cut"


def answer(server, model, prompt, n):
    """The tokens of one request, alone or not."""
    status, body = server.post("/v1/completions", model=model, prompt=prompt, max_tokens=n, temperature=0, ignore_eos=True, return_token_ids=True)
    if status != 200:
        raise AssertionError(f"{model}: {status} {body}")
    return body["choices"][0]["token_ids"]


def metrics(server, names):
    """The sums of these metrics over their labels, from one look."""
    text = server.request("GET", "/metrics")[1]
    sums = dict.fromkeys(names, 0.0)
    for line in text.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in sums:
            sums[name] += float(line.rsplit(" ", 1)[1])
    return sums


def is_ready(server):
    """Whether it says so; a refused connection is a no."""
    try:
        return server.request("GET", "/health/ready")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def wait_for(condition, seconds, step=0.005):
    """Seconds until it holds; None if it never does."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if condition():
            return time.monotonic() - begin
        time.sleep(step)
    return None
