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
mkdir -p "$out/bin" "$out/lib"
for program in "${programs[@]}"; do
    [ -x "$program" ] || { echo "bundle: error: $program does not exist; build it first" >&2; exit 1; }
    strip -o "$out/bin/$(basename "$program")" "$program"
    # ldd prints "name => path (address)" and, for the loader, "path (address)".
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }'
done | sort -u | xargs -r cp -L -t "$out/lib"
# The loader passes a path relative to itself, so the folder may be moved. The machine's own folders come last, for the driver.
cat >"$out/run" <<'R'
#!/bin/sh
# run PROGRAM ARGUMENTS: starts bin/PROGRAM with the libraries beside it.
here=$(cd "$(dirname "$0")" && pwd)
program=$1
shift
for loader in "$here"/lib/ld-linux*.so*; do :; done
system=/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64:/lib64
exec "$loader" --library-path "$here/lib:${LD_LIBRARY_PATH:-}:$system" "$here/bin/$program" "$@"
R
chmod +x "$out/run"
echo "bundle: $(du -sh "$out" | cut -f1) in $out: $(ls "$out/bin" | tr '\n' ' ')"
