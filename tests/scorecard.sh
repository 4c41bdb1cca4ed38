#!/bin/bash
# The scorecard: thirty-one tests of reliability and security (docs/RELIABILITY.md), each with its figures in one line of JSON.
#
#   tests/scorecard.sh [--tier commit|nightly|release] [--only T6,T10] [--write] [--build DIR] [--lorad PATH] [--seed N]
#   tests/scorecard.sh --controls [--only T6]     plants a bug for each test in a copy of the tree; every one must be found
#
#   --write      puts the results of this run into the table of docs/RELIABILITY.md
#   --build DIR  uses what is built there (default: builds build/dev first)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case " $* " in
    *" --help "* | *" -h "*) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *" --build "* | *" --build="* | *" --controls "* | *" --self-test "*) ;;
    *)
        mkdir -p build/dev
        if ! { cmake --preset dev && cmake --build --preset dev -j "$(nproc)"; } >build/dev/scorecard.log 2>&1; then
            tail -n 30 build/dev/scorecard.log
            exit 2
        fi ;;
esac
# What drivers compile stays with what was built.
export MESA_SHADER_CACHE_DIR=${MESA_SHADER_CACHE_DIR:-$PWD/build/shaders}
mkdir -p "$MESA_SHADER_CACHE_DIR"
exec python3 tests/scorecard/runner.py "$@"
