# Functions for scripts that take packages from another release of Debian than the machine's; to be sourced.

debian_keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# Where this machine gets packages of its release from, or nothing.
debian_mirror() {
    apt-get indextargets --format '$(REPO_URI)|$(RELEASE)|$(COMPONENT)' 'Created-By: Packages' |
        awk -F'|' -v r="$VERSION_CODENAME" '$2 == r && $3 == "main" { print $1; exit }'
}

# unpack_from_sid FOLDER LOG [--with-dependencies] PACKAGE...: into FOLDER, which need not be there. A private apt with own sources, lists, cache
# and an empty package state: nothing here touches the installed system.
unpack_from_sid() (
    folder=$1 log=$2 all=false
    shift 2
    [ "$1" != --with-dependencies ] || { all=true; shift; }
    packages=("$@")
    mirror=$(debian_mirror)
    [ -n "$mirror" ] && [ -r "$debian_keyring" ] || exit 1
    private=$(mktemp -d) || exit 1
    trap 'rm -rf "$private"' EXIT
    mkdir -p "$private"/{lists/partial,cache/archives/partial,deb} "$folder" || exit 1
    echo "deb [signed-by=$debian_keyring] $mirror sid main" >"$private/sources.list"
    opts=(-o "Dir::Etc::sourcelist=$private/sources.list" -o Dir::Etc::sourceparts=/nonexistent
          -o "Dir::State::lists=$private/lists" -o "Dir::Cache=$private/cache"
          -o Dir::State::status=/dev/null -o APT::Sandbox::User=root)
    apt-get "${opts[@]}" -q update >>"$log" 2>&1 || exit 1
    if $all; then
        mapfile -t packages < <(apt-get "${opts[@]}" -q --simulate --no-install-recommends install "${packages[@]}" 2>>"$log" | awk '$1 == "Inst" { print $2 }')
        [ ${#packages[@]} -gt 0 ] || exit 1
    fi
    (cd "$private/deb" && apt-get "${opts[@]}" -q download "${packages[@]}") >>"$log" 2>&1 || exit 1
    for deb in "$private"/deb/*.deb; do dpkg -x "$deb" "$folder" || exit 1; done
)
