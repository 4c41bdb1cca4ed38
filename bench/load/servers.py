"""Servers that a benchmark starts itself, and stops."""
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


class Server:
    """A command that serves OpenAI's API; ready when its health route answers 200. Stopped at the end of the with block."""

    def __init__(self, command, url, health="/health/ready", wait=300.0, ready_pattern=None):
        self.command, self.url, self.health, self.wait = shlex.split(command) if isinstance(command, str) else list(command), url, health, wait
        self.ready_pattern = ready_pattern  # a group of stdout's line that has the port, where the system chooses it
        self.log = tempfile.NamedTemporaryFile("w+", prefix="load-server-", suffix=".log", delete=False)
        self.process = None

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE if self.ready_pattern else self.log, stderr=self.log, text=True)
        if self.ready_pattern:
            line = self.process.stdout.readline()
            match = re.search(self.ready_pattern, line)
            if not match:
                self._fail(f"unexpected first line: {line.strip()!r}")
            self.url = f"http://127.0.0.1:{match[1]}"
        end = time.monotonic() + self.wait
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self._fail(f"it ended with status {self.process.returncode}")
            try:
                with urllib.request.urlopen(self.url + self.health, timeout=2) as reply:
                    if reply.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        self._fail(f"not ready within {self.wait:g} s")

    def _fail(self, why):
        self.stop()
        self.log.seek(0)
        raise SystemExit(f"{self.command[0]} did not start: {why}\n{self.log.read()[-2000:]}")

    def __exit__(self, *_):
        self.stop()
        self.log.close()
        os.unlink(self.log.name)

    def stop(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) * 1024

    def n_threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def call(self, method, path, body=None, content_type="application/json"):
        """(status, body) of a plain request."""
        payload = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        request = urllib.request.Request(self.url + path, data=payload, method=method, headers={"Content-Type": content_type} if payload is not None else {})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def must(self, *call):
        status, text = self.call(*call)
        if status >= 300:
            raise SystemExit(f"{call[0]} {call[1]}: {status} {text[:500].decode(errors='replace')}")
        return json.loads(text) if text else {}


def lorad(command, model, *flags, state_dir="none"):
    """`lorad serve` on a port that the system chooses. command: the program, or 'FOLDER/run lorad' of a bundle."""
    return Server(shlex.split(command) + ["serve", "--model", model, "--port", "0", "--state-dir", state_dir, *flags], None,
                  ready_pattern=r"http://[^:]+:(\d+)")
