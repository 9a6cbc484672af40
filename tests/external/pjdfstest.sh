#!/usr/bin/env bash
# pjdfstest 0.2.2 (the Rust rewrite, from crates.io) on a directory.
#
#   pjdfstest.sh DIRECTORY [EXCLUSIONS]
#
# EXCLUSIONS (pjdfstest.exclude unless given) names, one per line with its reason, each test that may fail or be
# skipped. Anything else that fails or is skipped fails the run, and so does a listed test that passes: then its line
# must go. Where DIRECTORY is a FUSE mount of its own, the read-only tests remount it.
# SEMANTICS 31-35
. "$(dirname "$0")/lib.sh"

here=$(cd "$(dirname "$0")" && pwd)
dir=$(need_directory "$@")
exclusions=${2:-$here/pjdfstest.exclude}
binary=$(install_crate pjdfstest 0.2.2)
work=$(mktemp -d)
trap 'rm -rf "$work" "$dir/pjdfstest.tmp"' EXIT

run() {  # run LOG REMOUNT [PATTERN...]: the suite, or the tests that match
  local log=$1 config=$work/config.$2.toml
  sed "s/^allow_remount = .*/allow_remount = $2/" "$here/pjdfstest.toml" >"$config"
  # A second file system for the tests of EXDEV: shared memory.
  timeout 900 "$binary" -c "$config" -p "$dir/pjdfstest.tmp" -s /dev/shm "${@:3}" >"$log" 2>&1 || true
  grep -q '^Summary:' "$log" || { tail -20 "$log"; die "did not run to its end"; }
}

# Other users must reach it.
install -d -m 755 "$dir/pjdfstest.tmp"
run "$work/log" false

if mountpoint -q "$dir" && [[ $(findmnt -n -o FSTYPE "$dir") == fuse* ]]; then
  # The read-only tests, in a run of their own: the kernel refuses to remount while removed files are still open, and
  # the tests before leave such for a moment. `mount -o remount` would call the mount helper of the FUSE file system,
  # which means to start a second daemon: -i goes to the kernel directly, as a shut-down does.
  mkdir "$work/bin"
  printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >"$work/bin/mount"
  chmod +x "$work/bin/mount"
  PATH=$work/bin:$PATH run "$work/log.remount" true erofs
  grep -v '::erofs_.* skipped$' "$work/log" >"$work/log.rest"
  cat "$work/log.rest" "$work/log.remount" >"$work/log"
fi

awk '/ (ok|FAILED|skipped)$/ { print $NF, $1 }' "$work/log" | sort >"$work/results"
sed 's/#.*//' "$exclusions" | awk 'NF { print $1 }' | sort -u >"$work/excluded"
awk 'NF && $1 !~ /^#/ && NF < 2 { print $1; bad = 1 } END { exit bad }' "$exclusions" ||
  die "lines of $exclusions without a reason"

awk '$1 != "ok" { print $2 }' "$work/results" | sort >"$work/not-passed"
awk '$1 == "ok" { print $2 }' "$work/results" | sort >"$work/passed"
unexpected=$(comm -23 "$work/not-passed" "$work/excluded")
outdated=$(comm -12 "$work/passed" "$work/excluded")
for name in $unexpected; do
  say "not passed and not excluded: $name"
  grep -A 12 "^$name " "$work/log" | grep -vE '^ +(at |[0-9]+:)' | head -8
done
for name in $outdated; do say "passes, take it off the list: $name"; done

passed=$(wc -l <"$work/passed")
failed=$(printf '%s\n' $unexpected $outdated | grep -c . || true)
excluded=$(comm -12 "$work/not-passed" "$work/excluded" | wc -l)
echo "pjdfstest: $passed passed, $failed failed, $excluded skipped"
[ "$failed" = 0 ]
