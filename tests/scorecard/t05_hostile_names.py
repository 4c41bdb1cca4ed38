#!/usr/bin/env python3
"""T5: names and stores made to lead elsewhere lead nowhere: no system call leaves the store, and log, metrics and answers hold no raw byte of them."""
# beside others: yes

import http.client
import io
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tarfile
import urllib.parse
import zipfile

from frame import check, check_equal, main

from adapter_checks import FILES, digest_of, files_of, registered
from faults import store_folder
from streams import wait_for

SEEDS = ["..", "../", "../../etc/passwd", "/etc/passwd", "//etc/passwd", "....//", "..\\..\\windows", "a/../../b", "./x", ".", "...", "~root", "~/.ssh/id_rsa", "$HOME",
         "`id`", "$(id)", "; ls", "| cat", "&& id", "a\x00b", "\x00", "/etc/passwd\x00.safetensors", "%2e%2e%2f", "%252e%252e%252f", "..%2f", "%00",
         "..%c0%af", "%c0%ae%c0%ae/", "\u2025", "\uff0e\uff0e/", "\u2215etc\u2215passwd", "a\r\nX-Forged: yes", "a\nforged line level=error", "a\rb",
         "a\x1b[31mred", "\x1b]0;title\x07", "\x7f", "\u0085", "\u009b31m", "\u2028forged", "\u2029forged", "\u202egnp.exe", "\u2066isolate", "\u061cmark", "\ufeffbom",
         "hid\u200bden", "\U000e0041tag", "\U0001fffe", "\ufffe", "{}", "{0}", "{name}", "%s%n%x", "%s" * 50,
         "'\"<>&", "<script>alert(1)</script>", "' OR 1=1 --", "\"}\nforged_metric 1", 'x"} 1\nforged{a="', "\\", "\\\\", "a\\", "a" * 65536, "\u00e9" * 5000,
         "\U0001f600" * 100, "con", "nul", "blobs", "events", "validate", "registry.json", "lock", "damaged", "incoming/1", "blobs/" + "0" * 64,
         "sha256:" + "0" * 64, "0" * 64, "-rf", "--help", " ", "", " a", "a ", "\t", "base", "base:x", "base::x", "file:///etc/passwd", "http://127.0.0.1:1/x", "s3://b/k"]
# What a terminal obeys, what a reader takes for a line's end, what hides or turns its neighbours (proto/base/printable.h has all of them).
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e00ff]")
MADE = re.compile(r"n\d+")  # names that this test registers


def names(random, n):
    for seed in SEEDS:
        yield seed
    for _ in range(n - len(SEEDS)):
        yield "".join(random.choice([random.choice(SEEDS)[:200], chr(random.randrange(1, 0x250)), "../", "/", "."]) for _ in range(random.randrange(1, 5)))


def raw_request(server, head, body=b""):
    """Bytes as they are; the answer's bytes. "events" is a name, too, whose answer has no end."""
    with socket.create_connection((server.host, server.port), timeout=20) as connection:
        connection.sendall(head + b"\r\nHost: x\r\nConnection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
        answer = b""
        try:
            while b"text/event-stream" not in answer and (piece := connection.recv(65536)):
                answer += piece
        except ConnectionResetError:
            pass
        return answer


def check_clean(answer, what):
    """Of one answer: a status that blames the client or none, no forged header, no raw control byte."""
    head, _, body = answer.partition(b"\r\n\r\n")
    check(re.match(rb"HTTP/1\.1 [24]\d\d ", head), f"{what}: {answer[:200]}")
    check(b"X-Forged" not in head and not re.search(rb"[^\r\n\x20-\x7e]", head), f"{what}: a header {head[:300]}")
    check(not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", body), f"{what}: a body {body[:300]}")
    if b"\r\ncontent-type: application/json" in head.lower() and not head.startswith(b"HTTP/1.1 2"):
        error = json.loads(body)["error"]
        for field in ("message", "param"):
            check(not UNPRINTABLE.search(error[field] or ""), f"{what}: the {field} {ascii(error[field])[:300]}")


DELETION = 10  # its place below


def ask_with(server, name, i):
    """The name in every place that takes one, one after another."""
    quoted = json.dumps(name).encode()
    encoded = urllib.parse.quote(name, safe="").encode()
    raw = name.encode("utf-8", "surrogatepass")
    digest = "sha256:" + "0" * 64
    places = [
        (b"POST /v1/adapters HTTP/1.1", b'{"name":' + quoted + b',"adapters":[{"name":"pirate","scale":0.5}]}'),
        (b"POST /v1/adapters HTTP/1.1", b'{"name":"x","files":{' + quoted + b':"' + digest.encode() + b'"}}'),
        (b"POST /v1/adapters HTTP/1.1", b'{"name":"x","files":{"adapter_config.json":' + quoted + b"}}"),
        (b"POST /v1/adapters/validate HTTP/1.1", b'{"path":' + quoted + b"}"),
        (b"POST /v1/load_lora_adapter HTTP/1.1", b'{"lora_name":"x","lora_path":' + quoted + b"}"),
        (b"POST /v1/load_lora_adapter HTTP/1.1", b'{"lora_name":' + quoted + b',"lora_path":"pirate"}'),
        (b"POST /v1/unload_lora_adapter HTTP/1.1", b'{"lora_name":' + quoted + b"}"),
        (b"POST /v1/completions HTTP/1.1", b'{"model":' + quoted + b',"prompt":"x","max_tokens":1}'),
        (b"POST /v1/completions HTTP/1.1", b'{"adapters":[{"name":' + quoted + b'}],"prompt":"x","max_tokens":1,"cache_salt":' + quoted + b"}"),
        (b"GET /v1/adapters/" + encoded + b" HTTP/1.1", b""),
        (b"DELETE /v1/adapters/" + encoded + b" HTTP/1.1", b""),
        (b"POST /v1/adapters/" + encoded + b"/activate HTTP/1.1", b"{}"),
        (b"PUT /v1/adapters/blobs/" + encoded + b" HTTP/1.1", b"x"),
        (b"GET /v1/adapters/blobs/" + encoded + b" HTTP/1.1", b""),
        (b"GET /console/" + encoded + b" HTTP/1.1", b""),
        (b"GET /v1/models/" + encoded + b" HTTP/1.1", b""),
    ]
    form = (b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\n' + raw + b'\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="'
            + raw.replace(b'"', b"%22").replace(b"\r", b"").replace(b"\n", b"") + b'"\r\n\r\nx\r\n--b--\r\n')
    head, body = places[i % len(places)]
    if len(head) > 8000:
        head, body = places[i % 9]
    check_clean(raw_request(server, head + (b"" if head.startswith(b"GET") else b"\r\nContent-Type: application/json"), body), f"{name[:80]!r} in {head[:60]}")
    if i % 8 == 0:
        check_clean(raw_request(server, b"POST /v1/adapters HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=b", form), f"{name[:80]!r} in a form")
    if i % 8 == 4 and not re.search(rb"[\x00-\x1f\x7f]", raw) and len(raw) < 2000:
        # In the path as it is, and in a header.
        check_clean(raw_request(server, b"GET /v1/adapters/" + raw.replace(b" ", b"") + b" HTTP/1.1"), f"{name[:80]!r} raw")
        check_clean(raw_request(server, b"GET /v1/models HTTP/1.1\r\nx-gateway-inference-fairness-id: " + raw), f"{name[:80]!r} in a header")


def archives():
    """What unpacks elsewhere, where it is unpacked."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in (("../../escaped", tarfile.REGTYPE), ("/tmp/escaped", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    yield out.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("../../escaped", "x")
        archive.writestr("adapter_config.json", "{}")
    yield out.getvalue()


def plant(state, secret):
    """Things in the store's folders that are no files of its own."""
    digests = [f"{i:064x}" for i in range(8)]
    blobs = state / "blobs"
    (blobs / digests[0]).symlink_to(secret)
    os.link(secret, blobs / digests[1])
    os.mkfifo(blobs / digests[2])
    (blobs / digests[3]).mkdir()
    (blobs / digests[4]).symlink_to("/dev/zero")
    if os.geteuid() == 0:
        try:
            os.mknod(blobs / digests[5], 0o600 | 0o020000, os.makedev(1, 5))
        except OSError:
            pass
    (blobs / "..hidden").write_text("x")
    (state / "incoming" / "stray").symlink_to(secret)
    (state / "registry.json.new").symlink_to(secret)
    return digests


ALLOWED = re.compile(r"^(registry(\.copy)?\.json(\.new)?|[0-9a-f]{64}|holds|[0-9a-f]{64}\.[0-9a-f]{64}\.\d+|\d+|\.|lock|\.\.hidden|stray)$")


def is_traced(pid):
    """All of its threads."""
    return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in pathlib.Path(f"/proc/{pid}/task").iterdir())


def check_trace(text, state, root):
    """Every path of the trace: below the store by a plain name and a descriptor, below --adapter-root, or nothing that a client could choose."""
    n = 0
    for line in text.splitlines():
        # Where the process is says nothing of where it looks.
        if "+++" in line or "resumed>" in line or "---" in line or " getcwd(" in line:
            continue
        for path in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
            n += 1
            is_above = str(root).startswith(path.rstrip("/") + "/") or str(state).startswith(path.rstrip("/") + "/")
            if ALLOWED.match(path) or path == "" or is_above or path.startswith((str(root), str(state))):
                check("/../" not in path, f"a way out in {line[:300]}")
                continue
            # What the C library and the driver look at whatever anybody asks.
            if path.startswith(("/proc/", "/sys/", "/dev/shm", "/etc/localtime", "/usr/share/zoneinfo", "/tmp/lvp", "/root/.cache/mesa")) and "passwd" not in path:
                continue
            check(False, f"a path outside: {line[:300]}")
    return n


def metric_labels(server):
    """Every line of the page parses; the number of different label values of names. Lines end at \\n and nowhere else, as Prometheus reads them."""
    text = server.request("GET", "/metrics")[1]
    check(text.endswith("\n"), "the page's last line has no end")
    values = set()
    for line in text.split("\n"):
        check(not UNPRINTABLE.search(line), f"not printable, in the metrics: {ascii(line)[:200]}")
        if line.startswith("#") or not line:
            continue
        match = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)', line)
        check(match and not match.group(1).startswith("forged"), f"a line of the metrics: {line[:200]!r}")
        float(match.group(3))
        for label, value in re.findall(r'(\w+)="((?:[^"\\\n]|\\.)*)"', match.group(2) or ""):
            if "adapter" in label or "lora" in label:
                values.update(name for name in value.split(",") if MADE.match(name))
    return len(values)


def run(card):
    from frame import MODEL
    n_requests = 320 if card.quick else 2000
    state, secret = card.folder / "state", card.folder / "secret"
    secret.write_text("secret " * 100)
    with card.server("--state-dir", str(state), adapters=()) as server:
        registered(server, "pirate", files_of("pirate"))
    digests = plant(store_folder(state), secret)
    trace = card.folder / "trace"
    log = b""
    with card.part(f"{n_requests} hostile names"), card.server("--state-dir", str(state), "--adapter-root", str(MODEL / "adapters"), "--log-level", "debug",
                                                             adapters=()) as server:
        check(server.post("/v1/completions", model="pirate", prompt="x", max_tokens=1)[0] == 200, "an answer beforehand")
        tracer = None
        if shutil.which("strace"):
            tracer = subprocess.Popen(["strace", "-f", "-qq", "-e", "trace=%file", "-s", "4096", "-o", str(trace), "-p", str(server.process.pid)],
                                      stderr=subprocess.DEVNULL)
            check(wait_for(lambda: is_traced(server.process.pid), 60, 0.02) is not None, "strace does not trace it")
        else:
            card.short_of("system calls: strace is not installed")
        try:
            for i, name in enumerate(names(card.random, n_requests)):
                ask_with(server, name, i)
            for name in filter(UNPRINTABLE.search, SEEDS):
                status, answer = server.post("/v1/adapters", name=name, adapters=[{"name": "pirate", "scale": 0.5}])
                check_equal((status, answer["error"]["code"]), (400, "invalid_lora_name"), f"a name with {ascii(UNPRINTABLE.findall(name))[:100]}")
                ask_with(server, name, DELETION)  # the log tells of it
            for digest in digests:
                status, answer = server.post("/v1/adapters", name="x", files={FILES[0]: f"sha256:{digest}", FILES[1]: f"sha256:{digest}"})
                check(400 <= status < 500 or status == 507, f"a planted file: {status} {answer}")
                check("secret secret" not in json.dumps(answer), f"it tells what it read: {answer}")
                status, text = server.request("GET", f"/v1/adapters/blobs/sha256:{digest}")
                check(status >= 400 and "secret secret" not in str(text), f"a planted file was given: {status}")
            for archive in archives():
                status, answer = server.request("PUT", f"/v1/adapters/blobs/sha256:{digest_of(archive)}", raw=archive)
                check_equal(status, 201, f"an upload is bytes: {answer}")
                status, answer = server.post("/v1/adapters", name="x", files={FILES[0]: f"sha256:{digest_of(archive)}", FILES[1]: f"sha256:{digest_of(archive)}"})
                check(status == 422, f"an archive: {status} {answer}")
        finally:
            if tracer:
                tracer.terminate()
                tracer.wait(30)
        check(not pathlib.Path("/tmp/escaped").exists(), "something was unpacked")
        check_equal(secret.read_text(), "secret " * 100, "the file that links name")
        log = pathlib.Path(server.log.name).read_bytes()
        metric_labels(server)
        check_equal(server.request("GET", "/health/live")[0], 200, "the server afterwards")
    if trace.exists():
        with card.part("no system call leaves the store"):
            n_paths = check_trace(trace.read_text(errors="replace"), state, MODEL / "adapters")
            check(n_paths > n_requests / 20, f"only {n_paths} paths were traced")
            card.figure("paths in system calls, outside of the store", f"{n_paths}, 0")
    with card.part("the log is clean"):
        lines = log.decode("utf-8").split("\n")
        for line in lines:
            check(not UNPRINTABLE.search(line), f"not printable, in the log: {ascii(line)[:300]}")
        check_equal([line for line in lines[:-1] if not re.match(r"\d{4}-\d\d-\d\dT", line)][:3], [], "lines that are none of the log's")
        check(len(lines) > n_requests / 2, f"only {len(lines)} lines in the log")
    n_names = 1500 if card.quick else 10_000
    with card.part(f"{n_names} names leave at most 1,000 labels"), card.server("--log-level", "error", adapters=("pirate",)) as server:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        n_made = 0
        for i in range(n_names):
            body = json.dumps({"name": f'n{i}"\\{{}}', "adapters": [{"name": "pirate", "scale": 0.5}]})
            for again in (True, False):
                try:
                    connection.request("POST", "/v1/adapters", body, {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    response.read()
                    n_made += response.status == 201
                    break
                except (http.client.HTTPException, OSError):
                    connection.close()
                    check(again, "the server closed a new connection")
            if i % 25 == 0:
                server.post("/v1/completions", model=f'n{i}"\\{{}}', prompt=[1], max_tokens=1)
        check(n_made > 0.9 * n_names, f"{n_made} of {n_names} names were made")
        n_labels = metric_labels(server)
        check(n_labels <= 1000, f"{n_labels} label values")
        card.figure("label values after names", f"{n_labels} after {n_made}")
    card.gtest("links, fifos, folders in the store", "adapters_tests", "StoreTest.LinksAreNotFollowed")
    card.trials += n_requests
    if card.quick:
        card.short_of("2,000 names, 10,000 labels: tests/scorecard.sh --tier nightly --only T5")


if __name__ == "__main__":
    main("T5", run)
