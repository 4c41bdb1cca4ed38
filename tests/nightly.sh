#!/bin/bash
# What a commit does not wait for: the scorecard's long forms, the slow tests, the suite under the sanitizers, fuzzing, an hour's soak.
# Prints the time of each; the last line reads "N passed, N failed"; exit 0 only if none failed.
#
#   tests/nightly.sh [--only PART,...] [--write] [--fuzz-seconds N]
#
#   parts: suite scorecard controls slow asan tsan fuzz soak (in this order; some hours in all, most of them for the soak, fuzzing and scorecard)
#   --write           the scorecard's results go into the table of docs/RELIABILITY.md
#   --fuzz-seconds N  of each target (default 600)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
only=suite,scorecard,controls,slow,asan,tsan,fuzz,soak
write=
fuzz_seconds=600
while [ $# -gt 0 ]; do
    case $1 in
        --only) only=${2:?--only needs names}; shift ;;
        --write) write=--write ;;
        --fuzz-seconds) fuzz_seconds=${2:?--fuzz-seconds needs a number}; shift ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        *) echo "tests/nightly.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
    esac
    shift
done

logs=build/nightly
mkdir -p "$logs"
n_passed=0
n_failed=0
# part NAME COMMAND...: its output goes to a log; of a failure the end is shown.
part() {
    local name=$1 began=$SECONDS verdict=passed
    shift
    [[ ,$only, == *,$name,* ]] || return 0
    if "$@" >"$logs/$name.log" 2>&1; then
        n_passed=$((n_passed + 1))
    else
        verdict=FAILED
        n_failed=$((n_failed + 1))
        tail -n 40 "$logs/$name.log"
    fi
    echo "tests/nightly.sh: $name: $verdict, $((SECONDS - began)) s ($logs/$name.log)"
}

# The soak (T30) is a part of its own.
scorecard_tests=$(cd tests/scorecard && for file in t[0-9][0-9]_*.py; do n=$((10#${file:1:2})); [ "$n" = 30 ] || printf 'T%d,' "$n"; done)
part suite tests/run.sh --optimized
part scorecard tests/scorecard.sh --tier nightly --only "${scorecard_tests%,}" $write
part controls tests/scorecard.sh --controls $write
part slow tests/run.sh --no-install --slow
part asan tests/run.sh --no-install --asan
part tsan tests/run.sh --no-install --tsan
part fuzz tests/fuzz/run.sh "$fuzz_seconds"
compgen -G 'tests/scorecard/t30_*.py' >/dev/null && part soak tests/scorecard.sh --tier nightly --only T30 $write
echo "$n_passed passed, $n_failed failed"
[ "$n_failed" -eq 0 ]
