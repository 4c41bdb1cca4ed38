#!/bin/bash
# Builds the fuzz targets (needs clang) and runs them one after the other, each from its corpus on.
#
#   tests/fuzz/run.sh [SECONDS [NAME ...]]     60 s for each; all of tests/fuzz/*_fuzz.cpp
#
# Inputs that reach new code are kept in build/fuzz/corpus/NAME for the next run; what makes a target fail goes to
# build/fuzz/findings/NAME. The last line reads "N targets, N findings"; exit 0 only without any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for file in tests/fuzz/*_fuzz.cpp; do names+=("$(basename "$file" _fuzz.cpp)"); done
fi
mkdir -p build/fuzz
if ! { cmake --preset fuzz && cmake --build --preset fuzz; } >build/fuzz/build.log 2>&1; then
    tail -n 30 build/fuzz/build.log
    exit 2
fi

n_findings=0
for name in "${names[@]}"; do
    corpus=build/fuzz/corpus/$name findings=build/fuzz/findings/$name
    rm -rf "$findings"
    mkdir -p "$corpus" "$findings"
    seeds=()
    [ -d "tests/fuzz/corpus/$name" ] && seeds+=("tests/fuzz/corpus/$name")
    [ "$name" = safetensors ] && seeds+=(tests/goldens/broken-adapters)
    [ "$name" = template ] && seeds+=(tests/goldens/chat-templates)
    if [ "$name" = schema ]; then
        mkdir -p build/fuzz/seeds/schema && seeds+=(build/fuzz/seeds/schema)
        python3 -c 'import json, sys
for i, case in enumerate(json.load(open("tests/goldens/tool-schemas/cases.json"))):
    json.dump(case["schema"], open(f"build/fuzz/seeds/schema/{i}", "w"))'
    fi
    # Bounds on what one input may take are part of the claim.
    build/fuzz/tests/"${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=20000 -print_final_stats=1 \
        -artifact_prefix="$findings/" "$corpus" "${seeds[@]}" >"$findings/log" 2>&1 || true
    # Time is the clock's: on a machine that was held up an input may look slow that is not. What fails fails again.
    find "$findings" -type f ! -name log | while read -r input; do
        build/fuzz/tests/"${name}_fuzz" -timeout=10 -rss_limit_mb=2048 "$input" >"$findings/again.log" 2>&1 && rm "$input"
    done || true
    found=$(find "$findings" -type f ! -name '*.log' ! -name log | wc -l)
    n_findings=$((n_findings + found))
    echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$findings/log") inputs, $(find "$corpus" -type f | wc -l) kept, $found findings"
    [ "$found" -eq 0 ] || grep -m 5 -E 'ERROR|SUMMARY|CHECK' "$findings/log" || true
    grep -q '^stat::' "$findings/log" || { tail -n 5 "$findings/log"; n_findings=$((n_findings + 1)); }
done
echo "${#names[@]} targets, $n_findings findings"
[ "$n_findings" -eq 0 ]
