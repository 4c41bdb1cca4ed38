#!/bin/bash
# Whether what locks guard is only used with them: clang's -Wthread-safety over the files of adapters/ and server/ that hold locks or what they guard (proto/base/mutex.h).
#
#   tests/thread_safety.sh [--self-test]
#
#   --self-test   plants a use without the lock in each way that must be found, and fails if one goes unseen
#
# Exit status 77: there is no clang++ (deploy/install-deps.sh installs it). The last line reads "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
self_test=false
case ${1:-} in
    '') ;;
    --self-test) self_test=true ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
esac
compiler=$(compgen -c clang++ | grep -xE 'clang\+\+(-[0-9]+)?' | sort -V | head -n 1)
[ -n "$compiler" ] || { echo "skipped: there is no clang++"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# All of a layer in one unit: headers are read once. That names do not collide is tests/tidy.py's matter.
unit() {
    local layer=$1
    grep -lrE --include='*.cpp' 'MutexLock|GUARDED_BY|REQUIRES\(|const FifoLock ' "$layer" | sort | sed 's/.*/#include "&"/'
}
check() {
    "$compiler" -std=c++20 -fsyntax-only -Wno-everything -Wthread-safety -Werror=thread-safety -I . -isystem build/toolchain/include "$@"
}
n_passed=0
n_failed=0
verdict() {
    if [ "$1" -eq 0 ]; then n_passed=$((n_passed + 1)); else n_failed=$((n_failed + 1)); echo "FAILED $2"; fi
}
# planted NAME FILE TEXT: one function more, which uses what a lock guards and has no lock.
planted() {
    unit "${2%%/*}" | grep -F "\"$2\"" >"$work/planted.cpp"
    echo "$3" >>"$work/planted.cpp"
    if check "$work/planted.cpp" >"$work/log" 2>&1; then
        verdict 1 "a planted use without the lock was not found: $1"
    else
        grep -q 'Werror,-Wthread-safety' "$work/log"
        verdict $? "$1: $(head -n 3 "$work/log")"
    fi
}

if $self_test; then
    planted "a guarded member" server/engine/request_queue.cpp \
        'namespace lorad::server { struct Planted { Mutex m; int n GUARDED_BY(m) = 0; int f() { return n; } }; }'
    planted "a pool's map" adapters/pool/pool.cpp 'namespace lorad::adapters { size_t f(Pool& pool) { return pool.generations.size(); } }'
    planted "a function that needs the lock" adapters/pool/pool.cpp 'namespace lorad::adapters { void f(Pool& pool) { pool.wake_first(); } }'
    planted "a predicate that does not say what it needs" server/engine/request_queue.cpp \
        'namespace lorad::server { struct Planted { Mutex m; Condition c; int n GUARDED_BY(m) = 0; void f() { MutexLock l(m); c.wait(l, [this] { return n > 0; }); } }; }'
    planted "another mutex than the one that guards" server/engine/request_queue.cpp \
        'namespace lorad::server { struct Planted { Mutex m, o; int n GUARDED_BY(m) = 0; int f() { MutexLock l(o); return n; } }; }'
    planted "a lock that was given back" server/engine/request_queue.cpp \
        'namespace lorad::server { struct Planted { Mutex m; int n GUARDED_BY(m) = 0; int f() { MutexLock l(m); l.unlock(); return n; } }; }'
else
    for layer in adapters server; do
        unit "$layer" >"$work/$layer.cpp"
        check "$work/$layer.cpp"
        verdict $? "$layer: $(wc -l <"$work/$layer.cpp") files"
    done
fi
echo "$n_passed passed, $n_failed failed"
[ "$n_failed" -eq 0 ]
