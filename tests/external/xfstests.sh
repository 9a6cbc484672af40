#!/usr/bin/env bash
# Runs xfstests on Soda: two servers, each with a volume, one for its test directory and one for its scratch directory.
#
#   xfstests.sh DIRECTORY [ARGUMENT...]     DIRECTORY: xfstests, built; ARGUMENT: of its `check` (-g generic/quick unless given)
#
# SODA_BIN is the program (target/release/soda unless set), SODA_MOUNT_OPTIONS what the mounts get as -o. By hand only: it takes half
# an hour, makes users (fsgqa, fsgqa2), and a mount helper, which is removed at the end.
. "$(dirname "$0")/lib.sh"

here=$(cd "$(dirname "$0")" && pwd)
tests=$(need_directory "$@")
shift
[ $# -gt 0 ] || set -- -g generic/quick
[ -x "$tests/check" ] && [ -x "$tests/ltp/fsx" ] || die "$tests is not xfstests, or not built: make -C $tests"
soda=$(readlink -f "${SODA_BIN:-$here/../../target/release/soda}")
[ -x "$soda" ] || die "$soda is missing: cargo build --release -p soda-cli, or set SODA_BIN"
[ "$(id -u)" = 0 ] || die "must be root: it mounts, and switches users"
install_packages fuse3 util-linux acl attr bc quota xfsprogs psmisc
helper=/sbin/mount.fuse.soda
[ ! -e "$helper" ] || die "$helper is there already"

dir=$(mktemp -d)
chmod 755 "$dir"
mkdir "$dir/test" "$dir/scratch"
servers=()
finish() {
  local mount
  for mount in "$dir/test" "$dir/scratch"; do
    mountpoint -q "$mount" && { timeout 20 "$soda" umount "$mount" || umount -l "$mount"; }
  done
  kill "${servers[@]}" && wait "${servers[@]}" || true
  rm -rf "$dir" "$helper" "$tests/local.config"
}
trap finish EXIT

for user in fsgqa fsgqa2; do
  getent passwd "$user" >/dev/null || useradd --create-home "$user"
done
volumes=()
for number in 1 2; do
  port=$((20000 + RANDOM % 12000))
  while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
  "$soda" serve --data "$dir/data$number" --listen "127.0.0.1:$port" >"$dir/server$number.log" 2>&1 &
  servers+=($!)
  for _ in $(seq 200); do grep -q '^soda: serving' "$dir/server$number.log" && break; sleep 0.05; done
  volumes+=("127.0.0.1:$port/main")
done

# mount.fuse.soda SPEC DIRECTORY -o OPTIONS: options that every FUSE file system is given there are not Soda's to take.
cat >"$helper" <<END
#!/usr/bin/env bash
spec=\$1 directory=\$2 options=
shift 2
while getopts o:rwvn option; do [ "\$option" != o ] || options=\$OPTARG; done
options=\$(tr , '\n' <<<"\$options" | grep -vxE 'dev|suid|exec|defaults|allow_other|default_permissions' | paste -sd,)
exec "$soda" mount "\$spec" "\$directory" -o "rw\${options:+,\$options}${SODA_MOUNT_OPTIONS:+,$SODA_MOUNT_OPTIONS}"
END
chmod +x "$helper"
cat >"$tests/local.config" <<END
export FSTYP=fuse FUSE_SUBTYP=.soda
export TEST_DEV=${volumes[0]} TEST_DIR=$dir/test SCRATCH_DEV=${volumes[1]} SCRATCH_MNT=$dir/scratch
export MOUNT_OPTIONS= TEST_FS_MOUNT_OPTS=
END
# df says fuse.soda, and it looks for fuse.
grep -q 'fuse\\.soda' "$tests/common/rc" ||
  sed -i "s#-e 's/fuse.glusterfs/glusterfs/'#-e 's/fuse.glusterfs/glusterfs/' -e 's/fuse\\\\.soda/fuse/'#" "$tests/common/rc"
grep -v '^#' "$here/xfstests.exclude" >"$dir/exclude"
cd "$tests"
./check -E "$dir/exclude" "$@"
