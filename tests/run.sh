#!/bin/bash
# Installs what is missing, builds and runs every test. The last line reads "N passed, N failed"; exit 0 only if none failed.
#
#   tests/run.sh [--asan | --tsan | --release] [--slow] [--optimized] [--only REGEX] [--no-install] [-j N]
#
#   --asan, --tsan   the same suite under the sanitizers, in a build folder of its own
#   --slow           instead of the suite the long versions of some of its tests, and what software compiles for minutes (some hours)
#   --optimized      with the optimizer of lavapipe's compiler also where most of a test is compiling
#   --only REGEX     the tests whose names match, as in: --only SlotTable
#   --no-install     trust that everything is installed
#   LORAD_TEST_DEVICE=NAME   run on the Vulkan device whose name contains NAME, instead of on lavapipe (the software device)
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repo"
preset=dev
only=
slow=false
optimized=
install=true
jobs=$(nproc)
test_jobs=$((jobs + 1))  # many tests wait for a daemon
while [ $# -gt 0 ]; do
    case $1 in
        --asan) preset=asan test_jobs=$jobs ;;
        --tsan) preset=tsan test_jobs=$jobs ;;
        --release) preset=release ;;
        --slow) slow=true ;;
        --optimized) optimized=--optimized ;;
        --only) only=${2:?--only needs a regular expression}; shift ;;
        --no-install) install=false ;;
        -j) jobs=${2:?-j needs a number} test_jobs=$2; shift ;;
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

# What drivers compile stays with what was built.
export MESA_SHADER_CACHE_DIR=${MESA_SHADER_CACHE_DIR:-$repo/build/shaders}
mkdir -p "$MESA_SHADER_CACHE_DIR" || give_up "$MESA_SHADER_CACHE_DIR cannot be made"

if [ -z "${LORAD_TEST_DEVICE:-}" ]; then
    # Results must not depend on what graphics card a machine has: only the software driver is offered to the tests.
    icd=$(find /usr/share/vulkan/icd.d /etc/vulkan/icd.d -name 'lvp_icd*.json' 2>/dev/null | head -n 1)
    [ -n "$icd" ] || give_up "lavapipe is not installed (package mesa-vulkan-drivers)"
    export VK_DRIVER_FILES=$icd VK_ICD_FILENAMES=$icd
fi

# The default port is taken while tests run, by the daemon of deploy/quickstart.sh or else by this: each test takes ports of its own.
python3 -c 'import signal, socket; taken = socket.create_server(("127.0.0.1", 8080)); signal.pause()' 2>/dev/null &
port_holder=$!
trap 'kill "$port_holder" 2>/dev/null || true' EXIT
$slow && only=${only:-^Slow}
# As ctest would, but with a process for each suite instead of each case; its last lines are this script's.
status=0
python3 tests/suite.py --preset "$preset" -j "$test_jobs" $($slow && echo "--config slow") $optimized ${only:+--only "$only"} || status=$?
[ "$status" -le 1 ] || give_up "tests/suite.py ended with status $status"
exit "$status"
