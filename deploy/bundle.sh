#!/bin/bash
# Packs built programs with every library they load into a folder that runs on another Linux machine of the same processor, however
# old or new its C library is; only the GPU's driver comes from there.
#
#   deploy/bundle.sh FOLDER [PROGRAM ...]      PROGRAM defaults to build/release/lorad
#
# Then, on the other machine: FOLDER/run lorad serve ...
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${1:?usage: deploy/bundle.sh FOLDER [PROGRAM ...]}
shift
programs=("$@")
[ ${#programs[@]} -gt 0 ] || programs=("$repo/build/release/lorad")

rm -rf "$out/bin" "$out/lib" "$out/run"
mkdir -p "$out/bin" "$out/lib/c"
for program in "${programs[@]}"; do
    [ -x "$program" ] || { echo "bundle: error: $program does not exist; build it first" >&2; exit 1; }
    strip -o "$out/bin/$(basename "$program")" "$program"
    # ldd prints "name => path (address)" and, for the loader, "path (address)".
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }'
done | sort -u | xargs -r cp -L -t "$out/lib"
# The C library stands apart: the machine's own is used where it is as new, because drivers there may need it.
for part in ld-linux libc. libm. libmvec. libpthread. libdl. librt. libresolv.; do
    find "$out/lib" -maxdepth 1 -name "$part*" -exec mv -t "$out/lib/c" {} +
done
getconf GNU_LIBC_VERSION | sed 's/.* //' >"$out/lib/c/version"
# All paths are relative to this folder, so it may be moved. The machine's own folders come last, for the driver.
cat >"$out/run" <<'R'
#!/bin/sh
# run PROGRAM ARGUMENTS: starts bin/PROGRAM with the libraries beside it.
here=$(cd "$(dirname "$0")" && pwd)
program=$1
shift
own=$(cat "$here/lib/c/version")
machine=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //')
if [ -n "$machine" ] && [ "$(printf '%s\n%s\n' "$own" "$machine" | sort -V | tail -1)" = "$machine" ]; then
    LD_LIBRARY_PATH="$here/lib:${LD_LIBRARY_PATH:-}" exec "$here/bin/$program" "$@"
fi
for loader in "$here"/lib/c/ld-linux*.so*; do :; done
system=/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64:/lib64
exec "$loader" --library-path "$here/lib:$here/lib/c:${LD_LIBRARY_PATH:-}:$system" "$here/bin/$program" "$@"
R
chmod +x "$out/run"
echo "bundle: $(du -sh "$out" | cut -f1) in $out: $(ls "$out/bin" | tr '\n' ' ')"
