#!/usr/bin/env python3
"""Installs the Debian package on a Debian that systemd has booted, in a container of its own, and lives with the service for a while.

    machine_test.py PACKAGE.deb --suite bookworm|trixie [--root DIR] [--backports]

Needs root, debootstrap, systemd-container and curl. DIR is the bare Debian: made if it is not there, from the mirror of this machine's own apt
sources (which must be Debian's), and kept for the next time; what the test changes goes into an overlay beside it. The machine has no network but
its own loopback: all packages are fetched before. --backports: dependencies, so the Vulkan driver too, from the suite's backports."""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "tests/e2e"))

from deploy_test import EXPOSURE_MAX, exposure_in  # noqa: E402
from harness import check, check_equal  # noqa: E402
from package_test import run  # noqa: E402

ELSEWHERE = "192.0.2.1"  # the machine has it, too, but filters of addresses do not take it for localhost
CLEAN = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_COLORS=0"]
APT = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-y", "--no-install-recommends"]
# Where systemd is not this machine's own init, no one else makes a unit for the container.
NSPAWN = ["systemd-nspawn", "--quiet"] + ([] if os.path.isdir("/run/systemd/system") else ["--register=no", "--keep-unit"])
BEGAN = time.monotonic()


def say(text):
    print(f"{time.monotonic() - BEGAN:4.0f} s  {text}", flush=True)


def until(what, seconds, found):
    end = time.monotonic() + seconds
    while not (value := found()):
        check(time.monotonic() < end, f"not within {seconds} s: {what}")
        time.sleep(0.2)
    return value


# --- the bare Debian --------------------------------------------------------------------------------------------------

def make_root(root, suite, backports):
    """A Debian with systemd, and this machine's mirror and way to it."""
    lines = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages").stdout.splitlines()
    own = re.search(r"(?m)^VERSION_CODENAME=(\w+)", pathlib.Path("/etc/os-release").read_text()).group(1)
    sources = [line.split() for line in lines if re.fullmatch(rf"\S+ {own}(-updates|-security)? main", line)]
    mirror = next((uri for uri, release, _ in sources if release == own), None)
    check(mirror, f"no apt source for {own} main on this machine")
    if not (root / "usr/bin/apt-get").exists() or (root / "debootstrap").exists():
        say(f"debootstrap {suite} (minutes)")
        run("debootstrap", "--variant=minbase", "--include=systemd,systemd-sysv,dbus,ca-certificates", suite, root, mirror, seconds=3600)
    sources = [f"deb {uri} {release.replace(own, suite)} main\n" for uri, release, _ in sources]
    sources += [f"deb {mirror} {suite}-backports main\n"] if backports else []
    (root / "etc/apt/sources.list").write_text("".join(sources))
    acquire = re.findall(r"(?m)^Acquire::(?:https?|Check-|Retries|ForceIPv).*\n", run("apt-config", "dump", "Acquire").stdout)
    (root / "etc/apt/apt.conf.d/90machine_test").write_text("".join(acquire))


def fetch(root, package, options):
    """Everything that apt needs later is in its cache, so that the machine itself needs no network."""
    inside = [*NSPAWN, "--pipe", "-D", root, f"--bind-ro={package}:/opt/{package.name}", *CLEAN, *APT]
    run(*inside, "update", seconds=900)
    run(*inside, *options, "--download-only", "install", f"/opt/{package.name}", seconds=900)


# --- the machine ------------------------------------------------------------------------------------------------------

class Machine:
    def __init__(self, root, folder, package, options):
        """`folder` has what the machine writes; `options` are apt's."""
        self.package, self.options, self.nspawn, self.leader = package, options, None, None
        self.console = open(folder / "console.log", "w", encoding="utf-8")
        for name in ("upper", "work", "merged"):
            (folder / name).mkdir()
        self.root = folder / "merged"
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={root},upperdir={folder}/upper,workdir={folder}/work", self.root)

    def boot(self):
        # Filters of addresses and devices are BPF programs, which a container may not load by itself; without them systemd leaves them out silently.
        command = [*NSPAWN, "--private-network", "--capability=CAP_BPF,CAP_PERFMON", "--system-call-filter=bpf", "-D", self.root,
                   f"--bind-ro={self.package}:/opt/{self.package.name}", "-b"]
        self.nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.console, stderr=self.console,
                                       env=dict(os.environ, SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="1"))
        children = pathlib.Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children")
        self.leader = until("systemd-nspawn started an init", 30, lambda: self.nspawn.poll() is None and children.read_text().split())[0]
        run("nsenter", "-t", self.leader, "-n", "ip", "address", "add", ELSEWHERE, "dev", "lo")
        until("the machine is up", 120, lambda: self.run("systemctl", "is-system-running", ok=False).stdout.strip() in ("running", "degraded"))

    def off(self):
        self.run("systemctl", "poweroff", ok=False)
        self.nspawn.wait(90)

    def close(self):
        try:
            if self.nspawn and self.nspawn.poll() is None:
                if self.leader:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self.off()
                for pid in (self.leader, self.nspawn.pid):
                    if pid and self.nspawn.poll() is None:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
                self.nspawn.wait(30)
        finally:
            run("umount", self.root)

    def run(self, *argv, **options):
        return run("nsenter", "-t", self.leader, "-a", *CLEAN, *argv, **options)

    def install(self, *more):
        self.run(*APT, *self.options, "install", *more, f"/opt/{self.package.name}", seconds=900)

    def shell(self, text, **options):
        return self.run("sh", "-c", text, **options).stdout

    def show(self, name, unit="lorad.service"):
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def pid(self):
        return self.show("MainPID")

    def journal(self):
        return self.run("journalctl", "--no-pager", "-o", "short-monotonic", "-u", "lorad.service", "-u", "lorad.socket", ok=False).stdout

    def http(self, path, *options, status=200):
        """This machine's curl in that machine's network. Until the model is loaded a request is answered 503 with Retry-After, and asks again."""
        end = time.monotonic() + 60
        while True:
            done = run("nsenter", "-t", self.leader, "-n", "curl", "-sS", "-m", "120", "-w", "\n%{http_code} %header{retry-after}", *options,
                       f"http://127.0.0.1:8080{path}")
            text, last = done.stdout.rsplit("\n", 1)
            if not re.fullmatch(r"503 \d+", last) or time.monotonic() > end:
                check_equal(last.split()[0], str(status), f"{path}: {text[-500:]}")
                return text
            time.sleep(0.5)

    def answer(self, model):
        body = {"model": model, "prompt": "The weather today is", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        return json.loads(self.http("/v1/completions", "-H", "Content-Type: application/json", "-d", json.dumps(body)))["choices"][0]["text"]

    def metric(self, name):
        return float(re.search(rf"(?m)^{name} (\S+)$", self.http("/metrics")).group(1))


# --- what is checked --------------------------------------------------------------------------------------------------

def hardened(machine):
    pid = machine.pid()
    status = dict(line.split(":\t", 1) for line in machine.shell(f"cat /proc/{pid}/status").splitlines() if ":\t" in line)
    init = dict(line.split(":\t", 1) for line in machine.shell("cat /proc/1/status").splitlines() if ":\t" in line)
    user = machine.shell("id -u lorad").strip()
    check_equal((set(status["Uid"].split()), user != "0"), ({user}, True), "users of the main process")
    check_equal((status["NoNewPrivs"].strip(), status["Seccomp"].strip()), ("1", "2"), "NoNewPrivs, Seccomp")
    # The container has filters of its own.
    check(int(status["Seccomp_filters"]) > int(init["Seccomp_filters"]), f"no filters but the container's: {status['Seccomp_filters']}")
    check(all(int(status[key], 16) == 0 for key in ("CapPrm", "CapEff", "CapBnd", "CapAmb")), f"capabilities: {status}")
    for place in ("/etc", "/usr", "/opt"):
        check("Read-only" in machine.run("nsenter", "-t", pid, "-m", "touch", f"{place}/x", ok=False).stderr, f"{place} is not read-only for it")
    said = machine.run("systemd-analyze", "security", "lorad.service", "--no-pager").stdout
    exposure = exposure_in(said)
    check(exposure <= EXPOSURE_MAX, f"exposure {exposure}")
    said = [line for line in machine.journal().splitlines() if re.search(r"systemd\[1\]|\(lorad\)", line)]
    wrong = [line for line in said if re.search("not support|gnor|Failed|different", line)]
    check(not wrong, f"systemd could not do all that the unit says: {wrong}")
    filters = int(status["Seccomp_filters"]) - int(init["Seccomp_filters"])
    say(f"ok  hardened: not root, no new privileges, {filters} filters of its own, no capabilities, exposure {exposure}")


def confined(machine):
    """A shell in the service's control group reaches this host and the usual devices; one outside of it the others, too."""
    join = "echo $$ > /sys/fs/cgroup/system.slice/lorad.service/cgroup.procs && "
    for target, said_outside, open_inside in (("/dev/tcp/127.0.0.1/8080", "", True), (f"/dev/tcp/{ELSEWHERE}/8080", "refused", False),
                                              ("/dev/null", "", True), ("/dev/net/tun", "", False)):
        outside, inside = (machine.run("timeout", "5", "bash", "-c", f"{before}exec 3<>{target}", ok=False) for before in ("", join))
        check(said_outside in outside.stderr and (said_outside or outside.returncode == 0), f"{target} outside of the service: {outside}")
        closed = inside.returncode != 0 and "refused" not in inside.stderr
        check(inside.returncode == 0 if open_inside else closed, f"{target} as the service: {inside}")
    say("ok  confined: no address but this host's, no device but the usual")


def serves(machine, expected):
    check_equal({name: machine.answer(name) for name in expected}, expected, "answers")


def replaced(machine, before, seconds):
    """Another main process is ready; how long that took."""
    began = time.monotonic()
    until("another main process is ready", seconds, lambda: machine.pid() not in ("0", before) and machine.show("ActiveState") == "active")
    return time.monotonic() - began


def supervised(machine, expected):
    before = machine.pid()
    machine.shell(f"kill -KILL {before}")
    took = replaced(machine, before, 60)
    check_equal(machine.show("NRestarts"), "1", "restarts")
    serves(machine, expected)
    say(f"ok  kill -9: ready again after {took:.1f} s, with its adapters")
    before = machine.pid()
    machine.shell(f"kill -STOP {before}")  # a process that does not even take a signal
    took = replaced(machine, before, 120)
    serves(machine, expected)
    say(f"ok  kill -STOP: ready again after {took:.1f} s")


def reloads(machine, expected):
    before, config = machine.pid(), "/etc/lorad/lorad.toml"
    machine.shell(f"cp -p {config} /root/ && sed -i '1i log_level = \"debug\"' {config}")
    taken = machine.metric("lorad_config_last_reload_success_timestamp_seconds")
    time.sleep(1.1)
    machine.run("systemctl", "reload", "lorad")
    until("the reload was taken", 20, lambda: machine.metric("lorad_config_last_reload_success_timestamp_seconds") > taken)
    machine.shell(f"sed -i '1i no_such_setting = 1' {config}")
    machine.run("systemctl", "reload", "lorad")
    until("a wrong configuration was told of", 20, lambda: machine.metric("lorad_config_last_reload_successful") == 0)
    machine.shell(f"cp -p /root/lorad.toml {config}")
    machine.run("systemctl", "reload", "lorad")
    until("the reload was taken", 20, lambda: machine.metric("lorad_config_last_reload_successful") == 1)
    check_equal((machine.pid(), machine.show("ActiveState")), (before, "active"), "process after reloads")
    serves(machine, expected)
    say("ok  reload: taken, refused with the old one kept, taken again, by one process")


def stops(machine):
    machine.run("systemctl", "stop", "lorad.service")
    names = ("ActiveState", "Result", "ExecMainCode", "ExecMainStatus")
    check_equal([machine.show(name) for name in names], ["inactive", "success", "1", "0"], " ".join(names))


def socket_activation(machine, expected):
    machine.run("systemctl", "start", "lorad.socket")
    check_equal(machine.show("ActiveState"), "inactive", "lorad.service before the first request")
    serves(machine, expected)
    check_equal(machine.show("ActiveState"), "active", "lorad.service after a request")
    stops(machine)
    check_equal(machine.show("ActiveState", "lorad.socket"), "active", "lorad.socket after the service was stopped")
    serves(machine, expected)
    say("ok  socket: requests start the service, twice")


def drop_ins(machine, expected):
    """Those that this machine can take: no GPU, no clients elsewhere. lorad.socket listens."""
    folder, examples = "/etc/systemd/system/lorad.service.d", "/usr/share/doc/lorad/examples/systemd"
    for name in ("lavapipe.conf", "clients.conf", "socket-only.conf"):
        machine.shell(f"mkdir {folder} && cp {examples}/{name} {folder}/ && systemctl daemon-reload && systemctl restart lorad.service")
        serves(machine, expected)
        machine.shell(f"rm -r {folder} && systemctl daemon-reload")
    machine.run("systemctl", "restart", "lorad.service")
    say("ok  drop-ins: lavapipe, clients, socket-only")


def purged(machine):
    pid, store = machine.pid(), machine.shell("find /var/lib/lorad -type f | sort")
    check("registry.json" in store, f"nothing is stored: {store}")
    machine.run(*APT, "purge", "lorad")
    check(machine.run("test", "-d", f"/proc/{pid}", ok=False).returncode == 1, "the service runs on after its program was removed")
    check_equal(machine.show("LoadState"), "not-found", "lorad.service")
    left = machine.shell("ls -d /etc/lorad /var/cache/lorad /usr/bin/lorad /usr/share/lorad; find /etc/systemd /run -name '*lorad*'", ok=False)
    check(not left, f"purging left {left}")
    check_equal(machine.shell("find /var/lib/lorad -type f | sort"), store, "adapters after purge")
    machine.run("id", "lorad")
    failed = machine.run("systemctl", "--failed", "--no-legend", "--plain").stdout
    check("lorad" not in failed, f"failed: {failed}")
    say("ok  purge: stopped and gone, adapters and the user whose they are left")


def live(machine):
    machine.boot()
    machine.install()
    say("installed: " + re.sub(r"\s+", " ", machine.shell(". /etc/os-release; echo $PRETTY_NAME; dpkg-query -W systemd mesa-vulkan-drivers")))
    check_equal((machine.show("ActiveState"), machine.show("UnitFileState")), ("inactive", "disabled"), "after install")
    machine.run("systemctl", "start", "lorad", seconds=300)
    check_equal(machine.run("systemctl", "is-active", "lorad").stdout.strip(), "active", "is-active")
    expected = {name: machine.answer(name) for name in ("demo", "pirate", "shout")}
    check_equal(len(set(expected.values())), 3, f"answers that differ: {expected}")
    files = REPOSITORY / "deploy/demo-model/adapters/shout"
    machine.http("/v1/adapters", "-Fname=mine", f"-Ffile=@{files}/adapter_config.json", f"-Ffile=@{files}/adapter_model.safetensors", status=201)
    expected["mine"] = expected["shout"]
    serves(machine, expected)
    say("ok  started: the base, adapters of the configuration and an uploaded one answer")
    hardened(machine)
    confined(machine)
    machine.run("systemctl", "restart", "lorad", seconds=300)
    serves(machine, expected)
    say("ok  restart: the uploaded adapter is there")
    supervised(machine, expected)
    reloads(machine, expected)
    machine.run("systemctl", "enable", "lorad.service")  # what nothing wants is forgotten when it stops, and with it how it ended
    stops(machine)
    say("ok  stop: exit 0, Result=success")
    socket_activation(machine, expected)
    drop_ins(machine, expected)
    machine.run("systemctl", "reset-failed", "lorad.service")  # StartLimitBurst= counts what this test starts, too
    before = machine.pid()
    machine.install("--reinstall")
    replaced(machine, before, 60)
    serves(machine, expected)
    say("ok  upgrade: the service runs the new program")
    machine.run("systemctl", "enable", "lorad.socket")
    machine.off()
    machine.boot()
    until("the service is up after a boot", 120, lambda: machine.show("ActiveState") == "active")
    serves(machine, expected)
    say("ok  enabled: up again after the machine was off")
    purged(machine)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--suite", choices=("bookworm", "trixie"), required=True)
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("--backports", action="store_true")
    args = parser.parse_args()
    missing = [tool for tool in ("debootstrap", "systemd-nspawn", "nsenter", "curl", "ip") if not shutil.which(tool)]
    check(not missing and os.geteuid() == 0, f"needs root and {missing or 'nothing else'}")
    package, options = args.package.resolve(strict=True), ["-t", f"{args.suite}-backports"] if args.backports else []
    beside = args.root.resolve().parent if args.root else None
    with tempfile.TemporaryDirectory(prefix="machine-", dir=beside) as name, open("/run/lock/machine_test", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two containers in one control group disturb each other
        folder = pathlib.Path(name)
        root = args.root.resolve() if args.root else folder / "root"
        make_root(root, args.suite, args.backports)
        fetch(root, package, options)
        machine = Machine(root, folder, package, options)
        try:
            live(machine)
        except BaseException:
            running = machine.nspawn and machine.nspawn.poll() is None
            print((machine.journal() if running else (folder / "console.log").read_text())[-6000:], file=sys.stderr)
            raise
        finally:
            machine.close()
    say(f"all of it, on {args.suite}")


if __name__ == "__main__":
    main()
