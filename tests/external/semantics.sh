#!/usr/bin/env bash
# Sentences of docs/SEMANTICS.md that take only system calls; see semantics.py.
#
#   semantics.sh DIRECTORY SAME_DIRECTORY_ON_ANOTHER_MOUNT
. "$(dirname "$0")/lib.sh"
need_directory "$@" >/dev/null
install_packages python3 acl
timeout 900 python3 "$(dirname "$0")/semantics.py" "$@"
