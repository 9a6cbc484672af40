//! A machine with several users: what one has mounted is not another one's to judge or to take away.

use soda_system_tests::cell::{Cell, PATIENCE, is_mounted, prerequisites, skip, soda_binary};
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
        fs::copy(soda_binary(), &soda).unwrap();
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
