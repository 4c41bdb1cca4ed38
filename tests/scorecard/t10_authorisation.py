#!/usr/bin/env python3
"""T10: every route asks for its key, in whatever form its path is written, and the time of a comparison says nothing about the key."""
# beside others: yes

import hashlib
import http.client
import json
import os
import socket

from frame import check, check_equal, main

SCOPES = ("generate", "adapters:read", "adapters:write", "training:read", "training:write", "metrics", "admin")


def key_of(name):
    return f"key-of-{name}-{hashlib.sha256(name.encode()).hexdigest()[:20]}"


def key_file(folder, **entries):
    """A file of keys: name -> more fields of its entry."""
    path = os.path.join(folder, "keys.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        for name, fields in entries.items():
            entry = {"id": name.replace(":", "-"), "sha256": hashlib.sha256(key_of(name).encode()).hexdigest(), "scopes": ["generate"], **fields}
            file.write(json.dumps(entry) + "\n")
    return path


def ask(server, method, target, key=None, body=b"", headers=None, streams=False):
    """The status, headers and body of a request whose target goes out as it is; of a stream only where it has an end (`streams`)."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}.items():
            connection.putheader(name, value)
        if body or method in ("POST", "PUT", "DELETE", "PATCH"):
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        response = connection.getresponse()
        content_type = response.getheader("Content-Type") or ""
        return response.status, response.headers, b"" if content_type == "text/event-stream" and not streams else response.read()
    finally:
        connection.close()


def forms_of(path):
    """Other ways to write a path, of which somebody may think that they are the same."""
    head, _, last = path.rpartition("/")
    return ["/" + path, path + "/", path.upper() if path.upper() != path else path.title(), "/." + path, "/x/.." + path, "/%2e" + path, path + ";x", path + ".",
            path + "%20", path + "/..", f"{head}//{last}", f"{head}%2f{last}", f"{head}%2F{last}", f"{head}/%{ord(last[0]):02x}{last[1:]}", "http://x" + path]


def decoded_same(path, form):
    """Whether percent-encoding alone tells the two apart: then it is the same path (RFC 3986)."""
    from urllib.parse import unquote
    return [unquote(part) for part in form.split("/")] == path.split("/")


def routes(server):
    status, _, body = ask(server, "GET", "/openapi.json", key_of("admin"))
    check_equal(status, 200, "the document")
    out = []
    for path, item in json.loads(body)["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                out.append((method.upper(), path, operation["x-lorad-access"]))
    return out


def allowed(access, scope):
    wanted = access.split(" or ")
    return scope == "admin" or access in ("open", "any key") or scope in wanted or (scope == "adapters:write" and "adapters:read" in wanted) or (
        scope == "training:write" and "training:read" in wanted)


def every_route(card, server):
    n = 0
    for method, path, access in routes(server):
        target = path.replace("{name}", "x").replace("{digest}", "x").replace("{file}", "main.js")
        what = f"{method} {target}"
        statuses = {"no key": ask(server, method, target)[0], "a wrong key": ask(server, method, target, "x" * 40)[0],
                    "an expired key": ask(server, method, target, key_of("expired"))[0],
                    "a key in other letters": ask(server, method, target, key_of("admin").upper())[0]}
        n += 4
        for kind, status in statuses.items():
            check(status < 400 or access != "open" or status == 503, f"{what}, {kind}: {status}")
            check(status == 401 or access == "open", f"{what}, {kind}: {status}")
        for scope in SCOPES if access != "open" else ():
            status = ask(server, method, target, key_of(scope))[0]
            n += 1
            check((status == 403) == (not allowed(access, scope)) and status != 401, f"{what} with {scope}: {status}, the route asks for {access}")
    card.figure("routes", len(routes(server)))
    card.trials += n


def other_forms(card, server):
    n = 0
    for method, path, access in routes(server):
        if access == "open":
            continue
        target = path.replace("{name}", "x").replace("{digest}", "x")
        for form in forms_of(target):
            status = ask(server, method, form)[0]
            check(status in (400, 401), f"{method} {form} without a key: {status}")
            n += 1
            if access not in ("admin", "adapters:write"):
                continue
            status = ask(server, method, form, key_of("generate"))[0]
            check(status in ((403,) if decoded_same(target, form) else (400, 403, 404, 405)), f"{method} {form} with a user's key: {status}")
            n += 1
    card.trials += n


def no_administration(card, server):
    """What a user's key, or none, sends to administrative routes with bodies that would do something changes nothing."""
    before = ask(server, "GET", "/v1/adapters", key_of("admin"))[2]
    calls = [("DELETE", "/v1/adapters/pirate", b""), ("POST", "/v1/unload_lora_adapter", b'{"lora_name":"pirate"}'),
             ("POST", "/unload_lora_adapter", b'{"lora_name":"pirate"}'), ("POST", "/v1/adapters/pirate/activate", b'{"pin":true}'),
             ("POST", "/v1/adapters", b'{"name":"new","adapters":[{"name":"pirate"}]}'), ("POST", "/lora-adapters", b'[{"id":0,"scale":1}]')]
    for method, target, body in calls:
        for key in (None, key_of("generate"), key_of("adapters:read"), key_of("metrics"), key_of("expired")):
            status = ask(server, method, target, key, body)[0]
            check(status in (401, 403), f"{method} {target}: {status}")
            card.trials += 1
    check_equal(ask(server, "GET", "/v1/adapters", key_of("admin"))[2], before, "the adapters afterwards")


def loopback_only(card):
    """Without keys it does not start on other addresses."""
    run = card_command(card, "--host", "0.0.0.0")
    check(run.returncode == 1 and "--api-key-file" in run.stderr and "--insecure-no-keys" in run.stderr, f"without keys: {run.returncode} {run.stderr}")


def card_command(card, *flags):
    import subprocess
    from frame import MODEL
    return subprocess.run([card.lorad, "serve", "--model", str(MODEL / "base"), "--port", "0", "--state-dir", "none", *flags], capture_output=True, text=True,
                          timeout=60, check=False)


def ask_unix(path, method, target, key):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(path)
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n{authorization}\r\n".encode())
        return int(connection.recv(4096).split(b" ")[1])


def listeners(server):
    """Ports that the process listens on, of all addresses."""
    inodes = {os.readlink(f"/proc/{server.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{server.process.pid}/fd")}
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{server.process.pid}/net/{table}", encoding="ascii") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def run(card):
    card.gtest("the table, every scope, other forms of paths", "server_tests", "AccessTest.*")
    card.gtest("another tenant's adapters do not exist", "server_tests", "TenantsTest.*")
    card.gtest("files of keys and quotas", "server_tests", "KeyFile*:Principal.*:Scopes.*:Quotas.*:Exposure.*")
    card.gtest("the comparison takes the same time", "server_tests", "KeyComparison.*")
    with card.part("without keys on loopback only"):
        loopback_only(card)
    entries = {scope: {"scopes": [scope]} for scope in SCOPES}
    path = key_file(card.folder, expired={"scopes": list(SCOPES), "expires": "2020-01-01"}, **entries)
    with card.server("--api-key-file", path, adapters=("pirate",)) as server:
        with card.part("every route over HTTP with every kind of key"):
            every_route(card, server)
        with card.part("other forms of every path over HTTP"):
            other_forms(card, server)
        with card.part("no administration with a user's key"):
            no_administration(card, server)
        with card.part("one listener"):
            check_equal(listeners(server), {server.port}, "ports")
            with socket.create_connection((server.host, server.port), 5):
                pass
    socket_path = os.path.join(card.folder, "admin.sock")
    with card.server("--api-key-file", path, "--admin-listen", f"unix:{socket_path}", adapters=("pirate",)) as server:
        with card.part("administration on its own socket"):
            check_equal(listeners(server), {server.port}, "ports")
            check_equal(ask(server, "DELETE", "/v1/adapters/pirate", key_of("admin"))[0], 405, "on the main listener")
            check_equal(ask(server, "POST", "/v1/unload_lora_adapter", key_of("admin"), b'{"lora_name":"pirate"}')[0], 404, "on the main listener")
            check_equal(ask_unix(socket_path, "DELETE", "/v1/adapters/pirate", None), 401, "on the other, without a key")
            check_equal(ask_unix(socket_path, "DELETE", "/v1/adapters/pirate", key_of("generate")), 403, "on the other, with a user's key")
            check_equal(ask_unix(socket_path, "DELETE", "/v1/adapters/pirate", key_of("admin")), 200, "on the other")


if __name__ == "__main__":
    main("T10", run)
