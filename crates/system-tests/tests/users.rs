//! A machine with several users: what one has mounted is not another one's to judge or to take away.

use rustix::process::{Resource, getrlimit};
use soda_system_tests::cell::{
    Cell, Network, PATIENCE, copy_program, is_mounted, prerequisites, skip, skip_not_allowed, soda_binary,
    transport,
};
use soda_system_tests::wait::{self, Finish};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const NOBODY: u32 = 65534;

/// A directory of nobody's, with the program in it: where it was built others may not be let in.
struct Home {
    dir: TempDir,
    soda: PathBuf,
}

impl Home {
    fn new() -> Home {
        let dir = tempfile::tempdir().unwrap();
        let soda = dir.path().join("soda");
        copy_program(&soda_binary(), &soda);
        for path in [dir.path(), &soda] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        Home { dir, soda }
    }

    fn runtime(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.soda);
        command.args(arguments).env("SODA_RUNTIME_DIR", self.runtime()).uid(NOBODY).gid(NOBODY);
        finished(&mut command)
    }
}

fn finished(command: &mut Command) -> Output {
    let Finish::Exited(output) = wait::run(command, PATIENCE) else { panic!("{command:?} hangs") };
    output
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_mount_of_root_is_no_concern_of_others() {
    if !prerequisites() {
        return;
    }
    let (cell, home) = (Cell::unhurried(1), Home::new());
    let root = cell.root(0);
    root.ancestors().skip(1).take_while(|dir| dir.starts_with(cell.scratch())).for_each(open_to_all);
    let dir = root.to_str().unwrap();

    let doctor = home.run(&["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let is_of_mount = |finding: &&serde_json::Value| finding["found"].as_str().unwrap().contains(dir);
    let finding = findings.as_array().unwrap().iter().find(is_of_mount).expect("it is listed");
    assert_eq!(finding["verdict"], "good");
    assert!(finding["found"].as_str().unwrap().ends_with("belongs to root, not looked at"), "{finding}");

    for option in [None, Some("--lazy"), Some("--force")] {
        let arguments: Vec<&str> = ["umount", dir].into_iter().chain(option).collect();
        let refused = home.run(&arguments);
        let message = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{message}");
        assert!(message.contains("it belongs to root; only root can unmount it"), "{message}");
        assert!(message.contains(&format!("sudo soda umount {dir}")), "{message}");
        assert!(is_mounted(root));
    }
}

/// Who may not have a thread come back from SCHED_IDLE gets /dev/fuse (`transport=auto`), and hears what to do.
#[test]
fn doctor_judges_the_daemon_of_who_asks() {
    if !prerequisites() {
        return;
    }
    let home = Home::new();
    let of_io_uring = |output: Output| -> serde_json::Value {
        let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = findings.as_array().unwrap();
        all.iter().find(|finding| finding["what"] == "io_uring").expect("it is judged").clone()
    };
    let says = |finding: &serde_json::Value, part: &str, words: &str| {
        finding[part].as_str().unwrap().contains(words)
    };
    let mut as_root = Command::new(&home.soda);
    as_root.args(["doctor", "--json"]).env("SODA_RUNTIME_DIR", home.runtime());
    let root = of_io_uring(finished(&mut as_root));
    // What nobody can mend is all that is said; and a limit of nice does for everybody.
    if says(&root, "found", "/dev/fuse") && root["verdict"] == "good"
        || getrlimit(Resource::Nice).current.is_none_or(|limit| limit >= 20)
    {
        return println!("the same for everybody here: {root}");
    }
    let nobody = of_io_uring(home.run(&["doctor", "--json"]));
    assert!(says(&nobody, "found", "no way back from SCHED_IDLE"), "{nobody}");
    assert!(says(&nobody, "advice", "LimitNICE=+0") && nobody["verdict"] == "fair", "{nobody}");
    let is_off = |finding| says(finding, "advice", "echo Y > /sys/module/fuse");
    assert_eq!(is_off(&nobody), is_off(&root), "{nobody} {root}");
}

/// In a namespace where the device is open to all, as it is on most machines.
#[test]
fn the_kernel_shows_noatime_for_mounts_of_every_user() {
    if !prerequisites() {
        return;
    }
    if Command::new("fusermount3").arg("--version").output().is_err() {
        return skip("no fusermount3");
    }
    let (cell, home) = (Cell::unhurried(0), Home::new());
    let script = "set -e; mknod \"$HERE/fuse\" c 10 229; chmod 666 \"$HERE/fuse\"; mount --bind \"$HERE/fuse\" /dev/fuse\n\
        mkdir \"$HERE/mount\"; chown 65534 \"$HERE/mount\"\n\
        as() { setpriv --reuid=65534 --regid=65534 --clear-groups \"$HERE/soda\" \"$@\"; }\n\
        as mount \"$SPEC\" \"$HERE/mount\"; grep \" $HERE/mount \" /proc/self/mountinfo; as umount \"$HERE/mount\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).env("SODA_RUNTIME_DIR", home.runtime());
    command.env("HERE", home.dir.path()).env("SPEC", format!("{}/main", cell.server.address()));
    let output = finished(&mut command);
    let line = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(line.contains("noatime") && !line.contains("relatime"), "{line}");
    assert!(line.contains("user_id=65534"), "{line}");
}

/// What users do on two mounts of their own, with the death of a daemon: run as one of them, with `HERE`, which is theirs, and
/// `SPEC`, over `TRANSPORT` (by which the first to call after a death may hear of another error than ENOTCONN). The daemons end
/// with the script, whose PID namespace ends.
const WORK: &str = r#"set -eu
cd "$HERE"; mkdir one two tmp; export TMPDIR="$HERE/tmp"
soda() { "$HERE/soda" "$@"; }
start() {
    "$HERE/soda" mount "$SPEC" "$HERE/$1" -o "transport=$TRANSPORT" --foreground >>"$HERE/$1.log" 2>&1 & pid=$!
    until grep -q " $HERE/$1 " /proc/self/mountinfo; do kill -0 $pid; sleep 0.05; done
}
is() { [ "$1" = "$2" ] || { echo "$1, not $2"; exit 1; }; }
start two; start one; daemon=$pid
cd "$HERE/one/home"; other="$HERE/two/home"
echo first >file; mkdir dir; mv file dir/moved; ln dir/moved link; ln -s dir/moved symlink; chmod 640 link
is "$(cat "$other/dir/moved")" first; is "$(stat -c %a:%h "$other/symlink" -L)" 640:2
echo second >>"$other/link"
is "$(tail -n1 dir/moved)" second
mv "$other/dir/moved" "$other/dir/there"
is "$(ls dir)" there; is "$(tail -n1 symlink 2>&1 | grep -c such)" 1
head -c 3000000 /dev/urandom >big; cmp big "$other/big"; truncate -s 1000000 "$other/big"; is "$(wc -c <big)" 1000000
mkfifo fifo; touch gone; rm "$other/gone"; is "$(ls)" "$(printf 'big\ndir\nfifo\nlink\nsymlink')"
flock link sh -c "! flock -n '$other/link' true"; flock -n "$other/link" true
soda status | grep -q "$HERE/one "
soda status --json | grep -q "\"transport\": *\"$TRANSPORT\""
count() { soda status --json | grep -o "\"kernel_$1\": *[0-9]*" | head -n1 | tr -dc 0-9; }
is "$(count descriptors)" "$(count readers)"
soda stats "$HERE/one" --once >/dev/null; soda sync "$HERE/one" >/dev/null
kill -9 $daemon; wait $daemon || true
cd "$HERE"; until ls one/home 2>&1 | grep -q 'not connected'; do sleep 0.05; done
soda umount "$HERE/one"; is "$(grep -c " $HERE/one " /proc/self/mountinfo)" 0
is "$(cat "$other/link")" "$(printf 'first\nsecond')"
start one; rm -r one/home/*; is "$(ls "$other")" ""
soda umount "$HERE/one"; soda umount "$HERE/two"; wait; is "$(grep -c " $HERE/\(one\|two\) " /proc/self/mountinfo)" 0
echo "runtime: $(ls tmp)"
"#;

/// Runs [`WORK`] as nobody, where the device is open to all, as it is on most machines. With `enter` in front, which makes it the
/// user `inside` of a namespace: that is what the volume is told.
fn work_as_nobody(enter: &str, inside: u32) -> String {
    let (cell, home) = (Cell::start(Network::Loopback, 1), Home::new());
    let theirs = cell.root(0).join("home");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(inside), Some(inside)).unwrap();
    let script = format!(
        "set -e; mknod \"$HERE/fuse\" c 10 229; chmod 666 \"$HERE/fuse\"; mount --bind \"$HERE/fuse\" /dev/fuse\n\
        exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {enter} sh -c \"$WORK\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]);
    command.env_remove("SODA_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR").env("WORK", WORK);
    command.env("HERE", home.dir.path()).env("SPEC", format!("{}/main", cell.server.address()));
    command.env("TRANSPORT", transport());
    let output = wait::run(&mut command, PATIENCE * 3).output("what an ordinary user does");
    let log = |name: &str| fs::read_to_string(home.dir.path().join(name)).unwrap_or_default();
    assert!(output.status.success(), "{output:?}\none: {}\ntwo: {}", log("one.log"), log("two.log"));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn two_mounts_of_an_ordinary_user_are_one_copy_too() {
    if !prerequisites() {
        return;
    }
    if Command::new("fusermount3").arg("--version").output().is_err() {
        return skip("no fusermount3");
    }
    assert_eq!(work_as_nobody("", NOBODY), format!("runtime: soda-{NOBODY}\n"));
}

/// Root there is nobody outside: /run is not theirs.
#[test]
fn who_is_root_in_a_user_namespace_mounts_there() {
    const ENTER: &str = "unshare --user --map-root-user --mount";
    if !prerequisites() {
        return;
    }
    let mut allowed = Command::new("setpriv");
    allowed.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(ENTER.split(' ')).arg("true");
    if !finished(&mut allowed).status.success() {
        return skip_not_allowed("users may not make user namespaces");
    }
    assert_eq!(work_as_nobody(ENTER, 0), format!("runtime: soda-{NOBODY}\n"));
}
