//! What the tests need of the machine, and the program they test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a test cannot run without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prerequisite {
    Root,
    FuseDevice,
}

impl Prerequisite {
    fn missing(self) -> Option<&'static str> {
        let there = match self {
            Prerequisite::Root => rustix::process::geteuid().is_root(),
            Prerequisite::FuseDevice => Path::new("/dev/fuse").exists(),
        };
        match self {
            _ if there => None,
            Prerequisite::Root => Some("not root"),
            Prerequisite::FuseDevice => Some("no /dev/fuse"),
        }
    }
}

/// Whether tests on real mounts can run here. If not, says so.
///
/// # Panics
/// If root cannot mount, and as [`skip`].
pub fn prerequisites() -> bool {
    let is_root = Prerequisite::Root.missing().inspect(|reason| skip(reason)).is_none();
    let lacking = Prerequisite::FuseDevice.missing().filter(|_| is_root);
    assert_eq!(lacking, None, "root must be able to mount");
    is_root
}

/// Says that a test does not run here, and why: with [`skip_not_allowed`] the one place where a test may give up.
///
/// # Panics
/// If `SODA_TEST_REQUIRE` is `all`, as `scripts/test` sets it: a skipped test must not look like a passed one.
pub fn skip(reason: &str) {
    let required = std::env::var("SODA_TEST_REQUIRE").is_ok_and(|what| what == "all");
    assert!(!required, "every test must run here (SODA_TEST_REQUIRE=all), but: {reason}");
    eprintln!("SKIPPED: {reason}");
}

/// The same for what the machine does not allow, whoever runs the tests and whatever is installed.
pub fn skip_not_allowed(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// The program under test: `SODA_BIN`, or `soda` beside the test's own target directory.
///
/// # Panics
/// If there is none: a test of nothing must not pass.
pub fn soda_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("SODA_BIN") {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "SODA_BIN={} is not a file", path.display());
        return path;
    }
    // target/PROFILE/deps/this-test
    let test = std::env::current_exe().unwrap_or_default();
    let profile = test.parent().and_then(Path::parent).unwrap_or(Path::new("."));
    let path = profile.join("soda");
    assert!(path.is_file(), "{} is missing: cargo build -p soda-cli, or set SODA_BIN", path.display());
    path
}

/// Copies a program to where it will be run, by a process of its own: a thread of this one that starts another program
/// meanwhile would hand its child the descriptor that writes the copy, and Linux runs nothing that somebody writes to
/// (`ETXTBSY`, execve(2)).
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--preserve=mode").arg(from).arg(to).status();
    let is_copied = copied.as_ref().is_ok_and(std::process::ExitStatus::success);
    assert!(is_copied, "cp {} {}: {copied:?}", from.display(), to.display());
}
