#!/usr/bin/env bash
# fsx 0.3.2 (from crates.io) on a directory: random reads, writes, mapped reads and writes, truncations, holes, copies
# of one file, each read compared with what was written.
#
#   fsx.sh DIRECTORY [SEED...]     FSX_OPERATIONS (100000) operations for each seed (FSX_SEEDS, or 1 2 3, unless given)
#                                  FSX_CONFIG (fsx.toml beside this script)
#
# The seeds run side by side, each on a file of its own.
# SEMANTICS 14, 21
. "$(dirname "$0")/lib.sh"

here=$(cd "$(dirname "$0")" && pwd)
dir=$(need_directory "$@")
shift
seeds=("$@")
[ ${#seeds[@]} -gt 0 ] || read -ra seeds <<<"${FSX_SEEDS:-1 2 3}"
operations=${FSX_OPERATIONS:-100000}
config=${FSX_CONFIG:-$here/fsx.toml}
binary=$(install_crate fsx 0.3.2)
artifacts=$(mktemp -d)
scratch "$dir"

runs=()
for seed in "${seeds[@]}"; do
  timeout 1800 "$binary" -q -N "$operations" -S "$seed" -f "$config" -P "$artifacts" "$SCRATCH/file-$seed" \
    >"$artifacts/log-$seed" 2>&1 &
  runs+=($!)
done

passed=0 failed=0
for index in "${!seeds[@]}"; do
  seed=${seeds[$index]}
  if wait "${runs[$index]}"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    tail -30 "$artifacts/log-$seed"
    say "failed; repeat with: tests/external/fsx.sh DIRECTORY $seed   (artifacts in $artifacts)"
  fi
done
[ "$failed" != 0 ] || rm -rf "$artifacts"
echo "fsx: $passed passed, $failed failed"
[ "$failed" = 0 ]
