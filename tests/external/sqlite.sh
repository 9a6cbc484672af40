#!/usr/bin/env bash
# SQLite from several mounts at once; see sqlite.py.
#
#   sqlite.sh DIRECTORY [SAME_DIRECTORY_ON_ANOTHER_MOUNT...]
# SEMANTICS 1, 26
. "$(dirname "$0")/lib.sh"
need_directory "$@" >/dev/null
install_packages python3
timeout 900 python3 "$(dirname "$0")/sqlite.py" "$@"
