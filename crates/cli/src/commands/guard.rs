//! The process beside the daemon of a mount, see [`soda_fuse::guard`]. Not on the command line: nobody else has a use for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// What the program is called by then. Who looks for programs by name, to end all of them, does not find this one with the
/// daemon: it has to come after.
const NAME: &str = "fuse-guard";

/// Starts this very program, although another may be at its path by now.
pub(crate) fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME);
    command
}

pub(crate) fn is_meant(arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|name| name == OsStr::new(NAME))
}

/// Nobody reads what it says; the daemon hears how it ended.
pub(crate) fn run() -> ExitCode {
    match soda_fuse::guard() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
