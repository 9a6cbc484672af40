#!/usr/bin/env bash
# Real software is built on a directory: Debian's source of openssh is unpacked, configured and made there, and what
# was made runs.
#
#   openssh.sh DIRECTORY
. "$(dirname "$0")/lib.sh"

dir=$(need_directory "$@")
install_packages gcc make libc6-dev zlib1g-dev libssl-dev
source=$(debian_source openssh)
scratch "$dir"
cd "$SCRATCH"
log=$(mktemp)

step() {  # step NAME COMMAND...: with its time; its output only when it fails
  local name=$1 start=$SECONDS
  shift
  "$@" >"$log" 2>&1 || { tail -30 "$log"; die "$name failed"; }
  say "$name: $((SECONDS - start)) s"
}

step unpack tar xf "$source"/openssh_*.orig.tar.gz --no-same-owner
cd openssh-*
step configure ./configure CFLAGS=-O0 --without-hardening --without-stackprotect --without-pam --without-selinux \
  --disable-pkcs11 --disable-security-key --prefix="$SCRATCH/installed"
step make make -j2 ssh ssh-keygen sftp sftp-server scp
step version ./ssh -V
step keygen ./ssh-keygen -q -t ed25519 -N '' -f "$SCRATCH/key"
echo signed >"$SCRATCH/text"
step sign ./ssh-keygen -Y sign -n file -f "$SCRATCH/key" "$SCRATCH/text"
step verify sh -c "./ssh-keygen -Y check-novalidate -n file -s '$SCRATCH/text.sig' <'$SCRATCH/text'"
# Nothing that was made is older than what it was made of.
step 'make again' make -j2 ssh
! grep -E '^(cc|gcc) ' "$log" || die "make builds again what was built: time stamps are wrong"
rm -f "$log"
echo "openssh: 1 passed, 0 failed"
