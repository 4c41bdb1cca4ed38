#!/usr/bin/env python3
"""Installs the Debian package into a root of its own, or into this machine, and runs what systemd would run.

    package_test.py PACKAGE.deb                unpacked: files, control data, the unit's command line on the unpacked files (no root needed)
    package_test.py PACKAGE.deb --install      apt-get install on this machine (a container that may be thrown away), lorad check, the service's
                                               command line as its user, upgrade, remove, purge"""

import argparse
import os
import pathlib
import pwd
import re
import shlex
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scorecard"))

from frame import check, check_equal, free_port, use_software_device  # noqa: E402
from service import Manager, ask, status_of  # noqa: E402


def run(*argv, ok=True, seconds=600, **options):
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL, **options)
    check(not ok or done.returncode == 0, f"{' '.join(map(str, argv))}: exit {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
    return done


FILES = ["usr/bin/lorad", "etc/lorad/lorad.toml", "usr/lib/systemd/system/lorad.service", "usr/lib/systemd/system/lorad.socket", "usr/lib/sysusers.d/lorad.conf",
         "usr/lib/tmpfiles.d/lorad.conf", "usr/share/man/man1/lorad.1", "usr/share/man/man5/lorad.toml.5", "usr/share/bash-completion/completions/lorad",
         "usr/share/zsh/vendor-completions/_lorad", "usr/share/fish/vendor_completions.d/lorad.fish", "usr/share/lorad/demo-model/base/config.json",
         "usr/share/doc/lorad/lorad.cdx.json", "usr/share/doc/lorad/OPERATIONS.md", "usr/share/doc/lorad/examples/haproxy/haproxy.cfg",
         "usr/share/doc/lorad/examples/helm/lorad/Chart.yaml"]


def look_inside(package, folder):
    run("dpkg-deb", "-x", package, folder)
    run("dpkg-deb", "-e", package, folder / "DEBIAN")
    control = (folder / "DEBIAN/control").read_text()
    fields = dict(re.findall(r"(?m)^([A-Z][\w-]*): (.*)$", control))
    for library in ("libc6", "libvulkan1", "libssl3", "libstdc++6"):
        check(library in fields["Depends"], f"does not depend on {library}: {fields['Depends']}")
    check_equal((folder / "DEBIAN/conffiles").read_text().split(), ["/etc/lorad/lorad.toml"], "conffiles")
    missing = [file for file in FILES if not (folder / file).exists()]
    check(not missing, f"the package has no {missing}")
    strays = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).parts[0] not in ("usr", "etc", "DEBIAN")]
    check(not strays, f"files where none belong: {strays}")
    for script in ("postinst", "prerm", "postrm"):
        text = (folder / "DEBIAN" / script).read_text()
        check(not re.search(r"systemctl.*(enable|\bstart)\b", text), f"{script} starts or enables something")
        run("sh", "-n", folder / "DEBIAN" / script)
    wrong = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_mode & 0o022]
    check(not wrong, f"others may write {wrong}")
    print(f"ok   contents: {fields['Version']}, {int(fields['Installed-Size']) // 1024} MiB, {fields['Depends']}")


def unit_command(text, root=""):
    """What ExecStart= runs and with which environment."""
    command = re.search(r"(?m)^ExecStart=(.*)$", text).group(1)
    environment = dict(word.split("=", 1) for line in re.findall(r"(?m)^Environment=(.*)$", text) for word in shlex.split(line))
    if root:
        command = command.replace("/usr/bin", f"{root}/usr/bin").replace("/etc/lorad", f"{root}/etc/lorad")
    return shlex.split(command), environment


def serves(command, environment, folder, user=None):
    """The unit's own command line, with a service manager that listens; the demo model answers, SIGTERM ends it well."""
    manager = Manager(folder, 10)
    os.chmod(manager.path, 0o777)
    os.chmod(folder, 0o755)
    options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    # A daemon of deploy/quickstart.sh may have the port of the package's settings.
    port = free_port()
    process = subprocess.Popen(command, env={**environment, **manager.env, "LORAD_PORT": str(port), "PATH": "/usr/bin:/bin", **{k: v for k, v in os.environ.items() if k.startswith("VK_")}},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    try:
        try:
            manager.wait("READY", 120)
        except AssertionError:
            process.kill()
            raise AssertionError(f"never ready: {process.communicate()[0][-1500:]}") from None
        check("EXTEND_TIMEOUT_USEC" in manager.messages[0][1], "the start asked for no time")
        manager.wait("WATCHDOG", 10)
        check_equal(status_of("127.0.0.1", port, "/health/ready"), 200, "readiness")
        answer = ask("127.0.0.1", port, {"model": "pirate", "prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": True, "return_token_ids": True})
        check_equal(answer.kind, "done", f"a request to an adapter of the demo model: {answer}")
        process.terminate()
        check_equal(process.wait(60), 0, "exit status after SIGTERM")
        check(manager.times("STOPPING"), "the manager was not told of the end")
    finally:
        process.kill()


def installed(package, folder):
    run("apt-get", "install", "-y", "--no-install-recommends", package.resolve(), env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"))
    user = pwd.getpwnam("lorad")
    stat = os.stat("/etc/lorad/lorad.toml")
    check_equal((stat.st_uid, stat.st_gid, stat.st_mode & 0o777), (0, user.pw_gid, 0o640), "owner and mode of lorad.toml")
    check_equal(os.stat("/var/lib/lorad").st_mode & 0o777, 0o700, "mode of /var/lib/lorad")
    enabled = list(pathlib.Path("/etc/systemd/system").rglob("lorad*"))
    check(not enabled, f"enabled without being asked: {enabled}")
    print(run("lorad", "check", "--config", "/etc/lorad/lorad.toml").stdout.rstrip())
    verified = run("systemd-analyze", "verify", "/usr/lib/systemd/system/lorad.service", "/usr/lib/systemd/system/lorad.socket", ok=False)
    said = [line for line in (verified.stdout + verified.stderr).splitlines() if "lorad" in line]
    check(not said, f"systemd-analyze verify: {said}")
    run("man", "-w", "lorad", "lorad.toml")
    command, environment = unit_command(pathlib.Path("/usr/lib/systemd/system/lorad.service").read_text())
    environment.update(STATE_DIRECTORY="/var/lib/lorad", CACHE_DIRECTORY="/var/cache/lorad")
    serves(command, environment, folder, user)
    check(list(pathlib.Path("/var/cache/lorad").glob("pipelines-*.bin")), "no pipeline cache was kept")
    print("ok   installed: the unit's command line serves the demo model as the user lorad")
    with open("/etc/lorad/lorad.toml", "a", encoding="utf-8") as file:
        file.write("# changed here\n")
    run("apt-get", "install", "-y", "--reinstall", package.resolve(), env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"))
    check("# changed here" in pathlib.Path("/etc/lorad/lorad.toml").read_text(), "an upgrade lost a changed lorad.toml")
    pathlib.Path("/var/lib/lorad/kept").write_text("x")
    run("apt-get", "remove", "-y", "lorad")
    check(pathlib.Path("/etc/lorad/lorad.toml").exists() and not pathlib.Path("/usr/bin/lorad").exists(), "after remove")
    run("apt-get", "purge", "-y", "lorad")
    check(not pathlib.Path("/etc/lorad/lorad.toml").exists() and not pathlib.Path("/var/cache/lorad").exists(), "after purge")
    check(pathlib.Path("/var/lib/lorad/kept").exists(), "purging deleted adapters")
    os.unlink("/var/lib/lorad/kept")
    print("ok   upgrade keeps lorad.toml, remove keeps it too, purge leaves the adapters")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--install", action="store_true")
    args = parser.parse_args()
    use_software_device()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.chmod(folder, 0o755)
        root = folder / "root"
        look_inside(args.package, root)
        if args.install:
            installed(args.package, folder)
        else:
            config = root / "etc/lorad/lorad.toml"
            config.write_text(config.read_text().replace("/usr/share", f"{root}/usr/share"))
            print(run(root / "usr/bin/lorad", "check", "--config", config).stdout.rstrip())
            command, environment = unit_command((root / "usr/lib/systemd/system/lorad.service").read_text(), root)
            environment = {key: str(folder) if key in ("HOME", "XDG_CACHE_HOME") else value for key, value in environment.items()}
            serves(command, {**environment, "STATE_DIRECTORY": str(folder / "state"), "CACHE_DIRECTORY": str(folder)}, folder)
            print("ok   unpacked: the unit's command line serves the demo model")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
