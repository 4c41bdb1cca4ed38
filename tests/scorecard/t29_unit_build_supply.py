#!/usr/bin/env python3
"""T29: the unit is hardened, the program built hardened, it listens where it says and talks to nobody, and what it is made of is known."""
# beside others: yes

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys

from frame import ROOT, check, check_equal, main  # first: it finds the others

from service import Crowd, Manager

DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "tests/deploy"))


def sockets_of(pid):
    """(family, local, remote, state) of each of the process's internet sockets, and Unix sockets that listen."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
            if found:
                inodes.add(found.group(1))
    out = []
    for family in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        path = pathlib.Path(f"/proc/{pid}/net/{family}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            words = line.split()
            if words[9] in inodes:
                out.append((family, words[1], words[2], words[3]))
    for line in pathlib.Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if words[6] in inodes and words[5] == "01" and int(words[3], 16) & 0x10000:
            out.append(("unix", words[7] if len(words) > 7 else "", "", "listen"))
    return out


def listeners(card):
    """Under load, and through an upload: the one port, nothing else, and no connection that it opened itself."""
    with card.part("it listens where it says, and opens no connection"):
        manager = Manager(card.folder)
        trace = pathlib.Path(card.folder, "trace")
        with card.server("--state-dir", f"{card.folder}/state", adapters=("pirate",), env=manager.env) as server:
            with tracing(server.process.pid, trace) as traced:
                crowd = Crowd(server.host, server.port, n_clients=3, adapters=("base", "pirate"), seed=card.seed)
                found = [sockets_of(server.process.pid) for _ in range(20)]
                crowd.stop()
            port = f":{server.port:04X}"
            for sockets in found:
                listening = [s for s in sockets if s[3] in ("0A", "listen")]
                check_equal([(s[0], s[1][-5:]) for s in listening], [("tcp", port)], "what it listens on")
                check(listening[0][1].startswith("0100007F"), f"not bound to this host only: {listening}")
                strange = [s for s in sockets if s[0] != "unix" and s[3] != "0A" and not s[1].endswith(port)]
                check(not strange, f"sockets that are no client's: {strange}")
            if traced:
                calls = [line for line in trace.read_text().splitlines() if re.search(r"\bconnect\(|\bsendto\(.*sa_family=AF_INET", line)]
                check(not calls, f"connections of its own: {calls[:3]}")
            else:
                card.note("strace is not installed: outgoing calls were looked for in /proc only")
            card.trials += len(found)


@contextlib.contextmanager
def tracing(pid, file):
    try:
        process = subprocess.Popen(["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg", "-o", str(file), "-p", str(pid)], stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        yield False
        return
    try:
        yield True
    finally:
        process.terminate()
        process.wait(20)


def hardened(card):
    checker = [sys.executable, str(DEPLOY / "check_hardening.py")]
    release = card.build.parent / "release"
    with card.part("what is shipped is built hardened, and the check can tell"):
        done = subprocess.run([*checker, sys.executable if card.build.name == "release" else card.lorad], capture_output=True, text=True, check=False)
        check(done.returncode == 1 and "LACKS" in done.stdout, f"a program without hardening passed: {done.stdout}")
    program = release / "lorad"
    if not program.exists():
        card.short_of("no build/release: cmake --preset release && cmake --build --preset release --target lorad")
        return
    with card.part("RELRO, PIE, CET, fortified, stack protector, assertions on all objects"):
        done = subprocess.run([*checker, str(program), "--objects", str(release)], capture_output=True, text=True, check=False)
        check_equal(done.returncode, 0, f"{done.stdout}{done.stderr}")
        found = re.search(r"(\d+) objects with -D", done.stdout)
        card.figure("hardened objects", int(found.group(1)))


def supply(card):
    with card.part("a list of what it is made of; no package behind its release's fixes"):
        done = subprocess.run([sys.executable, str(DEPLOY / "sbom.py"), card.lorad], capture_output=True, text=True, check=False)
        document = json.loads(done.stdout)
        kinds = {c["purl"].split(":")[1].split("/")[0] for c in document["components"]}
        check_equal(kinds, {"deb", "cargo"}, "kinds of parts")
        check(all(c["version"] for c in document["components"]), "a part without a version")
        names = {c["name"] for c in document["components"]}
        check({"libvulkan1", "libssl3", "nlohmann-json3-dev", "tokenizers"} <= names or {"libvulkan1", "libssl3t64", "tokenizers"} <= names, f"parts are missing: {sorted(names)}")
        card.figure("parts", len(names))
        done = subprocess.run([sys.executable, str(DEPLOY / "sbom.py"), card.lorad, "--outdated"], capture_output=True, text=True, check=False)
        if card.quick:
            # What this machine has installed is not this tree's doing.
            card.figure("packages behind", len(done.stdout.splitlines()))
        else:
            check_equal(done.returncode, 0, f"newer versions: {done.stdout}")


def run(card):
    import deploy_test
    with card.part("systemd-analyze security, the unit and each drop-in"):
        try:
            deploy_test.check_exposure(card.lorad)
            card.figure("exposure", max_exposure())
        except deploy_test.Missing as missing:
            card.short_of(str(missing))
    with card.part("units, users and folders are well formed"):
        with contextlib.suppress(deploy_test.Missing):
            deploy_test.check_units(card.lorad)
    listeners(card)
    hardened(card)
    supply(card)
    packages = sorted(card.build.parent.glob("*/package/lorad_*.deb"))
    if packages:
        card.command("the package: contents, lorad check, the unit's command line", [sys.executable, ROOT / "tests/deploy/package_test.py", packages[-1]])
    elif not card.quick:
        card.short_of("no package: cmake --build --preset release --target package")
    card.release_only("the whole suite inside the unit under systemd on AMD and NVIDIA; an advisory database beside apt's")


def max_exposure():
    import tempfile
    import deploy_test
    with tempfile.TemporaryDirectory() as folder:
        return deploy_test.exposure(folder)


if __name__ == "__main__":
    main("T29", run)
