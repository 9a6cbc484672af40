//! Processes beside the daemon of a mount, see [`soda_fuse::guard`] and [`soda_fuse::visit`]. Not on the command line: nobody
//! else has a use for them.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// What the program is called by then. Who looks for programs by name, to end all of them, does not find the guard with the
/// daemon: it has to come after.
const GUARD: &str = "fuse-guard";
const VISITOR: &str = "fuse-visitor";

pub(crate) fn guard() -> Command {
    this_program_as(GUARD)
}

pub(crate) fn visitor() -> Command {
    this_program_as(VISITOR)
}

/// Starts this very program, although another may be at its path by now.
fn this_program_as(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name);
    command
}

/// `None`: the program was started as any. Nobody reads what these say; the daemon hears how they ended.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let (name, arguments) = arguments.split_first()?;
    let done = match name {
        name if name == OsStr::new(GUARD) => soda_fuse::guard(),
        name if name == OsStr::new(VISITOR) => soda_fuse::visit(arguments),
        _ => return None,
    };
    Some(done.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}
