"""One streaming request over HTTP/1.1 on asyncio, cheap enough that hundreds of streams need less than one core.

No HTTP library: a Protocol that takes the body out of its chunks and cuts it into events. Only the events until the first token,
and those that are not plain tokens, are parsed as JSON; of the others the time of arrival is all that is kept.
"""
import asyncio
import dataclasses
import json
import ssl
import time
import urllib.parse


@dataclasses.dataclass
class Outcome:
    """What one request came to. Times are time.perf_counter() seconds."""

    started: float = 0.0
    status: int = 0
    first: float | None = None  # arrival of the first token
    last: float | None = None   # of the last one
    ended: float = 0.0
    arrivals: list = dataclasses.field(default_factory=list)  # of every event with tokens
    tokens: int = 0             # from usage, else the number of such events
    prompt_tokens: int = 0
    error: str | None = None
    retry_after: str | None = None
    model: str | None = None
    max_tokens: int = 0

    @property
    def ttft(self):
        return None if self.first is None else self.first - self.started

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:])]

    @property
    def tpot(self):
        """Mean time per output token after the first."""
        return None if self.first is None or self.tokens < 2 else (self.last - self.first) / (self.tokens - 1)

    @property
    def latency(self):
        return self.ended - self.started

    @property
    def ok(self):
        return self.status == 200 and self.error is None


def has_tokens(chunk):
    """Whether a parsed event brings text, token ids, thoughts or a tool call."""
    for choice in chunk.get("choices") or []:
        delta = choice.get("delta") or {}
        if choice.get("text") or choice.get("token_ids") or any(delta.get(k) for k in ("content", "reasoning_content", "reasoning", "tool_calls", "token_ids")):
            return True
    return False


class EventParser:
    """Bytes of a response -> status, headers, events. Feed it; it tells by callbacks."""

    def __init__(self, on_event):
        self.on_event = on_event
        self.status, self.headers = 0, {}
        self.done = False      # the body is complete
        self.body = b""        # of responses that are no event stream
        self._buffer = b""
        self._events = b""
        self._left = None      # bytes left of the chunk or body; None: unknown
        self._state = "head"
        self._streams = False

    def feed(self, data):
        self._buffer = self._buffer + data if self._buffer else data
        if self._state == "head":
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head(self._buffer[:end].decode("latin-1"))
            self._buffer = self._buffer[end + 4:]
        if self._state == "length":
            self._take(len(self._buffer))
        elif self._state == "chunks":
            self._chunks()

    def end(self):
        """The connection was closed."""
        if self._state == "length" and self._left is None:
            self.done = True

    def _head(self, text):
        lines = text.split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self._streams = self.headers.get("content-type", "").startswith("text/event-stream")
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._state = "chunks"
        else:
            self._state = "length"
            self._left = int(self.headers["content-length"]) if "content-length" in self.headers else None

    def _take(self, n):
        piece, self._buffer = self._buffer[:n], self._buffer[n:]
        if self._left is not None:
            self._left -= len(piece)
            self.done = self._left == 0 and self._state == "length"
        self._body(piece)

    def _chunks(self):
        buffer, at, pieces = self._buffer, 0, []
        while not self.done:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            size = int(buffer[at:end].split(b";")[0], 16)
            if size == 0:
                self.done = True
                at = len(buffer)
                break
            if len(buffer) < end + 2 + size + 2:
                break
            pieces.append(buffer[end + 2:end + 2 + size])
            at = end + 2 + size + 2
        self._buffer = buffer[at:]
        if pieces:
            self._body(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _body(self, piece):
        if not self._streams:
            self.body += piece
            return
        events = self._events + piece if self._events else piece
        if b"\r\n" in events:
            events = events.replace(b"\r\n", b"\n")
        *whole, self._events = events.split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: "):
                self.on_event(event[6:])


class _Stream(asyncio.Protocol):
    def __init__(self, request, outcome, finished, on_tokens):
        self.request, self.outcome, self.finished, self.on_tokens = request, outcome, finished, on_tokens
        self.parser = EventParser(self.event)
        self.transport = None

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data):
        try:
            self.parser.feed(data)
        except (ValueError, IndexError, KeyError) as error:
            self.outcome.error = f"no HTTP: {error!r}"
            self.parser.done = True
        if self.parser.done:
            self.close()

    def connection_lost(self, error):
        self.parser.end()
        if error is not None and not self.parser.done:
            self.outcome.error = self.outcome.error or repr(error)
        elif not self.parser.done:
            self.outcome.error = self.outcome.error or "the connection ended before the answer did"
        self.close()

    def event(self, data):
        outcome = self.outcome
        # The plain case, without a JSON parser: a token in the middle of a stream.
        if outcome.first is not None and b'"finish_reason":null' in data and b'"choices":[{' in data and b'"usage":{' not in data:
            now = time.perf_counter()
            outcome.last = now
            outcome.arrivals.append(now)
            if self.on_tokens is not None and self.on_tokens(now) is False:
                self.close()
            return
        if data.strip() == b"[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            outcome.error = str(chunk["error"])[:300]
            return
        if chunk.get("usage"):
            outcome.tokens = chunk["usage"].get("completion_tokens", 0)
            outcome.prompt_tokens = chunk["usage"].get("prompt_tokens", 0)
        if has_tokens(chunk):
            now = time.perf_counter()
            outcome.first = outcome.first or now
            outcome.last = now
            outcome.arrivals.append(now)
            if self.on_tokens is not None and self.on_tokens(now) is False:
                self.close()

    def close(self):
        if self.transport is not None:
            self.transport.close()
        if not self.finished.done():
            self.finished.set_result(None)


class Endpoint:
    """A server's address, and the requests that are sent there."""

    def __init__(self, url, api_key=None, timeout=600.0):
        parts = urllib.parse.urlparse(url if "://" in url else "http://" + url)
        self.host, self.tls = parts.hostname, parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix, self.api_key, self.timeout = parts.path.rstrip("/"), api_key, timeout

    def _bytes(self, path, body):
        text = json.dumps(body).encode()
        head = f"POST {self.prefix}{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\nAccept: */*\r\n"
        if self.api_key:
            head += f"Authorization: Bearer {self.api_key}\r\n"
        return (head + f"Connection: close\r\nContent-Length: {len(text)}\r\n\r\n").encode() + text

    async def send(self, path, body, on_tokens=None):
        """One request, to its end; on_tokens(time) may return False to hang up. Never raises what a server can cause."""
        outcome = Outcome(model=body.get("model"), max_tokens=body.get("max_tokens", 0))
        request = self._bytes(path, body)
        loop = asyncio.get_running_loop()
        finished = loop.create_future()
        outcome.started = time.perf_counter()
        try:
            tls = ssl.create_default_context() if self.tls else None
            _, stream = await loop.create_connection(lambda: _Stream(request, outcome, finished, on_tokens), self.host, self.port, ssl=tls)
            try:
                await asyncio.wait_for(finished, self.timeout)
            finally:
                stream.close()
        except asyncio.TimeoutError:
            outcome.error = f"no end after {self.timeout:g} s"
            stream = None
        except OSError as error:
            outcome.error = f"{type(error).__name__}: {error}"
            stream = None
        outcome.ended = time.perf_counter()
        if stream is not None:
            parser = stream.parser
            outcome.status = parser.status
            outcome.retry_after = parser.headers.get("retry-after")
            if parser.status != 200:
                outcome.error = outcome.error or f"{parser.status}: {parser.body[:300].decode(errors='replace')}"
            elif parser.body and not body.get("stream"):
                self._whole(parser.body, outcome)
        outcome.tokens = outcome.tokens or len(outcome.arrivals)
        return outcome

    @staticmethod
    def _whole(text, outcome):
        """An answer in one piece."""
        try:
            answer = json.loads(text)
            outcome.tokens = (answer.get("usage") or {}).get("completion_tokens", 0)
            outcome.first = outcome.last = outcome.ended
        except ValueError as error:
            outcome.error = f"not JSON: {error}"
