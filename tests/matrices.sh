#!/bin/bash
# Kernels for matrix units, tested on a machine without any: the newest lavapipe has cooperative matrices. It is taken from Debian's sid,
# with its C library and the validation layer, and unpacked into build/mesa; the machine's own driver stays as it is.
#
#   tests/matrices.sh [--no-build]       f16 alone, as lavapipe's matrices have no bfloat16, and no attention on matrices, whose subgroups have 32
#
# The driver compiles for minutes where a GPU's takes a second, and keeps the result (MESA_SHADER_CACHE_DIR): about half an hour the first time. Not
# here: products that end in the activation, for one tile of which it takes more than ten minutes, and whole models.
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repo"
mesa=build/mesa
if [ "${1:-}" != --no-build ]; then
    deploy/install-deps.sh
    PATH=$PATH:${HOME:-/root}/.cargo/bin
    cmake --preset dev >/dev/null
    cmake --build --preset dev --target gpu_tests
fi

if [ ! -d "$mesa" ]; then
    . /etc/os-release
    . deploy/debian_sources.sh
    rm -rf "$mesa.partial"
    if ! unpack_from_sid "$mesa.partial" "$repo/build/mesa.log" --with-dependencies mesa-vulkan-drivers vulkan-validationlayers; then
        echo "tests/matrices.sh: error: no newer lavapipe from Debian's sid (see build/mesa.log)" >&2
        exit 1
    fi
    mv "$mesa.partial" "$mesa"
fi
only() { # FOLDER NAME: the one file of that name in it
    local found
    mapfile -t found < <(find "$1" -name "$2")
    [ ${#found[@]} = 1 ] || { echo "tests/matrices.sh: error: $1: expected one $2, found ${#found[@]}; remove $mesa to fetch it again" >&2; return 1; }
    echo "${found[0]}"
}
library=$(only "$repo/$mesa" libvulkan_lvp.so)
libraries=$(dirname "$library")
driver=$(only "$repo/$mesa/usr/share/vulkan/icd.d" 'lvp_icd*.json')
export VK_DRIVER_FILES=$driver VK_ICD_FILENAMES=$driver VK_LAYER_PATH=$repo/$mesa/usr/share/vulkan/explicit_layer.d LORAD_TEST_MATRICES=1

own=$(PATH=$PATH:/sbin ldconfig -p | awk '/libstdc\+\+.so.6/ { sub(/\/[^\/]*$/, "", $NF); print $NF; exit }')
[ -n "$own" ] || { echo "tests/matrices.sh: error: this machine's libraries are not known to ldconfig" >&2; exit 1; }
report=$(mktemp)
trap 'rm -f "$report"' EXIT
failed=0
"$libraries"/ld-linux*.so* --library-path "$libraries:$own" build/dev/tests/gpu_tests --gtest_brief=1 \
    --gtest_filter='FastMatmul.EveryRow*:FastMatmul.BatchInvariant*:LoraShrink.OnMatrices*:F16/GatedActOnMatrices.*:MatmulAdapters.*' 2>&1 |
    tee "$report" || failed=1
# Nothing here has a reason to be skipped.
if ! grep -q '^\[  PASSED  \] [1-9]' "$report" || grep -q SKIPPED "$report"; then failed=1; fi
[ $failed = 0 ] && echo "tests/matrices.sh: all passed" || echo "tests/matrices.sh: FAILED"
exit $failed
