#!/bin/bash
# Installs what is missing, builds and runs every test. The last line reads "N passed, N failed"; exit 0 only if none failed.
#
#   tests/run.sh [--asan | --tsan | --release] [--slow] [--only REGEX] [--no-install] [-j N]
#
#   --asan, --tsan   the same suite under the sanitizers, in a build folder of its own
#   --slow           instead of the suite the long versions of some of its tests, and what software compiles for minutes (some hours)
#   --only REGEX     the tests whose names match, as in: --only SlotTable
#   --no-install     trust that everything is installed
#   LORAD_TEST_DEVICE=NAME   run on the Vulkan device whose name contains NAME, instead of on lavapipe (the software device)
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repo"
preset=dev
only=
slow=false
install=true
jobs=$(nproc)
while [ $# -gt 0 ]; do
    case $1 in
        --asan) preset=asan ;;
        --tsan) preset=tsan ;;
        --release) preset=release ;;
        --slow) slow=true ;;
        --only) only=${2:?--only needs a regular expression}; shift ;;
        --no-install) install=false ;;
        -j) jobs=${2:?-j needs a number}; shift ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        *) echo "tests/run.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
    esac
    shift
done

build=build/$preset
mkdir -p "$build"
log=$build/run.log

give_up() {
    echo "tests/run.sh: error: $1"
    echo "0 passed, 1 failed"
    exit 1
}
# Runs a command with its output in the log; on failure shows the part that matters.
quietly() {
    local what=$1 began=$SECONDS
    shift
    if ! "$@" >"$log" 2>&1; then
        grep -n -m 20 -E '(error|Error|FAILED|undefined reference)' "$log" || true
        tail -n 30 "$log"
        give_up "$what failed (whole output: $log)"
    fi
    echo "tests/run.sh: $what: $((SECONDS - began)) s"
}

if $install; then deploy/install-deps.sh $($slow && echo --clients) || give_up "installing what is missing failed"; fi
PATH=$PATH:${HOME:-/root}/.cargo/bin
quietly "configure ($preset)" cmake --preset "$preset"
quietly "build ($preset)" cmake --build --preset "$preset" -j "$jobs"

if [ -z "${LORAD_TEST_DEVICE:-}" ]; then
    # Results must not depend on what graphics card a machine has: only the software driver is offered to the tests.
    icd=$(find /usr/share/vulkan/icd.d /etc/vulkan/icd.d -name 'lvp_icd*.json' 2>/dev/null | head -n 1)
    [ -n "$icd" ] || give_up "lavapipe is not installed (package mesa-vulkan-drivers)"
    export VK_DRIVER_FILES=$icd VK_ICD_FILENAMES=$icd
fi

report=$repo/$build/tests.xml
rm -f "$report"
began=$SECONDS
# The default port is taken while tests run, by the daemon of deploy/quickstart.sh or else by this: each test takes ports of its own.
python3 -c 'import signal, socket; taken = socket.create_server(("127.0.0.1", 8080)); signal.pause()' 2>/dev/null &
port_holder=$!
trap 'kill "$port_holder" 2>/dev/null || true' EXIT
$slow && only=${only:-^Slow}
ctest --preset "$preset" -j "$jobs" $($slow && echo "-C slow") ${only:+-R "$only"} --output-junit "$report" >"$log" 2>&1 || true
kill "$port_holder" 2>/dev/null || true
[ -s "$report" ] || { tail -n 30 "$log"; give_up "ctest wrote no report (whole output: $log)"; }

# Failed tests are shown in full, skipped ones by name and reason: a skip must never pass for a success unseen.
exec python3 - "$report" "$((SECONDS - began))" <<'PY'
import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

passed, failed, skipped, times = 0, [], [], []
for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
    output = case.findtext("system-out") or ""
    status = case.get("status")
    times.append((float(case.get("time") or 0), case.get("name")))
    if status in ("disabled", "notrun"):
        (skipped if case.find("skipped") is not None and "SKIPPED" in output else failed).append((case.get("name"), output))
    elif status == "fail" or case.find("failure") is not None:
        failed.append((case.get("name"), output))
    else:
        passed += 1
for name, output in failed:
    lines = output.strip().splitlines()
    print(f"\n==== FAILED {name}")
    print("\n".join(lines[:20] + ["..."] + lines[-60:] if len(lines) > 80 else lines))
for name, output in skipped:
    reason = re.findall(r"(?m)^(?!\[|Note|Running|$).*\S", output)
    print(f"skipped: {name}: {' '.join(reason[1:3]) or 'no reason given'}")
for name, _ in failed:
    print(f"failed: {name}")
for seconds, name in sorted(times, reverse=True)[:10]:
    print(f"slowest: {seconds:5.0f} s  {name}")
together = collections.defaultdict(list)
for seconds, name in times:
    together[name.split(".")[0].split("/")[-1]].append(seconds)
for name, of in sorted(together.items(), key=lambda item: -sum(item[1]))[:10]:
    print(f"slowest together: {sum(of):5.0f} s  {name} ({len(of)})")
print(f"tests/run.sh: {int(sys.argv[2])} s of tests, {len(skipped)} skipped")
print(f"{passed} passed, {len(failed)} failed")
sys.exit(0 if passed and not failed else 1)
PY
