//! Processes that call into the mount, so that the kernel has a request for its daemon. For a thread of the daemon this would
//! be a trap: while it waits in the kernel for an answer of its own process no signal ends it, and so nothing ends the process.
//!
//! They are of the daemon's own program ([`super::MountConfig::visitor`]): what else a machine has is not known.

use rustix::fs::{AtFlags, CWD, statat, statfs};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How to start one ([`super::MountConfig::visitor`]).
pub(super) type Program = Option<fn() -> Command>;

/// How long a name may take to be looked up.
const LOOK_UP: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);
/// What a visitor is told to ask for.
const SPACE: &str = "space";
const NAME: &str = "name";

/// A process that asks for something of the mount, and is killed when nobody wants that any more.
#[derive(Debug)]
pub(super) struct Visitor(Option<Child>);

impl Visitor {
    /// Asks for the mount's free space.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn ask_for_space(program: Program, dir: &Path) -> io::Result<Visitor> {
        Visitor::start(program, SPACE, dir)
    }

    fn start(program: Program, what: &str, path: &Path) -> io::Result<Visitor> {
        let program = program.ok_or(io::ErrorKind::Unsupported)?;
        let mut command = program();
        command.args([OsStr::new(what), path.as_os_str()]).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Visitor(Some(command.spawn()?)))
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.0.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            // It may wait for an answer that comes from the next process.
            std::thread::spawn(move || child.wait());
        }
    }
}

/// Another process looks up a name on the mount; not waited for longer than [`LOOK_UP`].
pub(super) fn look_up(program: Program, dir: &Path, name: &str) {
    match Visitor::start(program, NAME, &dir.join(name)) {
        Ok(mut looking) => {
            let deadline = Instant::now() + LOOK_UP;
            while !looking.has_ended() && Instant::now() < deadline {
                std::thread::sleep(LOOK);
            }
        }
        Err(error) => tracing::warn!(%error, "nobody can be sent to look up a name"),
    }
}

/// All that the process does which [`super::MountConfig::visitor`] starts, with the arguments that this was given there.
///
/// # Errors
/// Those of what was asked for.
pub fn visit(arguments: &[OsString]) -> io::Result<()> {
    match arguments {
        [what, path] if what == SPACE => Ok(statfs(path).map(|_| ())?),
        [what, path] if what == NAME => Ok(statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(|_| ())?),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
