#!/usr/bin/env python3
"""What a built lorad is made of, as CycloneDX 1.5 JSON: sbom.py PROGRAM > lorad.cdx.json

Shared libraries are looked up in dpkg (package, version, source); header-only ones, which leave no trace in the program, are named below; crates come
from Cargo.lock. `--outdated` also asks apt which of the packages have a newer version in the lists that are there, and exits with 1 if one has: security
fixes of the distribution that this build does not have."""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Compiled into the program from headers or static libraries of packages.
BUILT_IN = ("nlohmann-json3-dev", "libcli11-dev", "libtomlplusplus-dev", "libcpp-httplib-dev", "libspdlog-dev", "libfmt-dev", "libvulkan-dev")


def run(*argv):
    """What the command prints, also where it does not find all that it was asked for."""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def packages_of(paths):
    """The packages that these files belong to. dpkg knows a file by the path that its package names, before or after /usr was merged."""
    candidates = {candidate for path in paths for real in (path, str(pathlib.Path(path).resolve()))
                  for candidate in (real, real.removeprefix("/usr"), "/usr" + real.removeprefix("/usr"))}
    return {line.split(": ", 1)[0].split(",")[0].split(":")[0].strip() for line in run("dpkg-query", "-S", *sorted(candidates)).splitlines() if ": /" in line}


def package_components(names, distribution):
    form = "${db:Status-Status}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\t${Homepage}\n"
    for line in run("dpkg-query", "-W", "-f", form, *sorted(names)).splitlines():
        status, name, version, architecture, source, homepage = line.split("\t")
        if status != "installed":
            continue
        url = f"pkg:deb/{distribution}/{name}@{version}?arch={architecture}"
        component = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url, "properties": [{"name": "debian:source", "value": source}]}
        if homepage:
            component["externalReferences"] = [{"type": "website", "url": homepage}]
        yield component


def crates():
    for text in (ROOT / "model/text/Cargo.lock").read_text().split("[[package]]")[1:]:
        fields = dict(re.findall(r'(?m)^(name|version|source|checksum) = "(.*)"$', text))
        if "source" not in fields:
            continue  # our own
        url = f"pkg:cargo/{fields['name']}@{fields['version']}"
        component = {"type": "library", "bom-ref": url, "name": fields["name"], "version": fields["version"], "purl": url}
        if "checksum" in fields:
            component["hashes"] = [{"alg": "SHA-256", "content": fields["checksum"]}]
        yield component


def newer_versions(names):
    """{package: version} of those that apt would upgrade."""
    out, name = {}, None
    for line in run("apt-cache", "policy", *sorted(names)).splitlines():
        if not line.startswith(" "):
            name, installed = line.rstrip(":").split(":")[0], None
        elif line.startswith("  Installed: "):
            installed = line.split()[1]
        elif line.startswith("  Candidate: ") and installed and installed != "(none)":
            candidate = line.split()[1]
            if subprocess.run(["dpkg", "--compare-versions", candidate, "gt", installed], check=False).returncode == 0:
                out[name] = candidate
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--outdated", action="store_true")
    args = parser.parse_args()
    release = dict(line.rstrip().split("=", 1) for line in open("/etc/os-release", encoding="utf-8") if "=" in line)
    distribution = release.get("ID", "linux").strip('"')
    libraries = re.findall(r"=> (/\S+)", run("ldd", args.program))
    packages = packages_of(libraries) | set(BUILT_IN)
    if args.outdated:
        behind = newer_versions(packages)
        for name, version in behind.items():
            print(f"{name}: {version} is there")
        sys.exit(1 if behind else 0)
    components = list(package_components(packages, distribution)) + list(crates())
    content = pathlib.Path(args.program).read_bytes()
    version = run(args.program, "--version").strip() or "unknown"
    digest = hashlib.sha256(content).hexdigest()
    program = {"type": "application", "bom-ref": "lorad", "name": "lorad", "version": version, "licenses": [{"license": {"id": "Apache-2.0"}}], "hashes": [{"alg": "SHA-256", "content": digest}]}
    # The same program has the same document: no time, and a serial number by its contents.
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32])}", "version": 1,
                "metadata": {"component": program}, "components": components,
                "dependencies": [{"ref": "lorad", "dependsOn": [component["bom-ref"] for component in components]}]}
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
