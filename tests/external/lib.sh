# Shared by the external suites: where things are kept, how packages and Debian sources are had. Sourced, not run.

set -euo pipefail

# What is built once and used by every run (binaries of suites, unpacked sources). Never inside the tree under test.
SODA_EXTERNAL_CACHE=${SODA_EXTERNAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/soda-external}
mkdir -p "$SODA_EXTERNAL_CACHE"

say() { printf '%s: %s\n' "${0##*/}" "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# need_directory DIR: the tree under test; prints it as an absolute path.
need_directory() {
  [ $# -ge 1 ] && [ -d "$1" ] || die "usage: ${0##*/} DIRECTORY   (on the file system to be tested)"
  (cd "$1" && pwd -P)
}

# install_packages PACKAGE...: those of Debian's that are missing.
install_packages() { "${BASH_SOURCE[0]%/*}/../../scripts/needs" "$@" >&2; }

# install_crate NAME VERSION: builds it from crates.io unless it is in the cache; prints the path of its binary.
install_crate() {
  local root="$SODA_EXTERNAL_CACHE/$1-$2"
  if [ ! -x "$root/bin/$1" ]; then
    CARGO_TARGET_DIR="$SODA_EXTERNAL_CACHE/target" cargo install -q --locked --root "$root" "$1" --version "=$2" >&2
  fi
  printf '%s\n' "$root/bin/$1"
}

# debian_source PACKAGE: downloads its source with apt, from the machine's own mirrors but without touching its
# configuration; prints the directory with the .dsc and its archives.
debian_source() {
  local dir="$SODA_EXTERNAL_CACHE/source/$1" config
  if ! ls "$dir"/*.dsc >/dev/null 2>&1; then
    install_packages dpkg-dev >&2
    config=$(mktemp -d)
    mkdir -p "$config/parts" "$config/lists/partial" "$dir"
    # apt's two formats of a list: deb822 (*.sources) and one line each (*.list). Only the distribution's own
    # (other vendors' repositories often have no sources).
    local file
    for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
      [ -f "$file" ] || continue
      case "$file" in
        *.sources) sed 's/^Types:.*/Types: deb-src/' "$file" >"$config/parts/source.sources" ;;
        *) sed -n 's/^deb /deb-src /p' "$file" >"$config/parts/source.list" ;;
      esac
    done
    # The download is done by a user who must be able to write here.
    chmod -R a+rX "$config"
    local options=(-o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$config/parts"
                   -o "Dir::State::lists=$config/lists" -o "APT::Sandbox::User=root")
    apt-get "${options[@]}" update -qq >&2
    (cd "$dir" && apt-get "${options[@]}" source -qq --download-only "$1") >&2
    rm -rf "$config"
  fi
  printf '%s\n' "$dir"
}

# scratch DIRECTORY: a new empty directory in it, removed when the script ends.
scratch() {
  SCRATCH=$(mktemp -d "$1/external.XXXXXX")
  trap 'cd /; rm -rf "$SCRATCH"' EXIT
}
