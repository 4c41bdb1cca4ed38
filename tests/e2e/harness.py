"""What the end-to-end checks share: one daemon on a free port, requests to it, and comparisons that say what they found."""

import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "deploy/demo-model"
ADAPTERS = ("pirate", "shout", "json", "formal")
SAMPLES = json.loads((MODEL / "samples.json").read_text())["samples"]


DEFAULT_PORT = 8080


def take_default_port():
    """A socket that has the default port, as the daemon of deploy/quickstart.sh has it when a newcomer runs the tests next: a test that takes no port
    of its own fails here and not there. None where somebody has it already."""
    try:
        return socket.create_server(("127.0.0.1", DEFAULT_PORT))
    except OSError:
        return None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One daemon on a free port; ends with the with-block."""

    timeout = 120  # seconds until a request is given up

    def __init__(self, lorad, *flags, adapters=ADAPTERS, env=None, key=None, model=MODEL / "base"):
        """With a key the server wants it, and all requests here show it."""
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
            env = {**(env or {}), "LORAD_API_KEY": key}
        command = [lorad, "serve", "--model", str(model), "--port", "0", *flags]
        if "--state-dir" not in flags:
            command += ["--state-dir", "none"]
        for name in adapters:
            command += ["--lora", f"{name}={MODEL / 'adapters' / name}"]
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log", delete=False)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env=dict(os.environ, **(env or {})))
        line = self.process.stdout.readline()
        match = re.search(r"https?://([\d.]+):(\d+)", line)
        if not match:
            self.process.wait(30)
            raise AssertionError(f"no ready line, exit {self.process.returncode}: {self.log_text()}")
        self.host, self.port = match.group(1), int(match.group(2))

    def log_text(self):
        return pathlib.Path(self.log.name).read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        os.unlink(self.log.name)

    def request(self, method, path, body=None, raw=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            data = raw if raw is not None else None if body is None else json.dumps(body)
            connection.request(method, path, data, self.headers)
            response = connection.getresponse()
            text = response.read().decode()
            if text and "json" in (response.getheader("Content-Type") or ""):
                return response.status, json.loads(text)
            return response.status, text
        finally:
            connection.close()

    def post(self, path, **body):
        return self.request("POST", path, body)

    def events(self, path, **body):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        connection.request("POST", path, json.dumps(dict(body, stream=True)), self.headers)
        response = connection.getresponse()
        check(response.status == 200, f"status {response.status}")
        check(response.getheader("Content-Type") == "text/event-stream", "content type")
        for line in response:
            if line.startswith(b"data: "):
                data = line[6:].strip()
                if data == b"[DONE]":
                    connection.close()
                    return
                yield json.loads(data)
        connection.close()
        check(not path.endswith("completions"), "the stream ended without [DONE]")

    def metric(self, name):
        _, text = self.request("GET", "/metrics")
        match = re.search(rf"(?m)^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text)
        check(match, f"no metric {name}")
        return float(match.group(1))


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def wait_until(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(0.02)


def check_equal(found, expected, what):
    check(found == expected, f"{what}: expected {expected!r}, found {found!r}")


def check_error(answer, status, code, param=None, contains=()):
    found, body = answer
    check_equal(found, status, f"status of {body}")
    error = body["error"]
    check_equal(set(error), {"message", "type", "param", "code"}, "fields of an error")
    check_equal(error["code"], code, f"code of {body}")
    if param is not None:
        check_equal(error["param"], param, f"param of {body}")
    for text in contains:
        check(text in error["message"], f"{text!r} is not in {error['message']!r}")
