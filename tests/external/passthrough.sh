#!/usr/bin/env bash
# A FUSE pass-through of a local directory: what FUSE costs and does without Soda. Baseline of the benchmarks, and
# the proof that a failure of an external suite is Soda's.
#
#   passthrough.sh build              builds libfuse's example from Debian's source; prints the binary's path
#   passthrough.sh mount SOURCE DIR   mounts SOURCE at DIR (returns when usable)
#   passthrough.sh umount DIR
. "$(dirname "$0")/lib.sh"

build() {
  local binary="$SODA_EXTERNAL_CACHE/passthrough_hp" source work
  if [ ! -x "$binary" ]; then
    install_packages fuse3 libfuse3-dev pkg-config g++ >&2
    source=$(debian_source fuse3)
    work=$(mktemp -d)
    (cd "$work" && dpkg-source --no-check -x "$source"/*.dsc src >/dev/null)
    # As on Soda's mounts every user may use it (pjdfstest and git daemons switch users).
    sed -i 's/default_permissions,fsname/allow_other,default_permissions,fsname/' "$work/src/example/passthrough_hp.cc"
    # Two features that the package's own build finds out by configuring.
    # shellcheck disable=SC2046
    g++ -O2 -std=c++17 -DHAVE_UTIMENSAT -DHAVE_COPY_FILE_RANGE -D_FILE_OFFSET_BITS=64 -o "$binary.new" \
      "$work/src/example/passthrough_hp.cc" $(pkg-config --cflags --libs fuse3) -lpthread
    mv "$binary.new" "$binary"
    rm -rf "$work"
  fi
  printf '%s\n' "$binary"
}

case "${1-}" in
  build) build ;;
  mount)
    [ $# = 3 ] || die "usage: ${0##*/} mount SOURCE DIR"
    binary=$(build)
    "$binary" "$2" "$3" </dev/null >/dev/null 2>&1
    mountpoint -q "$3" || die "$3 is not mounted" ;;
  umount) fusermount3 -u "$2" ;;
  *) die "usage: ${0##*/} build | mount SOURCE DIR | umount DIR" ;;
esac
