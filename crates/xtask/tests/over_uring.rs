//! `scripts/over-uring` turns the kernel's switch on while a command runs, also where several do.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::NamedTempFile;

/// With a switch that is a file of its own.
fn over_uring(dir: &Path) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/over-uring");
    let mut command = Command::new(script);
    command.env("SODA_OVER_URING_SWITCH", dir.join("switch"));
    command.env("SODA_OVER_URING_FOUND", dir.join("found"));
    command
}

/// A command that runs until it is told to end.
struct Running {
    child: Child,
    wanted: NamedTempFile,
}

impl Running {
    fn start(dir: &Path) -> Running {
        let wanted = NamedTempFile::new_in(dir).unwrap();
        let mut command = over_uring(dir);
        command.args(["sh", "-c", "echo; while [ -e $0 ]; do sleep 0.01; done"]).arg(wanted.path());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Running { child, wanted }
    }

    fn end(self) {
        let Running { mut child, wanted } = self;
        wanted.close().unwrap();
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn the_switch_is_on_until_the_last_has_ended_and_then_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let switch = dir.path().join("switch");
    fs::write(&switch, "N\n").unwrap();
    let reads = || fs::read_to_string(&switch).unwrap();
    if over_uring(dir.path()).arg("true").status().unwrap().code() == Some(3) {
        return println!("SKIPPED: not where io_uring would not be taken, whatever the switch says");
    }
    assert_eq!(reads(), "N\n");
    let failed = over_uring(dir.path()).args(["sh", "-c", "exit 7"]).status().unwrap();
    assert_eq!((failed.code(), reads()), (Some(7), "N\n".into()));
    let (first, second) = (Running::start(dir.path()), Running::start(dir.path()));
    first.end();
    assert_eq!(reads(), "Y\n", "the other still runs");
    let third = Running::start(dir.path());
    second.end();
    assert_eq!(reads(), "Y\n", "the third still runs");
    third.end();
    assert_eq!(reads(), "N\n");
}

/// As after a kill -9: nobody has put it back.
#[test]
fn what_a_run_that_was_killed_left_on_is_put_back_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let switch = dir.path().join("switch");
    fs::write(&switch, "N\n").unwrap();
    if over_uring(dir.path()).arg("true").status().unwrap().code() == Some(3) {
        return println!("SKIPPED: not where io_uring would not be taken, whatever the switch says");
    }
    let mut killed = Running::start(dir.path());
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!(fs::read_to_string(&switch).unwrap(), "Y\n");
    assert!(over_uring(dir.path()).arg("true").status().unwrap().success());
    assert_eq!(fs::read_to_string(&switch).unwrap(), "N\n");
}
