#!/usr/bin/env bash
# Runs external suites on Soda: a server on a temporary directory and two mounts of its volume.
#
#   on_soda.sh [SUITE...]     pjdfstest fsx git openssh sqlite semantics (all, unless some are named)
#
# SODA_BIN is the program (target/debug/soda unless set), SODA_MOUNT_OPTIONS what the mounts get as -o. Prints one line for each suite and a total.
. "$(dirname "$0")/lib.sh"

here=$(cd "$(dirname "$0")" && pwd)
soda=${SODA_BIN:-$here/../../target/debug/soda}
[ -x "$soda" ] || die "$soda is missing: cargo build -p soda-cli, or set SODA_BIN"
[ "$(id -u)" = 0 ] || die "must be root: pjdfstest switches users, mounting needs it"
install_packages fuse3 util-linux
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(pjdfstest fsx git openssh sqlite semantics)

dir=$(mktemp -d)
chmod 755 "$dir"
mkdir "$dir/one" "$dir/two"
server=
finish() {
  local mount
  for mount in "$dir/one" "$dir/two"; do
    mountpoint -q "$mount" && { timeout 20 "$soda" umount "$mount" || umount -l "$mount"; }
  done
  [ -z "$server" ] || { kill "$server" && wait "$server"; } || true
  rm -rf "$dir"
}
trap finish EXIT

# Below the ports that connections get by themselves.
port=$((20000 + RANDOM % 12000))
while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
"$soda" serve --data "$dir/data" --listen "127.0.0.1:$port" >"$dir/server.log" 2>&1 &
server=$!
for _ in $(seq 1200); do
  grep -q '^soda: serving' "$dir/server.log" && break
  kill -0 "$server" 2>/dev/null || { cat "$dir/server.log"; die "the server ended"; }
  sleep 0.05
done
for mount in "$dir/one" "$dir/two"; do
  timeout 30 "$soda" mount "127.0.0.1:$port/main" "$mount" -o "${SODA_MOUNT_OPTIONS:-rw}" || { tail -n 20 "$dir/server.log"; die "mount failed"; }
done

passed=0 failed=0
for suite in "${suites[@]}"; do
  start=$SECONDS
  directories=("$dir/one")
  case "$suite" in sqlite | semantics) directories+=("$dir/two") ;; esac
  if "$here/$suite.sh" "${directories[@]}"; then
    passed=$((passed + 1))
    say "$suite: ok, $((SECONDS - start)) s"
  else
    failed=$((failed + 1))
    say "$suite: FAILED, $((SECONDS - start)) s; the server's last words:"
    tail -n 5 "$dir/server.log"
  fi
  kill -0 "$server" 2>/dev/null || die "the server died during $suite"
  mountpoint -q "$dir/one" && timeout 10 stat "$dir/one" >/dev/null || die "the mount died during $suite"
done

# What they all left behind: every process ends in order, and the volume is sound.
sound() {
  local mount
  for mount in "$dir/one" "$dir/two"; do timeout 60 "$soda" umount "$mount" || return; done
  kill "$server"
  wait "$server" || return
  server=
  timeout 300 "$soda" fsck "$dir/data"
}
if sound >"$dir/fsck.log" 2>&1; then
  passed=$((passed + 1))
  say "fsck: ok"
else
  failed=$((failed + 1))
  say "fsck: FAILED"
  tail -n 20 "$dir/fsck.log" "$dir/server.log"
fi
echo "external suites: $passed passed, $failed failed"
[ "$failed" = 0 ]
